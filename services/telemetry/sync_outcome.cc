#include "services/telemetry/sync_outcome.h"

#include "synchronizer/messages.h"

namespace syncopate::telemetry {

SyncOutcome SyncOutcomeOf(const std::string& result) {
  if (result == "ok") return SyncOutcome::kDone;
  if (result == "relabelled") return SyncOutcome::kRelabelled;
  if (synchronizer::IsSuperseded(result)) return SyncOutcome::kSuperseded;
  if (result == synchronizer::kConnected || result == synchronizer::kNotConnected) return SyncOutcome::kRehearsed;
  if (result == synchronizer::kHeld) return SyncOutcome::kHeld;
  return SyncOutcome::kFailed;
}

}  // namespace syncopate::telemetry
