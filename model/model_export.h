#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"
#include "model/safetensors.h"

namespace syncopate::model {

struct ExportOptions {
  DType dtype = DType::kBFloat16;           // of the files
  int64_t max_shard_bytes = 5'000'000'000;  // of the tensors in one file; a larger tensor has a file of its own
};

struct ExportedModel {
  int64_t files = 0;  // that hold weights
  int64_t bytes = 0;  // of all weights
};

// Writes a Hugging Face model directory, which transformers loads as it is: the weights as model.safetensors, or as
// shards with an index if there are too many for one file, and what `description` holds of config.json, with the dtype of
// the files, and tokenizer files. `tensors` write the float32 parameters of that model, in any order and in pieces of whole numbers. `folder`
// appears whole or not at all. Errors, before anything is written: ALREADY_EXISTS (reason FOLDER_TAKEN) if `folder`
// holds something; FAILED_PRECONDITION (reason MODEL_MISMATCH) naming the tensor that the description's model has not
// or has with another shape; those of ReadHfConfig. Later: DATA_LOSS (reason NON_FINITE) naming the tensor; the disk's.
absl::StatusOr<ExportedModel> ExportModel(const std::vector<TensorToWrite>& tensors, const std::string& description,
                                          const std::string& folder, const ExportOptions& options = {});

// "bfloat16" or "float32". INVALID_ARGUMENT (reason BAD_DTYPE) for any other word.
absl::StatusOr<DType> ParseExportDType(const std::string& name);

}  // namespace syncopate::model
