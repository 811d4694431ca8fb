#pragma once

#include <string>

#include "base/status.h"
#include "model/model_export.h"

namespace syncopate::trainer {

// Writes the policy of one checkpoint, the folder `checkpoint`, as a Hugging Face model directory `to`. `description`
// is the folder with the model's config.json and tokenizer files; empty: <run.dir>/model, found by where the
// checkpoint lies (<run.dir>/checkpoints/<name>). Only reads: the run may be under way. NOT_FOUND (reason
// NO_CHECKPOINT) if there is none, NOT_FOUND (reason NO_MODEL) if there is no config.json, saying where one was looked
// for; DATA_LOSS (reason CHECKPOINT_DAMAGED) if the weights are not what was saved; errors of model::ExportModel.
absl::StatusOr<model::ExportedModel> ExportCheckpoint(const std::string& checkpoint, const std::string& description,
                                                      const std::string& to, const model::ExportOptions& options);

}  // namespace syncopate::trainer
