#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace syncopate::synchronizer {

// SyncRecord::reason of a rehearsal.
inline constexpr char kConnected[] = "connected";
inline constexpr char kNotConnected[] = "not_connected";

// How a weight sync to one receiver ended, for whoever counts.
enum class SyncOutcome : uint8_t {
  kDone,        // the receiver serves the version; weights were moved
  kRelabelled,  // it does, and no byte was moved
  kSuperseded,  // a newer version took the send slot first, and is what the receiver got or gets next
  kRehearsed,   // it was no sync: the group that the next one needs was formed, or was not
  kHeld,        // the receiver takes no version for now, and is left out
  kFailed,
};

// Of SyncRecord::result(): "ok", "relabelled", or the reason of the error that ended it. Pure.
SyncOutcome ClassifySyncResult(absl::string_view result);

}  // namespace syncopate::synchronizer
