// One file, as each step of the engine's thread is the counterpart of a call that waits for it, under one lock.

#include "rollouter/engine/engine_thread.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "model/torch_error.h"
#include "synchronizer/superseded.h"

namespace syncopate::rollouter {

namespace {

// The reason of WeightArenas::Exchange when it could not restore the old mapping either.
constexpr char kWeightsUnmapped[] = "WEIGHTS_UNMAPPED";

}  // namespace

using synchronizer::InstallResult;
using synchronizer::ReceiverWeights;

absl::Status EngineThread::Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  // CheckShape() reads only immutable state; status_ says whether weights are there.
  MutexLock lock(&mutex_);
  if (status_.sleep_level > 0 && !status_.yielded && !stopping_) {
    return Error(absl::StatusCode::kFailedPrecondition, "ASLEEP",
                 "this rollouter sleeps and has given its memory back; wake it up, or ask another one");
  }
  if (draining_ || stopping_) {
    return Error(absl::StatusCode::kUnavailable, "DRAINING", "this rollouter takes no new work; ask another one");
  }
  SYNCOPATE_RETURN_IF_ERROR(engine_->CheckShape(request));
  if (status_.serving.IsNone() && !status_.yielded) {
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
    has_requests_ = true;  // a command before this one may have published that there are none
  });
  return absl::OkStatus();
}

absl::Status EngineThread::Extend(const std::string& id, int32_t sample, std::vector<int32_t> given) {
  SYNCOPATE_RETURN_IF_ERROR(engine_->CheckGiven(given, /*needed=*/true));
  Post([this, id, sample, given = std::move(given)] { engine_->Extend(id, sample, given); });
  return absl::OkStatus();
}

absl::Status EngineThread::Begin(const std::string& id, int32_t sample, std::vector<int32_t> given) {
  SYNCOPATE_RETURN_IF_ERROR(engine_->CheckGiven(given, /*needed=*/false));
  Post([this, id, sample, given = std::move(given)] { engine_->Extend(id, sample, given); });
  return absl::OkStatus();
}

void EngineThread::Rewind(const std::string& id, int32_t sample) {
  Post([this, id, sample] { engine_->Rewind(id, sample); });
}

void EngineThread::EndParked(const std::string& id, int32_t sample) {
  Post([this, id, sample] { engine_->EndParked(id, sample); });
}

void EngineThread::Post(std::function<void()> command) {
  MutexLock lock(&mutex_);
  commands_.push_back(std::move(command));
}

int32_t EngineThread::Abort(const std::string& id) {
  auto ended = std::make_shared<std::atomic<int32_t>>(0);
  RunOnThread([this, id, ended] { *ended = engine_->Abort(id); });
  return *ended;
}

void EngineThread::Pause() {
  {
    MutexLock lock(&mutex_);
    paused_ = true;
  }
  // After this command no decode step is in progress, and the status counts all tokens.
  RunOnThread([this] {
    broken_.Update(engine_->AwaitLaunched());
    MutexLock lock(&mutex_);
    status_.generated_tokens = engine_->generated_tokens();
  });
}

void EngineThread::Resume() {
  MutexLock lock(&mutex_);
  paused_ = false;
  draining_ = false;
}

absl::Status EngineThread::Drain(absl::Duration deadline) {
  MutexLock lock(&mutex_);
  draining_ = true;
  // Resume() ends the wait too: it clears draining_.
  auto drained = [this]()
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !draining_ || !HasRequestsLocked(); };
  if (!mutex_.AwaitWithTimeout(Condition(&drained), deadline)) {
    return Error(absl::StatusCode::kDeadlineExceeded, "DRAIN_DEADLINE",
                 absl::StrCat("requests still run after ", absl::FormatDuration(deadline),
                              "; drain again to go on waiting, or abort them"));
  }
  if (draining_) return absl::OkStatus();
  return Error(absl::StatusCode::kAborted, "RESUMED", "the rollouter was resumed before it was drained");
}

void EngineThread::SetInstallListener(std::function<void(const PolicyVersion&)> listener) {
  MutexLock lock(&mutex_);
  install_listener_ = std::move(listener);
}

void EngineThread::SetPinListener(std::function<void()> listener) {
  MutexLock lock(&mutex_);
  pin_listener_ = std::move(listener);
}

EngineStatus EngineThread::GetStatus() const {
  MutexLock lock(&mutex_);
  EngineStatus status = status_;
  status.draining = draining_;
  const absl::Duration idle = Clock::Real()->Now() - idle_since_;
  if (idle > absl::ZeroDuration()) status.idle_seconds += absl::ToDoubleSeconds(idle);
  if (status.lent_bytes > 0) status.lent_seconds += absl::ToDoubleSeconds(Clock::Real()->Now() - lent_since_);
  if (round_since_ != absl::InfiniteFuture()) {
    status.round_seconds = absl::ToDoubleSeconds(Clock::Real()->Now() - round_since_);
  }
  if (status.sleep_level > 0) {
    status.state = EngineStatus::State::kAsleep;
  } else if (status.serving.IsNone()) {
    status.state = EngineStatus::State::kWaitingForWeights;
  } else if (draining_) {
    status.state = HasRequestsLocked() ? EngineStatus::State::kDraining : EngineStatus::State::kDrained;
  } else {
    status.state = paused_ ? EngineStatus::State::kPaused : EngineStatus::State::kRunning;
  }
  if (!status.failure.ok()) status.state = EngineStatus::State::kFailed;
  return status;
}

void EngineThread::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool EngineThread::RunOnThread(std::function<void()> command) {
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

void EngineThread::Run() {
  absl::Status why;
  try {
    why = Loop();
  } catch (const std::exception& error) {
    why = model::TorchError(error, "the engine cannot go on");
  }
  if (!why.ok()) SYNCOPATE_LOG(kError, "this rollouter generates nothing any more: %s", why.ToString());
  End(why);
}

absl::Status EngineThread::Loop() {
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
    SYNCOPATE_RETURN_IF_ERROR(ServeLending());
    PublishStatus();
  }
  return absl::OkStatus();
}

bool EngineThread::AwaitWork() {
  MutexLock lock(&mutex_);
  idle_since_ = Clock::Real()->Now();
  auto something_to_do = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !commands_.empty() || (has_work_ && MayStepLocked()) || ChangeIsDueLocked();
  };
  round_since_ = absl::InfiniteFuture();
  mutex_.Await(Condition(&something_to_do));
  round_since_ = Clock::Real()->Now();
  return !stopping_;
}

void EngineThread::End(const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    status_.failure = why;  // set first: a sink of an aborted request may ask for the status
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

void EngineThread::RunCommands() {
  std::vector<std::function<void()>> commands;
  {
    MutexLock lock(&mutex_);
    commands.swap(commands_);
    // True until PublishStatus(): otherwise Drain() could return while a command adds a request.
    if (!commands.empty()) has_work_ = has_requests_ = true;
  }
  for (std::function<void()>& command : commands) command();
}

absl::Status EngineThread::StepOnce() {
  const absl::Time begin = Clock::Real()->Now();
  absl::Status stepped = engine_->Step();
  MutexLock lock(&mutex_);
  status_.busy_seconds += absl::ToDoubleSeconds(Clock::Real()->Now() - begin);
  return stepped;
}

void EngineThread::PublishStatus() {
  std::function<void()> listener;
  {
    MutexLock lock(&mutex_);
    const bool pinned = status_.pins_version;
    PublishStatusLocked();
    if (pinned != status_.pins_version) listener = pin_listener_;
  }
  if (listener) listener();
}

void EngineThread::PublishStatusLocked() {
  has_work_ = engine_->HasWork();
  has_requests_ = engine_->HasRequests();
  holds_install_ = HoldsInstallLocked();
  status_.pins_version = PinsVersionLocked();
  status_.pinned = engine_->policy().pinned_version();
  status_.running_sequences = engine_->running_sequences();
  status_.waiting_sequences = engine_->waiting_sequences();
  status_.parked_sequences = engine_->parked_sequences();
  status_.kv_usage = engine_->kv_usage();
  PublishMemoryLocked();
  status_.generated_tokens = engine_->generated_tokens();
  status_.prefilled_tokens = engine_->prefilled_tokens();
  status_.prompt_tokens = engine_->counters().prompt_tokens;
  status_.prefix_tokens = engine_->counters().shared_tokens;
  status_.preemptions = engine_->counters().preemptions;
  status_.swaps = engine_->counters().swaps;
  status_.yielded_sequences = engine_->counters().yielded;
  status_.yielded_swaps = engine_->counters().yielded_swaps;
  status_.moved_blocks = engine_->counters().moved_blocks;
  status_.host_kv_usage = engine_->host_kv_usage();
  status_.requests = engine_->request_figures();
}

void EngineThread::PublishMemoryLocked() {
  status_.kv_bytes = engine_->kv_bytes();
  status_.host_kv_bytes = engine_->host_kv_bytes();
  status_.weight_bytes = engine_->weight_bytes();
  status_.buffer_bytes = engine_->buffer_bytes();
}

absl::StatusOr<InstallResult> EngineThread::Install(const PolicyVersion& version, uint64_t digest,
                                                    absl::Duration deadline) {
  return ChangeWeights(Change::kInstall, version, digest, deadline);
}

absl::StatusOr<InstallResult> EngineThread::Relabel(const PolicyVersion& version, absl::Duration deadline) {
  return ChangeWeights(Change::kRelabel, version, /*digest=*/0, deadline);
}

absl::Status EngineThread::BeginInPlace(const PolicyVersion& version, absl::Duration deadline) {
  // EngineLoop declares it again for its comment alone, and defines nothing.
  if (!in_place() && !shares_base()) {
    return WeightTarget::BeginInPlace(version, deadline);  // NOLINT(bugprone-parent-virtual-call)
  }
  return ChangeWeights(Change::kBeginInPlace, version, /*digest=*/0, deadline).status();
}

absl::StatusOr<InstallResult> EngineThread::ChangeWeights(Change kind, const PolicyVersion& version, uint64_t digest,
                                                          absl::Duration deadline) {
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
  // Apply() has the same deadline, so this wait is bounded
  if (!in_time && change->begun) mutex_.Await(Condition(&ended));
  change_ = nullptr;
  if (change->done) return change->result;
  if (stopped_) return Error(absl::StatusCode::kUnavailable, "INSTALL_BUSY", "the engine has stopped");
  return Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE",
               absl::StrCat("no decode step ended within ", absl::FormatDuration(deadline), " to install ",
                            version.ToString(), "; the older version goes on serving"));
}

absl::Status EngineThread::CheckChangeLocked(const PendingChange& change) const {
  if (change.change != Change::kBeginInPlace && change.version <= status_.serving) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "OLD_VERSION",
        absl::StrCat(change.version.ToString(), " is not newer than ", status_.serving.ToString(), ", which serves"));
  }
  if (change.change == Change::kRelabel && status_.serving.IsNone()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_WEIGHTS", "there are no weights to relabel");
  }
  if (status_.sleep_level > 0) {
    return Error(absl::StatusCode::kUnavailable, synchronizer::kHeld, "the engine sleeps and takes no weights");
  }
  if (stopping_ || change_ != nullptr) {
    return Error(absl::StatusCode::kUnavailable, "INSTALL_BUSY", "another install is under way or the engine stops");
  }
  return absl::OkStatus();
}

void EngineThread::CancelInPlace() {
  MutexLock lock(&mutex_);
  // After a failed transfer there are no weights, so decode steps must stay blocked.
  if (!status_.serving.IsNone()) transferring_in_place_ = false;
}

void EngineThread::Invalidate() {
  MutexLock lock(&mutex_);
  if (!transferring_in_place_) return;
  status_.serving = PolicyVersion();
  status_.serving_digest = 0;
  // The command runs before the thread's next operation; no step runs meanwhile.
  commands_.push_back([this] { engine_->policy().Invalidate(); });
}

absl::Status EngineThread::RunChange() {
  std::shared_ptr<PendingChange> change;
  {
    MutexLock lock(&mutex_);
    holds_install_ = HoldsInstallLocked();
    if (!ChangeIsDueLocked()) return absl::OkStatus();
    change = change_;
    change->begun = true;
  }
  absl::Time begin = Clock::Real()->Now();
  const absl::Status applied = Apply(*change);
  // Apply() first waits for steps that were launched before: they decode until they have ended.
  begin = std::max(begin, engine_->decoded_until());
  std::function<void(const PolicyVersion&)> listener;
  {
    MutexLock lock(&mutex_);
    if (applied.ok()) {
      change->result = FinishChangeLocked(*change, begin);
    } else {
      change->result = applied;
    }
    if (applied.ok() && change->change != Change::kBeginInPlace) listener = install_listener_;
  }
  // The listener runs before `done` is set, so the caller of the install returns only after it.
  if (listener) listener(change->version);
  {
    MutexLock lock(&mutex_);
    change->done = true;
    // The older weights are of no more use. Their memory goes back behind the next step, so that it is not waited for.
    if (applied.ok() && change->change == Change::kInstall) ReturnShadowLocked();
  }
  // Without mapped weights no later step is possible, so the loop must end. The caller handles any other error.
  return ErrorReason(applied) == kWeightsUnmapped ? applied : absl::OkStatus();
}

absl::Status EngineThread::Apply(const PendingChange& change) {
  // Plans that are under way go on with the adapter set that they name.
  if (!shares_base() || change.change == Change::kBeginInPlace) broken_.Update(engine_->Synchronize());
  SYNCOPATE_RETURN_IF_ERROR(broken_);
  switch (change.change) {
    case Change::kInstall:
      return engine_->policy().Install(change.version, change.digest, change.deadline - Clock::Real()->Now());
    case Change::kRelabel:
      engine_->policy().Relabel(change.version);
      return absl::OkStatus();
    case Change::kBeginInPlace:
      return arenas().BeginOverwrite(change.version);
  }
  return absl::OkStatus();
}

InstallResult EngineThread::FinishChangeLocked(const PendingChange& change, absl::Time begin) {
  if (change.change == Change::kBeginInPlace) {
    transferring_in_place_ = true;
    stands_still_since_ = begin;
    return InstallResult();
  }
  const bool stood_still = std::exchange(transferring_in_place_, false);
  if (stood_still) begin = stands_still_since_;
  status_.serving = change.version;
  status_.serving_digest = engine_->policy().digest();
  ++status_.installs;
  status_.yielded = false;
  last_sleep_.slept = false;
  // With adapter sets decode steps are kept from nothing: later plans have another number.
  if (shares_base() && !stood_still) return InstallResult();
  return InstallResult{absl::ToDoubleSeconds(Clock::Real()->Now() - begin)};
}

absl::StatusOr<int64_t> EngineThread::Sleep(int32_t level, absl::Duration deadline) {
  if (level != 1 && level != 2) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_REQUEST",
                 absl::StrCat("sleep level is ", level, ", expected 1 (weights go to host memory) or 2 (dropped)"));
  }
  return RunUnlessReceiving([this, level] { return FallAsleep(level); }, deadline);
}

absl::StatusOr<int64_t> EngineThread::RunUnlessReceiving(const std::function<absl::StatusOr<int64_t>()>& command,
                                                         absl::Duration deadline) {
  absl::StatusOr<int64_t> freed = RunFallible(command);
  // UNAVAILABLE with reason BUSY: a weight sync is in progress. Other errors, such as RANK_LOST, cannot be waited
  // for.
  if (!absl::IsUnavailable(freed.status()) || ErrorReason(freed.status()) != "BUSY") return freed;
  // The weight sync ends by itself. No other can begin before this command has ended, because waiting_sleeps_ is
  // positive.
  if (AwaitReceived(deadline)) freed = RunFallible(command);
  MutexLock lock(&mutex_);
  --waiting_sleeps_;
  return freed;
}

absl::StatusOr<int64_t> EngineThread::Yield(absl::Duration deadline) {
  absl::StatusOr<int64_t> moved = RunUnlessReceiving([this] { return GiveUpDevice(); }, deadline);
  if (moved.ok()) CallPinListener();  // no weights are accepted from here on
  return moved;
}

void EngineThread::CallPinListener() {
  std::function<void()> listener;
  {
    MutexLock lock(&mutex_);
    listener = pin_listener_;
  }
  if (listener) listener();
}

absl::StatusOr<int64_t> EngineThread::GiveUpDevice() {
  {
    MutexLock lock(&mutex_);
    // Plans of an engine that has failed are under way for ever.
    if (stopping_) return Error(absl::StatusCode::kCancelled, "STOPPING", "this rollouter stops");
    if (status_.sleep_level == 2) {  // nothing is on the device
      device_given_up_ = true;
      return 0;
    }
    SYNCOPATE_RETURN_IF_ERROR(CheckNotReceivingLocked());
    device_given_up_ = true;
    if (status_.sleep_level == 0) status_.yielded = true;
    status_.sleep_level = 2;  // from here on no weights are accepted
  }
  broken_.Update(EndLending());
  // One that sleeps has no requests; it drops the weights that it has kept.
  absl::StatusOr<int64_t> moved = engine_->Yield();
  broken_.Update(moved.status());
  MutexLock lock(&mutex_);
  PublishStatusLocked();  // published before the caller can look
  last_sleep_ = synchronizer::AfterSleep(last_sleep_, /*level=*/2);
  status_.serving = PolicyVersion();
  status_.serving_digest = 0;
  transferring_in_place_ = false;  // of a transfer that had failed: the next one begins anew
  return moved;
}

absl::Status EngineThread::EndYield() {
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t had_yielded, RunFallible([this] { return TakeDeviceBack(); }));
  if (had_yielded > 0) CallPinListener();  // weights are accepted again
  return absl::OkStatus();
}

absl::StatusOr<int64_t> EngineThread::TakeDeviceBack() {
  bool yielded = false;
  {
    MutexLock lock(&mutex_);
    yielded = status_.yielded;
  }
  // Who has laid it to sleep wakes it.
  if (yielded) SYNCOPATE_RETURN_IF_ERROR(Wake().status());
  MutexLock lock(&mutex_);
  device_given_up_ = false;
  return yielded ? 1 : 0;
}

bool EngineThread::AwaitReceived(absl::Duration deadline) {
  MutexLock lock(&mutex_);
  ++waiting_sleeps_;
  auto received = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (receiving_ == 0 && change_ == nullptr);
  };
  return mutex_.AwaitWithTimeout(Condition(&received), deadline);
}

absl::Status EngineThread::WakeUp() {
  auto wake = [this]() -> absl::StatusOr<int64_t> {
    {
      MutexLock lock(&mutex_);
      SYNCOPATE_RETURN_IF_ERROR(CheckNotYieldedLocked());
    }
    return Wake();
  };
  return RunFallible(wake).status();
}

absl::Status EngineThread::CheckNotYieldedLocked() const {
  if (!device_given_up_) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "YIELDED",
               "the trainer has its turn on this rollouter's device (run.share_gpu); it wakes by itself");
}

absl::Status EngineThread::CheckMaySleepLocked() const {
  // `added_` counts requests that Submit() accepted and that the thread has not yet added to the engine.
  if (engine_->HasRequests() || added_ > 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "BUSY",
                 "requests run or wait: drain this rollouter first, or abort them");
  }
  return CheckNotReceivingLocked();
}

absl::Status EngineThread::CheckNotReceivingLocked() const {
  if (receiving_ > 0 || change_ != nullptr) {
    return Error(absl::StatusCode::kUnavailable, "BUSY", "a weight sync is under way; try again when it has ended");
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> EngineThread::FallAsleep(int32_t level) {
  int32_t before = 0;
  {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(CheckNotYieldedLocked());
    before = status_.sleep_level;
    if (before >= level) return 0;
    SYNCOPATE_RETURN_IF_ERROR(CheckMaySleepLocked());
    status_.sleep_level = level;  // from here on neither requests nor weights are accepted
  }
  broken_.Update(EndLending());  // an attempt that has just ended may have ordered it behind this command
  absl::StatusOr<int64_t> freed = engine_->Sleep(/*keep_weights=*/level == 1);
  MutexLock lock(&mutex_);
  if (absl::IsResourceExhausted(freed.status())) {
    status_.sleep_level = before;
    return freed;
  }
  broken_.Update(freed.status());
  status_.yielded = false;
  PublishMemoryLocked();  // published before the caller can look
  last_sleep_ = synchronizer::AfterSleep(last_sleep_, level);
  if (level == 2) {
    status_.serving = PolicyVersion();
    status_.serving_digest = 0;
  }
  return freed;
}

absl::StatusOr<int64_t> EngineThread::Wake() {
  {
    MutexLock lock(&mutex_);
    if (status_.sleep_level == 0) return 0;
  }
  const absl::Status woken = engine_->WakeUp();
  if (!woken.ok() && !absl::IsResourceExhausted(woken)) broken_.Update(woken);
  SYNCOPATE_RETURN_IF_ERROR(woken);
  MutexLock lock(&mutex_);
  PublishMemoryLocked();
  status_.sleep_level = 0;
  return 0;
}

absl::StatusOr<int64_t> EngineThread::RunFallible(std::function<absl::StatusOr<int64_t>()> command) {
  auto result = std::make_shared<absl::StatusOr<int64_t>>(
      Error(absl::StatusCode::kCancelled, "STOPPING", "this rollouter stops"));
  RunOnThread([command = std::move(command), result] { *result = command(); });
  return *result;
}

absl::Status EngineThread::BeginAttempt() {
  MutexLock lock(&mutex_);
  if (status_.sleep_level > 0 || waiting_sleeps_ > 0) {
    return Error(absl::StatusCode::kUnavailable, synchronizer::kHeld,
                 "this rollouter sleeps; it takes weights again when it is woken");
  }
  // An attempt is refused at its start, not in the middle: an install that has begun to receive would wait for later
  // evaluation requests too (ChangeWeights).
  // Asked of the policy too: an install may have taken the shadow since the status was published.
  if (shares_base() && !engine_->policy().has_shadow()) {
    return Error(absl::StatusCode::kUnavailable, synchronizer::kHeld,
                 "plans and evaluations still use all adapter sets; weights are taken again when one is free");
  }
  if (status_.pins_version && !shares_base()) {
    return Error(absl::StatusCode::kUnavailable, synchronizer::kHeld,
                 "an evaluation has pinned the version here; weights are taken again when it has ended");
  }
  ++receiving_;
  return absl::OkStatus();
}

void EngineThread::EndAttempt() {
  MutexLock lock(&mutex_);
  if (--receiving_ == 0) ReturnShadowLocked();
}

absl::StatusOr<bool> EngineThread::TakeShadow(absl::Duration deadline) {
  if (arenas().borrowed_bytes() == 0) return false;
  const absl::Time until = Clock::Real()->Now() + deadline;
  MutexLock lock(&mutex_);
  if (lending_ == Lending::kLent) return false;
  auto is_back = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lending_ == Lending::kNone || stopped_; };
  mutex_.AwaitWithTimeout(Condition(&is_back), deadline);
  if (lending_ == Lending::kNone && !stopping_) {
    lending_ = Lending::kWanted;
    lending_failure_ = absl::OkStatus();
    commands_.push_back([this] { engine_->Lend(); });
    auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lending_ != Lending::kWanted || stopped_; };
    mutex_.AwaitWithTimeout(Condition(&ended), until - Clock::Real()->Now());
    SYNCOPATE_RETURN_IF_ERROR(lending_failure_);
    if (lending_ == Lending::kLent) return true;
    ReturnShadowLocked();
  }
  return Error(
      absl::StatusCode::kUnavailable, "NO_SHADOW",
      absl::StrCat("keys and values lent no memory for the new weights within ", absl::FormatDuration(deadline),
                   " (sync.install: borrowed); the older version goes on serving"));
}

void EngineThread::ReturnShadowLocked() {
  if (lending_ == Lending::kNone || lending_ == Lending::kReturning) return;
  lending_ = Lending::kReturning;
  commands_.push_back([this] { broken_.Update(EndLending()); });
}

absl::Status EngineThread::ServeLending() {
  bool may_step = false;
  {
    MutexLock lock(&mutex_);
    if (lending_ != Lending::kWanted) return absl::OkStatus();
    may_step = MayStepLocked();
  }
  // Without a later step nothing else ends the use of the last blocks.
  if (!engine_->has_lent() && !(may_step && engine_->HasWork())) SYNCOPATE_RETURN_IF_ERROR(engine_->CloseLent());
  if (!engine_->has_lent()) return absl::OkStatus();
  const absl::Status taken = engine_->TakeShadow();
  if (!taken.ok() && !absl::IsResourceExhausted(taken)) return taken;
  MutexLock lock(&mutex_);
  PublishMemoryLocked();
  if (lending_ == Lending::kWanted) lending_ = taken.ok() ? Lending::kLent : Lending::kNone;
  lending_failure_ = taken;
  if (!taken.ok()) return absl::OkStatus();
  ++status_.lendings;
  status_.lent_bytes = arenas().borrowed_bytes();
  lent_since_ = Clock::Real()->Now();
  return absl::OkStatus();
}

absl::Status EngineThread::EndLending() {
  {
    MutexLock lock(&mutex_);
    if (lending_ != Lending::kReturning) return absl::OkStatus();
  }
  SYNCOPATE_RETURN_IF_ERROR(engine_->ReturnShadow());
  MutexLock lock(&mutex_);
  lending_ = Lending::kNone;
  if (status_.lent_bytes > 0) status_.lent_seconds += absl::ToDoubleSeconds(Clock::Real()->Now() - lent_since_);
  status_.lent_bytes = 0;
  PublishMemoryLocked();
  return absl::OkStatus();
}

ReceiverWeights EngineThread::LastSleep() const {
  MutexLock lock(&mutex_);
  return last_sleep_;
}

}  // namespace syncopate::rollouter
