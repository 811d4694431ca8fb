#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "ranks/communicator.h"

namespace syncopate {

// Makes `world` ranks, in rank order, one for each of `world` threads of this process. The thread that makes a call
// last does the work of all. When a rank is destroyed, the others get RANK_LOST.
std::vector<std::unique_ptr<Communicator>> MakeThreadRanks(int32_t world, absl::Duration deadline);

}  // namespace syncopate
