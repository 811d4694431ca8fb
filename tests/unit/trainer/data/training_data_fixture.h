#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/trajectory.h"
#include "services/trainer/data_codec.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/hand_clock.h"
#include "trainer/data/tasks.h"
#include "trainer/data/training_data.h"

namespace syncopate::trainer {

using syncopate::testing::HandClock;

// A TrainingData over a disk in memory: reverse, groups of 2 samples, batches of `batch` groups.
class TrainingDataWorld {
 public:
  static constexpr char kRunId[] = "run-1";
  static constexpr int64_t kEvaluationPrompts = 6;

  explicit TrainingDataWorld(int64_t batch = 2, int64_t max_staleness = 4, double target = 4) {
    options.ledger.gate = {.batch_groups = batch, .target_staleness = target, .max_staleness = max_staleness};
    options.ledger.samples = 2;
    options.ledger.sampling.max_new_tokens = 5;
    options.log.segments.folder = "/log";
    options.evaluation.prompts = kEvaluationPrompts;
    options.evaluation.samples_shown = 2;
    options.evaluation.sampling.temperature = 0;
    options.evaluation.sampling.max_new_tokens = 5;
  }

  // Opens at `version`, which is published; `snapshot` is a result of TrainingData::Snapshot.
  absl::StatusOr<std::unique_ptr<TrainingData>> Open(const PolicyVersion& version = {1, 0},
                                                     const std::string& snapshot = "") {
    TrainingData::Parts parts{&disk,         &trainerd::ProtoRecordCodec(), clock,
                              prompts.get(), evaluation_prompts.get(),      on_dropped};
    SYNCOPATE_ASSIGN_OR_RETURN(auto data, TrainingData::Open(options, parts, {version, kRunId, snapshot}));
    data->RecordPublished(version);
    return data;
  }

  static MemberId Member(const std::string& replica, const std::string& incarnation = "i1") {
    return {"rollouter", replica, 0, 1, incarnation};
  }

  testing::FaultyFileSystem disk;
  const Clock* clock = Clock::Real();
  std::unique_ptr<PromptSource> prompts = *MakeTask({});
  std::unique_ptr<PromptSource> evaluation_prompts = *MakeTask({.seed = 999});
  std::function<void(const DropRecord&, const PolicyVersion&)> on_dropped = nullptr;
  TrainingData::Options options;
};

// The next batch as the step thread gets it.
inline absl::StatusOr<TrainingData::Batch> NextBatch(TrainingData& data, absl::Time deadline) {
  SYNCOPATE_RETURN_IF_ERROR(data.AwaitBatch(deadline));
  return data.TakeBatch();
}

// The right answer, n times, with rewards 0, 1, ...
inline TrajectoryGroup RightAnswer(const Lease& lease, const PolicyVersion& version) {
  TrajectoryGroup group;
  group.lease = lease.id;
  group.kind = lease.kind;
  group.prompt_ids = lease.prompt_ids;
  for (int32_t i = 0; i < lease.samples; ++i) {
    Trajectory sample;
    sample.tokens = lease.answer_ids;
    sample.logprobs.assign(sample.tokens.size(), -0.25f);
    sample.spans = {{version, 0, static_cast<int32_t>(sample.tokens.size())}};
    // The samples of a training group differ, so that the group has a signal; an evaluation's sample gets the best
    // reward.
    sample.reward = lease.kind == LeaseKind::kEvaluation ? 1 : static_cast<float>(i);
    group.samples.push_back(std::move(sample));
  }
  return group;
}
inline TrajectoryGroup RightAnswer(const Lease& lease) { return RightAnswer(lease, lease.version); }

}  // namespace syncopate::trainer
