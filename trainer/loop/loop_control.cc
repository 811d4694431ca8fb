#include "trainer/loop/loop_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace syncopate::trainer {
namespace {

constexpr absl::Duration kPausePoll = absl::Seconds(1);

absl::Status RunOver() {
  return Error(absl::StatusCode::kCancelled, "RUN_OVER", "the run has ended; it saves its last checkpoint by itself");
}

}  // namespace

LoopControl::LoopControl(const PolicyVersion& start) {
  MutexLock lock(&mutex_);
  status_.version = start;
  status_.state = "running";
}

void LoopControl::Pause() {
  MutexLock lock(&mutex_);
  paused_ = true;
}

void LoopControl::Resume() {
  MutexLock lock(&mutex_);
  paused_ = false;
}

void LoopControl::Stop() {
  MutexLock lock(&mutex_);
  stop_ = true;
}

void LoopControl::StopFenced() {
  MutexLock lock(&mutex_);
  stop_ = fenced_ = true;
}

bool LoopControl::stop_requested() const {
  MutexLock lock(&mutex_);
  return stop_;
}

bool LoopControl::fenced() const {
  MutexLock lock(&mutex_);
  return fenced_;
}

bool LoopControl::MayBeginStep() const {
  MutexLock lock(&mutex_);
  return !paused_ && !rollout_mode_ && !stop_;
}

void LoopControl::Add(Task task, bool saves) {
  {
    MutexLock lock(&mutex_);
    if (!closed_) {
      saves_ |= saves;
      tasks_.push_back(std::move(task));
      return;
    }
  }
  // Called outside the lock, because the task answers a call and may ask for the status.
  task(RunOver());
}

LoopControl::Requests LoopControl::AwaitRequests(const std::string& state) {
  const absl::Time begin = Clock::Real()->Now();
  Requests requests;
  MutexLock lock(&mutex_);
  auto go_on = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return (!paused_ && !rollout_mode_) || stop_ || !tasks_.empty();
  };
  bool was_paused = false;
  while (!go_on()) {
    // Only the end of rollout mode brings the state back to the device; a resume does not.
    const char* const pause = rollout_mode_ ? "rollout_mode" : "paused";
    if (status_.state != pause) status_.paused_since = begin;
    was_paused = true;
    status_.state = pause;
    mutex_.AwaitWithTimeout(Condition(&go_on), kPausePoll);
  }
  if (was_paused) requests.paused = Clock::Real()->Now() - begin;
  if (!paused_ && !rollout_mode_) status_.state = state;
  requests.stop = stop_;
  requests.fenced = fenced_;
  requests.tasks = std::exchange(tasks_, {});
  requests.saves = std::exchange(saves_, false);
  return requests;
}

bool LoopControl::AwaitStop(absl::Duration timeout) const {
  MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(Condition(&stop_), timeout);
}

LoopControl::Status LoopControl::GetStatus() const {
  MutexLock lock(&mutex_);
  return status_;
}

void LoopControl::SetState(const std::string& state) {
  MutexLock lock(&mutex_);
  status_.state = state;
}

void LoopControl::SetRolloutMode(bool is_on) {
  MutexLock lock(&mutex_);
  rollout_mode_ = is_on;
}

void LoopControl::SetVersion(const PolicyVersion& version) {
  MutexLock lock(&mutex_);
  status_.version = version;
}

void LoopControl::RecordCheckpoint(const PolicyVersion& version, const absl::Status& saved) {
  MutexLock lock(&mutex_);
  if (saved.ok()) {
    status_.last_checkpoint = version.ToString();
    status_.checkpoint_error.clear();
    return;
  }
  ++status_.failed_checkpoints;
  status_.checkpoint_error = absl::StrCat(version.ToString(), ": ", std::string(saved.message()));
}

void LoopControl::SetBestCheckpoint(const PolicyVersion& version, double reward_mean) {
  MutexLock lock(&mutex_);
  status_.best_checkpoint = version.ToString();
  status_.best_checkpoint_reward = reward_mean;
}

void LoopControl::Close(const std::string& state) {
  std::vector<Task> unanswered;
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    status_.state = state;
    // Tasks that came after the step thread last took tasks. Add() answers later ones.
    unanswered.swap(tasks_);
  }
  for (const Task& task : unanswered) task(RunOver());
}

}  // namespace syncopate::trainer
