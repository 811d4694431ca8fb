#include "trainer/step/training_sequences.h"

#include <utility>

#include "trainer/loss/outcomes.h"

namespace syncopate::trainer {
absl::StatusOr<std::vector<std::vector<TrainingSequence>>> SequencesByGroup(
    const std::vector<const TrajectoryGroup*>& groups, const loss::LossOptions& options, int64_t step,
    const std::vector<std::vector<float>>& reference) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<loss::RewardWeight> parts, PartWeights(groups, options.advantage));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<loss::GroupOutcomes> outcomes,
                             GetOutcomes(groups, options, parts, reference));
  std::vector<double> weights;
  for (const loss::RewardWeight& part : parts) weights.push_back(part.weight);
  // Advantages are of the whole batch, before it is divided among ranks and micro-batches: what a sample is compared
  // with must not depend on where it is computed.
  loss::AdvantageBatch batch(options.advantage, outcomes, weights);
  std::vector<loss::SampleAdvantage> advantages = batch.Finish(batch.moments());
  std::vector<std::vector<TrainingSequence>> sequences;
  size_t index = 0;
  for (const TrajectoryGroup* group : groups) {
    std::vector<TrainingSequence>& made = sequences.emplace_back();
    double tokens = 0;
    for (const Trajectory& sample : group->samples) {
      const size_t at = index++;
      // It teaches nothing itself; unless it was rejected, its reward counted among its group's.
      if (HasNoLoss(sample, options)) continue;
      made.push_back({.prompt_ids = &group->prompt_ids,
                      .trajectory = &sample,
                      .advantage = std::move(advantages[at]),
                      .step = step,
                      .reference = reference.empty() ? nullptr : &reference[at]});
      tokens += static_cast<double>(WrittenTokens(sample));
    }
    for (TrainingSequence& sequence : made) sequence.group_tokens = tokens;
  }
  return sequences;
}

// With an advantage of 1, the policy gradient is the gradient of the log-likelihood.
std::vector<std::vector<TrainingSequence>> SupervisedSequences(const std::vector<const TrajectoryGroup*>& groups) {
  std::vector<std::vector<TrainingSequence>> sequences;
  for (const TrajectoryGroup* group : groups) {
    std::vector<TrainingSequence>& made = sequences.emplace_back();
    double tokens = 0;
    for (const Trajectory& sample : group->samples) {
      made.push_back({.prompt_ids = &group->prompt_ids, .trajectory = &sample, .advantage = {.value = 1.0}});
      tokens += static_cast<double>(WrittenTokens(sample));
    }
    for (TrainingSequence& sequence : made) sequence.group_tokens = tokens;
  }
  return sequences;
}

UpdateExtent MeasureExtent(const std::vector<std::vector<TrainingSequence>>& groups) {
  UpdateExtent extent;
  for (const std::vector<TrainingSequence>& group : groups) {
    for (const TrainingSequence& sequence : group) {
      extent.batch.tokens += static_cast<double>(WrittenTokens(*sequence.trajectory));
      extent.batch.answers += 1;
      extent.with_signal += sequence.advantage.HasSignal() ? 1 : 0;
    }
    extent.batch.groups += group.empty() ? 0 : 1;
  }
  return extent;
}

}  // namespace syncopate::trainer
