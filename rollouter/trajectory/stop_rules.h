#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace syncopate::text::tokenizer {
class Tokenizer;
}

namespace syncopate::rollouter {

// What ends an answer besides the model's own end tokens: rollout.stop of the configuration.
struct StopRules {
  std::vector<int32_t> token_ids = {};
  std::vector<std::string> texts = {};
  std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer =
      nullptr;  // makes text of tokens; may be null without texts

  bool empty() const { return token_ids.empty() && texts.empty(); }
};

// Reads "" (no stops) or a JSON list of texts and token ids, such as ["</answer>", 151645]. INVALID_ARGUMENT (reason
// BAD_STOP) says which item cannot be one: texts are not empty and have at most 256 bytes, there are at most 16 items.
absl::StatusOr<StopRules> ParseStopRules(const std::string& json);
// The same, with the tokenizer. FAILED_PRECONDITION (reason NO_TOKENIZER) if there are texts and it is null; INVALID_ARGUMENT
// (reason BAD_STOP) for a token id outside of the vocabulary of `vocab_size`.
absl::StatusOr<StopRules> MakeStopRules(const std::string& json,
                                        std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer,
                                        int64_t vocab_size);

}  // namespace syncopate::rollouter
