#pragma once

#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "syncopate/v1/records.pb.h"

namespace syncopate::records {

struct RunEvents {
  std::vector<v1::Event> events;      // of all daemons, by wall-clock time
  std::vector<std::string> warnings;  // about files whose end is damaged or that could not be read
};

// Reads the event logs of a run directory, all into memory. NOT_FOUND (reason NO_EVENTS) if it has none.
absl::StatusOr<RunEvents> ReadRunEvents(FileSystem* files, const std::string& run_dir);

// One JSON object: unix_seconds, daemon, kind, version, attempt if there is one, and the fields.
std::string ToJson(const v1::Event& event);

}  // namespace syncopate::records
