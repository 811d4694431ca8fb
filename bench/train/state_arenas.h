#pragma once

#include <ATen/ATen.h>

#include "trainer/memory/state_arena.h"

namespace syncopate::bench {

// Memory for a policy's state on `device`, which the state can leave: on the CPU, or with state_arenas_cuda.cc also on
// GPUs. The linked file decides which one a binary has.
trainer::StateArenaFactory StateArenasOn(at::Device device);

}  // namespace syncopate::bench
