#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/loop/step_loop_world.h"

// Staging beside the next step: the work that goes on while a version has no digests yet, and the work that waits for
// them.
namespace syncopate::trainer {
namespace {

using syncopate::testing::HasMessage;
using syncopate::testing::HasReason;
using syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Outcome = StepLoop::Outcome;

std::vector<int64_t> StepsOf(const std::vector<PolicyVersion>& versions) {
  std::vector<int64_t> steps;
  for (const PolicyVersion& version : versions) steps.push_back(version.step);
  return steps;
}

std::vector<int64_t> StepsOf(const std::vector<StepReport>& reports) {
  std::vector<int64_t> steps;
  for (const StepReport& report : reports) steps.push_back(report.version.step);
  return steps;
}

class StepLoopStagingTest : public ::testing::Test {
 protected:
  StepLoopWorld world_;
};

TEST_F(StepLoopStagingTest, TheNextStepIsMadeBesideItAndTheVersionAndItsLineComeWhenItsDigestsAreThere) {
  world_.stager.HoldFrom(1);
  world_.Start(Steps(3));
  ASSERT_TRUE(world_.stager.AwaitHeld(1));
  ASSERT_TRUE(world_.policy.AwaitBegun(2));
  EXPECT_THAT(StepsOf(world_.published.All()), ElementsAre(0));
  EXPECT_TRUE(world_.observer.steps.All().empty());
  world_.stager.Release();
  ASSERT_THAT(world_.Wait(), IsOk());
  EXPECT_THAT(StepsOf(world_.published.All()), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(StepsOf(world_.observer.steps.All()), ElementsAre(1, 2, 3));
  for (const StepReport& report : world_.observer.steps.All()) {
    EXPECT_TRUE(report.published_digest.has_value()) << report.version.ToString();
    EXPECT_GT(report.figures.stage_seconds, 0.0);
    EXPECT_GT(report.figures.stage_wait_seconds, 0.0);
  }
}

// The update of step 2 comes before the copy of version 1 has begun: the policy's thread makes the copy then.
TEST_F(StepLoopStagingTest, AVersionHasTheWeightsOfItsStepHoweverLateItsDigestsAre) {
  world_.stager.HoldFrom(1);
  world_.Start(Steps(4));
  for (int64_t step = 1; step <= 4; ++step) {
    ASSERT_TRUE(world_.stager.AwaitHeld(step));
    ASSERT_TRUE(step == 4 || world_.policy.AwaitBegun(step + 1));
    world_.stager.HoldFrom(step + 1);
  }
  ASSERT_THAT(world_.Wait(), IsOk());
  StepLoopWorld other;
  other.Start(Steps(4));
  ASSERT_THAT(other.Wait(), IsOk());
  EXPECT_EQ(world_.observer.publications.All(), other.observer.publications.All());
  ASSERT_EQ(other.observer.publications.size(), 5u);
}

TEST_F(StepLoopStagingTest, WeightsThatLeaveTheDeviceAfterTheirStepAreReadBefore) {
  world_.policy.OffloadBetweenUses();
  world_.stager.HoldFrom(1);
  world_.Start(Steps(2));
  ASSERT_TRUE(world_.policy.AwaitBegun(2));
  world_.stager.Release();
  ASSERT_THAT(world_.Wait(), IsOk());
  StepLoopWorld other;
  other.Start(Steps(2));
  ASSERT_THAT(other.Wait(), IsOk());
  EXPECT_EQ(world_.observer.publications.All(), other.observer.publications.All());
}

TEST_F(StepLoopStagingTest, TheRunBeginsWithAPublishedVersionAndEndsWithOne) {
  world_.stager.HoldFrom(0);
  world_.Start(Steps(1));
  ASSERT_TRUE(world_.stager.AwaitHeld(0));
  EXPECT_TRUE(world_.rollouter().leases.All().empty());
  EXPECT_EQ(world_.policy.begun(), 0);
  world_.stager.HoldFrom(1);
  ASSERT_TRUE(world_.stager.AwaitHeld(1));
  EXPECT_THAT(world_.Checkpoints(), IsEmpty());
  EXPECT_NE(world_.loop().GetStatus().state, "done");
  world_.stager.Release();
  ASSERT_THAT(world_.Wait(), IsOk());
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s1"));
}

TEST_F(StepLoopStagingTest, WhereNoOlderVersionMayBeTrainedEachIsPublishedBeforeItsStepIsOver) {
  StepLoop::Options options = Steps(3);
  options.publishes_at_once = true;
  world_.stager.HoldFrom(1);
  world_.Start(options);
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(world_.stager.AwaitHeld(step));
    EXPECT_EQ(world_.policy.begun(), step);
    world_.stager.HoldFrom(step + 1);
  }
  ASSERT_THAT(world_.Wait(), IsOk());
}

TEST_F(StepLoopStagingTest, AnEvaluationBeginsWhenItsVersionIsPublished) {
  StepLoop::Options options = Steps(2);
  options.evaluate_every_steps = 1;
  world_.policy.HoldFrom(1);
  world_.Start(options);
  ASSERT_TRUE(world_.rollouter().AwaitEvaluated({1, 0}));  // so that the next evaluation need not wait for this one
  world_.stager.HoldFrom(1);
  world_.policy.Release();
  ASSERT_TRUE(world_.stager.AwaitHeld(1));
  EXPECT_EQ(world_.policy.begun(), 1);
  world_.stager.Release();
  ASSERT_THAT(world_.Wait(), IsOk());
}

TEST_F(StepLoopStagingTest, ACheckpointIsCopiedBesideItAndGetsItsNameWhenTheWeightsAreKnownToBeFinite) {
  StepLoop::Options options = Steps(4);
  options.checkpoint_every_steps = 2;
  world_.stager.HoldFrom(2);
  world_.Start(options);
  ASSERT_TRUE(world_.stager.AwaitHeld(2));
  ASSERT_TRUE(world_.policy.AwaitBegun(3));  // so the copy was made
  EXPECT_THAT(world_.Checkpoints(), IsEmpty());
  world_.stager.Release();
  ASSERT_THAT(world_.Wait(), IsOk());
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s2", "e1-s4"));
}

TEST_F(StepLoopStagingTest, WeightsThatAreNotFiniteNeverBecomeACheckpointThoughTheNextStepHasBegun) {
  StepLoop::Options options = Steps(1000);
  options.checkpoint_every_steps = 2;
  world_.policy.SpoilFrom(2);
  world_.stager.HoldFrom(2);
  world_.Start(options);
  ASSERT_TRUE(world_.stager.AwaitHeld(2));
  ASSERT_TRUE(world_.policy.AwaitBegun(3));
  world_.stager.Release();
  const auto outcome = world_.Wait();
  EXPECT_THAT(outcome, HasReason("NON_FINITE"));
  EXPECT_THAT(outcome, HasMessage(HasSubstr(FakePolicy::kTensor)));
  EXPECT_THAT(outcome, HasMessage(HasSubstr("e1-s2")));
  EXPECT_EQ(world_.policy.begun(), 3) << "no step begins once the failure is known";
  EXPECT_THAT(world_.Checkpoints(), IsEmpty());
  EXPECT_THAT(StepsOf(world_.published.All()), ElementsAre(0, 1));
  EXPECT_THAT(StepsOf(world_.observer.steps.All()), ElementsAre(1));
  ASSERT_EQ(world_.observer.checkpoints.All().size(), 1u);
  EXPECT_THAT(world_.observer.checkpoints.All()[0].status, HasReason("NON_FINITE"));
}

// The later failure is a consequence of the first one.
TEST_F(StepLoopStagingTest, WeightsThatAreNotFiniteEndTheRunWithTheirNameThoughTheNextStepFails) {
  world_.policy.SpoilFrom(2);
  world_.policy.FailFrom(3);
  world_.stager.HoldFrom(2);
  world_.Start(Steps(1000));
  ASSERT_TRUE(world_.policy.AwaitBegun(3));
  world_.stager.Release();
  EXPECT_THAT(world_.Wait(), HasReason("NON_FINITE"));
}

TEST_F(StepLoopStagingTest, AnExportAndRolloutModeWaitForIt) {
  using Loop = StepLoop;
  const std::vector<std::pair<std::string, std::function<void(Loop&, Mailbox<absl::Status>*)>>> calls = {
      {"export",
       [](Loop& loop, Mailbox<absl::Status>* done) {
         loop.ExportModel({}, [done](const auto& exported) { done->Put(exported.status()); });
       }},
      {"rollout mode",
       [](Loop& loop, Mailbox<absl::Status>* done) {
         loop.EnterRolloutMode([done](const absl::StatusOr<Loop::ModeChange>& made) { done->Put(made.status()); });
       }},
  };
  for (const auto& [name, call] : calls) {
    for (const bool is_spoilt : {false, true}) {
      SCOPED_TRACE(name);
      StepLoopWorld world;
      if (is_spoilt) world.policy.SpoilFrom(1);
      world.policy.Hold();
      world.stager.HoldFrom(1);
      world.Start(Steps(1000));
      ASSERT_TRUE(world.policy.AwaitBegun(1));
      Mailbox<absl::Status> done;
      call(world.loop(), &done);
      world.policy.HoldFrom(2);
      ASSERT_TRUE(world.stager.AwaitHeld(1));
      EXPECT_TRUE(done.All().empty());
      world.stager.Release();
      ASSERT_TRUE(done.WaitFor(1));
      EXPECT_EQ(ErrorReason(done.All()[0]), is_spoilt ? "NON_FINITE" : "");
      world.loop().Stop();
      world.policy.Release();
      const auto outcome = world.Wait();
      EXPECT_EQ(ErrorReason(outcome.status()), is_spoilt ? "NON_FINITE" : "");
    }
  }
}

}  // namespace
}  // namespace syncopate::trainer
