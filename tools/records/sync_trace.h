#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "syncopate/v1/records.pb.h"

namespace syncopate::records {

// One weight sync as a trace in the JSON format of Chrome's trace viewer, which ui.perfetto.dev opens: one track a
// process, one span a phase. The members' own measurements are on their tracks; the synchronizer's track has one line a
// receiver with the whole sync as it saw it. Times are microseconds since the earliest span, by wall clock.
//
// `attempt` nullopt: the last attempt that succeeded for at least one receiver, else the last attempt. NOT_FOUND reason
// NO_SYNC if the events have no such attempt.
absl::StatusOr<std::string> SyncTrace(const std::vector<v1::Event>& events, std::optional<int64_t> attempt);

}  // namespace syncopate::records
