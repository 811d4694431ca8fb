#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::rollouter {

// One summand of a reward formula.
struct RewardTerm {
  enum class Source : uint8_t {
    kBuiltIn,  // a reward of the registry, by name
    kHttp,     // the service at reward.url
    kPython,   // a function of the Python worker
    kJudge,    // the model behind reward.judge_url
  };
  // The term as written in the formula without its weight: "math", "http", "python:short"; unique in the formula.
  std::string part;
  double weight = 1;
  Source source = Source::kBuiltIn;
  std::string name;  // the name of the built-in reward or of the worker's function
  friend bool operator==(const RewardTerm&, const RewardTerm&) = default;
};

// Parses "math + 0.2*format + -1*python:toxic": terms between '+', each a name with an optional weight before it. A
// formula has at most kMaxRewardTerms terms, and a name at most kMaxRewardNameBytes bytes. INVALID_ARGUMENT (reason
// BAD_REWARD_FORMULA) naming the bad term. Pure.
inline constexpr size_t kMaxRewardTerms = 32;
inline constexpr size_t kMaxRewardNameBytes = 64;
absl::StatusOr<std::vector<RewardTerm>> ParseRewardFormula(absl::string_view formula);

// Whether the term reads the answer as text.
bool IsOfText(const RewardTerm& term);

// The names that a formula may contain, except the names after "python:".
const std::vector<std::string>& RewardNames();

}  // namespace syncopate::rollouter
