#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bench/train/rank_group.h"
#include "ranks/thread_ranks.h"

namespace syncopate::bench {

// A factory for ranks on threads; each rank may call it once.
inline RankFactory ThreadRankFactory(int32_t world) {
  auto ranks = std::make_shared<std::vector<std::unique_ptr<Communicator>>>(MakeThreadRanks(world, absl::Minutes(10)));
  return [ranks](int32_t rank) -> absl::StatusOr<std::unique_ptr<Communicator>> {
    return std::move((*ranks)[static_cast<size_t>(rank)]);
  };
}

}  // namespace syncopate::bench
