#include "rollouter/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rollouter/engine/sampler.h"

namespace syncopate::rollouter {
namespace {

absl::Status BadRequest(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST", message);
}

// Wraps `value` in a shared_ptr without ownership, for uses that end before `value` does.
template <typename T>
std::shared_ptr<const T> Borrowed(const T& value) {
  return std::shared_ptr<const T>(std::shared_ptr<const void>(), &value);
}

void AppendGiven(const std::vector<int32_t>& given, bool top_logprobs, Trajectory* trajectory) {
  if (given.empty()) return;
  const auto begin = static_cast<int32_t>(trajectory->tokens.size());
  trajectory->tokens.insert(trajectory->tokens.end(), given.begin(), given.end());
  trajectory->logprobs.resize(trajectory->tokens.size(), 0.0f);
  if (top_logprobs) trajectory->top_logprobs.resize(trajectory->tokens.size());
  trajectory->given.push_back({begin, static_cast<int32_t>(trajectory->tokens.size())});
}

}  // namespace

absl::Status Engine::Options::Validate() const {
  if (max_sequences <= 0) return BadRequest(absl::StrCat("max_sequences ", max_sequences, " must be positive"));
  if (max_prefill_tokens < 0 || max_context < 0 || kv_blocks < 0 || host_kv_blocks < 0 || max_kept_blocks < -1 ||
      plans_under_way < 0) {
    return BadRequest(
        "max_prefill_tokens, max_context, kv_blocks, host_kv_blocks, max_kept_blocks and plans_under_way must not be "
        "negative");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const model::ModelConfig& config,
                                                       std::shared_ptr<EngineBackend> backend, const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  if (options.max_context > config.max_position_embeddings) {
    return BadRequest(
        absl::StrCat("max_context ", options.max_context, " is above the model's ", config.max_position_embeddings));
  }
  const int64_t prefill_tokens =
      options.max_prefill_tokens > 0 ? options.max_prefill_tokens : backend->prefill_tokens(options.deterministic);
  const int64_t max_context = options.max_context > 0 ? options.max_context : config.max_position_embeddings;
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner,
                             backend->MakeRunner({.max_sequences = options.max_sequences,
                                                  .max_prefill_tokens = prefill_tokens,
                                                  .max_context = max_context,
                                                  .blocks = options.kv_blocks,
                                                  .host_blocks = options.host_kv_blocks,
                                                  .lent_bytes = backend->arenas().borrowed_bytes(),
                                                  .plans_under_way = options.plans_under_way,
                                                  .deterministic = options.deterministic}));
  Scheduler::Options scheduling;
  scheduling.blocks = runner->capacity().blocks;
  scheduling.host_blocks = runner->capacity().host_blocks;
  scheduling.lent_blocks = runner->capacity().lent_blocks;
  scheduling.max_kept_blocks =
      options.max_kept_blocks >= 0 ? options.max_kept_blocks : runner->capacity().max_kept_blocks;
  scheduling.max_sequences = options.max_sequences;
  scheduling.max_prefill_tokens = prefill_tokens;
  scheduling.max_context = max_context;
  scheduling.preemption = options.preemption;
  scheduling.follow_usage = options.follow_usage;
  SYNCOPATE_RETURN_IF_ERROR(scheduling.Validate());
  return std::unique_ptr<Engine>(new Engine(config, std::move(backend), std::move(runner), scheduling));
}

Engine::Engine(const model::ModelConfig& config, std::shared_ptr<EngineBackend> backend,
               std::unique_ptr<ModelRunner> runner, const Scheduler::Options& options)
    : vocab_size_(config.vocab_size),
      has_adapters_(config.lora.enabled()),
      backend_(std::move(backend)),
      runner_(std::move(runner)),
      plans_under_way_(static_cast<size_t>(runner_->capacity().plans_under_way)),
      policy_(&backend_->arenas()),
      scheduler_(options) {}

absl::Status Engine::CheckTokens(const std::vector<int32_t>& tokens) const {
  for (int32_t id : tokens) {
    if (id < 0 || id >= vocab_size_) {
      return BadRequest(absl::StrCat("token id ", id, " is outside the vocabulary of ", vocab_size_));
    }
  }
  return absl::OkStatus();
}

absl::Status Engine::CheckGiven(const std::vector<int32_t>& given, bool needed) const {
  if (given.empty() && needed) return BadRequest("a turn after the first begins with at least one given token");
  return CheckTokens(given);
}

absl::Status Engine::CheckShape(const GenerationRequest& request) const {
  SYNCOPATE_RETURN_IF_ERROR(CheckTokens(request.prompt_ids));
  for (const std::vector<int32_t>& start : request.starts) SYNCOPATE_RETURN_IF_ERROR(CheckTokens(start));
  SYNCOPATE_RETURN_IF_ERROR(CheckSampling(request.sampling, vocab_size_));
  if (request.by_base && !has_adapters_) {
    return Error(absl::StatusCode::kInvalidArgument, "NO_ADAPTERS",
                 "this run trains all weights (lora.rank is 0), so there is no base to ask beside the policy");
  }
  if (request.by_base && !runner_->capacity().serves_base) {
    return Error(absl::StatusCode::kInvalidArgument, "BASE_NOT_SERVED",
                 "this rollouter cannot answer without adapters; ask another one");
  }
  return scheduler_.Check(SchedulerRequest(request));
}

Scheduler::Request Engine::SchedulerRequest(const GenerationRequest& request) {
  Scheduler::Request scheduled;
  scheduled.prompt = Borrowed(request.prompt_ids);
  scheduled.sampling = Borrowed(request.sampling);
  scheduled.seeds = request.seeds;
  scheduled.starts = request.starts;
  scheduled.first = request.holds_install;
  scheduled.priority = request.priority;
  scheduled.deadline = absl::ToUnixMicros(request.deadline);
  scheduled.max_total_tokens = request.max_total_tokens;
  scheduled.starts_parked = request.starts_parked;
  scheduled.adapter = request.by_base ? kBaseAdapter : 0;
  return scheduled;
}

void Engine::Add(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  ActiveRequest& active = active_[++last_key_];
  active.live = static_cast<int32_t>(request.seeds.size());
  active.samples.resize(request.seeds.size());
  active.times.resize(request.seeds.size());
  for (SampleTimes& times : active.times) {
    times.last_token = std::min(request.arrived, Clock::Real()->Now());
    times.parked_since = times.last_token;
    if (request.starts_parked) times.parked_by = FinishReason::kAborted;
  }
  for (size_t i = 0; i < request.starts.size(); ++i) {
    AppendGiven(request.starts[i], request.sampling.top_logprobs > 0, &active.samples[i]);
  }
  active.sink = std::move(sink);
  holding_ += request.holds_install ? 1 : 0;
  if (request.holds_install && !request.by_base && policy_.has_sets()) to_pin_.push_back(last_key_);
  Scheduler::Request scheduled = SchedulerRequest(request);
  scheduled.key = last_key_;
  scheduled.prompt = std::make_shared<std::vector<int32_t>>(std::move(request.prompt_ids));
  scheduled.sampling = std::make_shared<SamplingParams>(request.sampling);
  active.request = std::move(request);
  scheduler_.Add(std::move(scheduled));
}

int32_t Engine::Abort(const std::string& id) {
  std::vector<uint64_t> keys;
  for (const auto& [key, active] : active_) {
    if (id.empty() || active.request.id == id) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());  // in the order of arrival
  int32_t ended = 0;
  for (uint64_t key : keys) {
    for (int32_t sample : scheduler_.Abort(key)) {
      FinishSample(key, active_.at(key), sample, FinishReason::kAborted);
      ++ended;
    }
  }
  return ended;
}

std::optional<Engine::ParkedSample> Engine::FindParked(const std::string& id, int32_t sample) {
  for (auto& [key, active] : active_) {
    if (active.request.id != id) continue;
    if (sample < 0 || sample >= std::ssize(active.times) || !active.times[sample].parked_by.has_value()) break;
    return ParkedSample{key, &active};
  }
  return std::nullopt;
}

void Engine::Extend(const std::string& id, int32_t sample, const std::vector<int32_t>& given) {
  const std::optional<ParkedSample> parked = FindParked(id, sample);
  if (!parked.has_value()) return;
  auto& [key, active] = *parked;
  if (!scheduler_.MayExtend(key, sample, std::ssize(given))) {
    scheduler_.End(key, sample);
    return FinishSample(key, *active, sample, FinishReason::kLength);
  }
  scheduler_.Extend(key, sample, given);
  AppendGiven(given, active->request.sampling.top_logprobs > 0, &active->samples[sample]);
  SampleTimes& times = active->times[sample];
  times.last_token = Clock::Real()->Now();
  times.parked += times.last_token - times.parked_since;
  times.parked_by.reset();
  times.begins_turn = true;
}

void Engine::Rewind(const std::string& id, int32_t sample) {
  const std::optional<ParkedSample> parked = FindParked(id, sample);
  if (!parked.has_value()) return;
  scheduler_.Rewind(parked->key, sample);
  parked->active->samples[sample] = {};
  parked->active->times[sample].parked_by = FinishReason::kAborted;
}

void Engine::EndParked(const std::string& id, int32_t sample) {
  const std::optional<ParkedSample> parked = FindParked(id, sample);
  if (!parked.has_value()) return;
  scheduler_.End(parked->key, sample);
  FinishSample(parked->key, *parked->active, sample, *parked->active->times[sample].parked_by);
}

absl::Status Engine::Step() {
  const size_t before = launched_.size();
  SYNCOPATE_RETURN_IF_ERROR(Launch());
  // No plan was launched: every sequence waits for the plans in progress.
  const bool waits = launched_.size() == before && !launched_.empty();
  return waits || launched_.size() >= plans_under_way_ ? AwaitOldest() : absl::OkStatus();
}

absl::Status Engine::AwaitLaunched() {
  while (!launched_.empty()) SYNCOPATE_RETURN_IF_ERROR(AwaitOldest());
  return absl::OkStatus();
}

absl::Status Engine::Synchronize() {
  SYNCOPATE_RETURN_IF_ERROR(AwaitLaunched());
  return runner_->Synchronize();
}

absl::StatusOr<int64_t> Engine::Sleep(bool keep_weights) {
  SYNCOPATE_CHECK(!HasRequests());
  SYNCOPATE_RETURN_IF_ERROR(Synchronize());
  const int64_t allocated = weight_bytes() + kv_bytes() + host_kv_bytes();
  SYNCOPATE_RETURN_IF_ERROR(ReleaseMemory(keep_weights));
  scheduler_.ForgetBlocks();
  return allocated - weight_bytes() - kv_bytes() - host_kv_bytes();
}

absl::Status Engine::ReleaseMemory(bool keep_weights) {
  // Weights are released first, because only this step can fail for lack of host memory.
  SYNCOPATE_RETURN_IF_ERROR(backend_->arenas().Release(keep_weights));
  if (!keep_weights) policy_.Invalidate();
  SYNCOPATE_RETURN_IF_ERROR(runner_->ReleaseBlocks());
  return backend_->AwaitRanks();
}

absl::StatusOr<int64_t> Engine::Yield() {
  SYNCOPATE_RETURN_IF_ERROR(Synchronize());
  AbortHolding();
  StepPlan plan = scheduler_.Yield();
  if (!plan.IsEmpty()) {
    SYNCOPATE_RETURN_IF_ERROR(LaunchPlan(plan));
    SYNCOPATE_RETURN_IF_ERROR(Synchronize());
  }
  SYNCOPATE_RETURN_IF_ERROR(ReleaseMemory(/*keep_weights=*/false));
  EmptyCache(*backend_);
  return std::ssize(plan.swaps_out) * backend_->kv_block_bytes();
}

absl::Status Engine::CloseLent() {
  SYNCOPATE_RETURN_IF_ERROR(AwaitLaunched());
  const StepPlan plan = scheduler_.PlanLend();
  if (plan.IsEmpty()) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(const ModelRunner::Ticket ticket, runner_->Launch(plan));
  launched_.push_back(ticket);
  return AwaitLaunched();
}

absl::Status Engine::TakeShadow() {
  SYNCOPATE_CHECK(has_lent());
  absl::Status taken = runner_->LendBlocks();
  if (taken.ok()) taken = backend_->arenas().TakeShadow();
  if (!taken.ok()) SYNCOPATE_RETURN_IF_ERROR(ReturnShadow());
  return taken;
}

absl::Status Engine::ReturnShadow() {
  SYNCOPATE_RETURN_IF_ERROR(backend_->arenas().DropShadow());
  SYNCOPATE_RETURN_IF_ERROR(runner_->ReturnBlocks());
  scheduler_.Return();
  return absl::OkStatus();
}

void Engine::AbortHolding() {
  std::vector<std::string> ids;
  for (const auto& [key, active] : active_) {
    if (active.request.holds_install) ids.push_back(active.request.id);
  }
  for (const std::string& id : ids) Abort(id);
}

absl::Status Engine::WakeUp() {
  SYNCOPATE_RETURN_IF_ERROR(runner_->RestoreBlocks());
  const absl::Status restored = backend_->arenas().Restore();
  // Blocks can always be released again; keeping the weights again could fail for lack of host memory.
  if (!restored.ok()) SYNCOPATE_RETURN_IF_ERROR(runner_->ReleaseBlocks());
  SYNCOPATE_RETURN_IF_ERROR(restored);
  const absl::Status others = backend_->AwaitRanks();
  if (absl::IsResourceExhausted(others)) {
    // All ranks are asleep or none.
    SYNCOPATE_RETURN_IF_ERROR(ReleaseMemory(/*keep_weights=*/policy_.has_weights()));
  }
  SYNCOPATE_RETURN_IF_ERROR(others);
  return runner_->ReturnBlocks();  // the lent blocks' memory may be that of the second weight set
}

absl::Status Engine::Launch() {
  // An install changed the version since the last plan.
  if (scheduler_.version() != policy_.version()) scheduler_.SetVersion(policy_.version());
  PinRequests();
  StepPlan plan = scheduler_.Plan();
  if (plan.IsEmpty()) return absl::OkStatus();
  for (const SlotStart& start : plan.starts) {
    ActiveRequest& active = active_.at(start.key);
    active.started = std::min(active.started, Clock::Real()->Now());
  }
  return LaunchPlan(plan);
}

absl::Status Engine::LaunchPlan(StepPlan& plan) {
  plan.live_set = policy_.live_set();
  policy_.BeginPlan();
  SYNCOPATE_ASSIGN_OR_RETURN(const ModelRunner::Ticket ticket, runner_->Launch(plan));
  launched_.push_back(ticket);
  return absl::OkStatus();
}

void Engine::PinRequests() {
  for (const uint64_t key : std::exchange(to_pin_, {})) {
    const auto found = active_.find(key);
    if (found == active_.end()) continue;
    const ServingPolicy::Pinned pinned = policy_.Pin();
    found->second.pinned = pinned.version;
    scheduler_.Pin(key, PinnedAdapter(pinned.set), pinned.version);
  }
}

absl::Status Engine::AwaitOldest() {
  SYNCOPATE_ASSIGN_OR_RETURN(StepResult result, runner_->Await(launched_.front()));
  launched_.pop_front();
  policy_.EndPlan();
  decoded_until_ = Clock::Real()->Now();
  for (const Scheduler::Drawn& drawn : scheduler_.Complete(result.plan, result.tokens)) {
    HandOn(drawn, result, decoded_until_);
  }
  return absl::OkStatus();
}

void Engine::HandOn(const Scheduler::Drawn& drawn, StepResult& result, absl::Time now) {
  ActiveRequest& active = active_.at(drawn.key);
  Trajectory& trajectory = active.samples[drawn.sample];
  const int32_t position = static_cast<int32_t>(trajectory.tokens.size());
  const int32_t token = result.tokens[drawn.draw];
  const float logprob = result.logprobs[drawn.draw];
  trajectory.tokens.push_back(token);
  trajectory.logprobs.push_back(logprob);
  if (active.request.sampling.top_logprobs > 0) {
    trajectory.top_logprobs.push_back(std::move(result.top_logprobs[drawn.draw]));
  }
  const PolicyVersion version = active.request.by_base      ? PolicyVersion()
                                : active.pinned.has_value() ? *active.pinned
                                                            : result.version;
  // A span ends where the version changes, which happens at an install in the middle of an answer, and at given tokens.
  if (trajectory.spans.empty() || trajectory.spans.back().version != version ||
      trajectory.spans.back().end != position) {
    trajectory.spans.push_back({version, position, position});
  }
  trajectory.spans.back().end = position + 1;
  ++generated_tokens_;
  SampleTimes& times = active.times[drawn.sample];
  const double waited = absl::ToDoubleSeconds(now - std::exchange(times.last_token, now));
  if (std::exchange(times.begins_turn, false)) {
    figures_.time_to_first_token.Add(waited);
  } else {
    figures_.time_per_output_token.Add(waited);
  }
  static const std::vector<TokenLogProb> kNone;
  const bool goes_on = active.sink->OnToken(drawn.sample, token, logprob, version,
                                            trajectory.top_logprobs.empty() ? kNone : trajectory.top_logprobs.back());
  if (drawn.finish.has_value() || !goes_on) {
    EndTurn(drawn.key, active, drawn.sample, drawn.finish.value_or(FinishReason::kStop));
  }
}

void Engine::EndTurn(uint64_t key, ActiveRequest& active, int32_t sample, FinishReason finish) {
  if (active.request.max_total_tokens > 0 && active.sink->OnTurnEnded(sample, finish, active.samples[sample])) {
    scheduler_.Park(key, sample);
    active.times[sample].parked_by = finish;
    active.times[sample].parked_since = Clock::Real()->Now();
    return;
  }
  scheduler_.End(key, sample);
  FinishSample(key, active, sample, finish);
}

void Engine::FinishSample(uint64_t key, ActiveRequest& active, int32_t sample, FinishReason reason) {
  Trajectory& trajectory = active.samples[sample];
  trajectory.finish = reason;
  figures_.CountFinish(reason);
  // Given tokens behind the last turn: it was aborted before it drew another one.
  if (!trajectory.given.empty() && trajectory.given.back().end == std::ssize(trajectory.tokens)) {
    trajectory.tokens.resize(static_cast<size_t>(trajectory.given.back().begin));
    trajectory.logprobs.resize(trajectory.tokens.size());
    if (!trajectory.top_logprobs.empty()) trajectory.top_logprobs.resize(trajectory.tokens.size());
    trajectory.given.pop_back();
  }
  const absl::Time now = Clock::Real()->Now();
  const SampleTimes& times = active.times[sample];
  const absl::Duration parked =
      times.parked + (times.parked_by.has_value() ? now - times.parked_since : absl::ZeroDuration());
  const absl::Duration took = now - active.started - parked;  // negative if it never started
  trajectory.generate_seconds = std::max(0.0, absl::ToDoubleSeconds(took));
  active.sink->OnFinished(sample, std::move(trajectory));
  // The request stays active until its last sample has ended, because an install waits for the whole request.
  if (--active.live > 0) return;
  holding_ -= active.request.holds_install ? 1 : 0;
  if (active.pinned.has_value()) policy_.Unpin();
  active_.erase(key);
}

}  // namespace syncopate::rollouter
