#include "rollouter/engine/readiness.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::rollouter {
namespace {

absl::Status NotReady(const char* reason, const std::string& message) {
  return Error(absl::StatusCode::kUnavailable, reason, message);
}

absl::Status Drained() { return NotReady("DRAINING", "takes no new work: it was drained"); }

absl::Status CheckVersion(const PolicyVersion& serving, const PolicyVersion& newest, int64_t allowed_lag) {
  // A newer epoch than the published one counts as current; steps are compared only within one epoch.
  const bool current_epoch = serving.epoch >= newest.epoch;
  if (current_epoch && (serving.epoch > newest.epoch || newest.step - serving.step <= allowed_lag)) {
    return absl::OkStatus();
  }
  return NotReady("STALE", absl::StrCat("serves ", serving.ToString(), ", and ", newest.ToString(),
                                        " is published: more than ", allowed_lag, " steps or an epoch behind"));
}

}  // namespace

absl::Status CheckReady(const EngineStatus& engine, const PolicyVersion& newest, int64_t allowed_lag) {
  using State = EngineStatus::State;
  // Requests are accepted, and answered when the device is this rollouter's again.
  const bool waits = engine.state == State::kAsleep || engine.state == State::kWaitingForWeights;
  if (engine.yielded && waits && engine.draining) return Drained();
  if (engine.yielded && waits) return absl::OkStatus();
  switch (engine.state) {
    case State::kWaitingForWeights:
      return NotReady("NO_WEIGHTS", "no weights yet: they arrive with the first weight sync");
    case State::kPaused:
      return NotReady("PAUSED", "generation is paused");
    case State::kDraining:
    case State::kDrained:
      return Drained();
    case State::kFailed:
      return NotReady("ENGINE_FAILED", std::string(engine.failure.message()));
    case State::kAsleep:
      return NotReady("ASLEEP", "it sleeps and has given its memory back; wake it up");
    case State::kRunning:
      break;
  }
  return CheckVersion(engine.serving, newest, allowed_lag);
}

}  // namespace syncopate::rollouter
