#include "rollouter/engine/engine_loop.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "model/torch_error.h"
#include "rollouter/engine/engine_loop_core.h"

namespace syncopate::rollouter {

using synchronizer::InstallResult;

absl::Status EngineLoop::Core::Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  // CheckShape() reads what never changes; whether weights are there is mirrored in status_.
  MutexLock lock(&mutex_);
  if (status_.sleep_level > 0 && !stopping_) {
    return Error(absl::StatusCode::kFailedPrecondition, "ASLEEP",
                 "this rollouter sleeps and has given its memory back; wake it up, or ask another one");
  }
  if (draining_ || stopping_) {
    return Error(absl::StatusCode::kUnavailable, "DRAINING", "this rollouter takes no new work; ask another one");
  }
  SYNCOPATE_RETURN_IF_ERROR(engine_->CheckShape(request));
  if (status_.serving.IsNone()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_WEIGHTS",
                 "no weights yet: they arrive with the first weight sync; wait for it or trigger one");
  }
  auto shared = std::make_shared<GenerationRequest>(std::move(request));
  shared->arrived = Clock::Real()->Now();
  ++added_;
  commands_.push_back([this, shared, sink] {
    engine_->Add(std::move(*shared), sink);
    MutexLock inner(&mutex_);
    --added_;
  });
  return absl::OkStatus();
}

int32_t EngineLoop::Core::Abort(const std::string& id) {
  auto ended = std::make_shared<std::atomic<int32_t>>(0);
  RunOnThread([this, id, ended] { *ended = engine_->Abort(id); });
  return *ended;
}

void EngineLoop::Core::Pause() {
  {
    MutexLock lock(&mutex_);
    paused_ = true;
  }
  // When it has run, no decode step is under way, and the status counts all tokens.
  RunOnThread([this] {
    broken_.Update(engine_->Settle());
    MutexLock lock(&mutex_);
    status_.generated_tokens = engine_->generated_tokens();
  });
}

void EngineLoop::Core::Resume() {
  MutexLock lock(&mutex_);
  paused_ = false;
  draining_ = false;
}

absl::Status EngineLoop::Core::Drain(absl::Duration deadline) {
  MutexLock lock(&mutex_);
  draining_ = true;
  auto drained = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !draining_ || (commands_.empty() && !has_work_);
  };
  if (!mutex_.AwaitWithTimeout(Condition(&drained), deadline)) {
    return Error(absl::StatusCode::kDeadlineExceeded, "DRAIN_DEADLINE",
                 absl::StrCat("requests still run after ", absl::FormatDuration(deadline),
                              "; drain again to go on waiting, or abort them"));
  }
  if (draining_) return absl::OkStatus();
  return Error(absl::StatusCode::kAborted, "RESUMED", "the rollouter was resumed before it was drained");
}

void EngineLoop::Core::SetInstallListener(std::function<void(const PolicyVersion&)> listener) {
  MutexLock lock(&mutex_);
  install_listener_ = std::move(listener);
}

EngineStatus EngineLoop::Core::GetStatus() const {
  MutexLock lock(&mutex_);
  EngineStatus status = status_;
  const absl::Duration idle = Clock::Real()->Now() - idle_since_;
  if (idle > absl::ZeroDuration()) status.idle_seconds += absl::ToDoubleSeconds(idle);
  if (round_since_ != absl::InfiniteFuture()) {
    status.round_seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - round_since_);
  }
  if (status.sleep_level > 0) {
    status.state = EngineStatus::State::kAsleep;
  } else if (status.serving.IsNone()) {
    status.state = EngineStatus::State::kWaitingForWeights;
  } else if (draining_) {
    status.state = has_work_ || !commands_.empty() ? EngineStatus::State::kDraining : EngineStatus::State::kDrained;
  } else {
    status.state = paused_ ? EngineStatus::State::kPaused : EngineStatus::State::kRunning;
  }
  if (!status.failure.ok()) status.state = EngineStatus::State::kFailed;
  return status;
}

void EngineLoop::Core::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool EngineLoop::Core::RunOnThread(std::function<void()> command) {
  auto done = std::make_shared<bool>(false);  // guarded by mutex_
  MutexLock lock(&mutex_);
  if (stopping_) return false;
  commands_.push_back([this, command = std::move(command), done] {
    command();
    MutexLock inner(&mutex_);
    *done = true;
  });
  auto ended = [this, &done]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return *done || stopped_; };
  mutex_.Await(Condition(&ended));
  return *done;
}

void EngineLoop::Core::Run() {
  absl::Status why;
  try {
    why = Loop();
  } catch (const std::exception& error) {
    why = model::TorchError(error, "the engine cannot go on");
  }
  if (!why.ok()) SYNCOPATE_LOG(kError, "this rollouter generates nothing any more: %s", why.ToString());
  End(why);
}

absl::Status EngineLoop::Core::Loop() {
  at::set_num_threads(threads_);
  engine_->BindThread();
  while (AwaitWork()) {
    RunCommands();
    SYNCOPATE_RETURN_IF_ERROR(RunChange());
    SYNCOPATE_RETURN_IF_ERROR(broken_);
    bool step;
    {
      MutexLock lock(&mutex_);
      step = MayStepLocked() && engine_->HasWork();
      status_.idle_seconds += absl::ToDoubleSeconds(Clock::Real()->Now() - idle_since_);
      idle_since_ = absl::InfiniteFuture();
    }
    if (step) SYNCOPATE_RETURN_IF_ERROR(StepOnce());
    PublishStatus();
  }
  return absl::OkStatus();
}

bool EngineLoop::Core::AwaitWork() {
  MutexLock lock(&mutex_);
  idle_since_ = Clock::Real()->Now();
  auto something_to_do = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !commands_.empty() || (has_work_ && MayStepLocked()) || ChangeIsDueLocked(install_held_);
  };
  round_since_ = absl::InfiniteFuture();
  mutex_.Await(Condition(&something_to_do));
  round_since_ = Clock::Real()->Now();
  return !stopping_;
}

void EngineLoop::Core::End(const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    status_.failure = why;  // before anybody hears of an aborted request
  }
  engine_->UnbindThread();
  RunCommands();  // requests accepted before the end still get their OnFinished
  engine_->Abort("");
  PublishStatus();
  MutexLock lock(&mutex_);
  const absl::Duration idle = Clock::Real()->Now() - idle_since_;
  if (idle > absl::ZeroDuration()) status_.idle_seconds += absl::ToDoubleSeconds(idle);
  idle_since_ = round_since_ = absl::InfiniteFuture();
  stopped_ = true;
}

void EngineLoop::Core::RunCommands() {
  std::vector<std::function<void()>> commands;
  {
    MutexLock lock(&mutex_);
    commands.swap(commands_);
    if (!commands.empty()) has_work_ = true;  // until PublishStatus() knows: a drain must not slip in between
  }
  for (std::function<void()>& command : commands) command();
}

absl::Status EngineLoop::Core::StepOnce() {
  const absl::Time begin = Clock::Real()->Now();
  absl::Status stepped = engine_->Step();
  MutexLock lock(&mutex_);
  status_.busy_seconds += absl::ToDoubleSeconds(Clock::Real()->Now() - begin);
  return stepped;
}

void EngineLoop::Core::PublishStatus() {
  MutexLock lock(&mutex_);
  has_work_ = engine_->HasWork();
  install_held_ = engine_->InstallHeld();
  status_.running_sequences = engine_->running_sequences();
  status_.waiting_sequences = engine_->waiting_sequences();
  status_.kv_usage = engine_->kv_usage();
  status_.kv_bytes = engine_->kv_bytes();
  status_.weight_bytes = engine_->weight_bytes();
  status_.generated_tokens = engine_->generated_tokens();
  status_.prefilled_tokens = engine_->prefilled_tokens();
  status_.prompt_tokens = engine_->counters().prompt_tokens;
  status_.prefix_tokens = engine_->counters().shared_tokens;
  status_.preemptions = engine_->counters().preemptions;
  status_.requests = engine_->request_figures();
}

EngineLoop::EngineLoop(std::unique_ptr<Core> core) : core_(std::move(core)) {}
EngineLoop::~EngineLoop() = default;

absl::StatusOr<std::unique_ptr<EngineLoop>> EngineLoop::Start(const Options& options) {
  Engine::Options engine_options;
  engine_options.max_sequences = options.max_sequences;
  engine_options.max_prefill_tokens = options.max_prefill_tokens;
  engine_options.kv_blocks = (options.kv_tokens + kBlockTokens - 1) / kBlockTokens;
  SYNCOPATE_RETURN_IF_ERROR(engine_options.Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest,
                             model::MakeManifest(options.model, options.dtype, options.bucket_bytes));
  std::shared_ptr<EngineBackend> backend = options.backend;
  try {
    if (backend == nullptr) backend = std::make_shared<HostBackend>(options.model, manifest);
    SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                               Engine::Create(options.model, std::move(backend), engine_options));
    return std::unique_ptr<EngineLoop>(
        new EngineLoop(std::make_unique<Core>(options.threads, std::move(manifest), std::move(engine))));
  } catch (const std::exception& error) {
    return model::TorchError(
        error, absl::StrCat("the engine cannot start; it has room for keys and values of ", options.max_sequences,
                            " sequences beside the weights: lower rollout.max_sequences or "
                            "model.max_position_embeddings"));
  }
}

const Manifest& EngineLoop::manifest() const { return core_->manifest(); }
absl::Status EngineLoop::Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  return core_->Submit(std::move(request), std::move(sink));
}
int32_t EngineLoop::Abort(const std::string& id) { return core_->Abort(id); }
void EngineLoop::Pause() { core_->Pause(); }
void EngineLoop::Resume() { core_->Resume(); }
absl::Status EngineLoop::Drain(absl::Duration deadline) { return core_->Drain(deadline); }
absl::StatusOr<int64_t> EngineLoop::Sleep(int32_t level, absl::Duration deadline) {
  return core_->Sleep(level, deadline);
}
absl::Status EngineLoop::WakeUp() { return core_->WakeUp(); }
absl::Status EngineLoop::BeginAttempt() { return core_->BeginAttempt(); }
void EngineLoop::EndAttempt() { core_->EndAttempt(); }
synchronizer::ReceiverWeights EngineLoop::LastSleep() const { return core_->LastSleep(); }
char* EngineLoop::shadow() { return core_->policy().shadow(); }
const char* EngineLoop::live() const { return core_->policy().live(); }
absl::StatusOr<InstallResult> EngineLoop::Install(const PolicyVersion& version, uint64_t digest,
                                                  absl::Duration deadline) {
  return core_->ChangeWeights(Core::Change::kInstall, version, digest, deadline);
}
absl::StatusOr<InstallResult> EngineLoop::Relabel(const PolicyVersion& version, absl::Duration deadline) {
  return core_->ChangeWeights(Core::Change::kRelabel, version, /*digest=*/0, deadline);
}
void EngineLoop::ExpectInstall() { core_->arenas().ExpectExchange(); }
void EngineLoop::Settle() { shadow(); }  // which brings it back to its address
absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> EngineLoop::BeginCheck(
    synchronizer::ShadowContents contents) {
  return core_->arenas().BeginCheck(std::move(contents));
}
absl::Status EngineLoop::CopyLive(const std::vector<ByteRange>& ranges) { return core_->arenas().CopyLive(ranges); }
bool EngineLoop::in_place() const { return core_->arenas().in_place(); }
absl::Status EngineLoop::BeginInPlace(absl::Duration deadline) {
  if (!in_place()) return WeightTarget::BeginInPlace(deadline);
  return core_->ChangeWeights(Core::Change::kBeginInPlace, PolicyVersion(), /*digest=*/0, deadline).status();
}
void EngineLoop::CancelInPlace() { core_->CancelInPlace(); }
void EngineLoop::Invalidate() { core_->Invalidate(); }
void EngineLoop::SetInstallListener(std::function<void(const PolicyVersion&)> listener) {
  core_->SetInstallListener(std::move(listener));
}
EngineStatus EngineLoop::GetStatus() const { return core_->GetStatus(); }
void EngineLoop::Stop() { core_->Stop(); }

}  // namespace syncopate::rollouter
