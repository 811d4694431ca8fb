#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "bench/train/rank_group.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::bench {

// Steps of one policy on several ranks, each of which is a thread with its own device.
struct RankSteps {
  int32_t world = 2;
  // The options of rank `rank`, without its communicator.
  std::function<trainer::PolicyTrainer::Options(int32_t rank)> options;
  std::vector<const TrajectoryGroup*> batch;  // of all ranks together
  double warm_seconds = 8;
  int steps = 12;
};

// Medians, in milliseconds, of rank 0, which waits for the others in each step. "ms": one step; "device_ms" and
// "optimizer_ms": its parts on the device. "silent_ms": the same step when the ranks exchange nothing and each goes on
// with its own data, which is the time that a step would take if all communication were hidden; "exposed_share": 1 -
// silent_ms / ms. "digest_ms": the digest of all ranks' weights, which a run makes after each step.
absl::StatusOr<nlohmann::json> MeasureRankSteps(const RankSteps& asked, const RankFactory& make_ranks);

}  // namespace syncopate::bench
