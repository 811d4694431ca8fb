#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::synchronizer {

// Reasons (ErrorReason, SyncRecord::result) of what went wrong for nobody. A newer version took this one's place before
// the receiver had it:
inline constexpr char kSuperseded[] = "SUPERSEDED";                // its memory was taken
inline constexpr char kVersionNotStaged[] = "VERSION_NOT_STAGED";  // it was gone when the receiver first asked

// The receiver takes no version for now, and will say when it does.
inline constexpr char kHeld[] = "HELD";

inline bool IsSuperseded(absl::string_view reason) { return reason == kSuperseded || reason == kVersionNotStaged; }

// To a receiver whose bytes were taken from it.
inline absl::Status SupersededError(absl::string_view what) {
  return Error(absl::StatusCode::kAborted, kSuperseded, what);
}

}  // namespace syncopate::synchronizer
