#pragma once

#include <string>

namespace syncopate::telemetry {

// How a weight sync to one receiver ended, for people who count.
enum class SyncOutcome {
  kDone,        // the receiver serves the version; weights were moved
  kRelabelled,  // it does, and no byte was moved
  kSuperseded,  // a newer version took the send slot first, and is what the receiver got or gets next
  kRehearsed,   // it was no sync: the group that the next one needs was formed, or was not
  kHeld,        // the receiver takes no version for now, and is left out
  kFailed,
};

// Of SyncRecord.result: "ok", "relabelled", or the reason of the error that ended it. Pure.
SyncOutcome SyncOutcomeOf(const std::string& result);

}  // namespace syncopate::telemetry
