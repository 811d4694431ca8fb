#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "services/config/evaluation_sets.h"
#include "services/config/run_model.h"
#include "syncopate/v1/config.pb.h"
#include "trainer/data/prompt_row.h"
#include "trainer/data/prompts.h"

namespace syncopate::trainerd {

// The prompts of one set of eval.sets.
struct EvaluationSetSource {
  config::EvaluationSetText set;
  std::unique_ptr<trainer::PromptSource> prompts;
  int64_t count = 0;  // rows that are prompts, or as many of them as the set asks for
};

// The sources of a run's prompts, according to its data section.
struct PromptSources {
  std::unique_ptr<trainer::PromptSource> training;
  std::unique_ptr<trainer::PromptSource> evaluation;
  int64_t evaluation_prompts = 0;  // eval.prompts, or fewer if the data have fewer
  std::vector<EvaluationSetSource> evaluation_sets;
  // The contents of data.files and data.eval_files, as text: fixed for a whole run.
  std::string fingerprint;
};

// Makes a built-in task, or opens files: counts their rows, reads the tokenizer and the chat template of the run's
// model, and the prompts of evaluations. `tools` are shown in the prompts of rows without tools of their own. Blocks for the disk: seconds for a million rows. Errors name the key, and are
// those of trainer::JsonlFile, PromptWriter and TextSource.
absl::StatusOr<PromptSources> OpenPromptSources(const v1::RunConfig& config, const config::RunModel& model,
                                                trainer::EnvironmentTools tools = {});

// Checks `fingerprint` against <run_dir>/state/trainer/data.json, which is written when a run begins.
// FAILED_PRECONDITION (reason FIXED_KEY) if the run was begun with other data; DATA_LOSS (reason BAD_RECORD); errors of
// FileSystem.
absl::Status KeepFingerprint(FileSystem* files, const std::string& run_dir, const std::string& fingerprint);

}  // namespace syncopate::trainerd
