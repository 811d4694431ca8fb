#include "trainer/step/training_sequences.h"

#include <array>
#include <utility>

#include "trainer/loss/outcomes.h"

namespace syncopate::trainer {
namespace {

absl::StatusOr<loss::BatchMoments> AddUp(const loss::BatchMoments& moments, RankGroup& ranks) {
  std::array<double, 3> sums = {moments.count, moments.sum, moments.squares};
  SYNCOPATE_RETURN_IF_ERROR(ranks.AllReduceSum(absl::MakeSpan(sums)));
  return loss::BatchMoments{sums[0], sums[1], sums[2]};
}

}  // namespace

absl::StatusOr<std::vector<std::vector<TrainingSequence>>> SequencesByGroup(
    const std::vector<const TrajectoryGroup*>& groups, const loss::LossOptions& options, int64_t step, RankGroup& ranks,
    const std::vector<std::vector<float>>& reference) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<loss::RewardWeight> parts, PartWeights(groups, options.advantage));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<loss::GroupOutcomes> outcomes,
                             OutcomesOf(groups, options, parts, reference));
  std::vector<double> weights;
  for (const loss::RewardWeight& part : parts) weights.push_back(part.weight);
  loss::AdvantageBatch batch(options.advantage, outcomes, weights);
  loss::BatchMoments moments = batch.moments();
  if (options.advantage.needs_batch_moments()) {
    SYNCOPATE_ASSIGN_OR_RETURN(moments, AddUp(moments, ranks));
  }
  std::vector<loss::SampleAdvantage> advantages = batch.Finish(moments);
  std::vector<std::vector<TrainingSequence>> sequences;
  size_t index = 0;
  for (const TrajectoryGroup* group : groups) {
    std::vector<TrainingSequence>& made = sequences.emplace_back();
    double tokens = 0;
    for (const Trajectory& sample : group->samples) {
      const size_t at = index++;
      if (IsMasked(sample, options)) continue;
      made.push_back({.prompt_ids = &group->prompt_ids,
                      .trajectory = &sample,
                      .advantage = std::move(advantages[at]),
                      .step = step,
                      .reference = reference.empty() ? nullptr : &reference[at]});
      tokens += static_cast<double>(sample.tokens.size());
    }
    for (TrainingSequence& sequence : made) sequence.group_tokens = tokens;
  }
  return sequences;
}

std::vector<std::vector<TrainingSequence>> SupervisedSequences(const std::vector<const TrajectoryGroup*>& groups) {
  std::vector<std::vector<TrainingSequence>> sequences;
  for (const TrajectoryGroup* group : groups) {
    std::vector<TrainingSequence>& made = sequences.emplace_back();
    double tokens = 0;
    for (const Trajectory& sample : group->samples) {
      made.push_back({.prompt_ids = &group->prompt_ids, .trajectory = &sample, .advantage = {.value = 1.0}});
      tokens += static_cast<double>(sample.tokens.size());
    }
    for (TrainingSequence& sequence : made) sequence.group_tokens = tokens;
  }
  return sequences;
}

absl::StatusOr<UpdateExtent> MeasureExtent(const std::vector<std::vector<TrainingSequence>>& groups, RankGroup& ranks) {
  std::array<double, 4> sums{};
  for (const std::vector<TrainingSequence>& group : groups) {
    for (const TrainingSequence& sequence : group) {
      sums[0] += static_cast<double>(sequence.trajectory->tokens.size());
      sums[1] += 1;
      sums[3] += sequence.advantage.HasSignal() ? 1 : 0;
    }
    sums[2] += group.empty() ? 0 : 1;
  }
  SYNCOPATE_RETURN_IF_ERROR(ranks.AllReduceSum(absl::MakeSpan(sums)));
  return UpdateExtent{{.tokens = sums[0], .answers = sums[1], .groups = sums[2]}, sums[3]};
}

}  // namespace syncopate::trainer
