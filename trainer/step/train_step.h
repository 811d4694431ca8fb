#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/trajectory.h"
#include "trainer/actor/actor.h"
#include "trainer/actor/decoder_program.h"
#include "trainer/actor/fused_head.h"
#include "trainer/actor/rank_group.h"
#include "trainer/actor/reference_policy.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/step/deal.h"
#include "trainer/step/options.h"
#include "trainer/step/packed_batch.h"
#include "trainer/step/training_sequences.h"

namespace syncopate::trainer {

// One training step on complete groups: advantages, loss and aggregation of TrainStepOptions::loss, AdamW. The result
// is a pure function of actor, groups, step and options: on the CPU the same bits for the same order of groups.
//
// Forward and backward are a DecoderProgram's and a FusedHead's; autograd sees the loss of a few thousand tokens alone.
// On a GPU the whole of an update is queued, and waited for once, when its figures are read.
class TrainStep {
 public:
  // Updates in a row that may be skipped before it is an error.
  static constexpr int64_t kMostSkippedInRow = 10;

  // All but the options must outlive this object. `options` must be valid; `reference` may be null unless
  // options.loss.needs_reference().
  TrainStep(Actor& actor, RankGroup& ranks, const TrainStepOptions& options,
            const ReferencePolicy* reference = nullptr);

  // `groups` in training order, not empty; `step` is the trainer's, which their tokens' staleness is counted to. An
  // update whose advantages are all 0, on all ranks, and whose loss has no other terms, is not made: its metrics are
  // measured, and weights, moments and the number of updates stand still. So does one whose loss or gradient norm
  // is not finite, which is counted as skipped; kMostSkippedInRow of those without one that was made between them are
  // FAILED_PRECONDITION (reason NON_FINITE_GRADIENT). INVALID_ARGUMENT (reason SEQUENCE_TOO_LONG) as DealByCost,
  // (NO_REWARD_PARTS) as SequencesByGroup.
  // Errors leave the actor as it was before the failing update.
  absl::StatusOr<TrainStepMetrics> Run(const std::vector<const TrajectoryGroup*>& groups, int64_t step = 0);

  // The same with `groups` whose samples are answers to learn, with tokens alone: one update by the mean cross-entropy of
  // all their tokens, which is the loss that the metrics say. For options that are TrainStepOptions::Supervised().
  absl::StatusOr<TrainStepMetrics> RunSupervised(const std::vector<const TrajectoryGroup*>& groups);

  // Log-probabilities of the answers under the current weights, token by token in packed order; no gradient.
  at::Tensor LogProbs(const PackedBatch& batch) const { return LogProbs(batch, actor_.weights()); }

 private:
  using MicroBatches = std::vector<std::vector<TrainingSequence>>;
  struct Update;  // what one update is made of
  // Sums of updates on the host.
  struct Totals;

  at::Tensor LogProbs(const PackedBatch& batch, const model::TransformerWeights& weights) const;
  // Of all answers under the reference policy, in the order of groups and samples; waits for the device.
  absl::StatusOr<std::vector<std::vector<float>>> ReferenceLogProbs(
      const std::vector<const TrajectoryGroup*>& groups) const;
  absl::StatusOr<MicroBatches> DealSequences(const std::vector<TrainingSequence>& sequences) const;
  absl::StatusOr<std::vector<Update>> DealUpdates(std::vector<std::vector<TrainingSequence>> groups);
  // All updates of the step, their figures added to the metrics.
  absl::Status RunUpdates(std::vector<Update> updates, TrainStepMetrics& metrics);
  // The figures of the micro-batch; its gradient is added to the actor's if `is_made`.
  loss::LossMeasurement RunMicroBatch(const PackedBatch& batch, const at::Tensor& proximal,
                                      const loss::BatchExtent& extent, bool is_made) const;
  // Forward and backward of the head: the gradient of `hidden` [A, D]. Sets current and entropy of `tokens`.
  at::Tensor HeadGradient(const PackedBatch& batch, const at::Tensor& hidden, const loss::BatchExtent& extent,
                          loss::TokenBatch* tokens) const;
  absl::Status RunUpdate(const Update& update, TrainStepMetrics& metrics, Totals& totals);
  // Reads what is on the device: the one wait of an update. `norm` is undefined if the update was not queued.
  absl::Status FinishUpdate(const loss::LossMeasurement& measured, const at::Tensor& norm, TrainStepMetrics& metrics,
                            Totals& totals);

  Actor& actor_;
  RankGroup& ranks_;
  const TrainStepOptions options_;
  const ReferencePolicy* const reference_;  // null without
  const SequenceCost cost_;
  const DecoderProgram program_;
  const FusedHead head_;
  int64_t skipped_in_row_ = 0;
};

}  // namespace syncopate::trainer
