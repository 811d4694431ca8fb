#include "tools/twin/synchronous_loop.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/file_system.h"
#include "base/mutex.h"
#include "base/reasons.h"
#include "model/hf_config.h"
#include "services/config/model_options.h"
#include "services/config/play_options.h"
#include "services/config/reward_options.h"
#include "services/config/rules.h"
#include "services/config/run_model.h"
#include "services/config/trainer_options.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/plan/sync_plan.h"
#include "text/template/chat_format.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::twin {
namespace {

constexpr absl::Duration kDeadline = absl::Minutes(5);

std::string Rendezvous(int32_t rank) { return absl::StrCat("trainer rank ", rank); }

MemberId EngineRank(int32_t rank, int32_t world) { return {"rollouter", "twin", rank, world, "twin"}; }

// The group of one prompt, which the engine's thread hands over.
class AwaitedGroup {
 public:
  void Set(absl::StatusOr<TrajectoryGroup> group) {
    MutexLock lock(&mutex_);
    group_ = std::move(group);
  }
  absl::StatusOr<TrajectoryGroup> Wait() {
    MutexLock lock(&mutex_);
    auto complete = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return group_.has_value(); };
    if (!mutex_.AwaitWithTimeout(Condition(&complete), kDeadline)) {
      return absl::DeadlineExceededError("generation did not end within 5 minutes");
    }
    return *std::move(group_);
  }

 private:
  Mutex mutex_;
  std::optional<absl::StatusOr<TrajectoryGroup>> group_ ABSL_GUARDED_BY(mutex_);
};

using SharedTokenizer = std::shared_ptr<const text::tokenizer::Tokenizer>;

// Null for a model without one.
absl::StatusOr<SharedTokenizer> LoadTokenizer(const config::RunModel& model) {
  if (model.by_keys()) return SharedTokenizer();
  auto tokenizer = text::tokenizer::Tokenizer::Load(FileSystem::Real(), model.description);
  if (absl::IsNotFound(tokenizer.status())) return SharedTokenizer();
  return tokenizer;
}

// How samples play with an environment that is built in: the twin calls no worker.
absl::StatusOr<std::optional<rollouter::PlayRules>> MakePlay(const v1::RunConfig& config, const config::RunModel& model,
                                                             const SharedTokenizer& tokenizer) {
  config::PlayText text{.tokenizer = tokenizer};
  if (config::Plays(config) && !model.by_keys()) {
    SYNCOPATE_ASSIGN_OR_RETURN(const model::HfModel described, model::ReadHfConfig(model.description));
    text.end_token_ids = described.eos_token_ids;
    auto format = text::chat::ChatFormat::Load(FileSystem::Real(), model.description);
    if (!format.ok() && ErrorReason(format.status()) != reason::kNoChatTemplate) return format.status();
    if (format.ok()) text.format = *std::move(format);
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::optional<rollouter::PlayRules> play, config::MakePlayOptions(config, text));
  if (!play.has_value() || play->games.contains(play->environment)) return play;
  return Error(absl::StatusCode::kInvalidArgument, "NO_WORKER",
               absl::StrCat("the twin calls no worker, which has the environment ", play->environment));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SynchronousLoop>> SynchronousLoop::Create(const v1::RunConfig& config, int64_t lag) {
  if (lag < 0 || lag > config.staleness().max_staleness()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_LAG",
                 absl::StrCat("a lag of ", lag, " steps must be from 0 to staleness.max_staleness, which is ",
                              config.staleness().max_staleness(), ": older tokens have no loss"));
  }
  // The daemons' parts, called one after the other: the twin computes the same as a run, only at other times.
  Parts parts;
  SYNCOPATE_ASSIGN_OR_RETURN(const config::RunModel model, config::FindRunModel(config));
  SYNCOPATE_ASSIGN_OR_RETURN(parts.prompts, trainerd::OpenPromptSources(config, model));
  SYNCOPATE_ASSIGN_OR_RETURN(const SharedTokenizer tokenizer, LoadTokenizer(model));
  SYNCOPATE_ASSIGN_OR_RETURN(parts.stops,
                             rollouter::MakeStopRules(config.rollout().stop(), tokenizer, model.shape.vocab_size));
  SYNCOPATE_ASSIGN_OR_RETURN(parts.play, MakePlay(config, model, tokenizer));
  SYNCOPATE_ASSIGN_OR_RETURN(const rollouter::RewardRegistry rewards,
                             rollouter::RewardRegistry::Create(config::MakeRewardParameters(config)));
  SYNCOPATE_ASSIGN_OR_RETURN(parts.rewards, rollouter::RewardPlan::Create(config.reward().name(), rewards,
                                                                          text::tokenizer::MakeTextDecoder(tokenizer)));
  trainer::PolicyTrainer::Options options = config::MakePolicyTrainerOptions(config, model.shape);
  SYNCOPATE_ASSIGN_OR_RETURN(options.weights, config::OpenInitialWeights(config, model));
  SYNCOPATE_ASSIGN_OR_RETURN(options.adapters, config::OpenInitialAdapters(config, model));
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest wire, config::MakeWireManifest(config, model.shape));
  SYNCOPATE_ASSIGN_OR_RETURN(parts.engine,
                             EngineRanks::Create(config::MakeEngineOptions(config, model.shape), wire,
                                                 static_cast<int32_t>(config.rollout().tensor_parallel())));
  SYNCOPATE_ASSIGN_OR_RETURN(
      parts.trainer, TrainerRanks::Create(options, static_cast<int32_t>(config.trainer().world()), wire,
                                          static_cast<int>(lag) + 2, config::MakeRolloutLayout(config, model.shape)));
  std::unique_ptr<SynchronousLoop> loop(new SynchronousLoop(config, model.shape, lag, std::move(parts)));
  if (loop->serves()) SYNCOPATE_RETURN_IF_ERROR(loop->SyncWeights());
  return loop;
}

SynchronousLoop::SynchronousLoop(const v1::RunConfig& config, const model::ModelConfig& shape, int64_t lag, Parts parts)
    : config_(config),
      supervised_steps_(config::CountSupervisedSteps(config)),
      parts_(std::move(parts)),
      transport_(&hub_),
      layout_(config::MakeRolloutLayout(config, shape)),
      lag_(lag) {
  for (int32_t rank = 0; rank < parts_.trainer->world(); ++rank) {
    hub_.Add(Rendezvous(rank), parts_.trainer->store(rank));
  }
  for (int32_t rank = 0; rank < parts_.engine->world(); ++rank) {
    receivers_.push_back(std::make_unique<synchronizer::WeightReceiver>(
        synchronizer::WeightReceiver::Options{.manifest = parts_.trainer->stager().manifest(),
                                              .member = EngineRank(rank, parts_.engine->world()),
                                              .layout = layout_},
        parts_.engine->target(rank), std::vector<synchronizer::ReceiverTransport*>{&transport_}));
  }
}

absl::Status SynchronousLoop::SyncWeights() {
  // A twin is never resumed, so its epoch is the first.
  SYNCOPATE_ASSIGN_OR_RETURN(auto staged, trainer::InUse(parts_.trainer->policy(), [&] {
                               return parts_.trainer->stager().Stage({1, step_});
                             }));
  staged_.emplace_back(step_, std::move(staged));
  while (static_cast<int64_t>(staged_.size()) > lag_ + 1) staged_.pop_front();
  const auto& [step, oldest] = staged_.front();
  if (step == served_) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(Install(step, oldest));
  served_ = step;
  return absl::OkStatus();
}

absl::Status SynchronousLoop::Install(int64_t step, const trainer::WeightStager::Staged& staged) {
  const Manifest& manifest = parts_.trainer->stager().manifest();
  const int32_t sources = parts_.trainer->world(), receivers = parts_.engine->world();
  const std::string from = parts_.trainer->stager().layout();
  const PolicyVersion version{1, step};
  SYNCOPATE_ASSIGN_OR_RETURN(const auto source, synchronizer::BuildLayout(manifest, from));
  SYNCOPATE_ASSIGN_OR_RETURN(const auto destination,
                             synchronizer::BuildLayout(manifest, layout_.empty() ? "whole:1" : layout_));
  SYNCOPATE_ASSIGN_OR_RETURN(const auto plan, synchronizer::SyncPlan::Create(manifest, source, destination));
  const int64_t attempt = step + 1;
  const synchronizer::Prepare prepare{.attempt = attempt,
                                      .version = version,
                                      .digest = staged.digest,
                                      .manifest_fingerprint = manifest.fingerprint(),
                                      .plan_hash = plan.hash(),
                                      .transport = "inproc",
                                      .deadline = kDeadline,
                                      .receivers = receivers,
                                      .sources = sources,
                                      .source_layout = from,
                                      .destination_layout = layout_.empty() ? "whole:1" : layout_};
  synchronizer::Transfer transfer{.attempt = attempt, .bucket_digests = staged.bucket_digests};
  for (int32_t rank = 0; rank < sources; ++rank) {
    transfer.sources.push_back({.id = {}, .rendezvous = Rendezvous(rank)});
  }
  for (int32_t rank = 0; rank < receivers; ++rank)
    transfer.receivers.push_back({.id = EngineRank(rank, receivers), .rendezvous = {}});
  // The commands of a synchronizer with one replica. Rank 0 installs last: that makes the others exchange.
  SYNCOPATE_RETURN_IF_ERROR(parts_.engine->AwaitObeyed(kDeadline));
  for (auto receiver = receivers_.rbegin(); receiver != receivers_.rend(); ++receiver) {
    SYNCOPATE_ASSIGN_OR_RETURN(const auto prepared, (*receiver)->Prepare(prepare));
    if (!prepared.already_serves) SYNCOPATE_RETURN_IF_ERROR((*receiver)->Transfer(transfer).status());
    SYNCOPATE_RETURN_IF_ERROR((*receiver)->Install({attempt}).status());
    (*receiver)->Finish(attempt);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SynchronousLoop::Asked>> SynchronousLoop::NextBatch() {
  using Readiness = trainer::PromptSource::Readiness;
  const trainer::PromptSource& prompts = *parts_.prompts.training;
  std::vector<Asked> batch;
  while (static_cast<int64_t>(batch.size()) < config_.data().batch_groups()) {
    const Readiness readiness = prompts.Await(next_);
    // Await() returns this only if the source has failed.
    if (readiness == Readiness::kComing) return prompts.failure();
    if (readiness == Readiness::kReady) batch.push_back({next_, prompts.At(next_)});
    // 0: the source is endless.
    const bool last_of_pass = prompts.prompts_per_pass() > 0 && next_.ordinal + 1 >= prompts.prompts_per_pass();
    next_ = last_of_pass ? GroupId{next_.pass + 1, 0} : GroupId{next_.pass, next_.ordinal + 1};
  }
  return batch;
}

absl::StatusOr<SynchronousLoop::StepResult> SynchronousLoop::Step() {
  const bool supervised = !serves();
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Asked> batch, NextBatch());
  StepResult result;
  SYNCOPATE_ASSIGN_OR_RETURN(result.metrics, supervised ? TrainSupervised(std::move(batch)) : TrainOnRollouts(batch));
  result.step = ++step_;
  if (serves()) SYNCOPATE_RETURN_IF_ERROR(SyncWeights());
  SYNCOPATE_ASSIGN_OR_RETURN(weights_digest_, parts_.trainer->policy().Digest());
  result.weights_digest = weights_digest();
  return result;
}

absl::StatusOr<trainer::StepFigures> SynchronousLoop::TrainSupervised(std::vector<Asked> batch) {
  std::vector<TrajectoryGroup> groups;
  for (Asked& one : batch) groups.push_back(trainer::SupervisedGroup({one.group, 1}, std::move(one.prompt)));
  std::vector<const TrajectoryGroup*> pointers;
  for (const TrajectoryGroup& group : groups) pointers.push_back(&group);
  return parts_.trainer->policy().SupervisedStep(pointers);
}

absl::StatusOr<trainer::StepFigures> SynchronousLoop::TrainOnRollouts(const std::vector<Asked>& batch) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<TrajectoryGroup> groups,
                             Generate(batch, static_cast<int32_t>(config_.rollout().samples()),
                                      config::MakeSampling(config_, *parts_.prompts.training)));
  std::vector<const TrajectoryGroup*> pointers;
  for (const TrajectoryGroup& group : groups) pointers.push_back(&group);
  return parts_.trainer->policy().Step(pointers, step_);
}

absl::StatusOr<std::optional<double>> SynchronousLoop::EvaluateExact() {
  const trainer::PromptSource& prompts = *parts_.prompts.evaluation;
  std::vector<Asked> asked;
  for (int64_t i = 0; i < parts_.prompts.evaluation_prompts; ++i) {
    const GroupId group{trainer::PromptSource::kEvaluationPass, i};
    asked.push_back({group, prompts.At(group)});
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<TrajectoryGroup> groups,
                             Generate(asked, 1, config::MakeEvaluationSampling(config_, prompts)));
  int64_t right = 0, known = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::vector<int32_t>& answer = asked[i].prompt.answer_ids;
    if (answer.empty()) continue;
    ++known;
    right += groups[i].samples[0].tokens == answer ? 1 : 0;
  }
  if (known == 0) return std::optional<double>();
  return std::optional(static_cast<double>(right) / static_cast<double>(known));
}

absl::Status SynchronousLoop::Submit(const Lease& lease, rollouter::GroupAssembly::Done done) {
  rollouter::EngineLoop& engine = parts_.engine->engine();
  rollouter::GenerationRequest request = rollouter::RequestFor(lease, lease.id.group.ToString());
  auto made = std::make_shared<rollouter::TokenCount>(0);
  if (!parts_.play.has_value()) {
    return engine.Submit(std::move(request), std::make_shared<rollouter::GroupAssembly>(
                                                 lease, MemberId(), std::move(done), std::move(made), &parts_.stops));
  }
  request.max_total_tokens = parts_.play->episode.max_total_tokens;
  auto extend = [&engine, id = request.id](int32_t sample, std::vector<int32_t> given) {
    return engine.Extend(id, sample, std::move(given));
  };
  auto assembly = std::make_shared<rollouter::PlayAssembly>(lease, MemberId(), std::move(done), std::move(made),
                                                            &parts_.stops, &*parts_.play, std::move(extend));
  SYNCOPATE_RETURN_IF_ERROR(assembly->Start());
  return engine.Submit(std::move(request), std::move(assembly));
}

absl::StatusOr<std::vector<TrajectoryGroup>> SynchronousLoop::Generate(const std::vector<Asked>& asked, int32_t samples,
                                                                       const SamplingParams& sampling) {
  std::vector<std::shared_ptr<AwaitedGroup>> groups;
  std::vector<Lease> leases;
  for (const auto& [group, prompt] : asked) {
    Lease& lease = leases.emplace_back();
    lease.id = {group, 1};
    lease.samples = samples;
    lease.prompt_ids = prompt.prompt_ids;
    lease.answer_ids = prompt.answer_ids;
    lease.task = prompt.task;
    lease.sampling = sampling;
    // Trainer and rollouter compute the same seeds, which depend only on the prompt, not on the rollouter or the time.
    lease.seed = GroupSeed(static_cast<uint64_t>(config_.run().seed()), group);
    groups.push_back(std::make_shared<AwaitedGroup>());
    // All prompts of a batch at once, so that they share the engine's steps; an answer does not depend on its batch.
    SYNCOPATE_RETURN_IF_ERROR(Submit(
        lease, [awaited = groups.back()](absl::StatusOr<TrajectoryGroup> made) { awaited->Set(std::move(made)); }));
  }
  std::vector<TrajectoryGroup> result(asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(result[i], groups[i]->Wait());
    Lease& lease = leases[i];
    rollouter::GroupScore score("", std::move(lease), std::move(result[i]), &parts_.rewards, rollouter::ScoringRules());
    score.JudgeBuiltIn(Clock::Real()->Now());
    if (!score.done()) {
      return Error(
          absl::StatusCode::kInvalidArgument, "NO_SCORER",
          absl::StrCat("the twin calls no service and no worker, which reward.name needs: ", config_.reward().name()));
    }
    SYNCOPATE_ASSIGN_OR_RETURN(result[i], score.Finish());
  }
  return result;
}

}  // namespace syncopate::twin
