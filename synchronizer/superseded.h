#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::synchronizer {

// Reasons (ErrorReason, SyncRecord::result) of syncs that ended without a fault. A newer version replaced this version
// before the receiver had it:
inline constexpr char kSuperseded[] = "SUPERSEDED";                // its memory was reused during the transfer
inline constexpr char kVersionNotStaged[] = "VERSION_NOT_STAGED";  // the version was gone when the receiver first asked

// The receiver takes no version for now. It reports when it takes versions again.
inline constexpr char kHeld[] = "HELD";

inline bool IsSuperseded(absl::string_view reason) { return reason == kSuperseded || reason == kVersionNotStaged; }

// The error for a receiver whose bytes were replaced during the transfer.
inline absl::Status SupersededError(absl::string_view what) {
  return Error(absl::StatusCode::kAborted, kSuperseded, what);
}

}  // namespace syncopate::synchronizer
