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

// Records how long each phase of a weight sync took on this member: event "phase" with the fields phase (prepare,
// transfer or in a rehearsal connect, install), seconds, and where meaningful connect_seconds and verify_seconds (parts
// of `seconds`), bytes, pause_seconds and reason. `syncopate events trace` draws them. Thread-safe; does not block.
class PhaseEvents {
 public:
  // Both are borrowed. A transfer may use `events` after this object is destroyed. Null: nothing is recorded.
  PhaseEvents(EventRecorder* events, const Clock* clock) : events_(events), clock_(clock) {}

  // Stores the attempt's version, with which its later phases are recorded until Forget.
  void Remember(int64_t attempt, PolicyVersion version);
  void Forget(int64_t attempt);
  void ForgetAll();

  // Records a phase that began at `begun`, has ended now, and gave this report.
  void Record(int64_t attempt, const char* phase, absl::Time begun, const synchronizer::SyncReport& report) const;
  // Wraps `done` so that it also records the transfer that begins now. If receivers pull from this source, nothing ran
  // here: the answer comes before `*returned` is true with no bytes, and no event is recorded.
  SyncParticipant::Done Watch(int64_t attempt, std::shared_ptr<const std::atomic<bool>> returned,
                              SyncParticipant::Done done) const;

 private:
  PolicyVersion GetVersion(int64_t attempt) const;
  static void Write(EventRecorder* events, int64_t attempt, PolicyVersion version, const char* phase,
                    absl::Duration elapsed, const synchronizer::SyncReport& report);

  EventRecorder* const events_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  std::map<int64_t, PolicyVersion> versions_ ABSL_GUARDED_BY(mutex_);  // of attempts under way
};

}  // namespace syncopate::member
