#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/event_log.h"
#include "base/file_system.h"
#include "base/policy_version.h"
#include "base/status.h"

namespace syncopate {

// Something that happened in a daemon, recorded so that the run can be reconstructed afterwards.
struct RunEvent {
  std::string kind;            // see EventRecorder
  PolicyVersion version = {};  // the version that the event is about
  int64_t attempt = 0;         // sync attempt, 0 if none
  std::map<std::string, std::string> fields = {};
};

// Encodes one event as bytes; `name` is the process's. The caller passes the encoder in, because base knows no wire
// format.
using EventEncoder = std::string (*)(const std::string& name, double unix_seconds, double steady_seconds,
                                     const RunEvent& event);

// Writes a daemon's events to <run.dir>/events/<name>.binlog, with wall and steady time. Never blocks; when its buffer
// is full, it drops and counts events (base/event_log.h). `syncopate events RUN_DIR` prints them. Thread-safe. Kinds:
//   trainer       publish {digest, stage_seconds}, step {groups, tokens, reward, replay}, evaluation {reward, exact},
//                 checkpoint {}, reward_change {key, before, after}: the resumed run uses another reward than before
//   rollouter     install {digest, pause_seconds}, relabel {}, invalidate {}
//   both          phase {phase, seconds, ...} of a weight sync: synchronizer/member/phase_events.h
//   synchronizer  sync {replica, transport, reason, result, bytes, stage_seconds, prepare_seconds, transfer_seconds,
//                 verify_seconds, install_seconds, total_seconds}, when a receiver's part has ended
class EventRecorder {
 public:
  // `name` is the daemon's, such as "rollouter-1". Makes the folder. Errors of FileSystem and EventLog.
  static absl::StatusOr<std::unique_ptr<EventRecorder>> Open(FileSystem* files, const std::string& run_dir,
                                                             const std::string& name, EventEncoder encode,
                                                             const Clock* clock = Clock::Real());
  void Record(const RunEvent& event);

  // Writes and syncs the buffered events, and stops recording. Idempotent.
  absl::Status Stop() { return log_->Stop(); }

 private:
  EventRecorder(std::unique_ptr<EventLog> log, std::string name, EventEncoder encode, const Clock* clock)
      : name_(std::move(name)), encode_(encode), clock_(clock), log_(std::move(log)) {}

  const std::string name_;  // "rollouter-1"
  const EventEncoder encode_;
  const Clock* const clock_;
  const std::unique_ptr<EventLog> log_;
};

}  // namespace syncopate
