#include "base/daemon/health.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::daemon {

void Health::Moved() {
  MutexLock lock(&mutex_);
  moved_ = clock_->Now();
}

void Health::SetReady(const absl::Status& why) {
  MutexLock lock(&mutex_);
  ready_ = why;
  judged_ = true;
}

void Health::BeginStop(const std::string& why) {
  MutexLock lock(&mutex_);
  if (stopping_) return;
  stopping_ = true;
  why_stopping_ = why;
}

absl::Status Health::Live() const {
  MutexLock lock(&mutex_);
  const absl::Duration still = clock_->Now() - moved_;
  // A daemon that stops counts as live: a supervisor that killed it now would cut its orderly end short.
  if (stopping_ || still < stalled_after_) return absl::OkStatus();
  return Error(
      absl::StatusCode::kUnavailable, "STALLED",
      absl::StrCat("the event loop has not moved for ", absl::FormatDuration(absl::Trunc(still, absl::Seconds(1))),
                   "; a healthy one does so at least every second"));
}

absl::Status Health::Ready() const {
  MutexLock lock(&mutex_);
  if (stopping_) return Error(absl::StatusCode::kUnavailable, "STOPPING", absl::StrCat("stopping: ", why_stopping_));
  if (!judged_) return Error(absl::StatusCode::kUnavailable, "STARTING", "the daemon is starting");
  return ready_;
}

}  // namespace syncopate::daemon
