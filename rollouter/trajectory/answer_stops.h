#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rollouter/trajectory/stop_rules.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::rollouter {

// Looks through the answers of one group, token by token. A text counts wherever its characters come from: also from the
// middle of a token, and from special tokens as the tokenizer's file writes them. Not thread-safe.
class AnswerStops {
 public:
  // `rules` must outlive this object.
  AnswerStops(const StopRules* rules, int32_t samples);

  // The next token of a sample's answer; whether it completes a stop, and is the answer's last then.
  bool Completes(int32_t sample, int32_t token);

 private:
  struct Sample {
    text::tokenizer::TextStream stream;
    std::string tail = {};  // the end of the text, as far as a stop may have begun in it
  };

  const StopRules& rules_;
  size_t longest_ = 0;  // bytes, of the texts
  std::vector<Sample> samples_;
};

}  // namespace syncopate::rollouter
