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
#include "rollouter/engine/engine.h"

namespace syncopate::rollouter {

using synchronizer::InstallResult;

namespace {

// What WeightArenas::Exchange says when it could not even restore what was.
constexpr char kWeightsUnmapped[] = "WEIGHTS_UNMAPPED";

}  // namespace

// Callers leave commands in a queue; the thread runs them between decode steps. Everything that the engine owns is
// touched by that thread only.
class EngineLoop::Core {
 public:
  // What a caller wants done to the weights between two decode steps.
  enum class Change : uint8_t { kInstall, kRelabel, kBeginInPlace };

  Core(const Options& options, Manifest manifest, std::shared_ptr<EngineBackend> backend)
      : manifest_(std::move(manifest)),
        threads_(options.threads),
        engine_(options.model, std::move(backend), Engine::Options{options.max_sequences, options.max_prefill_tokens}) {
    status_.kv_bytes = engine_.kv_bytes();
    status_.weight_bytes = engine_.weight_bytes();
    thread_ = std::thread([this] { Run(); });
  }
  ~Core() { Stop(); }

  absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink);
  int32_t Abort(const std::string& id);
  void Pause();
  void Resume();
  absl::Status Drain(absl::Duration deadline);
  // `version` and `digest` are not looked at by kBeginInPlace.
  absl::StatusOr<InstallResult> ChangeWeights(Change change, const PolicyVersion& version, uint64_t digest,
                                              absl::Duration deadline);
  void Invalidate();
  void SetInstallListener(std::function<void(const PolicyVersion&)> listener);
  EngineStatus GetStatus() const;
  void Stop();

  const Manifest& manifest() const { return manifest_; }
  PolicySlots& policy() { return engine_.policy(); }
  WeightArenas& arenas() { return engine_.backend().arenas(); }

 private:
  // One caller's change. Forgotten at the caller's deadline, unless the thread has begun it.
  struct PendingChange {
    Change change = Change::kInstall;
    PolicyVersion version;
    uint64_t digest = 0;
    absl::Time deadline;
    bool begun = false;
    bool done = false;
    absl::StatusOr<InstallResult> result = InstallResult();
  };

  absl::Status CheckChangeLocked(const PendingChange& change) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Requests that hold installs and have waited for a transfer in place have no token yet: they cannot hold its end up.
  bool ChangeIsDueLocked(bool held) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return change_ != nullptr && !change_->begun && (!held || transferring_in_place_);
  }
  bool MayStepLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !paused_ && !transferring_in_place_; }

  void Run();
  // Until Stop(), or an error after which no step can be made. May throw what libtorch throws.
  absl::Status Loop();
  // Blocks until there is something to do; false if that is to end.
  bool AwaitWork();
  void End(const absl::Status& why);
  void RunCommands();
  // An error only if there are no weights any more; whoever asked for the change hears of every one.
  absl::Status RunChange();
  absl::Status Apply(const PendingChange& change);
  // Takes note of a change that was applied, between `begin` and now.
  InstallResult FinishChangeLocked(const PendingChange& change, absl::Time begin) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StepOnce();
  void PublishStatus();
  // Runs `command` on the engine's thread and waits for it; false if the loop has stopped.
  bool RunOnThread(std::function<void()> command);

  const Manifest manifest_;
  const int threads_;  // intra-op
  Engine engine_;      // the thread's own
  std::function<void(const PolicyVersion&)> install_listener_ ABSL_GUARDED_BY(mutex_);

  mutable Mutex mutex_;
  std::vector<std::function<void()>> commands_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<PendingChange> change_ ABSL_GUARDED_BY(mutex_);
  // The live weights are being overwritten, or are what such a transfer left.
  bool transferring_in_place_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time stands_still_since_ ABSL_GUARDED_BY(mutex_);  // then
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_work_ ABSL_GUARDED_BY(mutex_) = false;
  bool install_held_ ABSL_GUARDED_BY(mutex_) = false;
  EngineStatus status_ ABSL_GUARDED_BY(mutex_);
  absl::Time idle_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // infinite: not idle
  std::thread thread_;
};

absl::Status EngineLoop::Core::Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  // CheckShape() reads what never changes; whether weights are there is mirrored in status_.
  MutexLock lock(&mutex_);
  if (draining_ || stopping_) {
    return Error(absl::StatusCode::kUnavailable, "DRAINING", "this rollouter takes no new work; ask another one");
  }
  SYNCOPATE_RETURN_IF_ERROR(engine_.CheckShape(request));
  if (status_.serving.IsNone()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_WEIGHTS",
                 "no weights yet: they arrive with the first weight sync; wait for it or trigger one");
  }
  auto shared = std::make_shared<GenerationRequest>(std::move(request));
  commands_.push_back([this, shared, sink] { engine_.Add(std::move(*shared), sink); });
  return absl::OkStatus();
}

int32_t EngineLoop::Core::Abort(const std::string& id) {
  auto ended = std::make_shared<std::atomic<int32_t>>(0);
  RunOnThread([this, id, ended] { *ended = engine_.Abort(id); });
  return *ended;
}

void EngineLoop::Core::Pause() {
  {
    MutexLock lock(&mutex_);
    paused_ = true;
  }
  RunOnThread([] {});  // when it has run, no decode step is under way
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

absl::StatusOr<InstallResult> EngineLoop::Core::ChangeWeights(Change kind, const PolicyVersion& version,
                                                              uint64_t digest, absl::Duration deadline) {
  auto change = std::make_shared<PendingChange>();
  change->change = kind;
  change->version = version;
  change->digest = digest;
  change->deadline = Clock::Real()->Now() + deadline;
  MutexLock lock(&mutex_);
  SYNCOPATE_RETURN_IF_ERROR(CheckChangeLocked(*change));
  change_ = change;
  auto ended = [this, &change]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return change->done || stopped_; };
  const bool in_time = mutex_.AwaitWithTimeout(Condition(&ended), deadline);
  if (!in_time && change->begun) mutex_.Await(Condition(&ended));  // it has the deadline, too
  change_ = nullptr;
  if (change->done) return change->result;
  if (stopped_) return Error(absl::StatusCode::kUnavailable, "INSTALL_BUSY", "the engine has stopped");
  return Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE",
               absl::StrCat("no decode step ended within ", absl::FormatDuration(deadline), " to install ",
                            version.ToString(), "; the older version goes on serving"));
}

absl::Status EngineLoop::Core::CheckChangeLocked(const PendingChange& change) const {
  if (change.change != Change::kBeginInPlace && change.version <= status_.serving) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "OLD_VERSION",
        absl::StrCat(change.version.ToString(), " is not newer than ", status_.serving.ToString(), ", which serves"));
  }
  if (change.change == Change::kRelabel && status_.serving.IsNone()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_WEIGHTS", "there are no weights to relabel");
  }
  if (stopping_ || change_ != nullptr) {
    return Error(absl::StatusCode::kUnavailable, "INSTALL_BUSY", "another install is under way or the engine stops");
  }
  return absl::OkStatus();
}

void EngineLoop::Core::Invalidate() {
  MutexLock lock(&mutex_);
  if (!transferring_in_place_) return;
  status_.serving = PolicyVersion();
  status_.serving_digest = 0;
  // Before whatever the thread does next; no step runs.
  commands_.push_back([this] { engine_.policy().Invalidate(); });
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
  if (status.serving.IsNone()) {
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
  engine_.BindThread();
  while (AwaitWork()) {
    RunCommands();
    SYNCOPATE_RETURN_IF_ERROR(RunChange());
    bool step;
    {
      MutexLock lock(&mutex_);
      step = MayStepLocked() && engine_.HasWork();
      status_.idle_seconds += absl::ToDoubleSeconds(Clock::Real()->Now() - idle_since_);
      idle_since_ = absl::InfiniteFuture();
    }
    if (step) StepOnce();
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
  mutex_.Await(Condition(&something_to_do));
  return !stopping_;
}

void EngineLoop::Core::End(const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    status_.failure = why;  // before anybody hears of an aborted request
  }
  engine_.UnbindThread();
  RunCommands();  // requests accepted before the end still get their OnFinished
  engine_.Abort("");
  PublishStatus();
  MutexLock lock(&mutex_);
  const absl::Duration idle = Clock::Real()->Now() - idle_since_;
  if (idle > absl::ZeroDuration()) status_.idle_seconds += absl::ToDoubleSeconds(idle);
  idle_since_ = absl::InfiniteFuture();
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

absl::Status EngineLoop::Core::RunChange() {
  std::shared_ptr<PendingChange> change;
  {
    MutexLock lock(&mutex_);
    if (!ChangeIsDueLocked(engine_.InstallHeld())) return absl::OkStatus();
    change = change_;
    change->begun = true;
  }
  const absl::Time begin = Clock::Real()->Now();
  const absl::Status applied = Apply(*change);
  std::function<void(const PolicyVersion&)> listener;
  {
    MutexLock lock(&mutex_);
    if (applied.ok()) {
      change->result = FinishChangeLocked(*change, begin);
    } else {
      change->result = applied;
    }
    change->done = true;
    if (applied.ok() && change->change != Change::kBeginInPlace) listener = install_listener_;
  }
  if (listener) listener(change->version);
  return ErrorReason(applied) == kWeightsUnmapped ? applied : absl::OkStatus();
}

absl::Status EngineLoop::Core::Apply(const PendingChange& change) {
  engine_.Synchronize();
  switch (change.change) {
    case Change::kInstall:
      return engine_.policy().Install(change.version, change.digest, change.deadline - Clock::Real()->Now());
    case Change::kRelabel:
      engine_.policy().Relabel(change.version);
      return absl::OkStatus();
    case Change::kBeginInPlace:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

InstallResult EngineLoop::Core::FinishChangeLocked(const PendingChange& change, absl::Time begin) {
  if (change.change == Change::kBeginInPlace) {
    transferring_in_place_ = true;
    stands_still_since_ = begin;
    return InstallResult();
  }
  if (std::exchange(transferring_in_place_, false)) begin = stands_still_since_;
  status_.serving = change.version;
  status_.serving_digest = engine_.policy().digest();
  ++status_.installs;
  return InstallResult{absl::ToDoubleSeconds(Clock::Real()->Now() - begin)};
}

void EngineLoop::Core::StepOnce() {
  const absl::Time begin = Clock::Real()->Now();
  engine_.Step();
  MutexLock lock(&mutex_);
  status_.busy_seconds += absl::ToDoubleSeconds(Clock::Real()->Now() - begin);
}

void EngineLoop::Core::PublishStatus() {
  MutexLock lock(&mutex_);
  has_work_ = engine_.HasWork();
  install_held_ = engine_.InstallHeld();
  status_.running_sequences = engine_.running_sequences();
  status_.waiting_sequences = engine_.waiting_sequences();
  status_.kv_usage = engine_.kv_usage();
  status_.generated_tokens = engine_.generated_tokens();
}

EngineLoop::EngineLoop(std::unique_ptr<Core> core) : core_(std::move(core)) {}
EngineLoop::~EngineLoop() = default;

absl::StatusOr<std::unique_ptr<EngineLoop>> EngineLoop::Start(const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR((Engine::Options{options.max_sequences, options.max_prefill_tokens}).Validate());
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest,
                             model::MakeManifest(options.model, options.dtype, options.bucket_bytes));
  std::shared_ptr<EngineBackend> backend = options.backend;
  try {
    if (backend == nullptr) backend = std::make_shared<HostBackend>(options.model, manifest);
    return std::unique_ptr<EngineLoop>(
        new EngineLoop(std::make_unique<Core>(options, std::move(manifest), std::move(backend))));
  } catch (const std::exception& error) {
    const int64_t cache = KvCache::BytesFor(options.model, options.max_sequences, sizeof(float));
    return model::TorchError(error, absl::StrCat("the engine cannot start; the KV cache of ", options.max_sequences,
                                                 " sequences needs up to ", cache >> 20,
                                                 " MiB beside the weights: lower rollout.max_sequences or "
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
char* EngineLoop::shadow() { return core_->policy().shadow(); }
const char* EngineLoop::live() const { return core_->policy().live(); }
absl::StatusOr<InstallResult> EngineLoop::Install(const PolicyVersion& version, uint64_t digest,
                                                  absl::Duration deadline) {
  return core_->ChangeWeights(Core::Change::kInstall, version, digest, deadline);
}
absl::StatusOr<InstallResult> EngineLoop::Relabel(const PolicyVersion& version, absl::Duration deadline) {
  return core_->ChangeWeights(Core::Change::kRelabel, version, /*digest=*/0, deadline);
}
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
void EngineLoop::Invalidate() { core_->Invalidate(); }
void EngineLoop::SetInstallListener(std::function<void(const PolicyVersion&)> listener) {
  core_->SetInstallListener(std::move(listener));
}
EngineStatus EngineLoop::GetStatus() const { return core_->GetStatus(); }
void EngineLoop::Stop() { core_->Stop(); }

}  // namespace syncopate::rollouter
