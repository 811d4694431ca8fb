#include "trainer/step/train_step.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "trainer/loss/advantages.h"
#include "trainer/loss/loss_figures.h"
#include "trainer/loss/outcomes.h"
#include "trainer/step/phase_clock.h"

namespace syncopate::trainer {
namespace {

void DescribeRewards(const std::vector<const TrajectoryGroup*>& groups, StepFigures& made) {
  double count = 0, sum = 0, squares = 0, flat = 0, most = -std::numeric_limits<double>::infinity(), least = -most;
  for (const TrajectoryGroup* group : groups) {
    const std::vector<double> rewards = loss::GetRewards(*group);
    for (double reward : rewards) {
      sum += reward;
      squares += reward * reward;
      most = std::max(most, reward);
      least = std::min(least, reward);
    }
    count += static_cast<double>(rewards.size());
    if (loss::HasZeroVariance(rewards)) flat += 1;
  }
  made.zero_variance_ratio = flat / static_cast<double>(groups.size());
  if (count == 0) return;  // all samples were rejected
  made.reward_mean = sum / count;
  // The difference of two large numbers may come out below 0 by rounding.
  made.reward_std = std::sqrt(std::max(0.0, squares / count - made.reward_mean * made.reward_mean));
  made.reward_max = most;
  made.reward_min = least;
}

absl::Status TooManySkipped(int64_t skipped) {
  return Error(absl::StatusCode::kFailedPrecondition, "NON_FINITE_GRADIENT",
               absl::StrCat("loss or gradient were not finite ", skipped,
                            " times in a row; lower train.learning_rate or look at the batch's rewards"));
}

// What must be the same on all ranks for their sums to mean anything: tokens, which of them were
// given, behaviour log-probs, rewards with their turns, and what was rejected, in order. Groups' names are left out, as they decide nothing.
uint64_t DigestBatch(const std::vector<const TrajectoryGroup*>& groups, int64_t step) {
  uint64_t digest = static_cast<uint64_t>(step);
  auto add = [&digest](const auto& values) {
    digest = HashCombine(digest, DigestBytes(values.data(), static_cast<int64_t>(values.size() * sizeof(values[0]))));
  };
  for (const TrajectoryGroup* group : groups) {
    add(group->prompt_ids);
    for (const Trajectory& sample : group->samples) {
      add(sample.tokens);
      add(sample.logprobs);
      if (!sample.given.empty()) add(sample.given);
      digest = HashCombine(digest, DigestBytes(&sample.reward, sizeof(sample.reward)));
      if (sample.rejected) digest = HashCombine(digest, 1);
      for (const Turn& turn : sample.turns) {
        digest = HashCombine(HashCombine(digest, static_cast<uint64_t>(turn.end)),
                             DigestBytes(&turn.reward, sizeof(turn.reward)));
      }
    }
  }
  return digest;
}

}  // namespace

struct TrainStep::Update {
  MicroBatches micro_batches;
  UpdateExtent extent;
  std::vector<at::Tensor> proximal;  // of each; none: those of this very update
};

struct TrainStep::Totals {
  std::vector<double> sums = std::vector<double>(loss::kLossSums, 0.0);
  std::vector<double> maxima = std::vector<double>(loss::kLossMaxima, -std::numeric_limits<double>::infinity());
};

TrainStep::TrainStep(Actor& actor, const Mesh& mesh, const TrainStepOptions& options, const ReferencePolicy* reference,
                     StateResidency* residency)
    : actor_(actor),
      ranks_(mesh.along(Mesh::Axis::kShard)),
      options_(options),
      reference_(reference),
      residency_(residency),
      cost_(ComputeCost(actor.transformer().config())),
      program_(actor.transformer(), actor.device(), options.recompute, options.deterministic),
      head_(actor.device(), {.temperature = options.temperature, .float32_logits = options.float32_logits}) {
  SYNCOPATE_CHECK(reference != nullptr || !options.loss.needs_reference());
}

absl::StatusOr<StepFigures> TrainStep::Run(const std::vector<const TrajectoryGroup*>& groups, int64_t step) {
  SYNCOPATE_CHECK(!groups.empty());
  at::NoGradGuard no_grad;
  StepFigures metrics;
  SYNCOPATE_RETURN_IF_ERROR(CheckLengths(groups));
  DescribeRewards(groups, metrics);
  static_cast<loss::DataFigures&>(metrics) = loss::DescribeData(groups, options_.loss, step);
  // Before any other collective of the step: ranks with other batches would wait for each other in calls that do not
  // fit together.
  SYNCOPATE_RETURN_IF_ERROR(CheckSameBatch(groups, step));
  std::vector<std::vector<float>> reference;
  PhaseClock reference_clock(actor_.device());
  // A divergence that is taken off the rewards must be known before advantages are; one in the loss is made micro-batch
  // by micro-batch.
  const bool has_reference_pass = options_.loss.needs_reference() && options_.loss.kl_in_reward;
  if (has_reference_pass) {
    SYNCOPATE_RETURN_IF_ERROR(BeginPass(/*of_reference=*/true));
    reference_clock.Mark();
    SYNCOPATE_ASSIGN_OR_RETURN(reference, ReferenceLogProbs(groups));
    reference_clock.Mark();
    // The reference's memory is free again before forward and backward need theirs.
    if (residency_ != nullptr) SYNCOPATE_RETURN_IF_ERROR(residency_->EndReferencePass());
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto sequences, SequencesByGroup(groups, options_.loss, step, reference));
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Update> updates, DealUpdates(std::move(sequences)));
  SYNCOPATE_RETURN_IF_ERROR(RunUpdates(std::move(updates), /*learns=*/true, metrics));
  // Only now has the device surely passed the second mark: it was waited for before that.
  if (has_reference_pass) metrics.reference_seconds = reference_clock.Seconds(0);
  metrics.learning_rate = actor_.learning_rate();
  return metrics;
}

absl::StatusOr<StepFigures> TrainStep::RunSupervised(const std::vector<const TrajectoryGroup*>& groups) {
  return RunSupervised(groups, /*learns=*/true);
}

absl::StatusOr<StepFigures> TrainStep::MeasureSupervised(const std::vector<const TrajectoryGroup*>& groups) {
  return RunSupervised(groups, /*learns=*/false);
}

absl::StatusOr<StepFigures> TrainStep::RunSupervised(const std::vector<const TrajectoryGroup*>& groups, bool learns) {
  SYNCOPATE_CHECK(!groups.empty());
  at::NoGradGuard no_grad;
  StepFigures metrics;
  SYNCOPATE_RETURN_IF_ERROR(CheckLengths(groups));
  std::vector<std::vector<TrainingSequence>> sequences = SupervisedSequences(groups);
  static_cast<loss::DataFigures&>(metrics) = loss::DescribeSupervisedData(groups);
  // No step on rewards has these numbers; a rank that learns and one that measures differ too.
  SYNCOPATE_RETURN_IF_ERROR(CheckSameBatch(groups, /*step=*/learns ? -1 : -2));
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Update> updates, DealUpdates(std::move(sequences)));
  SYNCOPATE_RETURN_IF_ERROR(RunUpdates(std::move(updates), learns, metrics));
  metrics.learning_rate = actor_.learning_rate();
  // No policy drew the tokens: every other figure of the loss compares one with the current policy.
  loss::LossFigures figures;
  figures.loss = metrics.loss;
  figures.entropy = metrics.entropy;
  figures.top_probability = metrics.top_probability;
  static_cast<loss::LossFigures&>(metrics) = figures;
  return metrics;
}

absl::Status TrainStep::BeginPass(bool of_reference) {
  if (residency_ == nullptr) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(residency_->BeginPass());
  return of_reference ? residency_->BeginReference() : absl::OkStatus();
}

absl::Status TrainStep::RunProximalPass(std::vector<Update>& updates) {
  for (Update& update : updates) {
    for (const MicroBatch& micro_batch : update.micro_batches) {
      SYNCOPATE_ASSIGN_OR_RETURN(at::Tensor logprobs, LogProbs(micro_batch, actor_.weight_units()));
      update.proximal.push_back(std::move(logprobs));
    }
  }
  return absl::OkStatus();
}

absl::Status TrainStep::RunUpdates(std::vector<Update> updates, bool learns, StepFigures& metrics) {
  Totals totals;
  // With several updates the first one moves the weights, so the proximal policy must be taken before it.
  const bool has_proximal_pass = updates.size() > 1 && options_.loss.needs_proximal();
  PhaseClock clock(actor_.device());
  if (has_proximal_pass) {
    SYNCOPATE_RETURN_IF_ERROR(BeginPass(/*of_reference=*/false));
    clock.Mark();
    SYNCOPATE_RETURN_IF_ERROR(RunProximalPass(updates));
    clock.Mark();
  }
  // With the divergence in the loss each micro-batch has a pass of the reference policy between its others.
  if (options_.loss.needs_reference() && !options_.loss.kl_in_reward) {
    SYNCOPATE_RETURN_IF_ERROR(BeginPass(/*of_reference=*/true));
  }
  // In this order on every rank: one order of updates is one order of collectives.
  for (const Update& update : updates) SYNCOPATE_RETURN_IF_ERROR(RunUpdate(update, learns, metrics, totals));
  if (has_proximal_pass) metrics.proximal_seconds = clock.Seconds(0);
  static_cast<loss::LossFigures&>(metrics) =
      loss::FinishFigures(totals.sums, totals.maxima, static_cast<double>(updates.size()));
  return absl::OkStatus();
}

// DealByCost knows lengths alone; a person wants to know which prompt it is.
absl::Status TrainStep::CheckLengths(const std::vector<const TrajectoryGroup*>& groups) const {
  for (const TrajectoryGroup* group : groups) {
    for (size_t sample = 0; sample < group->samples.size(); ++sample) {
      const size_t prompt = group->prompt_ids.size(), answer = group->samples[sample].tokens.size();
      // The last token only is a target.
      if (static_cast<int64_t>(prompt + answer) - 1 <= options_.micro_batch_tokens) continue;
      return Error(absl::StatusCode::kInvalidArgument, "SEQUENCE_TOO_LONG",
                   absl::StrCat("answer ", sample, " of prompt ", group->lease.group.ToString(), " has ", prompt, " + ",
                                answer, " tokens, more than a micro-batch may have; raise train.micro_batch_tokens ",
                                options_.micro_batch_tokens));
    }
  }
  return absl::OkStatus();
}

absl::Status TrainStep::CheckSameBatch(const std::vector<const TrajectoryGroup*>& groups, int64_t step) const {
  if (ranks_.world() == 1) return absl::OkStatus();
  // With the number of updates made: a rank restored from another checkpoint shows here, at the first step.
  const uint64_t digest = HashCombine(DigestBatch(groups, step), static_cast<uint64_t>(actor_.updates()));
  // In memory of the device, where ranks move theirs.
  const auto world = static_cast<int64_t>(ranks_.world());
  at::Tensor all = at::zeros({world}, at::TensorOptions(at::kLong).device(actor_.device()));
  at::Tensor mine = at::full({1}, static_cast<int64_t>(digest), all.options());
  SYNCOPATE_RETURN_IF_ERROR(ranks_.AllGather(mine.data_ptr(), all.data_ptr(), sizeof(int64_t)));
  SYNCOPATE_RETURN_IF_ERROR(ranks_.Finish());
  const at::Tensor seen = all.to(at::kCPU);
  for (int64_t rank = 1; rank < world; ++rank) {
    if (seen.data_ptr<int64_t>()[rank] == seen.data_ptr<int64_t>()[0]) continue;
    return Error(
        absl::StatusCode::kInternal, "RANK_MISMATCH",
        absl::StrCat("trainer rank ", rank, " has another batch, step or count of updates than rank 0 at step ", step,
                     "; all ranks need the same checkpoint and configuration"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Deal> TrainStep::DealToRanks(const std::vector<TrainingSequence>& sequences) const {
  std::vector<int64_t> lengths;
  for (const TrainingSequence& sequence : sequences) lengths.push_back(sequence.input_length());
  return DealByCost(lengths, ranks_.world(), options_.micro_batch_tokens, cost_);
}

absl::StatusOr<TrainStep::MicroBatches> TrainStep::DealSequences(const std::vector<TrainingSequence>& sequences) const {
  if (sequences.empty()) return MicroBatches();  // all answers are masked
  SYNCOPATE_ASSIGN_OR_RETURN(const Deal deal, DealToRanks(sequences));
  MicroBatches micro_batches;
  for (const std::vector<size_t>& indices : deal[static_cast<size_t>(ranks_.rank())]) {
    MicroBatch& micro_batch = micro_batches.emplace_back();
    for (size_t index : indices) micro_batch.push_back(sequences[index]);
  }
  return micro_batches;
}

absl::StatusOr<std::vector<TrainStep::Update>> TrainStep::DealUpdates(
    std::vector<std::vector<TrainingSequence>> groups) {
  // A last batch may have fewer groups than updates were asked for; none of them may be empty.
  const size_t count = std::min<size_t>(options_.updates_per_batch, groups.size());
  std::vector<Update> updates(count);
  for (size_t u = 0; u < count; ++u) {
    // Consecutive groups, sizes that differ by one at most, and the same cut wherever it is made.
    const auto begin = groups.begin() + static_cast<int64_t>(groups.size() * u / count);
    const auto end = groups.begin() + static_cast<int64_t>(groups.size() * (u + 1) / count);
    const std::vector<std::vector<TrainingSequence>> dealt(std::make_move_iterator(begin),
                                                           std::make_move_iterator(end));
    // Measured over all ranks' sequences: means are over the whole update, however it is split over ranks.
    updates[u].extent = MeasureExtent(dealt);
    std::vector<TrainingSequence> sequences;
    for (const auto& group : dealt) sequences.insert(sequences.end(), group.begin(), group.end());
    SYNCOPATE_ASSIGN_OR_RETURN(updates[u].micro_batches, DealSequences(sequences));
  }
  return updates;
}

absl::StatusOr<at::Tensor> TrainStep::LogProbs(const PackedBatch& batch, UnitAccess& weights) const {
  at::NoGradGuard no_grad;
  SYNCOPATE_ASSIGN_OR_RETURN(const at::Tensor hidden,
                             program_.Forward(weights, batch.ids, batch.sequences, /*tape=*/nullptr));
  SYNCOPATE_RETURN_IF_ERROR(weights.Acquire(program_.head_unit()));
  const at::Tensor logprob =
      head_.Forward(hidden.index_select(0, batch.predicts), weights.views().head, batch.targets).logprob;
  SYNCOPATE_RETURN_IF_ERROR(weights.Release(program_.head_unit()));
  return logprob;
}

absl::StatusOr<at::Tensor> TrainStep::LogProbs(const MicroBatch& micro_batch, UnitAccess& weights) const {
  if (residency_ != nullptr) residency_->BeginMicroBatch();
  if (!micro_batch.empty()) return LogProbs(Pack(micro_batch, actor_.device()), weights);
  SYNCOPATE_RETURN_IF_ERROR(program_.Accompany(weights, /*gradients=*/nullptr));
  return at::Tensor();
}

absl::StatusOr<std::vector<std::vector<float>>> TrainStep::ReferenceLogProbs(
    const std::vector<const TrajectoryGroup*>& groups) const {
  std::vector<TrainingSequence> sequences;
  std::vector<int64_t> begins;  // of each sequence's tokens among all
  int64_t total = 0;
  for (const TrajectoryGroup* group : groups) {
    for (const Trajectory& sample : group->samples) {
      sequences.push_back({.prompt_ids = &group->prompt_ids, .trajectory = &sample});
      begins.push_back(total);
      total += WrittenTokens(sample);
    }
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const Deal deal, DealToRanks(sequences));
  at::Tensor all = at::zeros({total}, at::TensorOptions(at::kFloat).device(actor_.device()));
  for (const std::vector<size_t>& indices : deal[static_cast<size_t>(ranks_.rank())]) {
    MicroBatch micro_batch;
    for (size_t index : indices) micro_batch.push_back(sequences[index]);
    SYNCOPATE_ASSIGN_OR_RETURN(const at::Tensor logprobs, LogProbs(micro_batch, reference_->weight_units()));
    int64_t next = 0;
    for (size_t index : indices) {
      const int64_t tokens = WrittenTokens(*sequences[index].trajectory);
      all.narrow(0, begins[index], tokens).copy_(logprobs.narrow(0, next, tokens));
      next += tokens;
    }
  }
  // Each rank has its own, and 0 for those of others.
  SYNCOPATE_RETURN_IF_ERROR(ranks_.AllReduce(all.data_ptr(), total, Element::kFloat32, Reduction::kSum));
  SYNCOPATE_RETURN_IF_ERROR(ranks_.Finish());
  const at::Tensor known = all.to(at::kCPU);
  std::vector<std::vector<float>> ordered;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const float* const first = known.data_ptr<float>() + begins[i];
    ordered.emplace_back(first, first + WrittenTokens(*sequences[i].trajectory));
  }
  return ordered;
}

absl::StatusOr<at::Tensor> TrainStep::HeadGradient(const PackedBatch& batch, const at::Tensor& hidden,
                                                   const loss::BatchExtent& extent, loss::TokenBatch* tokens) {
  const int unit = program_.head_unit();
  SYNCOPATE_RETURN_IF_ERROR(actor_.weight_units().Acquire(unit));
  SYNCOPATE_RETURN_IF_ERROR(actor_.gradient_units().Acquire(unit));
  const at::Tensor& head = actor_.weights().head;
  const at::Tensor& dhead = actor_.gradient_units().views().head;
  at::Tensor drows;
  // A loss that looks at an answer as a whole (sequence ratios, sums over tokens) needs every token's log-prob before
  // it can say the first one's gradient. One that does not is differentiated chunk by chunk, inside the head's only
  // pass.
  if (options_.loss.needs_whole_answers()) {
    // The head's forward half is made twice: to keep its logits in between would take [A, vocabulary].
    const FusedHead::Rows rows = head_.Forward(hidden, head, batch.targets);
    tokens->current = rows.logprob;
    tokens->entropy = rows.entropy;
    tokens->top_probability = rows.top_probability;
    const loss::LossGradients gradients = DifferentiateLoss(*tokens, extent, options_.loss);
    auto part_of = [&](int64_t begin, const FusedHead::Rows& chunk) {
      auto part = [&](const at::Tensor& whole) {
        return whole.defined() ? whole.narrow(0, begin, chunk.logprob.size(0)) : whole;
      };
      return FusedHead::RowGradients{part(gradients.dlogprob), part(gradients.dentropy)};
    };
    drows = head_.ForwardBackward(hidden, head, batch.targets, part_of, dhead);
  } else {
    tokens->current = at::empty_like(tokens->behaviour);
    tokens->entropy = at::empty_like(tokens->behaviour);
    tokens->top_probability = at::empty_like(tokens->behaviour);
    auto loss_of = [&](int64_t begin, const FusedHead::Rows& rows) {
      const int64_t count = rows.logprob.size(0);
      tokens->current.narrow(0, begin, count).copy_(rows.logprob);
      tokens->entropy.narrow(0, begin, count).copy_(rows.entropy);
      tokens->top_probability.narrow(0, begin, count).copy_(rows.top_probability);
      const loss::LossGradients gradients =
          DifferentiateLoss(SliceTokens(*tokens, begin, count), extent, options_.loss);
      return FusedHead::RowGradients{gradients.dlogprob, gradients.dentropy};
    };
    drows = head_.ForwardBackward(hidden, head, batch.targets, loss_of, dhead);
  }
  SYNCOPATE_RETURN_IF_ERROR(actor_.gradient_units().Release(unit));
  SYNCOPATE_RETURN_IF_ERROR(actor_.weight_units().Release(unit));
  return drows;
}

absl::StatusOr<loss::LossMeasurement> TrainStep::RunMicroBatch(const MicroBatch& micro_batch,
                                                               const at::Tensor& proximal,
                                                               const loss::BatchExtent& extent, bool is_made) {
  if (residency_ != nullptr) residency_->BeginMicroBatch();
  if (!micro_batch.empty()) return RunBatch(Pack(micro_batch, actor_.device()), proximal, extent, is_made);
  // Other ranks compute one, with this rank's shards.
  if (options_.loss.needs_reference() && !options_.loss.kl_in_reward) {
    SYNCOPATE_RETURN_IF_ERROR(program_.Accompany(reference_->weight_units(), /*gradients=*/nullptr));
  }
  SYNCOPATE_RETURN_IF_ERROR(program_.Accompany(actor_.weight_units(), is_made ? &actor_.gradient_units() : nullptr));
  return loss::LossMeasurement::Nothing(actor_.device());
}

absl::StatusOr<loss::LossMeasurement> TrainStep::RunBatch(const PackedBatch& batch, const at::Tensor& proximal,
                                                          const loss::BatchExtent& extent, bool is_made) {
  UnitAccess& weights = actor_.weight_units();
  loss::TokenBatch tokens = batch.tokens;
  tokens.proximal = proximal;
  if (options_.loss.needs_reference() && !tokens.reference.defined()) {
    SYNCOPATE_ASSIGN_OR_RETURN(tokens.reference, LogProbs(batch, reference_->weight_units()));
  }
  DecoderProgram::Tape tape;
  SYNCOPATE_ASSIGN_OR_RETURN(const at::Tensor hidden,
                             program_.Forward(weights, batch.ids, batch.sequences, is_made ? &tape : nullptr));
  const at::Tensor rows = hidden.index_select(0, batch.predicts);
  if (is_made) {
    SYNCOPATE_ASSIGN_OR_RETURN(const at::Tensor drows, HeadGradient(batch, rows, extent, &tokens));
    // Only positions that predict a trained token have a gradient from the head; all others get theirs through
    // attention.
    const at::Tensor dhidden = at::zeros_like(hidden).index_copy_(0, batch.predicts, drows);
    SYNCOPATE_RETURN_IF_ERROR(
        program_.Backward(weights, batch.ids, batch.sequences, dhidden, &tape, actor_.gradient_units()));
  } else {
    SYNCOPATE_RETURN_IF_ERROR(weights.Acquire(program_.head_unit()));
    const FusedHead::Rows forward = head_.Forward(rows, weights.views().head, batch.targets);
    SYNCOPATE_RETURN_IF_ERROR(weights.Release(program_.head_unit()));
    tokens.current = forward.logprob;
    tokens.entropy = forward.entropy;
    tokens.top_probability = forward.top_probability;
  }
  return MeasureLoss(tokens, extent, options_.loss);
}

absl::Status TrainStep::AddOverRanks(const loss::LossMeasurement& measured, bool is_made) {
  if (ranks_.world() == 1) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(
      ranks_.AllReduce(measured.sums.data_ptr(), measured.sums.numel(), Element::kFloat64, Reduction::kSum));
  SYNCOPATE_RETURN_IF_ERROR(
      // Two calls, as a sum and a maximum are two reductions; both are a few numbers.
      ranks_.AllReduce(measured.maxima.data_ptr(), measured.maxima.numel(), Element::kFloat64, Reduction::kMax));
  // Whether an update is made depends on the batch alone, so that all ranks come to the same.
  return is_made ? actor_.FlushGradients() : absl::OkStatus();
}

absl::Status TrainStep::RunUpdate(const Update& update, bool learns, StepFigures& metrics, Totals& totals) {
  PhaseClock clock(actor_.device());
  clock.Mark();
  const loss::BatchExtent& extent = update.extent.batch;
  // Nothing to learn: passes are for the metrics alone. An update would let the moments decay, until the next gradient
  // is large beside what they remember.
  const bool has_signal = update.extent.with_signal > 0 || (options_.loss.has_penalties() && extent.tokens > 0);
  const bool is_made = learns && has_signal;
  if (is_made) actor_.ZeroGradients();
  loss::LossMeasurement measured = loss::LossMeasurement::Nothing(actor_.device());
  for (size_t i = 0; i < update.micro_batches.size(); ++i) {
    const at::Tensor proximal = update.proximal.empty() ? at::Tensor() : update.proximal[i];
    SYNCOPATE_ASSIGN_OR_RETURN(const loss::LossMeasurement part,
                               RunMicroBatch(update.micro_batches[i], proximal, extent, is_made));
    measured.Add(part);
  }
  SYNCOPATE_RETURN_IF_ERROR(AddOverRanks(measured, is_made));
  clock.Mark();
  Actor::UpdateNorms norms;
  if (is_made) {
    // Moments may have been away for the passes; they come back as late as this.
    if (residency_ != nullptr) SYNCOPATE_RETURN_IF_ERROR(residency_->NeedOptimizer());
    SYNCOPATE_ASSIGN_OR_RETURN(norms, actor_.QueueUpdate(measured.sums[loss::kSumLoss]));
  }
  clock.Mark();
  SYNCOPATE_RETURN_IF_ERROR(ranks_.Finish());
  SYNCOPATE_RETURN_IF_ERROR(FinishUpdate(measured, norms, metrics, totals));
  metrics.forward_backward_seconds += clock.Seconds(0);
  if (is_made) metrics.optimizer_seconds += clock.Seconds(1);
  return absl::OkStatus();
}

absl::Status TrainStep::FinishUpdate(const loss::LossMeasurement& measured, const Actor::UpdateNorms& norms,
                                     StepFigures& metrics, Totals& totals) {
  const bool is_queued = norms.gradient.defined();
  const at::Tensor of_update =
      is_queued ? at::stack({norms.gradient.to(at::kDouble), norms.update}) : at::zeros({2}, measured.sums.options());
  // One copy to the host for all figures: it waits for the device, and is the only place in the update that does.
  const at::Tensor figures = at::cat({of_update, measured.sums, measured.maxima}).to(at::kCPU);
  const double* const values = figures.data_ptr<double>();
  const double gradient_norm = values[0];
  const double* const sums = values + 2;
  const double* const maxima = sums + loss::kLossSums;
  if (is_queued) {
    metrics.gradient_norm = gradient_norm;
    metrics.update_norm = values[1];
    if (std::isfinite(gradient_norm) && std::isfinite(sums[loss::kSumLoss])) {
      // The device has decided by the same numbers whether it moves the weights (ClipFactor): counting follows it.
      actor_.CountUpdate();
      skipped_in_row_ = 0;
      ++metrics.updates;
    } else {
      ++metrics.skipped_updates;
      if (++skipped_in_row_ >= kMostSkippedInRow) return TooManySkipped(skipped_in_row_);
    }
  }
  for (int i = 0; i < loss::kLossSums; ++i) totals.sums[i] += sums[i];
  for (int i = 0; i < loss::kLossMaxima; ++i) totals.maxima[i] = std::max(totals.maxima[i], maxima[i]);
  return absl::OkStatus();
}

}  // namespace syncopate::trainer
