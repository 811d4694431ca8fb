#include "tools/records/step_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"

namespace syncopate::records {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kStep[] =
    R"({"kind":"step","step":42,"epoch":1,"reward_mean":0.8125,"loss":-0.01234,"gradient_norm":0.9,"entropy":1.016,)"
    R"("staleness_mean":0.94,"staleness_max":2,"trained_tokens":1280,"step_seconds":0.05,"wait_seconds":0.006,)"
    R"("weights_digest":"ab"})";
constexpr char kEvaluation[] =
    R"({"kind":"eval","step":40,"epoch":1,"eval_exact":0.91,"eval_reward":0.955,"eval_prompts":256,)"
    R"("samples":[{"prompt":"1 2","answer":"2 1","expected":"2 1"}]})";

TEST(StepRecordTest, ReadsALineOfAStep) {
  auto record = ParseStepRecord(kStep);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_FALSE(record->is_evaluation);
  EXPECT_EQ(record->step, 42);
  EXPECT_EQ(record->figures.reward_mean, 0.8125);
  EXPECT_EQ(record->figures.staleness_max, 2);
  EXPECT_FALSE(record->eval_exact.has_value());
}

TEST(StepRecordTest, ReadsALineOfAnEvaluation) {
  auto record = ParseStepRecord(kEvaluation);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_TRUE(record->is_evaluation);
  EXPECT_EQ(record->step, 40);
  EXPECT_EQ(record->eval_exact, 0.91);
  EXPECT_EQ(record->eval_reward, 0.955);
  EXPECT_EQ(record->eval_prompts, 256);
  ASSERT_EQ(record->samples.size(), 1u);
  EXPECT_EQ(record->samples[0].answer, "2 1");
}

TEST(StepRecordTest, IsOneLineForPeople) {
  EXPECT_EQ(ToString(*ParseStepRecord(kStep)),
            "step 42  reward 0.812  loss -0.0123  entropy 1.02  staleness 0.9/2  25,600 tokens/s  idle 12%");
  EXPECT_EQ(ToString(*ParseStepRecord(kEvaluation)),
            "step 40  evaluation 0.955  exact 0.910 (greedy, on the evaluation prompts)");
}

TEST(StepRecordTest, LeavesOutWhatIsMissingAndIgnoresWhatIsOfAnotherType) {
  auto record = ParseStepRecord(R"({"step":"x","reward_mean":[],"eval_exact":null,"samples":[1,{"prompt":2}]})");
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->step, 0);
  EXPECT_FALSE(record->eval_exact.has_value());
  EXPECT_EQ(record->samples.size(), 1u);
  EXPECT_EQ(ToString(*record), "step 0  reward 0.000  loss 0.0000  entropy 0.00  staleness 0.0/0");
}

TEST(StepRecordTest, AnEvaluationWithoutKnownAnswersHasItsRewardAlone) {
  const auto record = ParseStepRecord(
      R"({"kind":"eval","step":7,"eval_reward":0.25,"samples":[{"prompt":"p","answer":"a","expected":"","reward":0.5}]})");
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(EvaluationText(*record), "evaluation 0.250");
  EXPECT_EQ(record->samples[0].reward, 0.5);
}

TEST(StepRecordTest, AnEvaluationOfFewerPromptsThanWereAskedSaysSo) {
  auto text = [](const std::string& prompts) {
    return EvaluationText(*ParseStepRecord(
        R"({"kind":"eval","step":7,"eval_reward":0.25,"eval_asked":8,"eval_prompts":)" + prompts + "}"));
  };
  EXPECT_EQ(text("7"), "evaluation 0.250 over 7 of 8 prompts");
  EXPECT_EQ(text("8"), "evaluation 0.250");
}

TEST(StepRecordTest, AnEvaluationSaysWhatElseIsKnownOfIt) {
  const auto record = ParseStepRecord(
      R"({"kind":"eval","step":7,"eval_reward":0.5,"unix_seconds":1.8e9,"eval_reward_parts":{"format":1,"math":0.25},)"
      R"("eval_response_tokens_mean":80.25,"eval_response_tokens_min":12,"eval_response_tokens_max":256,)"
      R"("eval_truncated":3,"eval_files":{"a.jsonl":{"prompts":3,"reward":0.25},"b.jsonl":{"prompts":5,"reward":0.5}},)"
      R"("eval_data_sources":{"gsm8k":{"prompts":6,"reward":0.75},"x":3},)"
      R"("eval_environments":{"desk":{"prompts":8,"reward":0.5,"turns":3.25,"response_tokens":9}},"eval_turns_mean":3.5})");
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->unix_seconds, 1.8e9);
  ASSERT_EQ(record->eval_files.size(), 2u);
  EXPECT_EQ(record->eval_files[1].prompts, 5);
  EXPECT_THAT(EvaluationPhrases(*record),
              ElementsAre("by file a.jsonl 0.250, b.jsonl 0.500", "by data_source gsm8k 0.750",
                          "by environment desk 0.500 in 3.2 turns", "3.50 turns on average",
                          "parts format 1.000, math 0.250", "answers of 12 to 256 tokens, 80.2 on average, 3 cut off"));
  EXPECT_THAT(EvaluationPhrases(*ParseStepRecord(kEvaluation)), IsEmpty()) << "a line of an older build";
}

TEST(StepRecordTest, ASampleIsShownByQuestionAndReplyOrOfAnOlderLineByPromptAndAnswer) {
  const auto record = ParseStepRecord(
      R"({"kind":"eval","step":7,"samples":[{"prompt":"<u>Why?<a>","answer":"So.<e>","question":"Why?","reply":"So."},)"
      R"({"prompt":"p","answer":"a"}]})");
  ASSERT_TRUE(record.ok());
  ASSERT_EQ(record->samples.size(), 2u);
  EXPECT_EQ(record->samples[0].question, "Why?");
  EXPECT_EQ(record->samples[0].reply, "So.");
  EXPECT_EQ(record->samples[1].question, "p");
  EXPECT_EQ(record->samples[1].reply, "a");
}

TEST(StepRecordTest, ReadsThePartsOfARewardThatAreNumbers) {
  const auto record = ParseStepRecord(R"({"kind":"step","step":1,"reward_parts":{"format":0.5,"bad":"x"}})");
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->reward_parts, (std::map<std::string, double>{{"format", 0.5}}));
}

TEST(StepRecordTest, NamesTheAlarmsThatStandInWords) {
  const auto record = ParseStepRecord(R"({"kind":"eval","step":5,"alarms":["entropy","evaluation_fell",3,"new_one"]})");
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(ToString(record->alarms), "alarm: entropy has collapsed, the evaluation fell, new_one");
  EXPECT_EQ(ToString(std::vector<std::string>{}), "");
}

TEST(StepRecordTest, RefusesWhatIsNoObject) {
  for (const char* line : {"", "[]", "7", "{", "null"}) {
    EXPECT_EQ(ErrorReason(ParseStepRecord(line).status()), "BAD_STEP_RECORD") << line;
  }
}

}  // namespace
}  // namespace syncopate::records
