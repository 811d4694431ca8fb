#include "synchronizer/sync_outcome.h"

#include "synchronizer/superseded.h"

namespace syncopate::synchronizer {

SyncOutcome ClassifySyncResult(absl::string_view result) {
  if (result == "ok") return SyncOutcome::kDone;
  if (result == "relabelled") return SyncOutcome::kRelabelled;
  if (IsSuperseded(result)) return SyncOutcome::kSuperseded;
  if (result == kConnected || result == kNotConnected) return SyncOutcome::kRehearsed;
  if (result == kHeld) return SyncOutcome::kHeld;
  return SyncOutcome::kFailed;
}

}  // namespace syncopate::synchronizer
