#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "bench/train/rank_group.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::bench {

// Steps of one policy on several ranks, each a thread with a device of its own.
struct RankSteps {
  int32_t world = 2;
  // Of rank `rank`, but for its communicator.
  std::function<trainer::PolicyTrainer::Options(int32_t rank)> options;
  std::vector<const TrajectoryGroup*> batch;  // of all ranks together
  double warm_seconds = 8;
  int steps = 12;
};

// Medians, in milliseconds, of rank 0, which waits for the others in each step: "ms" of a step; "device_ms" and
// "optimizer_ms" of it on the device; "silent_ms": of the same steps when the ranks exchange nothing and each goes on with
// what it has, which is what they would take if all that moves were hidden; "exposed_share": 1 - silent / ms; "digest_ms":
// of the digest of all ranks' weights, which a run makes after each step.
absl::StatusOr<nlohmann::json> MeasureRankSteps(const RankSteps& asked, const RankFactory& make_ranks);

}  // namespace syncopate::bench
