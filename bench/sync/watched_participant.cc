#include "bench/sync/watched_participant.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/clock.h"

namespace syncopate::bench {

using synchronizer::SyncReport;

void WatchedParticipant::Arm(Strike strike) {
  MutexLock lock(&mutex_);
  strike_ = std::move(strike);
}

std::vector<DecodeLoop::Window> WatchedParticipant::Transfers() const {
  MutexLock lock(&mutex_);
  return transfers_;
}

std::vector<DecodeLoop::Window> WatchedParticipant::Calm() const {
  MutexLock lock(&mutex_);
  return calm_;
}

// Called between warm-up and measurement. A calm window that is open counts from now on.
void WatchedParticipant::Forget() {
  MutexLock lock(&mutex_);
  transfers_.clear();
  calm_.clear();
  if (calm_since_.has_value()) calm_since_ = Clock::Real()->Now();
}

bool WatchedParticipant::Rehearses(int64_t attempt) const {
  MutexLock lock(&mutex_);
  return attempt == rehearsal_;
}

SyncReport WatchedParticipant::Prepare(const synchronizer::Prepare& command) {
  // A rehearsal is passed on without a report: it uses no weights, and a strike that was ordered for a sync must not
  // hit it. Its Transfer and Finish name only the attempt, so the attempt is remembered.
  if (command.rehearsal) {
    MutexLock lock(&mutex_);
    rehearsal_ = command.attempt;
  }
  if (command.rehearsal) return inner_->Prepare(command);
  {
    MutexLock lock(&mutex_);
    // A calm window ends where an attempt begins: from here on the decode loop may share memory and SMs with it.
    if (calm_since_.has_value()) calm_.emplace_back(*calm_since_, Clock::Real()->Now());
    calm_since_.reset();
    step_ = command.version.step;
  }
  Enter("prepare", command.attempt);
  return inner_->Prepare(command);
}

void WatchedParticipant::Transfer(const synchronizer::Transfer& command, Done done) {
  if (Rehearses(command.attempt)) return inner_->Transfer(command, std::move(done));
  Enter("transfer", command.attempt);
  inner_->Transfer(command, [this, begin = Clock::Real()->Now(), done = std::move(done)](SyncReport report) {
    NoteTransfer(begin, report.status);
    done(std::move(report));
  });
}

// Records the window of a transfer, from the command to its report, for comparison with the calm windows. A failed
// transfer shows nothing about the cost.
void WatchedParticipant::NoteTransfer(absl::Time begin, const absl::Status& status) {
  if (!status.ok()) return;
  MutexLock lock(&mutex_);
  transfers_.emplace_back(begin, Clock::Real()->Now());
}

SyncReport WatchedParticipant::Install(const synchronizer::Install& command) {
  Enter("install", command.attempt);
  SyncReport report = inner_->Install(command);
  if (!report.status.ok()) return report;
  int64_t step = 0;
  {
    MutexLock lock(&mutex_);
    step = step_;
  }
  // Step and pause are written here, and not in the attempt's report, because the pause is this receiver's own.
  sink_->Write("installed", {{"step", step}, {"pause_seconds", report.pause_seconds}});
  return report;
}

void WatchedParticipant::Finish(int64_t attempt) {
  inner_->Finish(attempt);
  if (!Rehearses(attempt)) EndAttempt();
}

void WatchedParticipant::FinishAll() {
  inner_->FinishAll();
  EndAttempt();
}

void WatchedParticipant::EndAttempt() {
  MutexLock lock(&mutex_);
  if (!calm_since_.has_value()) calm_since_ = Clock::Real()->Now();
}

// Reports the stage, then strikes if this is the ordered stage: the event is written before the process ends, and the
// parent measures from it.
void WatchedParticipant::Enter(const std::string& stage, int64_t attempt) {
  std::optional<Strike> strike;
  {
    MutexLock lock(&mutex_);
    // Only once: after the strike, a recovering process goes through the same stages again.
    if (strike_.has_value() && strike_->stage == stage) strike = std::exchange(strike_, std::nullopt);
  }
  sink_->Write("at", {{"stage", stage}, {"attempt", attempt}});
  if (!strike.has_value()) return;
  auto blow = [sink = sink_, strike = *strike] {
    sink->Write("struck", {{"stage", strike.stage}});
    ::kill(::getpid(), strike.signal);
  };
  // With no delay it strikes on the command's thread, before the stage begins; else on another thread, in the middle of
  // the stage.
  if (strike->after <= absl::ZeroDuration()) return blow();
  striker_ = std::jthread([blow, after = strike->after] {
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(after));
    blow();
  });
}

}  // namespace syncopate::bench
