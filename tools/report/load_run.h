#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "tools/report/run_history.h"

namespace syncopate::report {

// Reads the directory of a run that is over or still running: metrics.jsonl, events, config.resolved.yaml and
// summary.json, as far as they exist and are whole; damaged parts are left out and named in the description's warnings.
// NOT_FOUND (reason NOT_A_RUN) if it has neither a configuration nor a line of metrics. Blocks while it reads, with the
// event logs in memory.
absl::StatusOr<RunHistory> LoadRun(FileSystem* files, const std::string& run_dir);

// The name and the configuration of a running run, from the text of config.resolved.yaml. INVALID_ARGUMENT if that is
// no YAML.
absl::StatusOr<RunHistory::Description> DescribeRun(const std::string& run_dir, const std::string& config_yaml);

}  // namespace syncopate::report
