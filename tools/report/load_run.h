#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "tools/report/run_history.h"

namespace syncopate::report {

// What a run directory holds, of a run that is over or goes on: metrics.jsonl, events, config.resolved.yaml and
// summary.json, each as far as it is there and whole; what is damaged is left out and named in the description's
// warnings. NOT_FOUND (reason NOT_A_RUN) if it has neither a configuration nor a line of metrics. Blocks while it
// reads, and holds the event logs in memory meanwhile.
absl::StatusOr<RunHistory> LoadRun(FileSystem* files, const std::string& run_dir);

// The name of a run that goes on, and its configuration, from the text of config.resolved.yaml. INVALID_ARGUMENT if
// that is no YAML.
absl::StatusOr<RunHistory::Description> DescribeRun(const std::string& run_dir, const std::string& config_yaml);

}  // namespace syncopate::report
