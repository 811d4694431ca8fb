#include "services/trainer/sample_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"
#include "trainer/data/tasks.h"

namespace syncopate::trainerd {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

trainer::SharedGroup Group(int64_t ordinal, const std::vector<float>& rewards) {
  TrajectoryGroup group;
  group.lease = {{0, ordinal}, 1};
  group.rollouter = "rollouter-0";
  group.prompt_ids = {1, 2};
  for (const float reward : rewards) {
    Trajectory& sample = group.samples.emplace_back();
    sample.tokens = {3, 4};
    sample.logprobs = {-0.5f, -0.5f};
    sample.spans = {{{1, 0}, 0, 2}};
    sample.reward = reward;
  }
  return std::make_shared<const TrajectoryGroup>(std::move(group));
}

class SampleRecorderTest : public ::testing::Test {
 protected:
  SampleRecorderTest() { EXPECT_THAT(disk_.CreateDirs("/run"), syncopate::testing::IsOk()); }
  void Open(double share = 1) {
    recorder_ = std::make_unique<SampleRecorder>(
        SampleRecorder::Options{.training = {.share = share, .seed = 1}, .prompts = prompts_.get()},
        std::make_unique<trainer::SampleFile>(&disk_, trainer::SampleFile::Options{.folder = "/run"}));
  }
  std::vector<json> Lines() {
    recorder_->Stop();
    std::vector<json> lines;
    const auto text = ReadFile(&disk_, "/run/samples.jsonl", 1 << 20);
    if (!text.ok()) return lines;
    for (const auto line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) lines.push_back(json::parse(line));
    return lines;
  }
  static trainer::StepReport Step(std::vector<trainer::SharedGroup> batch) {
    trainer::StepReport report;
    report.version = {1, 1};
    report.batch = std::move(batch);
    report.figures.updates = 1;
    return report;
  }

  testing::FaultyFileSystem disk_;
  std::unique_ptr<trainer::PromptSource> prompts_ = *trainer::MakeTask({});
  std::unique_ptr<SampleRecorder> recorder_;
};

TEST_F(SampleRecorderTest, AStepWritesItsSamplesWithTheAdvantagesOfTheirGroups) {
  Open();
  trainer::StepReport report = Step({Group(0, {1, 0}), Group(1, {1, 1})});
  report.origins[{0, 0}] = {.task = {.environment = "", .row_json = R"({"data_source":"sums"})"}, .answer_ids = {3}};
  recorder_->RecordStep(report);
  const std::vector<json> lines = Lines();
  ASSERT_THAT(lines, SizeIs(4));
  EXPECT_EQ(lines[0]["outcome"], "trained");
  EXPECT_EQ(lines[0]["data_source"], "sums");
  EXPECT_EQ(lines[0]["expected"], prompts_->Render({3}));
  EXPECT_EQ(lines[0]["answer"], prompts_->Render({3, 4}));
  EXPECT_GT(lines[0]["advantage"], 0);
  EXPECT_LT(lines[1]["advantage"], 0);
  EXPECT_EQ(lines[2]["outcome"], "no_signal");
  EXPECT_EQ(lines[2]["trained"], false);
  EXPECT_EQ(recorder_->lost(), 0);
}

TEST_F(SampleRecorderTest, OnlyChosenGroupsAreWrittenAndWholly) {
  Open(/*share=*/0.5);
  const trainer::SampleChoice half{.share = 0.5, .seed = 1};
  std::vector<trainer::SharedGroup> batch;
  std::map<std::string, int> expected, found;
  for (int64_t i = 0; i < 40; ++i) {
    batch.push_back(Group(i, {0, 1}));
    if (half.Takes({0, i})) expected[GroupId{0, i}.ToString()] = 2;
  }
  recorder_->RecordStep(Step(batch));
  for (const json& line : Lines()) ++found[line["group"]];
  EXPECT_EQ(found, expected);
  EXPECT_GT(expected.size(), 5u);
  EXPECT_LT(expected.size(), 35u);
}

TEST_F(SampleRecorderTest, ADropIsWrittenWithItsReason) {
  Open();
  recorder_->RecordDrop({{{0, 3}, 1}, trainer::DropReason::kFiltered, Group(3, {1, 1})}, {1, 4});
  recorder_->RecordDrop({{{0, 4}, 1}, trainer::DropReason::kSkipped}, {1, 4});
  const std::vector<json> lines = Lines();
  ASSERT_THAT(lines, SizeIs(2)) << "a group that was never answered has no samples";
  EXPECT_EQ(lines[0]["kind"], "drop");
  EXPECT_EQ(lines[0]["outcome"], "filtered");
  EXPECT_EQ(lines[0]["step"], 4);
  EXPECT_EQ(lines[0]["trained"], false);
}

TEST_F(SampleRecorderTest, AnEvaluationsAnswersNameTheirSet) {
  Open();
  auto prompt = std::make_shared<trainer::Prompt>(trainer::Prompt{.prompt_ids = {1}, .answer_ids = {2}});
  prompt->origin = {.file = "sums.jsonl", .data_source = "sums"};
  trainer::EvaluationReport report;
  report.version = {1, 5};
  report.recorded = std::make_shared<const std::vector<trainer::EvaluatedAnswer>>(
      1, trainer::EvaluatedAnswer{.prompt = prompt,
                                  .set = "aime",
                                  .sample = 6,
                                  .rollouter = "rollouter-1",
                                  .answer = Group(0, {1})->samples[0]});
  recorder_->RecordEvaluation(report);
  const std::vector<json> lines = Lines();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0]["kind"], "eval");
  EXPECT_EQ(lines[0]["set"], "aime");
  EXPECT_EQ(lines[0]["sample"], 6);
  EXPECT_EQ(lines[0]["file"], "sums.jsonl");
  EXPECT_EQ(lines[0]["outcome"], "evaluated");
}

TEST_F(SampleRecorderTest, NobodyWaitsForADiskThatHangs) {
  Open();
  disk_.HoldOperations(true);
  for (int64_t i = 0; i < 5000; ++i) recorder_->RecordStep(Step({Group(i, {0, 1})}));
  EXPECT_GT(recorder_->lost(), 0) << "what cannot wait is counted";
  disk_.HoldOperations(false);
  const size_t written = Lines().size();
  EXPECT_EQ(static_cast<int64_t>(written) + recorder_->lost(), 10000);
}

TEST_F(SampleRecorderTest, AFullDiskIsCounted) {
  disk_.SetCapacity(0);
  Open();
  recorder_->RecordStep(Step({Group(0, {0, 1})}));
  EXPECT_THAT(Lines(), IsEmpty());
  EXPECT_EQ(recorder_->lost(), 2);
}

}  // namespace
}  // namespace syncopate::trainerd
