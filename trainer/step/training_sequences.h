#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/trajectory.h"
#include "trainer/actor/rank_group.h"
#include "trainer/loss/loss_options.h"
#include "trainer/step/packed_batch.h"

namespace syncopate::trainer {

// Of each group the answers to train on, with their advantages; none of a group whose answers are all masked. Ranks add
// up the moments of their groups, for estimators that need those of the whole batch: all must call it. `step` is the
// trainer's. `reference`: log-probs of all answers under the reference policy, in the order of groups and samples,
// which must outlive what is returned; empty: not known. INVALID_ARGUMENT (reason NO_REWARD_PARTS) as OutcomesOf().
absl::StatusOr<std::vector<std::vector<TrainingSequence>>> SequencesByGroup(
    const std::vector<const TrajectoryGroup*>& groups, const loss::LossOptions& options, int64_t step, RankGroup& ranks,
    const std::vector<std::vector<float>>& reference);

// All answers, to be learned as they are: an advantage of 1 for each token. They need no log-probs and no versions.
std::vector<std::vector<TrainingSequence>> SupervisedSequences(const std::vector<const TrajectoryGroup*>& groups);

// What an update of these sequences, and of those of other ranks, is of. All ranks must call it.
struct UpdateExtent {
  loss::BatchExtent batch;
  double with_signal = 0;  // answers whose advantage is not 0
};
absl::StatusOr<UpdateExtent> MeasureExtent(const std::vector<std::vector<TrainingSequence>>& groups, RankGroup& ranks);

}  // namespace syncopate::trainer
