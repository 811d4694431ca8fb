#include "services/twin/synchronous_loop.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/mutex.h"
#include "services/options/model_options.h"
#include "services/options/trainer_options.h"

namespace syncopate::services {
namespace {

constexpr absl::Duration kDeadline = absl::Minutes(5);

// Collects the samples of one prompt.
class GroupSink final : public rollouter::GenerationSink {
 public:
  explicit GroupSink(int32_t samples) : left_(samples), samples_(samples) {}

  void OnFinished(int32_t sample, Trajectory trajectory) override {
    MutexLock lock(&mutex_);
    samples_[sample] = std::move(trajectory);
    --left_;
  }

  absl::StatusOr<std::vector<Trajectory>> Wait() {
    MutexLock lock(&mutex_);
    auto complete = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return left_ == 0; };
    if (!mutex_.AwaitWithTimeout(Condition(&complete), kDeadline)) {
      return absl::DeadlineExceededError("generation did not end within 5 minutes");
    }
    return std::move(samples_);
  }

 private:
  Mutex mutex_;
  int32_t left_ ABSL_GUARDED_BY(mutex_);
  std::vector<Trajectory> samples_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<SynchronousLoop>> SynchronousLoop::Create(const v1::RunConfig& config) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto prompts, trainer::MakeTask(TaskOptionsOf(config)));
  trainer::TaskOptions evaluation = TaskOptionsOf(config);
  evaluation.seed = static_cast<uint64_t>(config.eval().seed());
  SYNCOPATE_ASSIGN_OR_RETURN(auto evaluation_prompts, trainer::MakeTask(evaluation));
  SYNCOPATE_ASSIGN_OR_RETURN(auto trainer, trainer::PolicyTrainer::Create(PolicyTrainerOptionsOf(config)));
  SYNCOPATE_ASSIGN_OR_RETURN(auto engine, rollouter::EngineLoop::Start(EngineOptionsOf(config)));
  std::unique_ptr<SynchronousLoop> loop(new SynchronousLoop(config, std::move(prompts), std::move(evaluation_prompts),
                                                            std::move(trainer), std::move(engine)));
  SYNCOPATE_RETURN_IF_ERROR(loop->InstallWeights());
  return loop;
}

uint64_t SynchronousLoop::weights_digest() const {
  return CombineDigests(DigestBuckets(trainer_->manifest(), trainer_->parameters()));
}

absl::Status SynchronousLoop::InstallWeights() {
  std::memcpy(engine_->shadow(), trainer_->parameters(), static_cast<size_t>(trainer_->manifest().arena_bytes()));
  return engine_->Install({1, step_}, weights_digest(), kDeadline).status();
}

absl::StatusOr<SynchronousLoop::StepResult> SynchronousLoop::Step() {
  const int64_t batch = config_.data().batch_groups();
  std::vector<GroupId> ids;
  for (int64_t i = 0; i < batch; ++i) ids.push_back({0, step_ * batch + i});
  SYNCOPATE_ASSIGN_OR_RETURN(
      std::vector<TrajectoryGroup> groups,
      Generate(*prompts_, ids, static_cast<int32_t>(config_.rollout().samples()), SamplingOf(config_, *prompts_)));
  StepResult result;
  SYNCOPATE_ASSIGN_OR_RETURN(result.metrics, trainer_->Step(groups));
  result.step = ++step_;
  result.weights_digest = weights_digest();
  SYNCOPATE_RETURN_IF_ERROR(InstallWeights());
  return result;
}

absl::StatusOr<double> SynchronousLoop::EvaluateExact() {
  std::vector<GroupId> ids;
  for (int64_t i = 0; i < config_.eval().prompts(); ++i) ids.push_back({trainer::PromptSource::kEvaluationPass, i});
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<TrajectoryGroup> groups,
                             Generate(*evaluation_prompts_, ids, 1, EvaluationSamplingOf(config_, *prompts_)));
  int64_t right = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    right += groups[i].samples[0].tokens == evaluation_prompts_->At(ids[i]).answer_ids ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(groups.size());
}

absl::StatusOr<std::vector<TrajectoryGroup>> SynchronousLoop::Generate(const trainer::PromptSource& prompts,
                                                                       const std::vector<GroupId>& groups,
                                                                       int32_t samples,
                                                                       const SamplingParams& sampling) {
  SYNCOPATE_ASSIGN_OR_RETURN(const rollouter::RewardFunction* reward, rewards_.Find(config_.reward().name()));
  std::vector<trainer::Prompt> made;
  std::vector<std::shared_ptr<GroupSink>> sinks;
  for (const GroupId& group : groups) {
    made.push_back(prompts.At(group));
    rollouter::GenerationRequest request{group.ToString(), made.back().prompt_ids, sampling, {}, false};
    const uint64_t seed = GroupSeed(static_cast<uint64_t>(config_.run().seed()), group);
    for (int32_t i = 0; i < samples; ++i) request.seeds.push_back(SampleSeed(seed, i));
    sinks.push_back(std::make_shared<GroupSink>(samples));
    SYNCOPATE_RETURN_IF_ERROR(engine_->Submit(std::move(request), sinks.back()));
  }
  std::vector<TrajectoryGroup> result(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    result[i].lease = {groups[i], 1};
    result[i].prompt_ids = made[i].prompt_ids;
    SYNCOPATE_ASSIGN_OR_RETURN(result[i].samples, sinks[i]->Wait());
    for (Trajectory& sample : result[i].samples) {
      sample.reward = (*reward)({made[i].prompt_ids, made[i].answer_ids, sample.tokens});
    }
  }
  return result;
}

}  // namespace syncopate::services
