#pragma once

#include <ATen/ATen.h>

#include "trainer/memory/state_arena.h"

namespace syncopate::bench {

// Memory for a policy's state on `device`, which can leave it: of the CPU, or with state_arenas_cuda.cc of GPUs too. Which
// one a binary has is decided when it is linked.
trainer::StateArenaFactory StateArenasOn(at::Device device);

}  // namespace syncopate::bench
