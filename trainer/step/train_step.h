#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/trajectory.h"
#include "trainer/actor/actor.h"
#include "trainer/actor/rank_group.h"
#include "trainer/step/options.h"
#include "trainer/step/packed_batch.h"

namespace syncopate::trainer {

// One training step on complete groups: GRPO advantages, decoupled PPO, token-mean over global counts, AdamW. The
// result is a pure function of actor, groups and options: same bits for the same order of groups.
class TrainStep {
 public:
  // `actor` and `ranks` must outlive this object; `options` must be valid.
  TrainStep(Actor& actor, RankGroup& ranks, const TrainStepOptions& options)
      : actor_(actor), ranks_(ranks), options_(options) {}

  // `groups` in training order, not empty. An update whose advantages are all 0, on all ranks, is not made: its metrics
  // are measured, and weights, moments and the number of updates stand still. Errors leave the actor as it was before
  // the failing update.
  absl::StatusOr<TrainStepMetrics> Run(const std::vector<const TrajectoryGroup*>& groups);

  // Log-probabilities of the answers under the current weights, token by token in packed order; no gradient.
  at::Tensor LogProbs(const PackedBatch& batch) const;

 private:
  struct Forward {
    at::Tensor logprobs;  // [A], with gradient unless disabled
    at::Tensor entropy;   // [A], detached
  };
  // Of one update, over all ranks.
  struct Extent {
    double tokens = 0;
    double with_signal = 0;  // sequences whose advantage is not 0
  };
  absl::StatusOr<Extent> MeasureExtent(const std::vector<TrainingSequence>& sequences) const;
  Forward RunForward(const PackedBatch& batch) const;
  absl::Status RunUpdate(const std::vector<TrainingSequence>& sequences, const std::vector<at::Tensor>& proximal,
                         TrainStepMetrics& metrics);
  std::vector<at::Tensor> ProximalLogProbs(const std::vector<TrainingSequence>& sequences,
                                           TrainStepMetrics& metrics) const;

  Actor& actor_;
  RankGroup& ranks_;
  const TrainStepOptions options_;
};

}  // namespace syncopate::trainer
