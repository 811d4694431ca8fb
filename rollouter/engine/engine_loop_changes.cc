// Installs, relabellings and transfers in place: what happens to the weights between two decode steps.

#include <utility>

#include "absl/strings/str_cat.h"
#include "rollouter/engine/engine_loop_core.h"
#include "synchronizer/superseded.h"

namespace syncopate::rollouter {

using synchronizer::InstallResult;

namespace {

// What WeightArenas::Exchange says when it could not even restore what was.
constexpr char kWeightsUnmapped[] = "WEIGHTS_UNMAPPED";

}  // namespace

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
  if (status_.sleep_level > 0) {
    return Error(absl::StatusCode::kUnavailable, synchronizer::kHeld, "the engine sleeps and takes no weights");
  }
  if (stopping_ || change_ != nullptr) {
    return Error(absl::StatusCode::kUnavailable, "INSTALL_BUSY", "another install is under way or the engine stops");
  }
  return absl::OkStatus();
}

void EngineLoop::Core::CancelInPlace() {
  MutexLock lock(&mutex_);
  // After a transfer that failed there are no weights to go on with.
  if (!status_.serving.IsNone()) transferring_in_place_ = false;
}

void EngineLoop::Core::Invalidate() {
  MutexLock lock(&mutex_);
  if (!transferring_in_place_) return;
  status_.serving = PolicyVersion();
  status_.serving_digest = 0;
  // Before whatever the thread does next; no step runs.
  commands_.push_back([this] { engine_->policy().Invalidate(); });
}

absl::Status EngineLoop::Core::RunChange() {
  std::shared_ptr<PendingChange> change;
  {
    MutexLock lock(&mutex_);
    if (!ChangeIsDueLocked(engine_->InstallHeld())) return absl::OkStatus();
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
    if (applied.ok() && change->change != Change::kBeginInPlace) listener = install_listener_;
  }
  if (listener) listener(change->version);
  {
    MutexLock lock(&mutex_);
    change->done = true;
  }
  return ErrorReason(applied) == kWeightsUnmapped ? applied : absl::OkStatus();
}

absl::Status EngineLoop::Core::Apply(const PendingChange& change) {
  broken_.Update(engine_->Synchronize());
  SYNCOPATE_RETURN_IF_ERROR(broken_);
  switch (change.change) {
    case Change::kInstall:
      return engine_->policy().Install(change.version, change.digest, change.deadline - Clock::Real()->Now());
    case Change::kRelabel:
      engine_->policy().Relabel(change.version);
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
  status_.serving_digest = engine_->policy().digest();
  ++status_.installs;
  last_sleep_.slept = false;
  return InstallResult{absl::ToDoubleSeconds(Clock::Real()->Now() - begin)};
}

}  // namespace syncopate::rollouter
