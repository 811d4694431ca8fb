#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/manifest.h"
#include "base/status.h"
#include "model/safetensors.h"

namespace syncopate::model {

struct ExportOptions {
  DType dtype = DType::kBFloat16;           // dtype of the files
  int64_t max_shard_bytes = 5'000'000'000;  // most bytes of tensors in one file; a larger tensor gets its own file
  // What the folder is called until all of it is on disk, on the same disk; empty: its name and ".partial". What is
  // there is removed.
  std::string partial = {};
  FileSystem* files = FileSystem::Real();  // that it is written to
};

struct ExportedModel {
  int64_t files = 0;  // number of files with weights
  int64_t bytes = 0;  // bytes of all weights
};

// Writes a Hugging Face model directory that transformers can load: the weights as model.safetensors, or as shards with
// an index if they are too large for one file; config.json of the folder `description`, with the dtype of the files;
// and its tokenizer files. `tensors` write the float32 parameters of that model, in any order and in pieces of whole
// numbers. `folder` appears whole or not at all. Errors before any write: ALREADY_EXISTS (reason FOLDER_TAKEN) if
// `folder` is not empty; FAILED_PRECONDITION (reason MODEL_MISMATCH) naming a tensor that the description's model does
// not have, or has with another shape; those of ReadHfConfig. Later errors: DATA_LOSS (reason NON_FINITE) naming the
// tensor; those of the disk.
absl::StatusOr<ExportedModel> ExportModel(const std::vector<TensorToWrite>& tensors, const std::string& description,
                                          const std::string& folder, const ExportOptions& options = {});

// Makes `folder` in options.files, whole or not at all: `fill` writes its files into the folder that it is given,
// options.partial, which is then renamed. ALREADY_EXISTS (reason FOLDER_TAKEN) if `folder` is not empty, before `fill`
// is called; errors of `fill` and of the disk.
absl::Status WriteNewFolder(const std::string& folder, const ExportOptions& options,
                            const std::function<absl::Status(const std::string& partial)>& fill);
// Writes a new safetensors file of float32 tensors into options.files, rounded to options.dtype. DATA_LOSS (reason
// NON_FINITE) naming the tensor; errors of the disk.
absl::Status WriteWeightFile(const std::string& path, const std::vector<TensorToWrite>& tensors,
                             const ExportOptions& options, const std::map<std::string, std::string>& metadata);

// "bfloat16" or "float32". INVALID_ARGUMENT (reason BAD_DTYPE) for any other word.
absl::StatusOr<DType> ParseExportDType(const std::string& name);

}  // namespace syncopate::model
