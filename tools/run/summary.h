#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/run/supervision.h"

namespace syncopate::run {

// The part of a run's end that only its supervisor knows.
struct RunEnd {
  RunOutcome outcome = RunOutcome::kFailed;
  std::string reason;
  double wall_seconds = 0;  // from the first process's start to the last one's end
  std::map<ChildId, int64_t> restarts;
  std::vector<std::string> log = {};  // of a failed run: the end of the failed process's log
};

// The text of run.dir's summary.json; "" if there is none.
std::string ReadSummary(const std::string& run_dir);

// Adds {"run": {"outcome", "reason", "wall_seconds", "restarts": {name: n}, "log": [line]}} to run.dir's summary.json,
// which the trainer wrote, and sets "status": "failed" if the run failed, also if the trainer could not write the file.
// A file that still equals `before`, the result of ReadSummary at the start, belongs to an earlier incarnation, and
// this one has made no step: the file is left unchanged then, and with `keep` in any case. Returns the summary with the
// addition; errors of FileSystem.
absl::StatusOr<nlohmann::json> FinishSummary(const std::string& run_dir, const RunEnd& end,
                                             const std::string& before = "", bool keep = false);

// "completed", "interrupted", "failed".
std::string OutcomeName(RunOutcome outcome);

}  // namespace syncopate::run
