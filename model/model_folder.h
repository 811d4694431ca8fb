#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"

// A Hugging Face model directory and the files in it that are not weights.
namespace syncopate::model {

inline constexpr char kHfConfigFile[] = "config.json";
inline constexpr char kGenerationConfigFile[] = "generation_config.json";
inline constexpr char kWeightsFile[] = "model.safetensors";
inline constexpr char kWeightsIndexFile[] = "model.safetensors.index.json";

// Files of the tokenizer, the chat template and the generation defaults: those that are needed without weights.
inline constexpr const char* kTextFiles[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                             kGenerationConfigFile};

// Reads a whole file, which may be a symbolic link. NOT_FOUND if it is not there; INVALID_ARGUMENT: reason
// FILE_TOO_LARGE if it is longer than `max_bytes`, LFS_POINTER if it is a Git LFS pointer.
absl::StatusOr<std::string> ReadModelFile(const std::string& path, int64_t max_bytes);

// The error NOT_FOUND (reason NO_MODEL) for a `folder` without config.json. Its message says what the folder is
// (missing, a directory of PEFT adapters, a checkpoint of a run, or something else) and what to do.
absl::Status ExplainNoModel(const std::string& folder);

// Makes `to`, and copies the files of `from` that describe the model: config.json, generation_config.json and the files
// of its tokenizer. Files of these names that `from` does not have are removed from `to`. Durable when this returns OK.
// NOT_FOUND (reason NO_MODEL) if `from` has no config.json. `files` has `to`; `from` is read from the real disk.
absl::Status CopyModelDescription(const std::string& from, const std::string& to,
                                  FileSystem* files = FileSystem::Real());

}  // namespace syncopate::model
