#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace syncopate::synchronizer {

// SyncRecord::reason of a rehearsal.
inline constexpr char kConnected[] = "connected";
inline constexpr char kNotConnected[] = "not_connected";

// How a weight sync to one receiver ended; used by counters.
enum class SyncOutcome : uint8_t {
  kDone,        // the receiver serves the version; weights were moved
  kRelabelled,  // the receiver serves the version; no byte was moved
  kSuperseded,  // a newer version took the send slot first; the receiver got that one, or gets it next
  kRehearsed,   // a rehearsal, not a sync: the group for the next sync was formed, or was not
  kHeld,        // the receiver takes no version for now, and is left out
  kFailed,
};

// `result` is SyncRecord::result(): "ok", "relabelled", or the reason of the error that ended it. Pure.
SyncOutcome ClassifySyncResult(absl::string_view result);

}  // namespace syncopate::synchronizer
