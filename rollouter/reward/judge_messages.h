#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "rollouter/reward/pattern.h"

// What is sent to and read from the model that judges answers, behind an OpenAI endpoint (docs/rewards.md, "A judge").
// Pure functions.
namespace syncopate::rollouter {

// The text of reward.judge_prompt. {answer} stands for the answer; {name} stands for the field `name` of the row. All
// are replaced at once, so that what an answer says in braces stays as it is. Immutable.
class JudgePrompt {
 public:
  // INVALID_ARGUMENT (reason BAD_JUDGE_PROMPT) if {answer} is missing.
  static absl::StatusOr<JudgePrompt> Parse(absl::string_view text);

  // The prompts for `answers`, in order. INVALID_ARGUMENT (reason BAD_ROW) if the row is no JSON object, (reason
  // NO_FIELD) if it lacks a named field. A field that is no text stands there as JSON.
  absl::StatusOr<std::vector<std::string>> Render(const std::string& row_json,
                                                  const std::vector<std::string>& answers) const;

 private:
  struct Part {
    std::string text;   // literal, if `field` is empty
    std::string field;  // a name in braces
  };
  std::vector<Part> parts_;
};

struct JudgeSampling {
  std::string model;
  int64_t max_new_tokens = 512;
  double temperature = 0;
};
// The body of POST /chat/completions with one message of the user. Bytes that are not valid UTF-8 are replaced.
std::string JudgeRequestBody(const JudgeSampling& sampling, const std::string& prompt);

struct Judgement {
  std::string text;
  int64_t tokens = -1;  // of the prompt and the judgement together; -1: the endpoint does not say
  bool cut_off = false;
};
// INTERNAL (reason BAD_JUDGEMENT) if the body is not that of a chat completion.
absl::StatusOr<Judgement> ParseJudgement(absl::string_view body);
// The tokens that the body of a response says were used, also of one that is no chat completion; -1: it does not say.
int64_t ParseUsedTokens(absl::string_view body);

// The reward that `pattern` finds in the judgement: the number in group 1 of its last match; without a group 1 if
// there is a match, else 0. INTERNAL (reason BAD_JUDGEMENT) with the end of the text if there is no such number.
absl::StatusOr<float> FindReward(const Pattern& pattern, const Judgement& judgement);

// The message of an error in OpenAI's form, cut to a line's length, with `secret` left out; "" if there is none.
std::string ExplainError(absl::string_view body, absl::string_view secret);

}  // namespace syncopate::rollouter
