#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "ranks/communicator.h"

namespace syncopate::bench {

// Makes the end of one rank, on the thread that it is for; waits until all have come.
using RankFactory = std::function<absl::StatusOr<std::unique_ptr<Communicator>>(int32_t rank)>;

// For ranks that are threads of this process: on GPUs 0, 1, .. one each, or on host memory. Which GPUs a binary knows is
// decided by linking: FAILED_PRECONDITION (reason NO_CUDA).
absl::StatusOr<RankFactory> MakeRankFactory(int32_t world, bool on_gpus);

}  // namespace syncopate::bench
