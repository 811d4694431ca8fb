#include "bench/train/state_arenas.h"

namespace syncopate::bench {

trainer::StateArenaFactory StateArenasOn(at::Device) { return trainer::MakeHostStateArena; }

}  // namespace syncopate::bench
