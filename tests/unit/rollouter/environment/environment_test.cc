#include "rollouter/environment/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "rollouter/environment/calculator.h"
#include "rollouter/environment/guess.h"

namespace syncopate::rollouter {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<EnvironmentGame> Start(const std::string& name, const std::string& row, uint64_t seed = 1) {
  const EnvironmentRegistry registry = EnvironmentRegistry::BuiltIn();
  std::unique_ptr<EnvironmentGame> game = (**registry.Find(name))(row).value();
  EXPECT_TRUE(game->Reset(seed).ok());
  return game;
}

TEST(EnvironmentRegistryTest, KnowsTheBuiltInOnesAndSaysSo) {
  EnvironmentRegistry registry = EnvironmentRegistry::BuiltIn();
  EXPECT_THAT(registry.Names(), ElementsAre("calculator", "guess"));
  const absl::Status unknown = registry.Find("chess").status();
  EXPECT_EQ(ErrorReason(unknown), "UNKNOWN_ENVIRONMENT");
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("calculator, guess"));
  EXPECT_EQ(ErrorReason(registry.Register("guess", MakeGuess)), "ENVIRONMENT_EXISTS");
  EXPECT_TRUE(registry.Register("chess", MakeGuess).ok());
  EXPECT_TRUE(registry.Find("chess").ok());
}

TEST(GuessTest, AnswersHigherAndLowerUntilTheNumberIsFound) {
  auto game = Start("guess", R"({"ground_truth": 20})");
  EnvironmentMessage said = *game->Step("16");
  EXPECT_EQ(said.text, "higher");
  EXPECT_EQ(said.reward, kWrongGuess);
  EXPECT_FALSE(said.done);
  EXPECT_EQ(game->Step("I think it is 24.")->text, "lower");
  said = *game->Step("So 20");
  EXPECT_EQ(said.text, "right");
  EXPECT_EQ(said.reward, 1.0f);
  EXPECT_TRUE(said.done);
}

TEST(GuessTest, WhatIsNoNumberOfTheGameIsAnsweredInWordsAndCosts) {
  auto game = Start("guess", R"({"ground_truth": "7"})");
  for (const char* action : {"", "seven", "0", "33", "-7", "7.5", "99999999999999999999"}) {
    const absl::StatusOr<EnvironmentMessage> said = game->Step(action);
    ASSERT_TRUE(said.ok()) << action;
    EXPECT_EQ(said->text, "no number from 1 to 32") << action;
    EXPECT_EQ(said->reward, kWrongGuess);
  }
}

TEST(GuessTest, WithoutARowTheSeedAloneDrawsTheNumber) {
  std::set<int> numbers;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    for (int number = 1; number <= kGuessNumbers; ++number) {
      if (!Start("guess", "", seed)->Step(absl::StrCat(number))->done) continue;
      numbers.insert(number);
      EXPECT_TRUE(Start("guess", "", seed)->Step(absl::StrCat(number))->done) << "the same seed, another number";
    }
  }
  EXPECT_EQ(numbers.size(), static_cast<size_t>(kGuessNumbers));
}

TEST(GuessTest, HalvingNeedsAtMostSixGuessesAndFourOnAverage) {
  int guesses = 0;
  for (int number = 1; number <= kGuessNumbers; ++number) {
    auto game = Start("guess", absl::StrCat(R"({"ground_truth": )", number, "}"));
    int low = 1, high = kGuessNumbers;
    for (int guess = 1;; ++guess) {
      ASSERT_LE(guess, 6);
      ++guesses;
      const int middle = (low + high) / 2;
      const EnvironmentMessage said = *game->Step(absl::StrCat(middle));
      if (said.done) break;
      (said.text == "higher" ? low : high) = said.text == "higher" ? middle + 1 : middle - 1;
    }
  }
  EXPECT_EQ(guesses, 135);
}

TEST(GuessTest, TheTokensOfTheBuiltInTaskAreNumbersAndAnswers) {
  EXPECT_EQ(RenderGuess({15, guess_tokens::kEnd}), "16");
  EXPECT_EQ(RenderGuess({0, guess_tokens::kHigher, 31, -1}), "1 32");
  EXPECT_EQ(RenderGuess({guess_tokens::kEnd}), "");
  auto game = Start("guess", R"({"ground_truth": 20})");
  EXPECT_THAT(EncodeGuess(game->Step("3")->text), ElementsAre(guess_tokens::kHigher));
  EXPECT_THAT(EncodeGuess(game->Step("30")->text), ElementsAre(guess_tokens::kLower));
  EXPECT_THAT(EncodeGuess(game->Step("")->text), ElementsAre(guess_tokens::kNoNumber));
}

TEST(GuessTest, RefusesARowWithoutANumberOfTheGame) {
  EXPECT_EQ(ErrorReason(MakeGuess(R"({"ground_truth": 40})").status()), "BAD_ROW");
  EXPECT_EQ(ErrorReason(MakeGuess(R"({"ground_truth": "none"})").status()), "BAD_ROW");
  EXPECT_EQ(ErrorReason(MakeGuess("[]").status()), "BAD_ROW");
}

TEST(CalculatorTest, ComputesExactly) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"1+2*3", "7"},
                                                                  {" ( 1 + 2 ) * 3 ", "9"},
                                                                  {"-3 * (4 + 0.5)", "-13.5"},
                                                                  {"2 - -2", "4"},
                                                                  {"7/2", "3.5"},
                                                                  {"1/8", "0.125"},
                                                                  {"-1/80", "-0.0125"},
                                                                  {"2/6", "1/3"},
                                                                  {"1/3*3", "1"},
                                                                  {"0.1+0.2", "0.3"},
                                                                  {"1 - 1 - 1", "-1"},
                                                                  {"8/2/2", "2"},
                                                                  {"123456789*987654321", "121932631112635269"},
                                                                  {"0/5", "0"},
                                                                  {".5", "0.5"}};
  for (const auto& [expression, value] : cases) {
    const absl::StatusOr<std::string> computed = Calculate(expression);
    ASSERT_TRUE(computed.ok()) << expression << ": " << computed.status();
    EXPECT_EQ(*computed, value) << expression;
  }
}

TEST(CalculatorTest, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"", "missing at the end"},
                                                                  {"1 +", "missing at the end"},
                                                                  {"1/0", "division by zero"},
                                                                  {"1/(2-2)", "division by zero"},
                                                                  {"(1", "not closed"},
                                                                  {"1)", "cannot read ')'"},
                                                                  {"two", "cannot read 'two'"},
                                                                  {"1..2", "cannot read '.2'"},
                                                                  {"2 3", "cannot read '3'"},
                                                                  {std::string(100, '(') + "1", "too many"},
                                                                  {std::string(2000, '1'), "too long"},
                                                                  {std::string(60, '9'), "too large"},
                                                                  {"9" + std::string(38, '0') + "*10", "too large"},
                                                                  {"0." + std::string(60, '0') + "1", "too large"}};
  for (const auto& [expression, why] : cases) {
    const absl::Status refused = Calculate(expression).status();
    EXPECT_EQ(ErrorReason(refused), "BAD_EXPRESSION") << expression;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why)) << expression;
  }
}

TEST(CalculatorTest, CallsAreComputedAndEveryOtherActionIsTheAnswer) {
  auto game = Start("calculator", R"({"ground_truth": "so it is 84"})");
  EnvironmentMessage said = *game->Step("Let me compute.\ncalc: 12*(3+4)\n");
  EXPECT_EQ(said.text, "84");
  EXPECT_FALSE(said.done || said.reward.has_value());
  said = *game->Step("calc: 12*(3+");
  EXPECT_THAT(said.text, HasSubstr("error: a number is missing"));
  EXPECT_FALSE(said.done);
  said = *game->Step("calc: 1 gives 1.\nThe answer is 84.0");
  EXPECT_TRUE(said.done);
  EXPECT_EQ(said.reward, 1.0f);
  EXPECT_EQ(Start("calculator", R"({"ground_truth": 84})")->Step("83")->reward, 0.0f);
  EXPECT_EQ(Start("calculator", R"({"ground_truth": 84})")->Step("no idea")->reward, 0.0f);
}

TEST(CalculatorTest, RefusesARowWithoutANumber) {
  EXPECT_EQ(ErrorReason(MakeCalculator("").status()), "NO_TRUTH");
  EXPECT_EQ(ErrorReason(MakeCalculator(R"({"ground_truth": "a word"})").status()), "NO_TRUTH");
}

}  // namespace
}  // namespace syncopate::rollouter
