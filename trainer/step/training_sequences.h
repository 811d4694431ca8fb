#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/trajectory.h"
#include "trainer/loss/loss_options.h"
#include "trainer/step/packed_batch.h"

namespace syncopate::trainer {

// Returns, for each group of a batch, the answers to train on, with their advantages; none if the group's answers are
// all masked. `step` is the trainer's. `reference`: log-probs of the written tokens of all answers under the reference
// policy, in the order of groups and samples, which must outlive what is returned; empty: not known. INVALID_ARGUMENT
// (reason NO_REWARD_PARTS) as GetOutcomes().
absl::StatusOr<std::vector<std::vector<TrainingSequence>>> SequencesByGroup(
    const std::vector<const TrajectoryGroup*>& groups, const loss::LossOptions& options, int64_t step,
    const std::vector<std::vector<float>>& reference);

// All answers, to be learned as they are: an advantage of 1 for each token. They need no log-probs and no versions.
std::vector<std::vector<TrainingSequence>> SupervisedSequences(const std::vector<const TrajectoryGroup*>& groups);

// What an update of these sequences is of.
struct UpdateExtent {
  loss::BatchExtent batch;
  double with_signal = 0;  // answers whose advantage is not 0
};
UpdateExtent MeasureExtent(const std::vector<std::vector<TrainingSequence>>& groups);

}  // namespace syncopate::trainer
