#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/loop/step_loop_world.h"

// Exports of the step loop: files that are written while steps are made, and the result of an export that cannot be
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
using Answers = Mailbox<absl::StatusOr<ExportWriter::Exported>>;

class StepLoopExportTest : public ::testing::Test {
 protected:
  // Asks for an export before step 1 is over; step 1 is stopped until then.
  void AskInStepOne(const std::string& name, Answers* answers) {
    ASSERT_TRUE(world_.policy.AwaitBegun(1));
    Ask(name, answers);
  }
  void Ask(const std::string& name, Answers* answers) {
    world_.loop().ExportModel({.name = name}, [answers](const auto& exported) { answers->Put(exported); });
  }
  // The first number of an export, which is the step that made it.
  float FirstNumber(const std::string& name) {
    const std::string model =
        ReadFile(&world_.export_disk, absl::StrCat("/exports/", name, "/model.safetensors"), 1 << 20).value();
    const model::StoredTensor weights = model::SafetensorsFile::Parse(model).value().Find(FakePolicy::kTensor).value();
    float first = 0;
    std::memcpy(&first, weights.data.data(), sizeof(first));
    return first;
  }
  std::vector<std::string> Exports() {
    const auto names = world_.export_disk.List("/exports");
    return names.ok() ? *names : std::vector<std::string>();
  }

  StepLoopWorld world_;
};

TEST_F(StepLoopExportTest, IsWrittenWhileStepsAreMadeAndHasTheWeightsOfItsVersion) {
  Answers answers;
  world_.policy.Hold();
  world_.Start(Steps(5));
  AskInStepOne("", &answers);
  world_.export_disk.HoldOperations(true);
  world_.policy.Release();
  ASSERT_TRUE(world_.policy.AwaitBegun(5));
  EXPECT_TRUE(answers.All().empty());
  world_.export_disk.HoldOperations(false);
  ASSERT_THAT(world_.Wait(), IsOk());
  ASSERT_EQ(answers.size(), 1u);
  ASSERT_THAT(answers.All()[0], IsOk());
  EXPECT_EQ(answers.All()[0]->version, (PolicyVersion{1, 1}));
  EXPECT_EQ(answers.All()[0]->path, "/exports/e1-s1");
  EXPECT_EQ(FirstNumber("e1-s1"), 1);
  const std::vector<StepReport> steps = world_.observer.steps.All();
  EXPECT_GT(steps[1].figures.export_wait_seconds, 0.0);
  EXPECT_EQ(steps[2].figures.export_wait_seconds, 0.0);
}

TEST_F(StepLoopExportTest, TheNextOneIsCopiedWhenTheOneBeforeIsWrittenAndHoldsNoStepUp) {
  Answers answers;
  world_.policy.Hold();
  world_.Start(Steps(1000));
  AskInStepOne("first", &answers);
  Ask("second", &answers);
  world_.export_disk.HoldOperations(true);
  world_.policy.HoldFrom(4);
  ASSERT_TRUE(world_.policy.AwaitBegun(4));
  EXPECT_TRUE(answers.All().empty());
  world_.export_disk.HoldOperations(false);
  ASSERT_TRUE(answers.WaitFor(1));
  world_.policy.Release();
  ASSERT_TRUE(answers.WaitFor(2));
  world_.loop().Stop();
  ASSERT_THAT(world_.Wait(), IsOk());
  EXPECT_EQ(FirstNumber("first"), 1);
  ASSERT_THAT(answers.All()[1], IsOk());
  EXPECT_GE(answers.All()[1]->version.step, 4);
  EXPECT_EQ(FirstNumber("second"), static_cast<float>(answers.All()[1]->version.step));
}

TEST_F(StepLoopExportTest, AFullDiskIsTheAnswerAndTheRunGoesOn) {
  Answers answers;
  world_.export_disk.SetCapacity(10);
  world_.policy.Hold();
  world_.Start(Steps(3));
  AskInStepOne("a", &answers);
  world_.policy.Release();
  const auto outcome = world_.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_THAT(answers.All()[0], HasReason("NO_SPACE"));
  EXPECT_THAT(Exports(), IsEmpty());
}

TEST_F(StepLoopExportTest, ADiskThatDoesNotAnswerHoldsNoStepUpAndFailsTheEndOfTheRun) {
  Answers answers;
  world_.SetDiskDeadline(absl::Milliseconds(300));
  world_.policy.Hold();
  world_.Start(Steps(5));
  AskInStepOne("a", &answers);
  world_.export_disk.HoldOperations(true);
  world_.policy.Release();
  const auto outcome = world_.Wait();
  EXPECT_THAT(outcome, HasReason("DISK_STUCK"));
  EXPECT_THAT(outcome, HasMessage(HasSubstr("/exports/.tmp-")));
  EXPECT_EQ(world_.policy.begun(), 5);
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s5"));
  world_.export_disk.HoldOperations(false);
  EXPECT_TRUE(answers.WaitFor(1));
}

TEST_F(StepLoopExportTest, WeightsThatAreNotFiniteAreNotExported) {
  for (const int64_t publish_every : {1, 1000}) {
    StepLoopWorld world;
    Answers answers;
    StepLoop::Options options = Steps(1000);
    options.publish_every_steps = publish_every;
    world.policy.SpoilFrom(1);
    world.policy.Hold();
    world.Start(options);
    ASSERT_TRUE(world.policy.AwaitBegun(1));
    world.loop().Pause();
    world.loop().ExportModel({}, [&answers](const auto& exported) { answers.Put(exported); });
    world.policy.Release();
    ASSERT_TRUE(answers.WaitFor(1));
    EXPECT_THAT(answers.All()[0], HasReason("NON_FINITE"));
    EXPECT_FALSE(world.export_disk.List("/exports").ok());
  }
}

TEST_F(StepLoopExportTest, ARunWithoutADescriptionOfItsModelCannotExport) {
  Answers answers;
  world_.CannotExport();
  world_.policy.Hold();
  world_.Start(Steps(1));
  AskInStepOne("a", &answers);
  world_.policy.Release();
  ASSERT_THAT(world_.Wait(), IsOk());
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_THAT(answers.All()[0], HasReason("NO_MODEL"));
  Ask("b", &answers);
  ASSERT_TRUE(answers.WaitFor(2));
  EXPECT_THAT(answers.All()[1], HasReason("RUN_OVER"));
}

}  // namespace
}  // namespace syncopate::trainer
