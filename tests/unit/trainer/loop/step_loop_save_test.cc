#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/loop/step_loop_world.h"

// Checkpoints of the step loop: when and by which trainer they are written, and how a run ends if they cannot be
// written.
namespace syncopate::trainer {
namespace {

using syncopate::testing::HasMessage;
using syncopate::testing::HasReason;
using syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Outcome = StepLoop::Outcome;

class StepLoopSaveTest : public ::testing::Test {
 protected:
  StepLoopWorld world_;
};

TEST_F(StepLoopSaveTest, AWaitForACheckpointEndsWithTheErrorOfAFailedRun) {
  world_.policy.Hold();
  world_.policy.FailFrom(1);
  world_.Start(Steps(1000));
  ASSERT_TRUE(world_.policy.AwaitBegun(1));
  Mailbox<absl::Status> saved;
  world_.loop().SaveCheckpoint([&](const absl::StatusOr<std::string>& name) { saved.Put(name.status()); });
  world_.policy.Release();
  EXPECT_THAT(world_.Wait(), HasReason("TORCH"));
  ASSERT_TRUE(saved.WaitFor(1));
  EXPECT_THAT(saved.All()[0], HasReason("RUN_OVER"));
}

TEST_F(StepLoopSaveTest, ACheckpointThatCannotBeSavedCostsNoTrainingAndNoOlderCheckpoint) {
  StepLoop::Options options = Steps(6);
  options.checkpoint_every_steps = 1;
  world_.policy.Hold();
  world_.Start(options);
  ASSERT_TRUE(world_.policy.AwaitBegun(1));
  world_.loop().Pause();
  world_.policy.Release();
  ASSERT_THAT(world_.SaveCheckpoint(), IsOk());
  world_.checkpoint_disk.SetCapacity(0);
  world_.policy.Hold();
  world_.loop().Resume();
  ASSERT_TRUE(world_.policy.AwaitBegun(2));
  world_.loop().Pause();
  world_.policy.Release();
  EXPECT_THAT(world_.SaveCheckpoint(), HasReason("NO_SPACE"));
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s1"));
  EXPECT_GE(world_.loop().GetStatus().failed_checkpoints, 1);
  EXPECT_THAT(world_.loop().GetStatus().checkpoint_error, HasSubstr("e1-s2: "));
  world_.checkpoint_disk.SetCapacity(int64_t{1} << 30);
  world_.loop().Resume();
  const auto outcome = world_.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(world_.policy.begun(), 6);
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s5", "e1-s6"));
  std::set<int64_t> failed;
  for (const auto& [version, saved] : world_.observer.checkpoints.All()) {
    if (saved.ok()) continue;
    EXPECT_THAT(saved, HasReason("NO_SPACE"));
    failed.insert(version.step);
  }
  EXPECT_THAT(failed, ElementsAre(2));
  EXPECT_GE(world_.loop().GetStatus().failed_checkpoints, 1);
  EXPECT_EQ(world_.loop().GetStatus().checkpoint_error, "") << "the newest is saved";
}

TEST_F(StepLoopSaveTest, ADiskThatDoesNotAnswerEndsTheRunThatWaitsForItAndIsNamed) {
  world_.SetDiskDeadline(absl::Milliseconds(300));
  StepLoop::Options options = Steps(1000);
  options.checkpoint_every_steps = 2;
  world_.policy.Hold();
  world_.Start(options);
  ASSERT_TRUE(world_.policy.AwaitBegun(1));
  world_.checkpoint_disk.HoldOperations(true);
  world_.policy.Release();
  const auto outcome = world_.Wait();
  EXPECT_THAT(outcome, HasReason("DISK_STUCK"));
  EXPECT_THAT(outcome, HasMessage(HasSubstr("/checkpoints/.tmp-e1-s2")));
  EXPECT_EQ(world_.policy.begun(), 4) << "steps are made until the next save waits for the one before";
  ASSERT_EQ(world_.observer.checkpoints.All().size(), 1u);
  EXPECT_EQ(world_.observer.checkpoints.All()[0].version, (PolicyVersion{1, 4}));
  EXPECT_EQ(world_.loop().GetStatus().state, "failed");
  world_.checkpoint_disk.HoldOperations(false);  // otherwise the writing thread would outlive the test
}

TEST_F(StepLoopSaveTest, ALastCheckpointThatADiskHoldsForEverEndsTheRunToo) {
  world_.SetDiskDeadline(absl::Milliseconds(300));
  world_.policy.Hold();
  world_.Start(Steps(1));
  ASSERT_TRUE(world_.policy.AwaitBegun(1));
  world_.checkpoint_disk.HoldOperations(true);
  world_.policy.Release();
  const auto outcome = world_.Wait();
  EXPECT_THAT(outcome, HasReason("DISK_STUCK"));
  EXPECT_THAT(outcome, HasMessage(HasSubstr("the last checkpoint")));
  world_.checkpoint_disk.HoldOperations(false);
}

TEST_F(StepLoopSaveTest, StepsAreMadeWhileACheckpointIsWrittenWhichHasWhatWasTrueWhenItBegan) {
  StepLoop::Options options = Steps(6);
  options.checkpoint_every_steps = 2;
  options.keep_checkpoints = 3;
  world_.HoldSaves(true);
  world_.Start(options);
  // The next save waits for this one: there is one copy of the state at a time.
  ASSERT_TRUE(world_.observer.steps.WaitFor(4));
  EXPECT_EQ(world_.policy.begun(), 4);
  EXPECT_THAT(world_.Checkpoints(), IsEmpty());
  EXPECT_TRUE(world_.observer.checkpoints.All().empty());
  world_.HoldSaves(false);
  ASSERT_THAT(world_.Wait(), IsOk());
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s2", "e1-s4", "e1-s6"));
  for (int64_t step : {2, 4, 6}) {
    const std::string model =
        ReadFile(&world_.checkpoint_disk, absl::StrCat("/checkpoints/e1-s", step, "/model.safetensors"), 1 << 20)
            .value();
    const model::StoredTensor weights = model::SafetensorsFile::Parse(model).value().Find(FakePolicy::kTensor).value();
    float first = 0;
    std::memcpy(&first, weights.data.data(), sizeof(first));
    EXPECT_EQ(first, static_cast<float>(step));
  }
}

TEST_F(StepLoopSaveTest, ARequestForACheckpointIsAnsweredWhenItIsDurable) {
  world_.HoldSaves(true);
  world_.policy.Hold();
  world_.Start(Steps(3));
  ASSERT_TRUE(world_.policy.AwaitBegun(1));
  Mailbox<absl::StatusOr<std::string>> saved;
  world_.loop().SaveCheckpoint([&saved](const absl::StatusOr<std::string>& name) { saved.Put(name); });
  world_.policy.Release();
  ASSERT_TRUE(world_.observer.steps.WaitFor(3));
  EXPECT_TRUE(saved.All().empty());
  world_.HoldSaves(false);
  ASSERT_THAT(world_.Wait(), IsOk());
  ASSERT_EQ(saved.All().size(), 1u);
  EXPECT_THAT(saved.All()[0], IsOk());
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s1", "e1-s3"));
}

TEST_F(StepLoopSaveTest, ALastCheckpointThatCannotBeSavedFailsTheRun) {
  world_.checkpoint_disk.SetCapacity(0);
  world_.Start(Steps(2));
  const auto outcome = world_.Wait();
  EXPECT_THAT(outcome, HasReason("NO_SPACE"));
  EXPECT_THAT(outcome, HasMessage(HasSubstr("last checkpoint")));
}

TEST_F(StepLoopSaveTest, ATrainerThatWasReplacedEndsWithoutWriting) {
  world_.policy.Hold();
  world_.Start(Steps(1000));
  ASSERT_TRUE(world_.policy.AwaitBegun(1));
  world_.loop().StopFenced();
  world_.policy.Release();
  const auto outcome = world_.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kFenced);
  EXPECT_THAT(world_.Checkpoints(), IsEmpty());
}

TEST_F(StepLoopSaveTest, ATrainerThatNobodyToldSeesTheNewerEpochBeforeItWrites) {
  StepLoop::Options options = Steps(1000);
  options.checkpoint_every_steps = 2;
  world_.newest_epoch = 2;
  world_.Start(options);
  const auto outcome = world_.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kFenced);
  EXPECT_EQ(world_.policy.begun(), 2);
  EXPECT_THAT(world_.Checkpoints(), IsEmpty());
}

}  // namespace
}  // namespace syncopate::trainer
