#include "tools/twin/synchronous_loop.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "services/config/model_options.h"
#include "services/config/run_model.h"
#include "services/config/trainer_options.h"

namespace syncopate::twin {
namespace {

constexpr absl::Duration kDeadline = absl::Minutes(5);
constexpr char kRendezvous[] = "twin";

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
  Parts parts;
  trainer::TaskOptions evaluation = config::TaskOptionsOf(config);
  evaluation.seed = static_cast<uint64_t>(config.eval().seed());
  SYNCOPATE_ASSIGN_OR_RETURN(parts.prompts, trainer::MakeTask(config::TaskOptionsOf(config)));
  SYNCOPATE_ASSIGN_OR_RETURN(parts.evaluation_prompts, trainer::MakeTask(evaluation));
  SYNCOPATE_ASSIGN_OR_RETURN(const config::RunModel model, config::FindRunModel(config));
  trainer::PolicyTrainer::Options options = config::PolicyTrainerOptionsOf(config, model.shape);
  SYNCOPATE_ASSIGN_OR_RETURN(options.weights, config::OpenInitialWeights(config, model));
  SYNCOPATE_ASSIGN_OR_RETURN(parts.trainer, trainer::PolicyTrainer::Create(options));
  SYNCOPATE_ASSIGN_OR_RETURN(parts.engine, rollouter::EngineLoop::Start(config::EngineOptionsOf(config, model.shape)));
  SYNCOPATE_ASSIGN_OR_RETURN(parts.stager,
                             trainer::HostStager::Create(parts.trainer.get(), parts.engine->manifest(), /*slots=*/2));
  std::unique_ptr<SynchronousLoop> loop(new SynchronousLoop(config, std::move(parts)));
  SYNCOPATE_RETURN_IF_ERROR(loop->SyncWeights());
  return loop;
}

SynchronousLoop::SynchronousLoop(const v1::RunConfig& config, Parts parts)
    : config_(config),
      rewards_(rollouter::RewardRegistry::BuiltIn()),
      parts_(std::move(parts)),
      transport_(&hub_),
      receiver_({.manifest = parts_.engine->manifest()}, parts_.engine.get(), {&transport_}) {
  hub_.Add(kRendezvous, parts_.stager->store());
}

absl::Status SynchronousLoop::SyncWeights() {
  const Manifest& manifest = parts_.stager->manifest();
  const PolicyVersion version{1, step_};
  SYNCOPATE_ASSIGN_OR_RETURN(auto staged, parts_.stager->Stage(version));
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto plan, synchronizer::SyncPlan::Create(manifest, synchronizer::Layout::FlatShards(manifest, /*ranks=*/1),
                                                synchronizer::Layout::Whole(manifest, /*ranks=*/1)));
  const int64_t attempt = step_ + 1;
  synchronizer::Prepare prepare{.attempt = attempt,
                                .version = version,
                                .digest = staged.digest,
                                .manifest_fingerprint = manifest.fingerprint(),
                                .plan_hash = plan.hash(),
                                .transport = "inproc",
                                .deadline = kDeadline,
                                .receivers = 1,
                                .sources = 1};
  SYNCOPATE_ASSIGN_OR_RETURN(auto prepared, receiver_.Prepare(prepare));
  if (!prepared.already_held) {
    const synchronizer::Transfer transfer{.attempt = attempt,
                                          .sources = {{.id = {}, .rendezvous = kRendezvous}},
                                          .receivers = {{}},
                                          .bucket_digests = staged.bucket_digests};
    SYNCOPATE_RETURN_IF_ERROR(receiver_.Transfer(transfer).status());
  }
  SYNCOPATE_RETURN_IF_ERROR(receiver_.Install({attempt}).status());
  receiver_.Finish(attempt);
  weights_digest_ = staged.digest;
  return absl::OkStatus();
}

absl::StatusOr<SynchronousLoop::StepResult> SynchronousLoop::Step() {
  const int64_t batch = config_.data().batch_groups();
  std::vector<GroupId> ids;
  for (int64_t i = 0; i < batch; ++i) ids.push_back({0, step_ * batch + i});
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<TrajectoryGroup> groups,
                             Generate(*parts_.prompts, ids, static_cast<int32_t>(config_.rollout().samples()),
                                      config::SamplingOf(config_, *parts_.prompts)));
  StepResult result;
  std::vector<const TrajectoryGroup*> batch_groups;
  for (const TrajectoryGroup& group : groups) batch_groups.push_back(&group);
  SYNCOPATE_ASSIGN_OR_RETURN(result.metrics, parts_.trainer->Step(batch_groups));
  result.step = ++step_;
  SYNCOPATE_RETURN_IF_ERROR(SyncWeights());
  result.weights_digest = weights_digest();
  return result;
}

absl::StatusOr<double> SynchronousLoop::EvaluateExact() {
  std::vector<GroupId> ids;
  for (int64_t i = 0; i < config_.eval().prompts(); ++i) ids.push_back({trainer::PromptSource::kEvaluationPass, i});
  SYNCOPATE_ASSIGN_OR_RETURN(
      std::vector<TrajectoryGroup> groups,
      Generate(*parts_.evaluation_prompts, ids, 1, config::EvaluationSamplingOf(config_, *parts_.prompts)));
  int64_t right = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    right += groups[i].samples[0].tokens == parts_.evaluation_prompts->At(ids[i]).answer_ids ? 1 : 0;
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
    SYNCOPATE_RETURN_IF_ERROR(parts_.engine->Submit(std::move(request), sinks.back()));
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

}  // namespace syncopate::twin
