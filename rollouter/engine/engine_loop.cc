#include "rollouter/engine/engine_loop.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "rollouter/engine/engine.h"

namespace syncopate::rollouter {

using synchronizer::InstallResult;

// Callers leave commands in a queue; the thread runs them between decode steps. Everything that the engine owns is
// touched by that thread only.
class EngineLoop::Core {
 public:
  Core(const Options& options, Manifest manifest)
      : manifest_(std::move(manifest)),
        threads_(options.threads),
        engine_(options.model, manifest_, Engine::Options{options.max_sequences, options.max_prefill_tokens}) {
    status_.kv_bytes = engine_.kv_bytes();
    status_.weight_bytes = 2 * manifest_.arena_bytes();
    thread_ = std::thread([this] { Run(); });
  }
  ~Core() { Stop(); }

  absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink);
  int32_t Abort(const std::string& id);
  void Pause();
  void Resume();
  absl::Status Drain(absl::Duration deadline);
  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest, bool relabel,
                                        absl::Duration deadline);
  void SetInstallListener(std::function<void(const PolicyVersion&)> listener);
  EngineStatus GetStatus() const;
  void Stop();

  const Manifest& manifest() const { return manifest_; }
  PolicySlots& policy() { return engine_.policy(); }

 private:
  // One caller's install. Forgotten at the caller's deadline, unless the thread has begun it.
  struct PendingInstall {
    PolicyVersion version;
    uint64_t digest = 0;
    bool relabel = false;
    bool done = false;
    InstallResult result;
  };

  void Run();
  void RunCommands();
  void RunInstall();
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
  std::shared_ptr<PendingInstall> install_ ABSL_GUARDED_BY(mutex_);
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

absl::StatusOr<InstallResult> EngineLoop::Core::Install(const PolicyVersion& version, uint64_t digest, bool relabel,
                                                        absl::Duration deadline) {
  auto install = std::make_shared<PendingInstall>();
  install->version = version;
  install->digest = digest;
  install->relabel = relabel;
  MutexLock lock(&mutex_);
  if (version <= status_.serving) {
    return Error(absl::StatusCode::kFailedPrecondition, "OLD_VERSION",
                 absl::StrCat(version.ToString(), " is not newer than ", status_.serving.ToString(), ", which serves"));
  }
  if (relabel && status_.serving.IsNone()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_WEIGHTS", "there are no weights to relabel");
  }
  if (stopping_ || install_ != nullptr) {
    return Error(absl::StatusCode::kUnavailable, "INSTALL_BUSY", "another install is under way or the engine stops");
  }
  install_ = install;
  auto ended = [this, &install]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return install->done || stopped_; };
  mutex_.AwaitWithTimeout(Condition(&ended), deadline);
  install_ = nullptr;
  if (install->done) return install->result;
  if (stopped_) {
    return Error(absl::StatusCode::kUnavailable, "INSTALL_BUSY", "the engine has stopped");
  }
  return Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE",
               absl::StrCat("no decode step ended within ", absl::FormatDuration(deadline), " to install ",
                            version.ToString(), "; the older version goes on serving"));
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
  at::set_num_threads(threads_);
  while (true) {
    {
      MutexLock lock(&mutex_);
      idle_since_ = Clock::Real()->Now();
      auto something_to_do = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !commands_.empty() || (has_work_ && !paused_) ||
               (install_ != nullptr && !install_->done && !install_held_);
      };
      mutex_.Await(Condition(&something_to_do));
      if (stopping_) break;
    }
    RunCommands();
    RunInstall();
    bool step;
    {
      MutexLock lock(&mutex_);
      step = !paused_ && engine_.HasWork();
      status_.idle_seconds += absl::ToDoubleSeconds(Clock::Real()->Now() - idle_since_);
      idle_since_ = absl::InfiniteFuture();
    }
    if (step) StepOnce();
    PublishStatus();
  }
  RunCommands();  // requests accepted before Stop() still get their OnFinished
  engine_.Abort("");
  PublishStatus();
  MutexLock lock(&mutex_);
  status_.idle_seconds += absl::ToDoubleSeconds(Clock::Real()->Now() - idle_since_);
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

void EngineLoop::Core::RunInstall() {
  std::function<void(const PolicyVersion&)> listener;
  PolicyVersion version;
  {
    MutexLock lock(&mutex_);
    if (install_ == nullptr || install_->done || engine_.InstallHeld()) return;
    const absl::Time begin = Clock::Real()->Now();
    if (install_->relabel) {
      engine_.policy().Relabel(install_->version);
    } else {
      engine_.policy().Install(install_->version, install_->digest);
    }
    version = install_->version;
    status_.serving = version;
    status_.serving_digest = engine_.policy().digest();
    ++status_.installs;
    install_->result.pause_seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - begin);
    install_->done = true;
    listener = install_listener_;
  }
  if (listener) listener(version);
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
                             model::MakeManifest(options.model, DType::kFloat32, options.bucket_bytes));
  return std::unique_ptr<EngineLoop>(new EngineLoop(std::make_unique<Core>(options, std::move(manifest))));
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
  return core_->Install(version, digest, /*relabel=*/false, deadline);
}
absl::StatusOr<InstallResult> EngineLoop::Relabel(const PolicyVersion& version, absl::Duration deadline) {
  return core_->Install(version, 0, /*relabel=*/true, deadline);
}
void EngineLoop::SetInstallListener(std::function<void(const PolicyVersion&)> listener) {
  core_->SetInstallListener(std::move(listener));
}
EngineStatus EngineLoop::GetStatus() const { return core_->GetStatus(); }
void EngineLoop::Stop() { core_->Stop(); }

}  // namespace syncopate::rollouter
