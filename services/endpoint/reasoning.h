#pragma once

#include <string>

#include "absl/strings/string_view.h"

// How models write down their thoughts before an answer; pure.
namespace syncopate::endpoint {

enum class Reasoning {
  kNone,     // the model marks no thoughts
  kAtStart,  // an answer may begin with <think>...</think>
  kBegun,    // the prompt has ended with <think>: the answer begins with thoughts
};

// Whether the text of a chat template marks thoughts: kAtStart or kNone.
Reasoning FindReasoning(absl::string_view chat_template);
// For one request, by the prompt that the template has rendered.
Reasoning ReasoningAfter(Reasoning model, absl::string_view prompt);

// Takes the thoughts out of the text of one answer, part by part. White space next to the marks belongs to neither side.
// Thoughts that never close are all there is. Not thread-safe.
class ReasoningParser {
 public:
  explicit ReasoningParser(Reasoning reasoning) : state_(FirstState(reasoning)) {}

  struct Parts {
    std::string thoughts;
    std::string answer;
  };
  // What is final with this part of the text; text that may belong to a mark is held back.
  Parts Add(absl::string_view text);
  // The rest, when the text has ended.
  Parts End();

 private:
  // kOpening --<think>--> kThoughts --</think>--> kGap --anything but white space--> kAnswer
  //    `--anything else--> kAnswer
  enum class State { kOpening, kThoughts, kGap, kAnswer };
  static State FirstState(Reasoning reasoning);

  // Moves on by what is held; false when the rest has to wait.
  bool Advance(Parts* parts);
  bool AdvanceOpening();
  bool AdvanceThoughts(Parts* parts);

  State state_;
  bool has_thoughts_ = false;  // some have been given
  std::string held_;
};

}  // namespace syncopate::endpoint
