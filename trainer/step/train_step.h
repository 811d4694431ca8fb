#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/trajectory.h"
#include "ranks/mesh.h"
#include "trainer/actor/actor.h"
#include "trainer/actor/decoder_program.h"
#include "trainer/actor/fused_head.h"
#include "trainer/actor/reference_policy.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/step/deal.h"
#include "trainer/step/options.h"
#include "trainer/step/packed_batch.h"
#include "trainer/step/state_residency.h"
#include "trainer/step/step_figures.h"
#include "trainer/step/training_sequences.h"

namespace syncopate::trainer {

// One training step on complete groups: advantages, loss and aggregation of TrainStepOptions::loss, AdamW. The result
// is a pure function of actor, groups, step and options: on the CPU the same bits for the same order of groups.
//
// Forward and backward are a DecoderProgram's and a FusedHead's; autograd sees the loss of a few thousand tokens alone.
// On a GPU the whole of an update is queued, and waited for once, when its figures are read.
//
// With several ranks each is given the whole batch: advantages, denominators and the deal of sequences to ranks are
// pure functions of it, so every rank makes them itself; of forward and backward it makes those that it is dealt. What
// it returns is of the whole batch, the same on every rank.
class TrainStep {
 public:
  // Updates in a row that may be skipped before it is an error.
  static constexpr int64_t kMostSkippedInRow = 10;

  // All but the options must outlive this object. `options` must be valid; `reference` may be null unless
  // options.loss.needs_reference().
  // `ranks` are those of the actor. `residency`, of actor and reference, is told what the step is about to need; null:
  // all of it is on the device.
  TrainStep(Actor& actor, const Mesh& mesh, const TrainStepOptions& options, const ReferencePolicy* reference = nullptr,
            StateResidency* residency = nullptr);

  // `groups` in training order, not empty; `step` is the trainer's, which their tokens' staleness is counted to. An
  // update whose advantages are all 0 and whose loss has no other terms, is not made: its metrics are
  // measured, and weights, moments and the number of updates stand still. So does one whose loss or gradient norm
  // is not finite, which is counted as skipped; kMostSkippedInRow of those without one that was made between them are
  // FAILED_PRECONDITION (reason NON_FINITE_GRADIENT). INVALID_ARGUMENT (reason SEQUENCE_TOO_LONG) as DealByCost,
  // (NO_REWARD_PARTS) as SequencesByGroup. INTERNAL (reason RANK_MISMATCH) before anything is computed if ranks were
  // given different batches, and what Communicator returns.
  // Errors leave the actor as it was before the failing update, but for those of ranks.
  absl::StatusOr<StepFigures> Run(const std::vector<const TrajectoryGroup*>& groups, int64_t step = 0);

  // A supervised step: the samples of `groups` are answers to learn, with tokens alone. Makes one update by the mean
  // cross-entropy of all their tokens, which is the loss in the figures. For options that are
  // TrainStepOptions::Supervised().
  absl::StatusOr<StepFigures> RunSupervised(const std::vector<const TrajectoryGroup*>& groups);

  // Measures the loss of such a step: the figures are its loss, entropy and tokens. No update is made.
  absl::StatusOr<StepFigures> MeasureSupervised(const std::vector<const TrajectoryGroup*>& groups);

  // Log-probabilities of the answers under the current weights, token by token in packed order; no gradient.
  absl::StatusOr<at::Tensor> LogProbs(const PackedBatch& batch) const { return LogProbs(batch, actor_.weight_units()); }

 private:
  using MicroBatch = std::vector<TrainingSequence>;  // empty: other ranks have one at this place
  using MicroBatches = std::vector<MicroBatch>;
  struct Update;  // what one update is made of
  // Sums of updates on the host.
  struct Totals;

  absl::StatusOr<at::Tensor> LogProbs(const PackedBatch& batch, UnitAccess& weights) const;
  // Undefined for an empty one.
  absl::StatusOr<at::Tensor> LogProbs(const MicroBatch& micro_batch, UnitAccess& weights) const;
  absl::Status CheckLengths(const std::vector<const TrajectoryGroup*>& groups) const;
  absl::Status CheckSameBatch(const std::vector<const TrajectoryGroup*>& groups, int64_t step) const;
  // Log-probs of all answers under the reference policy, in the order of groups and samples; waits for the device.
  absl::StatusOr<std::vector<std::vector<float>>> ReferenceLogProbs(
      const std::vector<const TrajectoryGroup*>& groups) const;
  // The micro-batches of each rank, as many of each; by index into `sequences`.
  absl::StatusOr<Deal> DealToRanks(const std::vector<TrainingSequence>& sequences) const;
  // This rank's share.
  absl::StatusOr<MicroBatches> DealSequences(const std::vector<TrainingSequence>& sequences) const;
  absl::StatusOr<std::vector<Update>> DealUpdates(std::vector<std::vector<TrainingSequence>> groups);
  // Before a pass for log-probs; `of_reference`: under the reference policy.
  absl::Status BeginPass(bool of_reference);
  // Log-probs under the policy as it is before the updates.
  absl::Status RunProximalPass(std::vector<Update>& updates);
  // All updates of the step, their figures added to the metrics. Without `learns` they are only measured.
  absl::Status RunUpdates(std::vector<Update> updates, bool learns, StepFigures& metrics);
  absl::StatusOr<StepFigures> RunSupervised(const std::vector<const TrajectoryGroup*>& groups, bool learns);
  // The figures of the micro-batch; its gradient is added to the actor's if `is_made`.
  absl::StatusOr<loss::LossMeasurement> RunMicroBatch(const MicroBatch& micro_batch, const at::Tensor& proximal,
                                                      const loss::BatchExtent& extent, bool is_made);
  absl::StatusOr<loss::LossMeasurement> RunBatch(const PackedBatch& batch, const at::Tensor& proximal,
                                                 const loss::BatchExtent& extent, bool is_made);
  // Figures of all ranks; gradients too, if `is_made`.
  absl::Status AddOverRanks(const loss::LossMeasurement& measured, bool is_made);
  // Forward and backward of the head: the gradient of `hidden` [A, D]. Sets current and entropy of `tokens`.
  absl::StatusOr<at::Tensor> HeadGradient(const PackedBatch& batch, const at::Tensor& hidden,
                                          const loss::BatchExtent& extent, loss::TokenBatch* tokens);
  absl::Status RunUpdate(const Update& update, bool learns, StepFigures& metrics, Totals& totals);
  // Reads what is on the device: the one wait of an update. `norms` are undefined if the update was not queued.
  absl::Status FinishUpdate(const loss::LossMeasurement& measured, const Actor::UpdateNorms& norms,
                            StepFigures& metrics, Totals& totals);

  Actor& actor_;
  Communicator& ranks_;  // of the axis along which a batch is shared out
  const TrainStepOptions options_;
  const ReferencePolicy* const reference_;  // null without
  StateResidency* const residency_;         // null: everything stays
  const SequenceCost cost_;
  const DecoderProgram program_;
  const FusedHead head_;
  int64_t skipped_in_row_ = 0;
};

}  // namespace syncopate::trainer
