#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/policy_version.h"
#include "rollouter/engine/engine_loop.h"

namespace syncopate::rollouter {

// Whether a rollouter can work: its engine takes requests, and its serving version is allowed, that is, of the newest
// epoch and at most `allowed_lag` steps behind the newest version. OK, or UNAVAILABLE with reason NO_WEIGHTS, STALE,
// PAUSED, DRAINING, ASLEEP or ENGINE_FAILED. One that has yielded its device is ready. Pure.
absl::Status CheckReady(const EngineStatus& engine, const PolicyVersion& newest, int64_t allowed_lag);

}  // namespace syncopate::rollouter
