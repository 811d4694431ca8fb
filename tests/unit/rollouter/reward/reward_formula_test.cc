#include "rollouter/reward/reward_formula.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace syncopate::rollouter {
namespace {

using Source = RewardTerm::Source;

TEST(RewardFormulaTest, ReadsTermsAndTheirWeights) {
  const auto terms = ParseRewardFormula("math + 0.2*format + -1 * python:judge/v2+http").value();
  ASSERT_EQ(terms.size(), 4u);
  EXPECT_EQ(terms[0], (RewardTerm{"math", 1, Source::kBuiltIn, "math"}));
  EXPECT_EQ(terms[1], (RewardTerm{"format", 0.2, Source::kBuiltIn, "format"}));
  EXPECT_EQ(terms[2], (RewardTerm{"python:judge/v2", -1, Source::kPython, "judge/v2"}));
  EXPECT_EQ(terms[3], (RewardTerm{"http", 1, Source::kHttp, "http"}));
  EXPECT_EQ(ParseRewardFormula("2*judge").value()[0], (RewardTerm{"judge", 2, Source::kJudge, "judge"}));
}

TEST(RewardFormulaTest, SaysWhichTermIsNone) {
  for (const auto& [formula, says] : std::vector<std::pair<std::string, std::string>>{
           {"", "no reward is named ''"},
           {"dense +", "no reward is named ''"},
           {"denes", "no reward is named 'denes'; there are dense, exact"},
           {"x*dense", "'x' is no weight"},
           {"nan*dense", "'nan' is no weight"},
           {"1e9*dense", "'1e9' is no weight"},
           {"python:", "names no Python reward"},
           {"python:a b", "names no Python reward"},
           {"dense + 2*dense", "'dense' stands there twice"},
           {absl::StrCat("python:", std::string(80, 'a')), "at most 64 bytes"}}) {
    const absl::Status bad = ParseRewardFormula(formula).status();
    EXPECT_EQ(ErrorReason(bad), "BAD_REWARD_FORMULA") << formula;
    EXPECT_TRUE(absl::StrContains(bad.message(), says)) << formula << ": " << bad.message();
  }
}

TEST(RewardFormulaTest, HasAsManyTermsAsAnAnswerHasParts) {
  std::string formula = "python:r0";
  for (size_t i = 1; i < kMaxRewardTerms; ++i) absl::StrAppend(&formula, " + python:r", i);
  EXPECT_TRUE(ParseRewardFormula(formula).ok());
  EXPECT_FALSE(ParseRewardFormula(formula + " + dense").ok());
}

}  // namespace
}  // namespace syncopate::rollouter
