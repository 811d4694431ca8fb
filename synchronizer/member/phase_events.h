#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/event_recorder.h"
#include "base/mutex.h"
#include "synchronizer/member/sync_participant.h"

namespace syncopate::member {

// Records how long each phase of a weight sync took here: event "phase" with the fields phase (prepare, transfer or in a
// rehearsal connect, install), seconds, and where they mean something connect_seconds and verify_seconds (parts of
// `seconds`), bytes, pause_seconds and reason. `syncopate events trace` draws them. Thread-safe; does not block.
class PhaseEvents {
 public:
  // Both are borrowed, `events` also by transfers that end when this is no more. It may be null: nothing is recorded.
  PhaseEvents(EventRecorder* events, const Clock* clock) : events_(events), clock_(clock) {}

  // The attempt is of this version: its later phases are recorded with it, until it is forgotten.
  void Remember(int64_t attempt, PolicyVersion version);
  void Forget(int64_t attempt);
  void ForgetAll();

  // A phase that began then has ended now, with this report.
  void Record(int64_t attempt, const char* phase, absl::Time begun, const synchronizer::SyncReport& report) const;
  // `done`, by which the transfer that begins now is recorded, unless nothing ran here: a source that receivers pull from
  // answers before `*returned`, and moves nothing.
  SyncParticipant::Done Watch(int64_t attempt, std::shared_ptr<const std::atomic<bool>> returned,
                              SyncParticipant::Done done) const;

 private:
  PolicyVersion VersionOf(int64_t attempt) const;
  static void Write(EventRecorder* events, int64_t attempt, PolicyVersion version, const char* phase,
                    absl::Duration elapsed, const synchronizer::SyncReport& report);

  EventRecorder* const events_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  std::map<int64_t, PolicyVersion> versions_ ABSL_GUARDED_BY(mutex_);  // of attempts that are under way
};

}  // namespace syncopate::member
