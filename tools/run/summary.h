#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/run/supervision.h"

namespace syncopate::run {

// What only the supervisor of a run knows at its end.
struct RunEnd {
  RunOutcome outcome = RunOutcome::kFailed;
  std::string reason;
  double wall_seconds = 0;  // from the first process's start to the last one's end
  std::map<ChildId, int64_t> restarts;
  std::vector<std::string> log = {};  // of a failed run: the end of the log of the process that failed
};

// The text of run.dir's summary.json; "" if there is none.
std::string ReadSummary(const std::string& run_dir);

// Adds {"run": {"outcome", "reason", "wall_seconds", "restarts": {name: n}, "log": [line]}} to run.dir's summary.json, which the
// trainer wrote, and puts "status": "failed" there if the run failed, also when the trainer could not write it. A file
// that still is `before`, what ReadSummary gave at the start, is of an earlier life, to which this one has added no
// step: it stays as it is, and with `keep` in any case. Returns the summary with that addition; errors of FileSystem.
absl::StatusOr<nlohmann::json> FinishSummary(const std::string& run_dir, const RunEnd& end,
                                             const std::string& before = "", bool keep = false);

// "completed", "interrupted", "failed".
std::string OutcomeName(RunOutcome outcome);

}  // namespace syncopate::run
