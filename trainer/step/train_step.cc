#include "trainer/step/train_step.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "trainer/loss/advantages.h"
#include "trainer/loss/policy_loss.h"

namespace syncopate::trainer {
namespace {

double SecondsSince(absl::Time begin) { return absl::ToDoubleSeconds(Clock::Real()->Now() - begin); }

// What micro-batches add up and ranks reduce, in one array.
enum Sum { kLoss, kEntropy, kClipped, kRejected, kK3, kWeight, kWeightSquare, kTokens, kSumCount };
using Sums = std::array<double, kSumCount>;

void DescribeRewards(const std::vector<const TrajectoryGroup*>& groups, TrainStepMetrics& metrics) {
  double sum = 0, squares = 0, flat = 0, most = -std::numeric_limits<double>::infinity();
  for (const TrajectoryGroup* group : groups) {
    const std::vector<double> rewards = RewardsOf(*group);
    for (double reward : rewards) {
      sum += reward;
      squares += reward * reward;
      most = std::max(most, reward);
    }
    metrics.sequences += static_cast<int64_t>(rewards.size());
    if (HasZeroVariance(rewards)) flat += 1;
  }
  const double count = static_cast<double>(metrics.sequences);
  metrics.reward_mean = sum / count;
  metrics.reward_std = std::sqrt(std::max(0.0, squares / count - metrics.reward_mean * metrics.reward_mean));
  metrics.reward_max = most;
  metrics.zero_variance_fraction = flat / static_cast<double>(groups.size());
}

std::vector<TrainingSequence> SequencesOf(const std::vector<const TrajectoryGroup*>& groups, size_t begin, size_t end) {
  std::vector<TrainingSequence> sequences;
  for (size_t g = begin; g < end; ++g) {
    const TrajectoryGroup& group = *groups[g];
    const std::vector<double> advantages = GrpoAdvantages(RewardsOf(group));
    for (size_t i = 0; i < group.samples.size(); ++i) {
      sequences.push_back({&group.prompt_ids, &group.samples[i], advantages[i]});
    }
  }
  return sequences;
}

}  // namespace

absl::StatusOr<TrainStepMetrics> TrainStep::Run(const std::vector<const TrajectoryGroup*>& groups) {
  SYNCOPATE_CHECK(!groups.empty());
  TrainStepMetrics metrics;
  DescribeRewards(groups, metrics);
  const size_t updates = std::min<size_t>(options_.updates_per_batch, groups.size());
  // With several updates the first one moves the weights, so the proximal policy must be taken before it.
  std::vector<std::vector<TrainingSequence>> dealt;
  std::vector<std::vector<at::Tensor>> proximal(updates);
  for (size_t u = 0; u < updates; ++u) {
    dealt.push_back(SequencesOf(groups, groups.size() * u / updates, groups.size() * (u + 1) / updates));
    if (updates > 1) proximal[u] = ProximalLogProbs(dealt[u], metrics);
  }
  for (size_t u = 0; u < updates; ++u) SYNCOPATE_RETURN_IF_ERROR(RunUpdate(dealt[u], proximal[u], metrics));
  const double tokens = static_cast<double>(metrics.tokens);
  for (double* mean :
       {&metrics.loss, &metrics.entropy, &metrics.clip_fraction, &metrics.rejected_fraction, &metrics.mismatch_k3}) {
    *mean /= tokens;
  }
  metrics.mean_response_tokens = tokens / static_cast<double>(metrics.sequences);
  return metrics;
}

at::Tensor TrainStep::LogProbs(const PackedBatch& batch) const {
  at::NoGradGuard no_grad;
  return RunForward(batch).logprobs;
}

TrainStep::Forward TrainStep::RunForward(const PackedBatch& batch) const {
  PackedAttention attention(batch.lengths, actor_.device());
  const model::Transformer& transformer = actor_.transformer();
  at::Tensor hidden = transformer.Forward(actor_.weights(), batch.ids, batch.positions, attention);
  at::Tensor logits = transformer.Logits(actor_.weights(), hidden.index_select(0, batch.predicts));
  at::Tensor log_softmax = at::log_softmax(logits / options_.temperature, -1);
  Forward forward;
  forward.logprobs = log_softmax.gather(1, batch.targets.unsqueeze(1)).squeeze(1);
  at::Tensor detached = log_softmax.detach();
  forward.entropy = -(detached.exp() * detached).sum(-1);
  return forward;
}

std::vector<at::Tensor> TrainStep::ProximalLogProbs(const std::vector<TrainingSequence>& sequences,
                                                    TrainStepMetrics& metrics) const {
  const absl::Time begin = Clock::Real()->Now();
  std::vector<at::Tensor> proximal;
  for (const auto& run : SplitByTokens(sequences, options_.micro_batch_tokens)) {
    proximal.push_back(LogProbs(Pack(run, actor_.device())));
  }
  metrics.proximal_seconds += SecondsSince(begin);
  return proximal;
}

absl::StatusOr<TrainStep::Extent> TrainStep::MeasureExtent(const std::vector<TrainingSequence>& sequences) const {
  std::array<double, 2> sums{};  // tokens, sequences with signal
  for (const TrainingSequence& sequence : sequences) {
    sums[0] += static_cast<double>(sequence.trajectory->tokens.size());
    sums[1] += sequence.advantage != 0 ? 1 : 0;
  }
  SYNCOPATE_RETURN_IF_ERROR(ranks_.AllReduceSum(absl::MakeSpan(sums)));
  return Extent{sums[0], sums[1]};
}

absl::Status TrainStep::RunUpdate(const std::vector<TrainingSequence>& sequences,
                                  const std::vector<at::Tensor>& proximal, TrainStepMetrics& metrics) {
  absl::Time begin = Clock::Real()->Now();
  SYNCOPATE_ASSIGN_OR_RETURN(const Extent extent, MeasureExtent(sequences));
  const double tokens = extent.tokens;
  // Nothing to learn: passes are for the metrics alone. An update would let the moments decay, until the next gradient
  // is large beside what they remember.
  const bool is_made = extent.with_signal > 0;
  at::AutoGradMode gradients(is_made);
  if (is_made) actor_.ZeroGradients();
  Sums sums{};
  const auto runs = SplitByTokens(sequences, options_.micro_batch_tokens);
  for (size_t i = 0; i < runs.size(); ++i) {
    const PackedBatch batch = Pack(runs[i], actor_.device());
    const Forward forward = RunForward(batch);
    const at::Tensor& old = proximal.empty() ? forward.logprobs.detach() : proximal[i];
    PolicyLossSums loss = PolicyLoss({forward.logprobs, old, batch.behaviour, batch.advantage}, options_.loss);
    if (is_made) (loss.loss / tokens).backward();
    sums[kLoss] += loss.loss.item<double>();
    sums[kEntropy] += at::sum(forward.entropy, at::kDouble).item<double>();
    sums[kClipped] += loss.clipped;
    sums[kRejected] += loss.rejected;
    sums[kK3] += loss.mismatch_k3;
    sums[kWeight] += loss.weight;
    sums[kWeightSquare] += loss.weight_square;
    metrics.ratio_max = std::max(metrics.ratio_max, loss.ratio_max);
  }
  sums[kTokens] = tokens / ranks_.world();
  SYNCOPATE_RETURN_IF_ERROR(ranks_.AllReduceSum(absl::MakeSpan(sums)));
  if (is_made) SYNCOPATE_RETURN_IF_ERROR(ranks_.AllReduceSum(actor_.gradients()));
  metrics.forward_backward_seconds += SecondsSince(begin);
  if (is_made) {
    begin = Clock::Real()->Now();
    SYNCOPATE_ASSIGN_OR_RETURN(metrics.gradient_norm, actor_.OptimizerStep());
    metrics.optimizer_seconds += SecondsSince(begin);
    ++metrics.updates;
  }
  metrics.loss += sums[kLoss];
  metrics.entropy += sums[kEntropy];
  metrics.clip_fraction += sums[kClipped];
  metrics.rejected_fraction += sums[kRejected];
  metrics.mismatch_k3 += sums[kK3];
  metrics.tokens += static_cast<int64_t>(std::llround(sums[kTokens]));
  metrics.effective_sample_fraction =
      sums[kWeightSquare] > 0 ? sums[kWeight] * sums[kWeight] / (sums[kWeightSquare] * sums[kTokens]) : 0;
  return absl::OkStatus();
}

}  // namespace syncopate::trainer
