#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate::rollouter {

// One summand of what an answer is worth.
struct RewardTerm {
  enum class Source : uint8_t {
    kBuiltIn,  // by name from the registry
    kHttp,     // the service at reward.url
    kPython,   // a function of the worker
  };
  std::string part;  // as it is written: "math", "http", "python:judge"; unique in the formula
  double weight = 1;
  Source source = Source::kBuiltIn;
  std::string name;  // of the built-in reward, or of the worker's function
  friend bool operator==(const RewardTerm&, const RewardTerm&) = default;
};

// Reads "math + 0.2*format + -1*python:toxic": terms between '+', each a name with or without a weight before it. At
// most kMaxRewardTerms terms and kMaxRewardNameBytes a name. INVALID_ARGUMENT (reason BAD_REWARD_FORMULA) saying which
// term is none. Pure.
inline constexpr size_t kMaxRewardTerms = 32;
inline constexpr size_t kMaxRewardNameBytes = 64;
absl::StatusOr<std::vector<RewardTerm>> ParseRewardFormula(absl::string_view formula);

// Whether the term wants the answer as text.
bool IsOfText(const RewardTerm& term);

// The names that a formula may have, but for those after "python:".
const std::vector<std::string>& RewardNames();

}  // namespace syncopate::rollouter
