#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ranks/communicator.h"
#include "ranks/thread_ranks.h"

namespace syncopate::bench {

// Makes the communicator of one rank, on that rank's thread; waits until all ranks have come.
using RankFactory = std::function<absl::StatusOr<std::unique_ptr<Communicator>>(int32_t rank)>;

// A factory for ranks that are threads of this process: on GPUs 0, 1, ... one each, or on host memory. The linked
// library decides whether a binary supports GPUs: FAILED_PRECONDITION (reason NO_CUDA).
absl::StatusOr<RankFactory> MakeRankFactory(int32_t world, bool on_gpus);

// A factory for ranks on threads; each rank may call it once.
inline RankFactory ThreadRankFactory(int32_t world) {
  auto ranks = std::make_shared<std::vector<std::unique_ptr<Communicator>>>(MakeThreadRanks(world, absl::Minutes(10)));
  return [ranks](int32_t rank) -> absl::StatusOr<std::unique_ptr<Communicator>> {
    return std::move((*ranks)[static_cast<size_t>(rank)]);
  };
}

}  // namespace syncopate::bench
