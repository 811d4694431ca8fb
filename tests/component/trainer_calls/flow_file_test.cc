#include "trainer/record/flow_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "services/trainer/flow_codec.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainerd {
namespace {

using syncopate::testing::FaultyFileSystem;
using syncopate::testing::HasReason;

constexpr char kPath[] = "/state/flow.pb";

trainer::FlowSums Sums(double wall_seconds) {
  trainer::FlowSums sums{.wall_seconds = wall_seconds,
                         .figures = {.step_seconds = 8,
                                     .wait_seconds = 2,
                                     .best_reward = 0.95,
                                     .last_reward = 0.85,
                                     .best_exact = 0.9,
                                     .last_exact = 0.8,
                                     .best_held_out_loss = 0.25,
                                     .last_held_out_loss = 0.5,
                                     .saved_checkpoints = 12,
                                     .failed_checkpoints = 2,
                                     .evaluations_made = 14,
                                     .evaluations_lost = 13},
                         .reissued = 3,
                         .failed_attempts = 4,
                         .superseded = 8,
                         .duplicate = 5,
                         .expired = 6,
                         .invalid = {{"BAD_LOGPROB", 7}}};
  sums.roster.AddProcess({"rollouter", "rollouter-0", 0, 1, "a"});
  sums.roster.SetServing("a", {1, 7});
  sums.roster.SetWork(
      "a", {.generated_tokens = 500, .groups_submitted = 9, .busy_seconds = 1, .idle_seconds = 3, .judge_tokens = 11});
  return sums;
}

class FlowFileTest : public ::testing::Test {
 protected:
  FlowFileTest() { EXPECT_TRUE(disk_.CreateDirs("/state").ok()); }
  trainer::FlowFile File() {
    return trainer::FlowFile(&disk_, kPath, kFlowCodec, [this] { return may_write_; });
  }

  FaultyFileSystem disk_;
  bool may_write_ = true;
};

TEST_F(FlowFileTest, WhatWasWrittenIsReadByTheNextIncarnation) {
  EXPECT_EQ(File().Read(false).value().wall_seconds, 0);
  File().Write(Sums(60));
  const trainer::FlowSums read = File().Read(false).value();
  EXPECT_EQ(read.wall_seconds, 60);
  EXPECT_EQ(read.figures.step_seconds, 8);
  EXPECT_EQ(read.figures.wait_seconds, 2);
  EXPECT_EQ(read.figures.best_reward, 0.95);
  EXPECT_EQ(read.figures.last_reward, 0.85);
  EXPECT_EQ(read.figures.best_exact, 0.9);
  EXPECT_EQ(read.figures.last_exact, 0.8);
  EXPECT_EQ(read.figures.best_held_out_loss, 0.25);
  EXPECT_EQ(read.figures.last_held_out_loss, 0.5);
  EXPECT_EQ(read.figures.saved_checkpoints, 12);
  EXPECT_EQ(read.figures.failed_checkpoints, 2);
  EXPECT_EQ(read.figures.evaluations_made, 14);
  EXPECT_EQ(read.figures.evaluations_lost, 13);
  EXPECT_EQ(read.roster.Total().judge_tokens, 11);
  EXPECT_EQ(read.superseded, 8);
  EXPECT_EQ(read.reissued + read.failed_attempts + read.duplicate + read.expired, 3 + 4 + 5 + 6);
  EXPECT_EQ(read.invalid.at("BAD_LOGPROB"), 7);
  ASSERT_EQ(read.roster.entries().size(), 1u);
  EXPECT_EQ(read.roster.entries()[0].member.incarnation, "a");
  EXPECT_EQ(read.roster.entries()[0].serving, (PolicyVersion{1, 7}));
  EXPECT_EQ(read.roster.entries()[0].work.generated_tokens, 500);
}

TEST_F(FlowFileTest, OneThatIsWrittenSoonIsThereWhenItsOwnerIsGone) {
  {
    trainer::FlowFile file = File();
    file.WriteSoon(Sums(1));
  }
  EXPECT_EQ(File().Read(false).value().wall_seconds, 1);
}

TEST_F(FlowFileTest, ATrainerThatWasReplacedWritesNothing) {
  File().Write(Sums(60));
  may_write_ = false;
  trainer::FlowFile old = File();
  old.Write(Sums(7));
  old.WriteSoon(Sums(8));
  EXPECT_EQ(File().Read(false).value().wall_seconds, 60);
}

TEST_F(FlowFileTest, ADamagedOneIsTakenForNoneAndAFullDiskKeepsTheOld) {
  File().Write(Sums(60));
  disk_.SetCapacity(0);
  File().Write(Sums(61));
  disk_.SetCapacity(1 << 20);
  EXPECT_EQ(File().Read(false).value().wall_seconds, 60);
  ASSERT_TRUE(WriteFileAtomically(&disk_, kPath, "\xff\xff").ok());
  EXPECT_EQ(File().Read(false).value().wall_seconds, 0);
  EXPECT_THAT(DecodeFlowSums("\xff\xff"), HasReason("BAD_FLOW"));
  EXPECT_THAT(DecodeFlowSums(EncodeFlowSums({.wall_seconds = -1})), HasReason("BAD_FLOW"));
}

TEST_F(FlowFileTest, ADamagedOneIsAnErrorWhereItHoldsTheCountOfALimit) {
  EXPECT_EQ(File().Read(/*limits_judge=*/true).value().roster.Total().judge_tokens, 0) << "a run that begins";
  File().Write(Sums(60));
  EXPECT_EQ(File().Read(/*limits_judge=*/true).value().roster.Total().judge_tokens, 11);
  ASSERT_TRUE(WriteFileAtomically(&disk_, kPath, "\xff\xff").ok());
  const auto lost = File().Read(/*limits_judge=*/true);
  EXPECT_THAT(lost, HasReason("FLOW_LOST"));
  EXPECT_THAT(lost.status().message(),
              ::testing::AllOf(::testing::HasSubstr(kPath), ::testing::HasSubstr("delete it")));
}

}  // namespace
}  // namespace syncopate::trainerd
