#include "bench/train/state_arenas.h"
#include "trainer/cuda/cuda_state_arena.h"

namespace syncopate::bench {

trainer::StateArenaFactory StateArenasOn(at::Device device) {
  return device.is_cpu() ? trainer::MakeHostStateArena : trainer::CudaStateArenas(device.index());
}

}  // namespace syncopate::bench
