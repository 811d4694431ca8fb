#pragma once

#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "syncopate/v1/records.pb.h"

namespace syncopate::records {

struct RunEvents {
  std::vector<v1::Event> events;      // of all daemons, by wall time
  std::vector<std::string> warnings;  // files whose end is damaged or that could not be read
};

// The event logs of a run directory. NOT_FOUND (reason NO_EVENTS) if it has none. Reads all of them into memory.
absl::StatusOr<RunEvents> ReadRunEvents(FileSystem* files, const std::string& run_dir);

// One JSON object: unix_seconds, daemon, kind, version, attempt where there is one, and the fields.
std::string ToJson(const v1::Event& event);

}  // namespace syncopate::records
