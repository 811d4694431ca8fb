#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "model/model_config.h"

// config.json of a Hugging Face model directory, in all spellings that transformers 5 reads.
namespace syncopate::model {

// A model as its config.json describes it.
struct HfModel {
  ModelConfig config;                  // max_position_embeddings is the model's own limit
  std::vector<int32_t> eos_token_ids;  // may be empty
  std::string source;                  // the file, for messages

  // The model for sequences of up to `context` tokens: config with max_position_embeddings = context. Windows of
  // `context` or more tokens are removed. INVALID_ARGUMENT (reason CONTEXT_TOO_LONG) if the model does not support that
  // context.
  absl::StatusOr<ModelConfig> WithContext(int64_t context) const;
  // The longest context of WithContext().
  int64_t longest_context() const { return config.max_position_embeddings; }
};

// Parses configurations of Llama 3.x, Qwen2 and 2.5, Qwen3 (dense, and with routed experts) and Mistral. `source` names
// the text in messages. Trusts nothing. Unknown keys are skipped. INVALID_ARGUMENT, naming file and key:
//   BAD_MODEL_CONFIG   no JSON, or a key that is missing, of another type or impossible
//   UNKNOWN_MODEL      an architecture, activation, rope type or quantisation that is not supported
absl::StatusOr<HfModel> ParseHfConfig(absl::string_view text, const std::string& source);

// ParseHfConfig of <folder>/config.json, with the end-of-sequence ids of <folder>/generation_config.json if it has any.
// NOT_FOUND (reason NO_MODEL) if there is no such file.
absl::StatusOr<HfModel> ReadHfConfig(const std::string& folder);

}  // namespace syncopate::model
