#pragma once

#include "trainer/memory/state_arena.h"

namespace syncopate::trainer {

// Memory of GPU `device` that is given back while it is offloaded, and page-locked host memory for its copy, which is
// taken when it is offloaded first and kept. Copies run on the default stream; what is queued there is waited for.
StateArenaFactory CudaStateArenas(int device);

}  // namespace syncopate::trainer
