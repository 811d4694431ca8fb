#include "services/member/recorded_participant.h"

#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::member {

using synchronizer::SyncReport;

SyncReport RecordedParticipant::Prepare(const synchronizer::Prepare& command) {
  {
    MutexLock lock(&mutex_);
    versions_[command.attempt] = command.version;
  }
  const absl::Time begun = clock_->Now();
  SyncReport report = inner_->Prepare(command);
  Record(events_, command.attempt, command.version, "prepare", clock_->Now() - begun, report);
  return report;
}

void RecordedParticipant::Transfer(const synchronizer::Transfer& command, Done done) {
  auto returned = std::make_shared<std::atomic<bool>>(false);
  inner_->Transfer(command,
                   [events = events_, clock = clock_, begun = clock_->Now(), attempt = command.attempt,
                    version = VersionOf(command.attempt), returned, done = std::move(done)](SyncReport report) {
                     // A source that receivers pull from has nothing to do here.
                     const bool pulled = !*returned && report.status.ok() && report.bytes == 0;
                     const char* phase = version.IsNone() ? "connect" : "transfer";
                     if (!pulled) Record(events, attempt, version, phase, clock->Now() - begun, report);
                     done(std::move(report));
                   });
  *returned = true;
}

SyncReport RecordedParticipant::Install(const synchronizer::Install& command) {
  const absl::Time begun = clock_->Now();
  SyncReport report = inner_->Install(command);
  Record(events_, command.attempt, VersionOf(command.attempt), "install", clock_->Now() - begun, report);
  return report;
}

void RecordedParticipant::Finish(int64_t attempt) {
  inner_->Finish(attempt);
  MutexLock lock(&mutex_);
  versions_.erase(attempt);
}

void RecordedParticipant::FinishAll() {
  inner_->FinishAll();
  MutexLock lock(&mutex_);
  versions_.clear();
}

PolicyVersion RecordedParticipant::VersionOf(int64_t attempt) const {
  MutexLock lock(&mutex_);
  auto found = versions_.find(attempt);
  return found == versions_.end() ? PolicyVersion() : found->second;
}

void RecordedParticipant::Record(telemetry::EventRecorder* events, int64_t attempt, PolicyVersion version,
                                 const char* phase, absl::Duration elapsed, const SyncReport& report) {
  if (events == nullptr) return;
  telemetry::RunEvent event{"phase", version, attempt, {{"phase", phase}}};
  event.fields["seconds"] = absl::StrCat(absl::ToDoubleSeconds(elapsed));
  if (report.connect_seconds > 0) event.fields["connect_seconds"] = absl::StrCat(report.connect_seconds);
  if (report.verify_seconds > 0) event.fields["verify_seconds"] = absl::StrCat(report.verify_seconds);
  if (report.bytes > 0) event.fields["bytes"] = absl::StrCat(report.bytes);
  if (report.pause_seconds > 0) event.fields["pause_seconds"] = absl::StrCat(report.pause_seconds);
  if (!report.status.ok()) event.fields["reason"] = ErrorReason(report.status);
  events->Record(event);
}

}  // namespace syncopate::member
