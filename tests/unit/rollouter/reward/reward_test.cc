#include "rollouter/reward/reward.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace syncopate::rollouter {
namespace {

const std::vector<int32_t> kPrompt = {8, 1, 2, 9};
const std::vector<int32_t> kAnswer = {2, 1, 10};

float Score(const std::string& name, const std::vector<int32_t>& response) {
  const RewardRegistry registry = RewardRegistry::BuiltIn();
  return (*registry.Find(name))->function({kPrompt, kAnswer, response})->value;
}

absl::StatusOr<RewardValue> OfText(const std::string& name, const std::string& text, const std::string& truth,
                                   const RewardParameters& parameters = {}) {
  const RewardRegistry registry = RewardRegistry::Create(parameters).value();
  return (*registry.Find(name))->function({kPrompt, kAnswer, kAnswer, text, {.has_truth = true, .truth = truth}});
}

float Worth(const std::string& name, const std::string& text, const std::string& truth,
            const RewardParameters& parameters = {}) {
  return OfText(name, text, truth, parameters).value().value;
}

TEST(RewardTest, DenseIsTheShareOfRightPositions) {
  EXPECT_FLOAT_EQ(Score("dense", {2, 1, 10}), 1.0f);
  EXPECT_FLOAT_EQ(Score("dense", {2, 3, 10}), 2.0f / 3);
  EXPECT_FLOAT_EQ(Score("dense", {2, 10}), 1.0f / 3);  // the answer stopped early: the missing token counts as wrong
  EXPECT_FLOAT_EQ(Score("dense", {2, 1, 10, 4, 4}), 1.0f);
  EXPECT_FLOAT_EQ(Score("dense", {}), 0.0f);
}

TEST(RewardTest, EnvironmentIsWhatTheEnvironmentGave) {
  const RewardRegistry registry = RewardRegistry::BuiltIn();
  const RewardInput input{.prompt_ids = kPrompt, .answer_ids = kAnswer, .response = kAnswer, .environment = -0.25f};
  EXPECT_FLOAT_EQ((*registry.Find("environment"))->function(input)->value, -0.25f);
}

TEST(RewardTest, ExactWantsAllOfIt) {
  EXPECT_FLOAT_EQ(Score("exact", {2, 1, 10}), 1.0f);
  EXPECT_FLOAT_EQ(Score("exact", {2, 1}), 0.0f);
  EXPECT_FLOAT_EQ(Score("exact", {2, 1, 10, 4}), 0.0f);
}

TEST(RewardTest, MatchComparesWhatStandsBehindTheThoughts) {
  EXPECT_EQ(Worth("match", " Paris\n", "Paris"), 1);
  EXPECT_EQ(Worth("match", "<think>London? No.</think>\nParis", "Paris"), 1);
  EXPECT_EQ(Worth("match", "Paris.", "Paris"), 0);
  EXPECT_EQ(Worth("match", "<think>Paris</think>London", "Paris"), 0);
  EXPECT_EQ(Worth("match", "", "Paris"), 0);
}

TEST(RewardTest, FinalNumberTakesTheMarkedNumberOrTheLastOne) {
  EXPECT_EQ(Worth("final_number", "So she has 3 + 4 = 7 apples.", "7"), 1);
  EXPECT_EQ(Worth("final_number", "#### 7\nThat took 12 lines.", "She adds: 3 + 4\n#### 7"), 1);
  EXPECT_EQ(Worth("final_number", "It costs $1,234.50.", "1234.5"), 1);
  EXPECT_EQ(Worth("final_number", "The change is -5", "-5"), 1);
  EXPECT_EQ(Worth("final_number", "From 10-5", "5"), 1) << "a minus between numbers is no sign";
  EXPECT_EQ(Worth("final_number", "about 8", "7"), 0);
  EXPECT_EQ(Worth("final_number", "I do not know", "7"), 0);
}

TEST(RewardTest, MathReadsTheLastBoxAndSaysWhenItCannotTell) {
  EXPECT_EQ(Worth("math", "\\boxed{3} or rather \\boxed{\\frac{2}{4}}", "\\frac12"), 1);
  EXPECT_EQ(Worth("math", "\\boxed{\\frac{1}{2}}", "so \\boxed{0.5}"), 1);
  EXPECT_EQ(Worth("math", "0.5", "0.5"), 0) << "an answer without a box";
  EXPECT_EQ(Worth("math", "\\boxed{2", "2"), 0) << "a box that is not closed";
  EXPECT_EQ(Worth("math", "\\boxed{\\{1,2\\}}", "\\{2,1\\}"), 1);
  EXPECT_FALSE(OfText("math", "\\boxed{4}", "5")->undecided);
  const RewardValue unknown = OfText("math", "\\boxed{1+x^2}", "x^2+1").value();
  EXPECT_TRUE(unknown.undecided);
  EXPECT_EQ(unknown.value, 0);
}

TEST(RewardTest, RegexComparesItsGroupWithTheTruth) {
  const RewardParameters parameters{.pattern = "answer is (\\w+)"};
  EXPECT_EQ(Worth("regex", "The answer is 4. No, the answer is 5.", "5", parameters), 1);
  EXPECT_EQ(Worth("regex", "The answer is 5. No, the answer is 4.", "5", parameters), 0);
  EXPECT_EQ(Worth("regex", "5", "5", parameters), 0);
  EXPECT_EQ(Worth("regex", "please and thanks", "", {.pattern = "(?i:PLEASE)"}), 1)
      << "without a group a match is enough";
}

TEST(RewardTest, FormatWantsTheWholeText) {
  const RewardParameters parameters{.format = "(?s)<think>.*</think>\\s*<answer>.*</answer>\\s*"};
  EXPECT_EQ(Worth("format", "<think>a\nb</think>\n<answer>c</answer>\n", "", parameters), 1);
  EXPECT_EQ(Worth("format", "well <think>a</think><answer>c</answer>", "", parameters), 0);
  EXPECT_EQ(Worth("format", "<think>a</think><answer>c</answer> and more", "", parameters), 0);
}

TEST(RewardTest, SaysWhichAnswerItFoundInTheText) {
  EXPECT_EQ(OfText("match", "<think>London?</think>\nParis ", "Rome")->extracted, "Paris");
  EXPECT_EQ(OfText("final_number", "3 + 4 = 1,007 apples", "7")->extracted, "1007");
  EXPECT_EQ(OfText("final_number", "I do not know", "7")->extracted, "");
  EXPECT_EQ(OfText("math", "\\boxed{ \\dfrac{1}{2} }", "2")->extracted,
            OfText("math", "so \\boxed{\\frac{1}{2}}", "2")->extracted)
      << "blanks and the size of a fraction do not count";
  EXPECT_EQ(OfText("math", "no box", "2")->extracted, "");
  EXPECT_EQ(OfText("regex", "answer: b.", "c", {.pattern = "answer: (.)"})->extracted, "b");
}

TEST(RewardTest, OverlongFallsInALineOverItsBuffer) {
  const RewardRegistry registry = RewardRegistry::Create({.overlong_buffer = 4}).value();
  const RewardFunction& overlong = (*registry.Find("overlong"))->function;
  for (const auto& [length, reward] :
       std::vector<std::pair<size_t, float>>{{1, 0.0f}, {6, 0.0f}, {7, -0.25f}, {8, -0.5f}, {10, -1.0f}}) {
    const std::vector<int32_t> response(length, 1);
    EXPECT_EQ(overlong({kPrompt, kAnswer, response, "", {}, 10})->value, reward) << length;
  }
}

TEST(RewardTest, ARowWithoutATruthIsAnErrorNotAReward) {
  const RewardRegistry registry = RewardRegistry::BuiltIn();
  for (const char* name : {"match", "final_number", "math"}) {
    EXPECT_EQ(ErrorReason((*registry.Find(name))->function({kPrompt, kAnswer, kAnswer, "5"}).status()), "NO_TRUTH");
  }
  EXPECT_EQ(ErrorReason(OfText("final_number", "5", "five").status()), "NO_TRUTH");
}

TEST(RewardRowTest, TakesTheGroundTruthAloneAndAsJsonWritesIt) {
  EXPECT_EQ(ParseRewardRow(R"({"answer": "a long solution", "ground_truth": "5"})")->truth, "5");
  EXPECT_EQ(ParseRewardRow(R"({"ground_truth": 5})")->truth, "5");
  EXPECT_EQ(ParseRewardRow(R"({"ground_truth": true})")->truth, "true");
  EXPECT_FALSE(ParseRewardRow(R"({"answer": "5", "ground_truth": null})")->has_truth);
  EXPECT_FALSE(ParseRewardRow(R"({"answer": "5"})")->has_truth);
  EXPECT_FALSE(ParseRewardRow("")->has_truth);
  EXPECT_EQ(ErrorReason(ParseRewardRow("[1]").status()), "BAD_ROW");
  EXPECT_EQ(ErrorReason(ParseRewardRow("{").status()), "BAD_ROW");
}

TEST(RewardRegistryTest, AnUnknownNameListsTheKnownOnes) {
  const absl::Status unknown = RewardRegistry::BuiltIn().Find("denes").status();
  EXPECT_EQ(ErrorReason(unknown), "UNKNOWN_REWARD");
  EXPECT_TRUE(absl::StrContains(unknown.message(), "dense, environment, exact"));
  EXPECT_TRUE(absl::StrContains(RewardRegistry::BuiltIn().Find("regex").status().message(), "needs reward.pattern"));
}

TEST(RewardRegistryTest, TakesNewNamesOnce) {
  RewardRegistry registry = RewardRegistry::BuiltIn();
  auto length = [](const RewardInput& in) -> absl::StatusOr<RewardValue> {
    return RewardValue{.value = static_cast<float>(in.response.size())};
  };
  EXPECT_TRUE(registry.Register("length", length).ok());
  EXPECT_EQ((*registry.Find("length"))->function({kPrompt, kAnswer, {1, 2}})->value, 2.0f);
  EXPECT_EQ(ErrorReason(registry.Register("dense", nullptr)), "REWARD_EXISTS");
}

TEST(RewardRegistryTest, APatternThatIsNoneNamesItsKey) {
  const absl::Status bad = RewardRegistry::Create({.pattern = "(a"}).status();
  EXPECT_EQ(ErrorReason(bad), "BAD_PATTERN");
  EXPECT_TRUE(absl::StrContains(bad.message(), "reward.pattern"));
  EXPECT_TRUE(absl::StrContains(RewardRegistry::Create({.format = "[z"}).status().message(), "reward.format"));
}

}  // namespace
}  // namespace syncopate::rollouter
