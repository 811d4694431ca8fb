#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "model/adapter_files.h"
#include "model/model_config.h"
#include "model/weight_files.h"
#include "syncopate/v1/config.pb.h"

// The model that a run trains: one from model.path, or one described by the keys of the model section.
namespace syncopate::config {

struct RunModel {
  model::ModelConfig shape;  // max_position_embeddings is the longest sequence of the run
  // The folder with config.json and the tokenizer: for a resumed run the copy in the run directory, else model.path.
  // Empty for a model that keys describe.
  std::string description;

  bool by_keys() const { return description.empty(); }
};

// <run_dir>/model: the files of model.path that the trainer keeps.
std::string KeptModelFolder(const std::string& run_dir);
// <run_dir>/adapter: adapter_config.json of lora.path, which the trainer keeps.
std::string KeptAdapterFolder(const std::string& run_dir);

// Reads config.json and adapter_config.json if there are any. INVALID_ARGUMENT (reason BAD_CONFIG) that names the key
// if the run's sequences or its task do not fit the model, or (reason BAD_MODEL) if its adapters do not; errors of
// model::ReadHfConfig and model::ReadAdapterConfig.
absl::StatusOr<RunModel> FindRunModel(const v1::RunConfig& config);

// Data type of the weights that are sent and that rollouters have in memory: model.dtype, where "auto" is resolved from
// the configuration alone, so that every daemon comes to the same type.
DType ToWireDType(const v1::RunConfig& config);

// The manifest of the weights as they are sent and as rollouters have them in memory. Errors of model::MakeManifest.
absl::StatusOr<Manifest> MakeWireManifest(const v1::RunConfig& config, const model::ModelConfig& shape);

// The name that weight syncs use for the layout of a rollouter's ranks; "" if there is one rank. Both sides of a sync
// use it.
std::string MakeRolloutLayout(const v1::RunConfig& config, const model::ModelConfig& shape);

// The weights in model.path, checked against `model`; null for a model that keys describe. Errors of
// model::WeightFiles::Open, with the key's name before them.
absl::StatusOr<std::shared_ptr<const model::WeightFiles>> OpenInitialWeights(const v1::RunConfig& config,
                                                                             const RunModel& model);

// The adapters in lora.path, checked against `model`; null without that key. Errors of model::AdapterFiles::Open, with
// the key's name before them.
absl::StatusOr<std::shared_ptr<const model::AdapterFiles>> OpenInitialAdapters(const v1::RunConfig& config,
                                                                               const RunModel& model);

// Whether the trainer lends the base of adapters to rollouters that take turns with it. Ranks that share a base, at
// either side, have slices of it, and lend and map none.
bool LendsBase(const v1::RunConfig& config, const model::ModelConfig& shape);

}  // namespace syncopate::config
