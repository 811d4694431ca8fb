#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"
#include "model/model_export.h"
#include "model/safetensors.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/checkpoint/policy_files.h"

namespace syncopate::trainer {

// What is made of a checkpoint of adapters.
enum class AdapterExport : uint8_t {
  kNone,     // the checkpoint must be of all weights
  kAdapter,  // a directory of PEFT adapters
  kMerged,   // a model directory: the adapters added to their base
};
struct CheckpointExport {
  model::ExportOptions model;
  AdapterExport adapter = AdapterExport::kNone;
  std::string base = {};  // kMerged: the base's model directory; "": that which adapter_config.json names
};

// Writes the policy of one checkpoint, the folder `checkpoint`, as a Hugging Face model directory `to`. `description`
// is the folder with the model's config.json and tokenizer files; empty: <run.dir>/model, found by where the
// checkpoint lies (<run.dir>/checkpoints/<name>). Only reads: the run may be under way. NOT_FOUND (reason
// NO_CHECKPOINT) if there is none, NOT_FOUND (reason NO_MODEL) if there is no config.json, saying where one was looked
// for; DATA_LOSS (reason CHECKPOINT_DAMAGED) if the weights are not what was saved; FAILED_PRECONDITION: reason
// ADAPTER_CHECKPOINT if it is of adapters and `options` do not say what to make of it, or the other way round;
// BASE_MISMATCH if the adapters were trained on another base; errors of model::ExportModel and model::ExportAdapter.
absl::StatusOr<model::ExportedModel> ExportCheckpoint(const std::string& checkpoint, const std::string& description,
                                                      const std::string& to, const CheckpointExport& options);

// -- What an export of a running trainer is made with too.
// Maps what the ranks have written of their weights into `folder`, after each file of `files` has been compared with
// what is said of it. DATA_LOSS (reason CHECKPOINT_DAMAGED) naming a file that differs; errors of
// SavedPolicy::ParseWeights.
absl::StatusOr<MappedPolicy> MapRankWeights(const std::string& folder, const Manifest& manifest, int32_t ranks,
                                            const CheckpointStore::Files& files);
// The tensors of `manifest`, put together of the ranks' pieces in `policy` while they are written: it must outlive
// that.
std::vector<model::TensorToWrite> TensorsOfRanks(const Manifest& manifest, const SavedPolicy& policy);

}  // namespace syncopate::trainer
