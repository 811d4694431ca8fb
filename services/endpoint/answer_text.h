#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace syncopate::endpoint {

// The text of one answer, token by token, without special tokens, and without a stop text and what follows it. Text
// that may be the beginning of a stop is held back until the next tokens decide. Not thread-safe.
class AnswerText {
 public:
  // `tokenizer` may be null: there is no text then. `stops` and `end_tokens` must outlive this object; a token of
  // `end_tokens` adds no text.
  AnswerText(const text::tokenizer::Tokenizer* tokenizer, const std::vector<std::string>* stops,
             const std::vector<int32_t>* end_tokens);

  // The text that is final with this token; often empty.
  std::string Add(int32_t token);
  // The rest of the text, when the answer has ended.
  std::string End();
  // Whether a stop has been completed. Add() must not be called after it.
  bool stopped() const { return stopped_; }

 private:
  std::string Release();

  std::optional<text::tokenizer::TextStream> stream_;
  const std::vector<std::string>* const stops_;
  const std::vector<int32_t>* const end_tokens_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace syncopate::endpoint
