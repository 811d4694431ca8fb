#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

// A Hugging Face model directory and the files in it that are not weights.
namespace syncopate::model {

inline constexpr char kHfConfigFile[] = "config.json";
inline constexpr char kGenerationConfigFile[] = "generation_config.json";
inline constexpr char kWeightsFile[] = "model.safetensors";
inline constexpr char kWeightsIndexFile[] = "model.safetensors.index.json";

// What a tokenizer and a chat template are made of, and what generation begins with, where a model has no file of
// weights at hand.
inline constexpr const char* kTextFiles[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                             kGenerationConfigFile};

// All of a file, which may be a symbolic link. NOT_FOUND if it is not there; INVALID_ARGUMENT: reason FILE_TOO_LARGE if
// it holds more than `max_bytes`, LFS_POINTER.
absl::StatusOr<std::string> ReadModelFile(const std::string& path, int64_t max_bytes);

// Why `folder`, which has no config.json, is no Hugging Face model directory, and what to do: it is not there, or it is a
// directory of PEFT adapters, a checkpoint of a run, something else. NOT_FOUND (reason NO_MODEL).
absl::Status ExplainNoModel(const std::string& folder);

// Makes `to`, and puts there what of `from` describes the model: config.json, generation_config.json and the files of
// its tokenizer, as they are. Files of these names that `from` does not have are removed from `to`. Durable when this
// returns OK. NOT_FOUND (reason NO_MODEL) if `from` has no config.json.
absl::Status CopyModelDescription(const std::string& from, const std::string& to);

}  // namespace syncopate::model
