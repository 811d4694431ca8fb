#include "tools/run/resume_notes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "tools/records/step_record.h"
#include "tools/run/line_tail.h"

namespace syncopate::run {
namespace {

// Evaluations and repeated steps are among the last lines, so more than a few are read.
constexpr size_t kLinesOfTheEnd = 64;

// The highest step in the last lines; 0 before the first step.
int64_t StepReached(const std::string& run_dir) {
  int64_t reached = 0;
  for (const std::string& line : LastLines(JoinPath(run_dir, "metrics.jsonl"), kLinesOfTheEnd)) {
    const auto record = records::ParseStepRecord(line);
    if (record.ok()) reached = std::max(reached, record->step);
  }
  return reached;
}

bool HasCheckpoint(const std::string& folder) {
  const auto names = FileSystem::Real()->List(folder);
  return names.ok() && std::any_of(names->begin(), names->end(), [&](const std::string& name) {
           return FileSystem::Real()->FileBytes(JoinPath(JoinPath(folder, name), "manifest.json")).ok();
         });
}

}  // namespace

std::vector<std::string> ResumeNotes(const v1::RunConfig& config, const std::string& run_dir) {
  std::vector<std::string> notes;
  const int64_t reached = StepReached(run_dir);
  if (reached == 0) return notes;
  const std::string& set = config.checkpoint().dir();
  const std::string folder = set.empty() ? JoinPath(run_dir, "checkpoints") : set;
  if (!HasCheckpoint(folder)) {
    notes.push_back(absl::StrCat("there is no checkpoint in ", folder, ": the steps so far, ", reached,
                                 ", are repeated from the trainer's log"));
  }
  if (config.run().steps() < reached) {
    notes.push_back(absl::StrCat("run.steps is ", config.run().steps(), ", and the run has reached step ", reached,
                                 " already: no further step is made; set a higher one to go on"));
  }
  return notes;
}

}  // namespace syncopate::run
