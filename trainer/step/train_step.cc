#include "trainer/step/train_step.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/loss/advantages.h"
#include "trainer/loss/loss_figures.h"
#include "trainer/loss/outcomes.h"
#include "trainer/step/phase_clock.h"

namespace syncopate::trainer {
namespace {

void DescribeRewards(const std::vector<const TrajectoryGroup*>& groups, TrainStepMetrics& metrics) {
  double sum = 0, squares = 0, flat = 0, most = -std::numeric_limits<double>::infinity();
  for (const TrajectoryGroup* group : groups) {
    const std::vector<double> rewards = loss::RewardsOf(*group);
    for (double reward : rewards) {
      sum += reward;
      squares += reward * reward;
      most = std::max(most, reward);
    }
    metrics.sequences += static_cast<int64_t>(rewards.size());
    if (loss::HasZeroVariance(rewards)) flat += 1;
  }
  const double count = static_cast<double>(metrics.sequences);
  metrics.reward_mean = sum / count;
  metrics.reward_std = std::sqrt(std::max(0.0, squares / count - metrics.reward_mean * metrics.reward_mean));
  metrics.reward_max = most;
  metrics.zero_variance_fraction = flat / static_cast<double>(groups.size());
}

absl::Status TooManySkipped(int64_t skipped) {
  return Error(absl::StatusCode::kFailedPrecondition, "NON_FINITE_GRADIENT",
               absl::StrCat("loss or gradient were not finite ", skipped,
                            " times in a row; lower train.learning_rate or look at the batch's rewards"));
}

// What people watch of all figures, under their own names.
void ShowFigures(const loss::LossFigures& figures, TrainStepMetrics& metrics) {
  metrics.figures = figures;
  metrics.loss = figures.loss;
  metrics.entropy = figures.entropy;
  metrics.clip_fraction = figures.clip_fraction;
  metrics.rejected_fraction = figures.rejected_fraction;
  metrics.mismatch_k3 = figures.mismatch_k3;
  metrics.ratio_max = figures.ratio_max;
  metrics.effective_sample_fraction = figures.effective_sample_fraction;
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

TrainStep::TrainStep(Actor& actor, RankGroup& ranks, const TrainStepOptions& options, const ReferencePolicy* reference)
    : actor_(actor),
      ranks_(ranks),
      options_(options),
      reference_(reference),
      cost_(CostOf(actor.transformer().config())),
      program_(actor.transformer(), actor.device(), options.recompute),
      head_(actor.device(), {.temperature = options.temperature, .float32_logits = options.float32_logits}) {
  SYNCOPATE_CHECK(reference != nullptr || !options.loss.needs_reference());
}

absl::StatusOr<TrainStepMetrics> TrainStep::Run(const std::vector<const TrajectoryGroup*>& groups, int64_t step) {
  SYNCOPATE_CHECK(!groups.empty());
  at::NoGradGuard no_grad;
  TrainStepMetrics metrics;
  DescribeRewards(groups, metrics);
  metrics.data = DescribeData(groups, options_.loss, step);
  std::vector<std::vector<float>> reference;
  if (options_.loss.needs_reference() && options_.loss.kl_in_reward) {
    PhaseClock clock(actor_.device());
    clock.Mark();
    SYNCOPATE_ASSIGN_OR_RETURN(reference, ReferenceLogProbs(groups));
    clock.Mark();
    metrics.reference_seconds = clock.Seconds(0);
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto sequences, SequencesByGroup(groups, options_.loss, step, ranks_, reference));
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Update> updates, DealUpdates(std::move(sequences)));
  SYNCOPATE_RETURN_IF_ERROR(RunUpdates(std::move(updates), metrics));
  metrics.mean_response_tokens = metrics.data.tokens / static_cast<double>(metrics.sequences);
  return metrics;
}

absl::StatusOr<TrainStepMetrics> TrainStep::RunSupervised(const std::vector<const TrajectoryGroup*>& groups) {
  SYNCOPATE_CHECK(!groups.empty());
  at::NoGradGuard no_grad;
  TrainStepMetrics metrics;
  std::vector<std::vector<TrainingSequence>> sequences = SupervisedSequences(groups);
  for (const std::vector<TrainingSequence>& group : sequences) {
    metrics.sequences += static_cast<int64_t>(group.size());
    for (const TrainingSequence& sequence : group) {
      metrics.data.tokens += static_cast<double>(sequence.trajectory->tokens.size());
    }
  }
  metrics.data.samples = metrics.sequences;
  metrics.data.trained_tokens = metrics.data.tokens;
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Update> updates, DealUpdates(std::move(sequences)));
  SYNCOPATE_RETURN_IF_ERROR(RunUpdates(std::move(updates), metrics));
  metrics.mean_response_tokens = metrics.data.tokens / static_cast<double>(metrics.sequences);
  // Of a policy that drew the tokens, and of how far from it this one is, there is nothing to say.
  loss::LossFigures figures;
  figures.loss = metrics.figures.loss;
  figures.entropy = metrics.figures.entropy;
  ShowFigures(figures, metrics);
  return metrics;
}

absl::Status TrainStep::RunUpdates(std::vector<Update> updates, TrainStepMetrics& metrics) {
  Totals totals;
  // With several updates the first one moves the weights, so the proximal policy must be taken before it.
  if (updates.size() > 1 && options_.loss.needs_proximal()) {
    PhaseClock clock(actor_.device());
    clock.Mark();
    for (Update& update : updates) {
      for (const auto& micro_batch : update.micro_batches) {
        update.proximal.push_back(LogProbs(Pack(micro_batch, actor_.device())));
      }
    }
    clock.Mark();
    for (const Update& update : updates) SYNCOPATE_RETURN_IF_ERROR(RunUpdate(update, metrics, totals));
    metrics.proximal_seconds = clock.Seconds(0);
  } else {
    for (const Update& update : updates) SYNCOPATE_RETURN_IF_ERROR(RunUpdate(update, metrics, totals));
  }
  ShowFigures(loss::FinishFigures(totals.sums, totals.maxima, static_cast<double>(updates.size())), metrics);
  return absl::OkStatus();
}

absl::StatusOr<TrainStep::MicroBatches> TrainStep::DealSequences(const std::vector<TrainingSequence>& sequences) const {
  if (sequences.empty()) return MicroBatches();  // all answers are masked
  std::vector<int64_t> lengths;
  for (const TrainingSequence& sequence : sequences) lengths.push_back(sequence.input_length());
  // These are this rank's already.
  SYNCOPATE_ASSIGN_OR_RETURN(const Deal deal, DealByCost(lengths, /*ranks=*/1, options_.micro_batch_tokens, cost_));
  MicroBatches micro_batches;
  for (const std::vector<size_t>& indices : deal[0]) {
    std::vector<TrainingSequence>& micro_batch = micro_batches.emplace_back();
    for (size_t index : indices) micro_batch.push_back(sequences[index]);
  }
  return micro_batches;
}

absl::StatusOr<std::vector<TrainStep::Update>> TrainStep::DealUpdates(
    std::vector<std::vector<TrainingSequence>> groups) {
  const size_t count = std::min<size_t>(options_.updates_per_batch, groups.size());
  std::vector<Update> updates(count);
  for (size_t u = 0; u < count; ++u) {
    const auto begin = groups.begin() + static_cast<int64_t>(groups.size() * u / count);
    const auto end = groups.begin() + static_cast<int64_t>(groups.size() * (u + 1) / count);
    const std::vector<std::vector<TrainingSequence>> dealt(std::make_move_iterator(begin),
                                                           std::make_move_iterator(end));
    SYNCOPATE_ASSIGN_OR_RETURN(updates[u].extent, MeasureExtent(dealt, ranks_));
    std::vector<TrainingSequence> sequences;
    for (const auto& group : dealt) sequences.insert(sequences.end(), group.begin(), group.end());
    SYNCOPATE_ASSIGN_OR_RETURN(updates[u].micro_batches, DealSequences(sequences));
  }
  return updates;
}

at::Tensor TrainStep::LogProbs(const PackedBatch& batch, const model::TransformerWeights& weights) const {
  at::NoGradGuard no_grad;
  const at::Tensor hidden = program_.Forward(weights, batch.ids, batch.sequences, /*tape=*/nullptr);
  return head_.Forward(hidden.index_select(0, batch.predicts), weights.head, batch.targets).logprob;
}

absl::StatusOr<std::vector<std::vector<float>>> TrainStep::ReferenceLogProbs(
    const std::vector<const TrajectoryGroup*>& groups) const {
  std::vector<TrainingSequence> sequences;
  for (const TrajectoryGroup* group : groups) {
    for (const Trajectory& sample : group->samples) {
      sequences.push_back({.prompt_ids = &group->prompt_ids, .trajectory = &sample});
    }
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const MicroBatches micro_batches, DealSequences(sequences));
  std::map<const Trajectory*, std::vector<float>> known;
  for (const auto& micro_batch : micro_batches) {
    const at::Tensor logprobs = LogProbs(Pack(micro_batch, actor_.device()), reference_->weights()).to(at::kCPU);
    const float* next = logprobs.data_ptr<float>();
    for (const TrainingSequence& sequence : micro_batch) {
      const size_t tokens = sequence.trajectory->tokens.size();
      known[sequence.trajectory].assign(next, next + tokens);
      next += tokens;
    }
  }
  std::vector<std::vector<float>> ordered;
  for (const TrainingSequence& sequence : sequences) ordered.push_back(std::move(known[sequence.trajectory]));
  return ordered;
}

at::Tensor TrainStep::HeadGradient(const PackedBatch& batch, const at::Tensor& hidden, const loss::BatchExtent& extent,
                                   loss::TokenBatch* tokens) const {
  const at::Tensor& head = actor_.weights().head;
  const at::Tensor& dhead = actor_.gradient_views().head;
  if (options_.loss.needs_whole_answers()) {
    // The head's forward half is made twice: to keep its logits in between would take [A, vocabulary].
    const FusedHead::Rows rows = head_.Forward(hidden, head, batch.targets);
    tokens->current = rows.logprob;
    tokens->entropy = rows.entropy;
    const loss::LossGradients gradients = DifferentiateLoss(*tokens, extent, options_.loss);
    auto part_of = [&](int64_t begin, const FusedHead::Rows& chunk) {
      auto part = [&](const at::Tensor& whole) {
        return whole.defined() ? whole.narrow(0, begin, chunk.logprob.size(0)) : whole;
      };
      return FusedHead::RowGradients{part(gradients.dlogprob), part(gradients.dentropy)};
    };
    return head_.ForwardBackward(hidden, head, batch.targets, part_of, dhead);
  }
  tokens->current = at::empty_like(tokens->behaviour);
  tokens->entropy = at::empty_like(tokens->behaviour);
  auto loss_of = [&](int64_t begin, const FusedHead::Rows& rows) {
    const int64_t count = rows.logprob.size(0);
    tokens->current.narrow(0, begin, count).copy_(rows.logprob);
    tokens->entropy.narrow(0, begin, count).copy_(rows.entropy);
    const loss::LossGradients gradients = DifferentiateLoss(SliceTokens(*tokens, begin, count), extent, options_.loss);
    return FusedHead::RowGradients{gradients.dlogprob, gradients.dentropy};
  };
  return head_.ForwardBackward(hidden, head, batch.targets, loss_of, dhead);
}

loss::LossMeasurement TrainStep::RunMicroBatch(const PackedBatch& batch, const at::Tensor& proximal,
                                               const loss::BatchExtent& extent, bool is_made) const {
  const model::TransformerWeights& weights = actor_.weights();
  loss::TokenBatch tokens = batch.tokens;
  tokens.proximal = proximal;
  if (options_.loss.needs_reference() && !tokens.reference.defined()) {
    tokens.reference = LogProbs(batch, reference_->weights());
  }
  DecoderProgram::Tape tape;
  const at::Tensor hidden = program_.Forward(weights, batch.ids, batch.sequences, is_made ? &tape : nullptr);
  const at::Tensor rows = hidden.index_select(0, batch.predicts);
  if (is_made) {
    const at::Tensor drows = HeadGradient(batch, rows, extent, &tokens);
    const at::Tensor dhidden = at::zeros_like(hidden).index_copy_(0, batch.predicts, drows);
    program_.Backward(weights, batch.ids, batch.sequences, dhidden, &tape, actor_.gradient_views());
  } else {
    const FusedHead::Rows forward = head_.Forward(rows, weights.head, batch.targets);
    tokens.current = forward.logprob;
    tokens.entropy = forward.entropy;
  }
  return MeasureLoss(tokens, extent, options_.loss);
}

absl::Status TrainStep::RunUpdate(const Update& update, TrainStepMetrics& metrics, Totals& totals) {
  PhaseClock clock(actor_.device());
  clock.Mark();
  const loss::BatchExtent& extent = update.extent.batch;
  // Nothing to learn: passes are for the metrics alone. An update would let the moments decay, until the next gradient
  // is large beside what they remember.
  const bool is_made = update.extent.with_signal > 0 || (options_.loss.has_penalties() && extent.tokens > 0);
  if (is_made) actor_.ZeroGradients();
  loss::LossMeasurement measured = loss::LossMeasurement::Nothing(actor_.device());
  for (size_t i = 0; i < update.micro_batches.size(); ++i) {
    measured.Add(RunMicroBatch(Pack(update.micro_batches[i], actor_.device()),
                               update.proximal.empty() ? at::Tensor() : update.proximal[i], extent, is_made));
  }
  SYNCOPATE_RETURN_IF_ERROR(ranks_.AllReduceSum(
      absl::MakeSpan(measured.sums.data_ptr<double>(), static_cast<size_t>(measured.sums.numel()))));
  if (is_made) SYNCOPATE_RETURN_IF_ERROR(ranks_.AllReduceSum(actor_.gradients()));
  clock.Mark();
  at::Tensor norm;
  if (is_made) norm = actor_.QueueUpdate(measured.sums[loss::kSumLoss]);
  clock.Mark();
  SYNCOPATE_RETURN_IF_ERROR(FinishUpdate(measured, norm, metrics, totals));
  metrics.tokens += static_cast<int64_t>(std::llround(extent.tokens));
  metrics.forward_backward_seconds += clock.Seconds(0);
  if (is_made) metrics.optimizer_seconds += clock.Seconds(1);
  return absl::OkStatus();
}

absl::Status TrainStep::FinishUpdate(const loss::LossMeasurement& measured, const at::Tensor& norm,
                                     TrainStepMetrics& metrics, Totals& totals) {
  const at::Tensor norm_or_zero =
      norm.defined() ? norm.to(at::kDouble).reshape({1}) : at::zeros({1}, measured.sums.options());
  const at::Tensor figures = at::cat({norm_or_zero, measured.sums, measured.maxima}).to(at::kCPU);
  const double* const values = figures.data_ptr<double>();
  const double gradient_norm = values[0];
  const double* const sums = values + 1;
  const double* const maxima = sums + loss::kLossSums;
  if (norm.defined()) {
    metrics.gradient_norm = gradient_norm;
    if (std::isfinite(gradient_norm) && std::isfinite(sums[loss::kSumLoss])) {
      actor_.CountUpdate();
      skipped_in_row_ = 0;
      ++metrics.updates;
    } else {
      ++metrics.skipped;
      if (++skipped_in_row_ >= kMostSkippedInRow) return TooManySkipped(skipped_in_row_);
    }
  }
  for (int i = 0; i < loss::kLossSums; ++i) totals.sums[i] += sums[i];
  for (int i = 0; i < loss::kLossMaxima; ++i) totals.maxima[i] = std::max(totals.maxima[i], maxima[i]);
  return absl::OkStatus();
}

}  // namespace syncopate::trainer
