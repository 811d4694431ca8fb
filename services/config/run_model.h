#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "model/weight_files.h"
#include "syncopate/v1/config.pb.h"

// Which model a run trains: one of model.path, or one by the keys of the model section.
namespace syncopate::config {

struct RunModel {
  model::ModelConfig shape;  // max_position_embeddings is the longest sequence of the run
  // Where its config.json and tokenizer are: the copy in the run directory of a run that is resumed, else model.path.
  // Empty for a model by keys.
  std::string description;

  bool by_keys() const { return description.empty(); }
};

// <run_dir>/model: what the trainer keeps of model.path.
std::string KeptModelFolder(const std::string& run_dir);

// Reads config.json if there is one to read. INVALID_ARGUMENT (reason BAD_CONFIG) naming the key if the run's sequences
// or its task do not fit the model; errors of model::ReadHfConfig.
absl::StatusOr<RunModel> FindRunModel(const v1::RunConfig& config);

// The weights in model.path, checked against `model`; null for a model by keys. Errors of model::WeightFiles::Open,
// with the key's name before them.
absl::StatusOr<std::shared_ptr<const model::WeightFiles>> OpenInitialWeights(const v1::RunConfig& config,
                                                                             const RunModel& model);

}  // namespace syncopate::config
