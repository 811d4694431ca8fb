#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "model/model_config.h"

// config.json of a Hugging Face model directory, in all spellings that transformers 5 reads.
namespace syncopate::model {

// What a config.json says of a model.
struct HfModel {
  ModelConfig config;                  // max_position_embeddings is the model's own limit
  std::vector<int32_t> eos_token_ids;  // perhaps none
  std::string source;                  // the file, for messages

  // The model for sequences of up to `context` tokens: config with max_position_embeddings = context. Windows that
  // reach over all of it are none. INVALID_ARGUMENT (reason CONTEXT_TOO_LONG) if the model does not reach that far.
  absl::StatusOr<ModelConfig> WithContext(int64_t context) const;
  // The longest context of WithContext().
  int64_t longest_context() const { return config.max_position_embeddings; }
};

// Llama 3.x, Qwen2 and 2.5, Qwen3 (dense, and with routed experts) and Mistral. `source` names the text in messages. Trusts nothing. Unknown
// keys are skipped. INVALID_ARGUMENT, naming file and key:
//   BAD_MODEL_CONFIG   no JSON, a key that is missing, of another type or impossible
//   UNKNOWN_MODEL      an architecture, activation, rope type or quantisation that is not built
absl::StatusOr<HfModel> ParseHfConfig(absl::string_view text, const std::string& source);

// ParseHfConfig of <folder>/config.json, with the end-of-sequence ids of <folder>/generation_config.json if it has any.
// NOT_FOUND (reason NO_MODEL) if there is no such file.
absl::StatusOr<HfModel> ReadHfConfig(const std::string& folder);

}  // namespace syncopate::model
