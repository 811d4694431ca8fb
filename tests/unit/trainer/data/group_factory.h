#pragma once

#include <memory>
#include <vector>

#include "base/trajectory.h"

namespace syncopate::trainer {

inline LeaseId Id(int64_t ordinal, int32_t attempt = 1, int64_t pass = 0) { return {{pass, ordinal}, attempt}; }

// A right answer to `lease` whose tokens were all made by `version`: n samples of two tokens, rewards 0, 1, 2, ...
inline TrajectoryGroup AnswerTo(const Lease& lease, const PolicyVersion& version) {
  TrajectoryGroup group;
  group.lease = lease.id;
  group.kind = lease.kind;
  group.rollouter = "rollouter-0";
  group.prompt_ids = lease.prompt_ids;
  for (int32_t i = 0; i < lease.samples; ++i) {
    Trajectory sample;
    sample.tokens = {0, 1};
    sample.logprobs = {-0.5f, 0.0f};
    sample.spans = {{version, 0, 2}};
    sample.reward = static_cast<float>(i);
    group.samples.push_back(std::move(sample));
  }
  return group;
}

inline TrajectoryGroup AnswerTo(const Lease& lease) { return AnswerTo(lease, lease.version); }

inline std::shared_ptr<const TrajectoryGroup> Share(TrajectoryGroup group) {
  return std::make_shared<const TrajectoryGroup>(std::move(group));
}

}  // namespace syncopate::trainer
