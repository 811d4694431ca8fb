#include "tools/run/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/status_matchers.h"

namespace syncopate::run {
namespace {

using nlohmann::json;
using syncopate::testing::IsOk;

class FinishSummaryTest : public ::testing::Test {
 protected:
  FinishSummaryTest() : dir_(::testing::TempDir() + "/summary") {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TrainerWrites(const std::string& text) const { std::ofstream(dir_ + "/summary.json") << text; }
  json OnDisk() const {
    std::ifstream file(dir_ + "/summary.json");
    return json::parse(file, nullptr, false);
  }

  const std::string dir_;
};

TEST_F(FinishSummaryTest, AddsWhatOnlyTheSupervisorKnows) {
  TrainerWrites(R"({"status":"completed","steps":150,"eval":{"best":0.99}})");
  RunEnd end{RunOutcome::kCompleted, "", 12.5, {{{"rollouter", 1}, 3}, {{"trainer", 0}, 0}}};
  auto summary = FinishSummary(dir_, end);
  ASSERT_THAT(summary, IsOk());
  EXPECT_EQ(*summary, OnDisk());
  EXPECT_EQ(OnDisk()["eval"]["best"], 0.99);
  EXPECT_EQ(OnDisk()["status"], "completed");
  EXPECT_EQ(OnDisk()["run"]["wall_seconds"], 12.5);
  EXPECT_EQ(OnDisk()["run"]["restarts"]["rollouter-1"], 3);
}

TEST_F(FinishSummaryTest, AFailedRunIsNeverCalledCompleted) {
  TrainerWrites(R"({"status":"completed"})");
  ASSERT_THAT(FinishSummary(dir_, {RunOutcome::kFailed, "trainer-0 was killed by signal 9", 1, {}}), IsOk());
  EXPECT_EQ(OnDisk()["status"], "failed");
  EXPECT_EQ(OnDisk()["run"]["reason"], "trainer-0 was killed by signal 9");
  EXPECT_FALSE(OnDisk()["run"].contains("log"));
}

TEST_F(FinishSummaryTest, KeepsWhatTheTerminalShowsOfTheLogOfAFailedRun) {
  const RunEnd end{RunOutcome::kFailed, "trainer-0 exited with code 1", 1, {}, {"no room", "bad \xff byte"}};
  ASSERT_THAT(FinishSummary(dir_, end), IsOk());
  EXPECT_EQ(OnDisk()["run"]["log"], json::array({"no room", "bad \ufffd byte"}));
}

TEST_F(FinishSummaryTest, IsWrittenAlsoWhereTheTrainerLeftNothingReadable) {
  ASSERT_THAT(FinishSummary(dir_, {RunOutcome::kInterrupted, "", 1, {}}), IsOk());
  EXPECT_EQ(OnDisk()["status"], "interrupted");
  for (const char* text : {"", "{\"status\":", "[]"}) {
    TrainerWrites(text);
    ASSERT_THAT(FinishSummary(dir_, {RunOutcome::kFailed, "x", 1, {}}), IsOk());
    EXPECT_EQ(OnDisk()["status"], "failed") << text;
  }
}

TEST_F(FinishSummaryTest, AResumeThatNeverCameToStandLeavesItAsItWas) {
  for (const char* before : {R"({"status":"completed","steps":6})", ""}) {
    if (before[0] != 0) TrainerWrites(before);
    auto summary = FinishSummary(dir_, {RunOutcome::kFailed, "x", 1, {}}, "", /*keep=*/true);
    ASSERT_THAT(summary, IsOk());
    EXPECT_EQ((*summary)["status"], "failed");
    EXPECT_EQ(ReadSummary(dir_), before);
    std::filesystem::remove(dir_ + "/summary.json");
  }
}

TEST_F(FinishSummaryTest, WhatAnEarlierIncarnationWroteStaysUnlessTheTrainerHasWrittenMore) {
  TrainerWrites(R"({"status":"completed","steps":6})");
  const std::string before = ReadSummary(dir_);
  for (RunOutcome outcome : {RunOutcome::kCompleted, RunOutcome::kFailed}) {
    auto summary = FinishSummary(dir_, {outcome, "", 1, {}}, before);
    ASSERT_THAT(summary, IsOk());
    EXPECT_EQ((*summary)["run"]["outcome"], OutcomeName(outcome));
    EXPECT_EQ(ReadSummary(dir_), before);
  }
  TrainerWrites(R"({"status":"completed","steps":7})");
  ASSERT_THAT(FinishSummary(dir_, {RunOutcome::kCompleted, "", 1, {}}, before), IsOk());
  EXPECT_EQ(OnDisk()["run"]["outcome"], "completed");
  std::filesystem::remove(dir_ + "/summary.json");  // the trainer has made steps and was killed
  ASSERT_THAT(FinishSummary(dir_, {RunOutcome::kFailed, "killed", 1, {}}, before), IsOk());
  EXPECT_EQ(OnDisk()["status"], "failed");
}

TEST_F(FinishSummaryTest, SaysWhenItCannotBeWritten) {
  EXPECT_FALSE(FinishSummary(dir_ + "/nowhere", {RunOutcome::kFailed, "x", 1, {}}).ok());
}

}  // namespace
}  // namespace syncopate::run
