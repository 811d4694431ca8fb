#include "synchronizer/member/phase_events.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::member {

using synchronizer::SyncReport;

void PhaseEvents::Remember(int64_t attempt, PolicyVersion version) {
  MutexLock lock(&mutex_);
  versions_[attempt] = version;
}

void PhaseEvents::Forget(int64_t attempt) {
  MutexLock lock(&mutex_);
  versions_.erase(attempt);
}

void PhaseEvents::ForgetAll() {
  MutexLock lock(&mutex_);
  versions_.clear();
}

void PhaseEvents::Record(int64_t attempt, const char* phase, absl::Time begun, const SyncReport& report) const {
  Write(events_, attempt, GetVersion(attempt), phase, clock_->Now() - begun, report);
}

SyncParticipant::Done PhaseEvents::Watch(int64_t attempt, std::shared_ptr<const std::atomic<bool>> returned,
                                         SyncParticipant::Done done) const {
  // Does not capture `this`: a push may end after its member is destroyed.
  return [events = events_, clock = clock_, begun = clock_->Now(), attempt, version = GetVersion(attempt),
          returned = std::move(returned), done = std::move(done)](SyncReport report) {
    const bool pulled = !*returned && report.status.ok() && report.bytes == 0;
    const char* phase = version.IsNone() ? "connect" : "transfer";
    if (!pulled) Write(events, attempt, version, phase, clock->Now() - begun, report);
    done(std::move(report));
  };
}

PolicyVersion PhaseEvents::GetVersion(int64_t attempt) const {
  MutexLock lock(&mutex_);
  auto found = versions_.find(attempt);
  return found == versions_.end() ? PolicyVersion() : found->second;
}

void PhaseEvents::Write(EventRecorder* events, int64_t attempt, PolicyVersion version, const char* phase,
                        absl::Duration elapsed, const SyncReport& report) {
  if (events == nullptr) return;
  RunEvent event{"phase", version, attempt, {{"phase", phase}}};
  event.fields["seconds"] = absl::StrCat(absl::ToDoubleSeconds(elapsed));
  if (report.connect_seconds > 0) event.fields["connect_seconds"] = absl::StrCat(report.connect_seconds);
  if (report.verify_seconds > 0) event.fields["verify_seconds"] = absl::StrCat(report.verify_seconds);
  if (report.bytes > 0) event.fields["bytes"] = absl::StrCat(report.bytes);
  if (report.pause_seconds > 0) event.fields["pause_seconds"] = absl::StrCat(report.pause_seconds);
  if (!report.status.ok()) event.fields["reason"] = ErrorReason(report.status);
  events->Record(event);
}

}  // namespace syncopate::member
