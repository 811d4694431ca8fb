#include "trainer/data/sampled_figures.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace syncopate::trainer {
namespace {

TEST(SampledFiguresTest, PassAtKOfOneRightAnswerInFour) {
  EXPECT_DOUBLE_EQ(EstimatePassAtK(4, 1, 1), 0.25);
  EXPECT_DOUBLE_EQ(EstimatePassAtK(4, 1, 2), 0.5);
  EXPECT_DOUBLE_EQ(EstimatePassAtK(4, 1, 4), 1);
  EXPECT_DOUBLE_EQ(EstimatePassAtK(4, 0, 4), 0);
  EXPECT_DOUBLE_EQ(EstimatePassAtK(1000000, 1, 500000), 0.5);
}

TEST(SampledFiguresTest, APromptWithTooFewAnswersIsInNoPassAtThatK) {
  SampledFigures figures;
  figures.samples = 4;
  AddSampledMeans({{.answers = 4, .right = 0, .reward = 1}, {.answers = 1, .right = 1, .reward = 1}, {}}, &figures);
  ASSERT_TRUE(figures.reward.has_value());
  EXPECT_DOUBLE_EQ(figures.reward->mean, (0.25 + 1) / 2);
  EXPECT_DOUBLE_EQ(figures.pass.at(1).mean, 0.5);
  EXPECT_DOUBLE_EQ(figures.pass.at(4).mean, 0);
  EXPECT_EQ(figures.pass.at(4).interval, std::nullopt) << "one prompt has no spread";
  SampledFigures none;
  none.samples = 4;
  AddSampledMeans({{}, {}}, &none);
  EXPECT_FALSE(none.reward.has_value());
  EXPECT_TRUE(none.pass.empty());
}

// The tables and figures come from scripts/golden_evaluations.py.
TEST(SampledFiguresTest, EqualTheReferenceOnRandomTables) {
  std::ifstream file(SYNCOPATE_GOLDEN_DIR "/evaluations.txt");
  std::string line, word;
  std::vector<PromptTally> prompts;
  SampledFigures figures;
  int64_t tables = 0, passes = 0;
  auto expect_interval = [](const std::optional<double>& interval, const std::string& text) {
    ASSERT_EQ(interval.has_value(), text != "none");
    if (interval.has_value()) {
      EXPECT_NEAR(*interval, std::stod(text), 1e-9);
    }
  };
  while (std::getline(file, line)) {
    std::istringstream words(line);
    words >> word;
    double mean = 0;
    std::string interval;
    if (word == "table") {
      prompts.clear();
      figures = {};
      words >> figures.samples;
    } else if (word == "reward") {
      AddSampledMeans(prompts, &figures);
      words >> mean >> interval;
      ASSERT_TRUE(figures.reward.has_value());
      EXPECT_NEAR(figures.reward->mean, mean, 1e-12);
      expect_interval(figures.reward->interval, interval);
    } else if (word == "majority") {
      words >> mean >> interval;
      ASSERT_TRUE(figures.majority.has_value()) << line;
      EXPECT_NEAR(figures.majority->mean, mean, 1e-12) << line;
      expect_interval(figures.majority->interval, interval);
      figures.majority.reset();
    } else if (word == "pass") {
      int64_t k = 0;
      words >> k >> mean >> interval;
      ASSERT_TRUE(figures.pass.contains(k)) << k;
      EXPECT_NEAR(figures.pass[k].mean, mean, 1e-12) << line;
      expect_interval(figures.pass[k].interval, interval);
      figures.pass.erase(k);
      ++passes;
    } else if (word == "end") {
      EXPECT_TRUE(figures.pass.empty()) << "a figure that the reference does not have";
      EXPECT_FALSE(figures.majority.has_value()) << "a figure that the reference does not have";
      ++tables;
    } else if (word != "#") {
      PromptTally& prompt = prompts.emplace_back();
      prompt.answers = std::stoll(word);
      std::string votes;
      words >> prompt.right >> prompt.reward >> votes;
      for (const char answer : votes) {
        if (answer == '-') continue;
        PromptTally::Votes& those = prompt.votes[std::string(1, answer)];
        ++those.all;
        those.right += answer == 'a' || answer == 'b' ? 1 : 0;
      }
    }
  }
  EXPECT_GE(tables, 40);
  EXPECT_GE(passes, 150);
}

}  // namespace
}  // namespace syncopate::trainer
