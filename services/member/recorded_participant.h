#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "services/member/sync_participant.h"
#include "services/telemetry/event_recorder.h"

namespace syncopate::member {

// Passes commands on and records, for each that was carried out, how long it took: event "phase" with the fields
// phase (prepare, transfer or in a rehearsal connect, install), seconds, and where they mean something connect_seconds
// and verify_seconds (parts of `seconds`), bytes, pause_seconds and reason. `syncopate events trace` draws them.
class RecordedParticipant final : public SyncParticipant {
 public:
  // All are borrowed, `events` also by transfers that end when this is no more. It may be null: nothing is recorded.
  RecordedParticipant(SyncParticipant* inner, telemetry::EventRecorder* events, const Clock* clock = Clock::Real())
      : inner_(inner), events_(events), clock_(clock) {}

  synchronizer::SyncReport Prepare(const synchronizer::Prepare& command) override;
  void Transfer(const synchronizer::Transfer& command, Done done) override;
  synchronizer::SyncReport Install(const synchronizer::Install& command) override;
  void Settle() override { inner_->Settle(); }
  void Finish(int64_t attempt) override;
  void FinishAll() override;

 private:
  PolicyVersion VersionOf(int64_t attempt) const;
  static void Record(telemetry::EventRecorder* events, int64_t attempt, PolicyVersion version, const char* phase,
                     absl::Duration elapsed, const synchronizer::SyncReport& report);

  SyncParticipant* const inner_;
  telemetry::EventRecorder* const events_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  std::map<int64_t, PolicyVersion> versions_ ABSL_GUARDED_BY(mutex_);  // of attempts that are under way
};

}  // namespace syncopate::member
