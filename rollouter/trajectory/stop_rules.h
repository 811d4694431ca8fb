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

// The tokens and texts that end an answer besides the model's own end tokens: rollout.stop of the configuration.
struct StopRules {
  std::vector<int32_t> token_ids = {};
  std::vector<std::string> texts = {};
  std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer = nullptr;  // may be null if `texts` is empty

  bool empty() const { return token_ids.empty() && texts.empty(); }
};

// Reads "" (no stops) or a JSON list of texts and token ids, such as ["</answer>", 151645]. INVALID_ARGUMENT (reason
// BAD_STOP) names the bad item: texts are not empty and have at most 256 bytes, and there are at most 16 items.
absl::StatusOr<StopRules> ParseStopRules(const std::string& json);
// ParseStopRules(), with the tokenizer that texts need. Also FAILED_PRECONDITION (reason NO_TOKENIZER) if there are
// texts and `tokenizer` is null, and INVALID_ARGUMENT (reason BAD_STOP) for a token id outside a vocabulary of
// `vocab_size`.
absl::StatusOr<StopRules> MakeStopRules(const std::string& json,
                                        std::shared_ptr<const text::tokenizer::Tokenizer> tokenizer,
                                        int64_t vocab_size);

}  // namespace syncopate::rollouter
