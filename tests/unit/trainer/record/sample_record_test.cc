#include "trainer/record/sample_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using nlohmann::json;
using syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Words(const std::vector<int32_t>& ids) { return absl::StrJoin(ids, " "); }

Trajectory Sample(float reward, std::vector<int32_t> tokens = {1, 2, 3, 4}) {
  Trajectory sample;
  sample.tokens = std::move(tokens);
  sample.logprobs.assign(sample.tokens.size(), -0.5f);
  sample.spans = {{{1, 3}, 0, static_cast<int32_t>(sample.tokens.size())}};
  sample.reward = reward;
  return sample;
}

SampleResult ResultOf(const Trajectory& sample, const loss::LossOptions& options = {}, bool made_update = true) {
  TrajectoryGroup group;
  group.samples = {sample, Sample(0)};
  auto results = TrainedResults({&group}, options, /*step=*/4, made_update);
  EXPECT_THAT(results, IsOk());
  return (*results)[0][0];
}

class SampleRecordTest : public ::testing::Test {
 protected:
  SampleRecordTest() {
    record_ = {.kind = "train",
               .version = {2, 7},
               .lease = {{0, 5}, 1},
               .sample = 3,
               .rollouter = "rollouter-1",
               .prompt_ids = &prompt_,
               .answer = &answer_,
               .result = {.name = "trained", .advantage = 0.5, .loss = {{0, 4}}}};
  }
  json Line() const { return json::parse(MakeSampleLine(record_, Words)); }

  std::vector<int32_t> prompt_ = {8, 9};
  Trajectory answer_ = Sample(1);
  SampleRecord record_;
};

TEST_F(SampleRecordTest, ALineSaysWhatTheSampleWasAndWhatBecameOfIt) {
  answer_.reward_parts = {{"exact", 1}};
  answer_.extracted = "42";
  answer_.generate_seconds = 0.25;
  answer_.finish = FinishReason::kLength;
  answer_.spans = {{{1, 3}, 0, 1}, {{2, 4}, 1, 4}};
  record_.unix_seconds = 1000;
  EXPECT_EQ(Line(), json::parse(R"({"kind":"train","epoch":2,"step":7,"group":"0/5","attempt":1,"sample":3,
      "trained":true,"outcome":"trained","unix_seconds":1000.0,"rollouter":"rollouter-1","reward":1.0,
      "reward_parts":{"exact":1.0},"finish":"length","generate_seconds":0.25,"advantage":0.5,"loss":[[0,4]],
      "versions":[{"version":"e1-s3","begin":0,"end":1},{"version":"e2-s4","begin":1,"end":4}],
      "prompt":"8 9","answer":"1 2 3 4","extracted":"42","prompt_tokens":2,"answer_tokens":4,
      "prompt_ids":[8,9],"answer_ids":[1,2,3,4]})"));
}

TEST_F(SampleRecordTest, TurnsTellTheEnvironmentsWordsFromThePolicys) {
  answer_ = Sample(1, {1, 2, 3, 4, 5, 6});
  answer_.given = {{2, 4}};
  answer_.turns = {{.end = 2, .reward = 0.25, .seconds = 1.5}, {.end = 6, .reward = 0.75, .seconds = 0.5}};
  EXPECT_EQ(Line()["turns"],
            json::parse(R"([{"role":"policy","begin":0,"end":2,"text":"1 2","reward":0.25,"seconds":1.5},
                            {"role":"environment","begin":2,"end":4,"text":"3 4"},
                            {"role":"policy","begin":4,"end":6,"text":"5 6","reward":0.75,"seconds":0.5}])"));
  EXPECT_EQ(Line()["given"], json::parse("[[2,4]]"));
}

TEST_F(SampleRecordTest, ATextThatIsTooLongIsCutAtACharacterAndItsIdsAreLeftOut) {
  answer_ = Sample(1, std::vector<int32_t>(kMaxSampleIds + 1, 7));
  const auto render = [](const std::vector<int32_t>& ids) {
    std::string text = "x";
    for (size_t i = 0; i < 10 * ids.size(); ++i) text += "\xc3\xa4";  // two bytes each
    return text;
  };
  const json line = json::parse(MakeSampleLine(record_, render));
  EXPECT_EQ(line["answer"].get<std::string>().size(), kMaxSampleTextBytes - 1);
  EXPECT_EQ(line["cut"], json::parse(R"(["answer"])"));
  EXPECT_FALSE(line.contains("answer_ids"));
  EXPECT_EQ(line["answer_tokens"], kMaxSampleIds + 1);
  EXPECT_EQ(line["prompt_ids"], json::parse("[8,9]"));
}

TEST_F(SampleRecordTest, HostileTextIsOneLineOfValidJson) {
  record_.rollouter = "a\"\n\xff";
  const auto render = [](const std::vector<int32_t>&) { return std::string("</script>\n\"\x01\xed\xa0\x80", 15); };
  const std::string line = MakeSampleLine(record_, render);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const json read = json::parse(line, nullptr, /*allow_exceptions=*/false);
  ASSERT_FALSE(read.is_discarded());
  EXPECT_EQ(read["rollouter"], "a\"\n\xef\xbf\xbd");
}

TEST_F(SampleRecordTest, TheHeadIsReadWithoutTheRest) {
  auto head = ReadSampleHead(MakeSampleLine(record_, Words));
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->kind, "train");
  EXPECT_EQ(head->version, (PolicyVersion{2, 7}));
  for (const char* wrong : {"", "{}", "{\"kind\":\"train\"", "{\"kind\":\"train\",\"epoch\":x,\"step\":1}",
                            "{\"kind\":\"train\",\"epoch\":1}", "{\"kind\":\"train\",\"epoch\":1,\"step\":"}) {
    EXPECT_FALSE(ReadSampleHead(wrong).has_value()) << wrong;
  }
}

TEST_F(SampleRecordTest, OnlyTrainingStepsAfterTheRestoredOneAreUndone) {
  EXPECT_TRUE(IsUndone({"train", {1, 8}}, 7));
  EXPECT_TRUE(IsUndone({"supervised", {1, 8}}, 7));
  EXPECT_FALSE(IsUndone({"train", {1, 7}}, 7));
  EXPECT_FALSE(IsUndone({"eval", {1, 8}}, 7)) << "a replay evaluates nothing";
  EXPECT_FALSE(IsUndone({"drop", {1, 8}}, 7)) << "the log has the drop";
}

TEST_F(SampleRecordTest, TheOriginNamesSourceEnvironmentAndRightAnswer) {
  AddOrigin({.task = {"calculator", R"({"data_source":"gsm8k","ground_truth":12})"}}, Words, &record_);
  EXPECT_EQ(Line()["environment"], "calculator");
  EXPECT_EQ(Line()["data_source"], "gsm8k");
  EXPECT_EQ(Line()["expected"], "12");
  SampleRecord built_in;
  AddOrigin({.task = {}, .answer_ids = {4, 5}}, Words, &built_in);
  EXPECT_EQ(built_in.expected, "4 5");
}

TEST(TrainedResultsTest, AdvantagesAreThoseOfTheGroup) {
  const SampleResult result = ResultOf(Sample(1));
  EXPECT_EQ(result.name, "trained");
  EXPECT_NEAR(*result.advantage, 0.7071, 1e-3) << "(1 - 0.5) / std of {1, 0}";
  EXPECT_THAT(result.loss, ElementsAre(TokenRange{0, 4}));
}

TEST(TrainedResultsTest, EqualRewardsAreNoSignal) { EXPECT_EQ(ResultOf(Sample(0)).name, "no_signal"); }

TEST(TrainedResultsTest, GivenTokensAndThoseBeyondTheAgeLimitHaveNoLoss) {
  Trajectory sample = Sample(1, {1, 2, 3, 4, 5, 6});
  sample.given = {{2, 3}};
  sample.spans = {{{1, 1}, 0, 1}, {{1, 3}, 1, 2}, {{1, 3}, 3, 5}, {{1, 4}, 5, 6}};
  EXPECT_THAT(ResultOf(sample).loss, ElementsAre(TokenRange{0, 2}, TokenRange{3, 6}));
  loss::LossOptions options;
  options.max_token_age = 1;
  EXPECT_THAT(ResultOf(sample, options).loss, ElementsAre(TokenRange{1, 2}, TokenRange{3, 6}));
  options.max_token_age = 0;
  sample.spans.pop_back();
  const SampleResult stale = ResultOf(sample, options);
  EXPECT_EQ(stale.name, "stale");
  EXPECT_THAT(stale.loss, IsEmpty());
}

TEST(TrainedResultsTest, WhatIsNotLearnedFromSaysWhy) {
  loss::LossOptions options;
  options.overlong = loss::Overlong::kMask;
  Trajectory sample = Sample(1);
  sample.finish = FinishReason::kLength;
  EXPECT_EQ(ResultOf(sample, options).name, "masked");
  EXPECT_THAT(ResultOf(sample, options).loss, IsEmpty());
  sample.rejected = true;
  EXPECT_EQ(ResultOf(sample).name, "rejected");
  EXPECT_EQ(ResultOf(Sample(1), {}, /*made_update=*/false).name, "update_skipped");
}

TEST(TrainedResultsTest, AnAdvantageThatDependsOnTheReferencePolicyIsNotGuessed) {
  loss::LossOptions options;
  options.kl_coefficient = 0.1;
  options.kl_in_reward = true;
  EXPECT_FALSE(ResultOf(Sample(1), options).advantage.has_value());
  options.kl_in_reward = false;
  EXPECT_TRUE(ResultOf(Sample(1), options).advantage.has_value());
}

TEST(SampleChoiceTest, ChoosesItsShareAndAlwaysTheSame) {
  const SampleChoice tenth{.share = 0.1, .seed = 7};
  int64_t taken = 0;
  for (int64_t i = 0; i < 10000; ++i) {
    taken += tenth.Takes({0, i}) ? 1 : 0;
    EXPECT_EQ(tenth.Takes({0, i}), tenth.Takes({0, i}));
    EXPECT_TRUE((SampleChoice{.share = 1, .seed = 7}.Takes({0, i})));
    EXPECT_FALSE((SampleChoice{.share = 0, .seed = 7}.Takes({0, i})));
  }
  EXPECT_NEAR(static_cast<double>(taken), 1000, 100);
}

}  // namespace
}  // namespace syncopate::trainer
