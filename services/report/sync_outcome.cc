#include "services/report/sync_outcome.h"

namespace syncopate::services {

SyncOutcome SyncOutcomeOf(const std::string& result) {
  if (result == "ok") return SyncOutcome::kDone;
  if (result == "relabelled") return SyncOutcome::kRelabelled;
  if (result == "SUPERSEDED" || result == "VERSION_NOT_STAGED") return SyncOutcome::kSuperseded;
  if (result == "connected" || result == "not_connected") return SyncOutcome::kRehearsed;
  return SyncOutcome::kFailed;
}

}  // namespace syncopate::services
