#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rollouter/trajectory/stop_rules.h"
#include "text/tokenizer/tokenizer.h"

namespace syncopate::rollouter {

// Finds stops in the answers of one group, token by token. A stop text may begin and end inside a token, and may come
// from special tokens as the tokenizer's file writes them. Not thread-safe.
class AnswerStops {
 public:
  // `rules` must outlive this object.
  AnswerStops(const StopRules* rules, int32_t samples);

  // Adds the next token of a sample's answer. True if the token completes a stop: it is then the answer's last one.
  bool Completes(int32_t sample, int32_t token);

 private:
  struct Sample {
    text::tokenizer::TextStream stream;
    std::string tail = {};  // the end of the text, in which a stop may have begun
  };

  const StopRules& rules_;
  size_t longest_ = 0;  // bytes of the longest stop text
  std::vector<Sample> samples_;
};

}  // namespace syncopate::rollouter
