#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "ranks/communicator.h"

namespace syncopate {

// `world` ranks that are threads of this process, in rank order: each is for one thread. Whoever makes a call last does
// the work of all. A rank that is destroyed is lost to the others.
std::vector<std::unique_ptr<Communicator>> MakeThreadRanks(int32_t world, absl::Duration deadline);

}  // namespace syncopate
