#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "syncopate/v1/records.pb.h"

namespace syncopate::records {

// One weight sync as a trace in the JSON of Chrome's trace viewer, which ui.perfetto.dev opens: a track a process with
// a span a phase. What members measured themselves is on their tracks; on the synchronizer's there is a line a receiver
// with what it saw of the whole. Times are microseconds since the earliest span, by wall clock.
//
// `attempt`: without it the last one that a receiver's part ended well in, or else the last one. NOT_FOUND reason
// NO_SYNC if the events have no such attempt.
absl::StatusOr<std::string> SyncTrace(const std::vector<v1::Event>& events, std::optional<int64_t> attempt);

}  // namespace syncopate::records
