#include "trainer/loop/step_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/worker.h"
#include "tests/support/eventually.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/trainer/loop/step_loop_world.h"

namespace syncopate::trainer {
namespace {

using syncopate::testing::HasMessage;
using syncopate::testing::HasReason;
using syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Outcome = StepLoop::Outcome;

constexpr size_t kBatchGroups = 2;

class StepLoopTest : public ::testing::Test {
 protected:
  StepLoopWorld world_;
};

TEST_F(StepLoopTest, MakesItsStepsPublishesEachAndSavesTheLast) {
  world_.Start(Steps(3));
  const auto outcome = world_.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  EXPECT_EQ(world_.policy.begun(), 3);
  EXPECT_THAT(world_.published.All(),
              ElementsAre(PolicyVersion{1, 0}, PolicyVersion{1, 1}, PolicyVersion{1, 2}, PolicyVersion{1, 3}));
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s3"));
  EXPECT_EQ(world_.loop().GetStatus().state, "done");
}

TEST_F(StepLoopTest, TheObserverHearsOfEachStepWithTheDigestOfItsWeightsAndThatOfWhatWasPublished) {
  world_.Start(Steps(3));
  ASSERT_THAT(world_.Wait(), IsOk());
  const std::vector<StepReport> steps = world_.observer.steps.All();
  const auto publications = world_.observer.publications.All();
  ASSERT_EQ(steps.size(), 3u);
  ASSERT_EQ(publications.size(), 4u);  // version 0 too
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].version, (PolicyVersion{1, static_cast<int64_t>(i) + 1}));
    EXPECT_EQ(publications[i + 1], std::make_pair(steps[i].version, steps[i].published_digest.value_or(0)));
    EXPECT_NE(steps[i].weights_digest, steps[i].published_digest);  // weights are sent in bfloat16 here
    EXPECT_EQ(steps[i].groups, static_cast<int64_t>(kBatchGroups));
    EXPECT_EQ(steps[i].sample_staleness.size(), 2 * kBatchGroups);
    EXPECT_EQ(steps[i].figures.samples_so_far, static_cast<int64_t>(2 * kBatchGroups * (i + 1)));
    EXPECT_GE(steps[i].figures.tokens_so_far, steps[i].figures.samples_so_far);
    EXPECT_FALSE(steps[i].is_replay);
  }
  ASSERT_EQ(world_.observer.checkpoints.All().size(), 1u);
  EXPECT_THAT(world_.observer.checkpoints.All()[0].status, IsOk());
}

// The synchronizer relabels a version whose digest equals that of a served version: no weights are sent.
TEST_F(StepLoopTest, AStepWithoutSignalIsPublishedUnderTheDigestBeforeIt) {
  world_.policy.StandStillFrom(2);
  world_.Start(Steps(3));
  ASSERT_THAT(world_.Wait(), IsOk());
  const auto publications = world_.observer.publications.All();
  ASSERT_EQ(publications.size(), 4u);
  EXPECT_NE(publications[1].second, publications[0].second);
  EXPECT_EQ(publications[2].second, publications[1].second);
  EXPECT_EQ(publications[3].second, publications[1].second);
}

TEST_F(StepLoopTest, AStepThatIsNotPublishedIsReportedWithTheDigestOfItsWeights) {
  StepLoop::Options options = Steps(2);
  options.publish_every_steps = 2;
  world_.Start(options);
  ASSERT_THAT(world_.Wait(), IsOk());
  const std::vector<StepReport> steps = world_.observer.steps.All();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].figures.stage_seconds, 0.0);
  EXPECT_NE(steps[0].weights_digest, steps[1].weights_digest);
  EXPECT_FALSE(steps[0].published_digest.has_value());
  EXPECT_TRUE(steps[1].published_digest.has_value());
  EXPECT_EQ(steps[1].weights_digest, *world_.policy.Digest());
  EXPECT_THAT(world_.published.All(), ElementsAre(PolicyVersion{1, 0}, PolicyVersion{1, 2}));
}

TEST(SupervisedLoopTest, NothingIsPublishedBeforeTheLastSupervisedStepAndThenRolloutersTakeOver) {
  StepLoopWorld world(/*supervised_steps=*/2);
  StepLoop::Options options = Steps(4);
  options.supervised_steps = 2;
  options.evaluate_every_steps = 1;
  world.Start(options);
  const auto outcome = world.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  EXPECT_THAT(world.published.All(), ElementsAre(PolicyVersion{1, 2}, PolicyVersion{1, 3}, PolicyVersion{1, 4}));
  const auto taught = world.policy.supervised.All();
  ASSERT_EQ(taught.size(), 2u);
  EXPECT_THAT(taught[0], ElementsAre(GroupId{0, 0}, GroupId{0, 1}));
  EXPECT_THAT(taught[1], ElementsAre(GroupId{0, 2}, GroupId{0, 3}));
  const std::vector<StepReport> steps = world.observer.steps.All();
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_TRUE(steps[0].supervised && steps[1].supervised);
  EXPECT_FALSE(steps[2].supervised || steps[3].supervised);
  EXPECT_THAT(steps[1].sample_staleness, IsEmpty());
  for (const Lease& lease : world.rollouter().leases.All()) {
    EXPECT_GE(lease.version.step, 2);
    const bool taught_before = lease.kind == LeaseKind::kTraining && lease.id.group.ordinal < 4;
    EXPECT_FALSE(taught_before) << lease.id.group.ToString();
  }
}

// A rollouter on the trainer's device that does what it is told, on a thread of its own.
class ObedientRollouter {
 public:
  explicit ObedientRollouter(TurnDesk* desk) : desk_(desk) {
    desk_->Connect("rollouter-0", "1", kStream, /*yielded=*/false, [this](bool yield, int64_t turn) {
      told.Put(turn);
      if (turn >= deaf_from) return;
      const auto state = yield ? TurnDesk::Report::State::kYielded : TurnDesk::Report::State::kBack;
      EXPECT_TRUE(worker_.Post([this, turn, state] { desk_->Record("rollouter-0", kStream, {turn, state, 0}); }));
    });
  }

  Mailbox<int64_t> told;                              // turns
  std::atomic<int64_t> deaf_from = int64_t{1} << 40;  // from this turn on it does nothing

 private:
  static constexpr int64_t kStream = 1;
  TurnDesk* const desk_;
  Worker worker_;
};

class TurnsLoopTest : public ::testing::Test {
 protected:
  // Waits until this turn is asked for.
  bool AwaitTurn(int64_t turn) {
    for (size_t count = 1; rollouter_.told.WaitFor(count); ++count) {
      if (rollouter_.told.All()[count - 1] == turn) return true;
    }
    return false;
  }

  // Nobody is evicted while a test runs.
  TurnDesk desk_{{.still_limit = absl::Hours(1)}, {.clock = Clock::Real()}};
  ObedientRollouter rollouter_{&desk_};
};

TEST_F(TurnsLoopTest, NoStepBeginsDuringTheFirstEvaluationThoughABatchIsReadyBefore) {
  StepLoopWorld world;
  world.turns = &desk_;
  world.rollouter().HoldAnswers(LeaseKind::kEvaluation, true);
  world.Sync({1, 0});  // answers come before the loop runs
  ASSERT_TRUE(world.rollouter().acks.WaitFor(kBatchGroups));
  StepLoop::Options options = Steps(1);
  options.evaluate_every_steps = 100;
  world.Start(options);
  const auto evaluates = [&] {
    const std::vector<Lease> leases = world.rollouter().leases.All();
    return std::any_of(leases.begin(), leases.end(),
                       [](const Lease& lease) { return lease.kind == LeaseKind::kEvaluation; });
  };
  for (size_t heard = 1; !evaluates(); ++heard) ASSERT_TRUE(world.rollouter().leases.WaitFor(heard));
  ASSERT_THAT(world.SaveCheckpoint(), IsOk()) << "between two steps, after the pass in which the evaluation began";
  EXPECT_EQ(world.policy.begun(), 0);
  world.rollouter().HoldAnswers(LeaseKind::kEvaluation, false);
  ASSERT_THAT(world.Wait(), IsOk());
  EXPECT_EQ(world.policy.begun(), 1);
  EXPECT_THAT(world.observer.lost_evaluations.All(), IsEmpty());
}

TEST_F(TurnsLoopTest, RolloutersStayOnTheDeviceWhileADiskRefusesTakes) {
  StepLoopWorld world;
  world.turns = &desk_;
  world.rollouter().HoldAnswers(LeaseKind::kEvaluation, true);
  world.Sync({1, 0});  // answers come before the loop runs
  ASSERT_TRUE(world.rollouter().acks.WaitFor(kBatchGroups));
  StepLoop::Options options = Steps(1);
  options.evaluate_every_steps = 100;
  world.Start(options);
  ASSERT_TRUE(AwaitTurn(1)) << "of the publication";
  world.data_disk().SetCapacity(0);
  world.rollouter().HoldAnswers(LeaseKind::kEvaluation, false);
  ASSERT_TRUE(AwaitTurn(2)) << "of the take that the disk refuses";
  for (int tries = 0; tries < 3; ++tries) world.SaveCheckpoint().IgnoreError();  // one between two tries
  EXPECT_EQ(desk_.GetStatus().turn, 2);
  world.data_disk().SetCapacity(int64_t{1} << 30);
  ASSERT_THAT(world.Wait(), IsOk());
  EXPECT_EQ(world.policy.begun(), 1);
  EXPECT_EQ(desk_.GetStatus().turn, 3);
}

TEST_F(TurnsLoopTest, WhatIsStagedLeavesTheDeviceWhenAllRolloutersAreBack) {
  StepLoopWorld world;
  world.turns = &desk_;
  world.rollouter().HoldAnswers(LeaseKind::kEvaluation, true);  // the rollouters' turn lasts as long
  StepLoop::Options options = Steps(1);
  options.evaluate_every_steps = 100;
  world.Start(options);
  EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] { return world.stager.left_device() >= 2; }))
      << "before the first turn, and after it";
  EXPECT_EQ(desk_.GetStatus().turn, 1);
  world.rollouter().HoldAnswers(LeaseKind::kEvaluation, false);
  ASSERT_THAT(world.Wait(), IsOk());
}

TEST_F(TurnsLoopTest, AStopEndsTheWaitForATurnAndWhatIsTrainedIsSaved) {
  StepLoopWorld world;
  world.turns = &desk_;
  rollouter_.deaf_from = 3;  // the first is the publication's, the second is step 1's
  world.Start(Steps(100));
  ASSERT_TRUE(AwaitTurn(3));
  world.loop().Stop();
  const auto outcome = world.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kStopped);
  EXPECT_EQ(world.policy.begun(), 1);
  EXPECT_THAT(world.Checkpoints(), ElementsAre("e1-s1"));
  EXPECT_EQ(desk_.GetStatus().phase, CardTurns::Phase::kReceiving);
}

TEST_F(TurnsLoopTest, ATrainerThatAnotherHasReplacedDoesNotWaitForItsFirstTurn) {
  StepLoopWorld world;
  world.turns = &desk_;
  rollouter_.deaf_from = 1;
  world.Start(Steps(100));
  ASSERT_TRUE(AwaitTurn(1));
  world.loop().StopFenced();
  const auto outcome = world.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kFenced);
  EXPECT_THAT(world.published.All(), IsEmpty());
}

TEST_F(TurnsLoopTest, AStopEndsTheWaitForTheTurnOfTheLastPublication) {
  StepLoopWorld world;
  world.turns = &desk_;
  rollouter_.deaf_from = 1;
  StepLoop::Options options = Steps(0);
  options.serve_complete = true;
  world.Start(options);
  ASSERT_TRUE(AwaitTurn(1));
  world.loop().Stop();
  const auto outcome = world.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kStopped);
  EXPECT_THAT(world.Checkpoints(), ElementsAre("e1-s0"));
}

TEST_F(TurnsLoopTest, PublishesFirstAndMakesEachStepInATurnOfItsOwnAndHasLeftTheDeviceBetweenThem) {
  StepLoopWorld world;
  world.turns = &desk_;
  world.Start(Steps(3));
  ASSERT_THAT(world.Wait(), IsOk());
  EXPECT_EQ(desk_.GetStatus().turn, 4);
  EXPECT_EQ(world.policy.memory().parameter_bytes, 0);
  const std::vector<StepReport> steps = world.observer.steps.All();
  ASSERT_EQ(steps.size(), 3u);
  for (const StepReport& step : steps) {
    EXPECT_GT(step.figures.turn_drain_seconds, 0);
    EXPECT_EQ(step.figures.turn_moved_bytes, 2 * world.policy.manifest().arena_bytes());
  }
  EXPECT_GT(world.observer.SecondsIn(LoopPhase::kTurn), 0);
}

TEST_F(TurnsLoopTest, ATurnIsMeasuredFromBeforeTheStateComesUntilBeforeItLeavesWhileNoRollouterIsOnTheDevice) {
  struct Measured {
    bool begins = false;
    CardTurns::Phase phase = CardTurns::Phase::kRollouters;
    int64_t state_bytes = 0;
  };
  StepLoopWorld world;
  Mailbox<Measured> measured;
  world.turns = &desk_;
  world.measure_turn = [&](bool begins) {
    measured.Put({begins, desk_.GetStatus().phase, world.policy.memory().parameter_bytes});
  };
  world.Start(Steps(2));
  ASSERT_THAT(world.Wait(), IsOk());
  const std::vector<Measured> all = measured.All();
  ASSERT_EQ(all.size(), 6u) << "two for each of three turns";
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].begins, i % 2 == 0);
    EXPECT_EQ(all[i].phase, CardTurns::Phase::kTrainer);
    EXPECT_EQ(all[i].state_bytes, i % 2 == 0 ? 0 : world.policy.manifest().arena_bytes());
  }
}

TEST_F(TurnsLoopTest, WhatIsStagedLeavesTheDeviceOnlyWhileNobodyMeasuresThere) {
  StepLoopWorld world;
  world.turns = &desk_;
  std::atomic<bool> measured = true;
  std::atomic<int64_t> asked = 0;
  world.hold_device = [&]() -> std::shared_ptr<const void> {
    ++asked;
    if (measured) return nullptr;
    return std::make_shared<int>();
  };
  world.rollouter().HoldAnswers(LeaseKind::kEvaluation, true);  // the rollouters' turn lasts as long
  StepLoop::Options options = Steps(1);
  options.evaluate_every_steps = 100;
  world.Start(options);
  ASSERT_TRUE(testing::Eventually(kTestDeadline, [&] { return asked >= 3; })) << "it is tried again";
  EXPECT_EQ(world.stager.left_device(), 0);
  measured = false;
  EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] { return world.stager.left_device() >= 1; }));
  world.rollouter().HoldAnswers(LeaseKind::kEvaluation, false);
  ASSERT_THAT(world.Wait(), IsOk());
}

TEST_F(TurnsLoopTest, KeepsItsTurnUntilRolloutersHaveAVersionToComeBackWith) {
  StepLoopWorld world(/*supervised_steps=*/2);
  world.turns = &desk_;
  StepLoop::Options options = Steps(4);
  options.supervised_steps = 2;
  world.Start(options);
  ASSERT_THAT(world.Wait(), IsOk());
  EXPECT_THAT(world.published.All(), ElementsAre(PolicyVersion{1, 2}, PolicyVersion{1, 3}, PolicyVersion{1, 4}));
  EXPECT_EQ(desk_.GetStatus().turn, 3);
  const std::vector<StepReport> steps = world.observer.steps.All();
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0].figures.turn_offload_seconds, 0.0) << "the second supervised step follows in the same turn";
  EXPECT_EQ(steps[1].figures.turn_load_seconds, 0.0);
  EXPECT_GT(steps[1].figures.turn_moved_bytes, 0);
}

TEST_F(StepLoopTest, WithADeviceOfItsOwnNothingIsMovedForTurns) {
  world_.Start(Steps(1));
  ASSERT_THAT(world_.Wait(), IsOk());
  ASSERT_EQ(world_.observer.steps.All().size(), 1u);
  const StepFigures figures = world_.observer.steps.All()[0].figures;
  EXPECT_EQ(figures.turn_drain_seconds, 0.0);
  EXPECT_EQ(figures.turn_moved_bytes, 0);
  EXPECT_EQ(world_.observer.SecondsIn(LoopPhase::kTurn), 0.0);
}

TEST(SupervisedLoopTest, ARunOfSupervisedStepsAloneNeedsNoRollouterEvaluatesNothingAndIsSaved) {
  constexpr int64_t kAll = int64_t{1} << 40;
  StepLoopWorld world(kAll);
  StepLoop::Options options = Steps(5);
  options.supervised_steps = kAll;
  options.evaluate_every_steps = 1;
  options.checkpoint_every_steps = 2;
  world.Start(options);
  const auto outcome = world.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  EXPECT_EQ(world.policy.begun(), 5);
  EXPECT_TRUE(world.published.All().empty());
  EXPECT_TRUE(world.rollouter().leases.All().empty());
  EXPECT_THAT(world.Checkpoints(), ElementsAre("e1-s4", "e1-s5"));
}

TEST(SupervisedLoopTest, TheHeldOutLossIsMeasuredEveryFewStepsAndAtTheEndOnEvaluationPrompts) {
  constexpr int64_t kAll = int64_t{1} << 40;
  StepLoopWorld world(kAll);
  StepLoop::Options options = Steps(5);
  options.supervised_steps = kAll;
  options.evaluate_every_steps = 2;
  options.held_out_prompts = 3;
  world.Start(options);
  ASSERT_THAT(world.Wait(), IsOk());
  const auto measured = world.policy.measured.All();
  ASSERT_EQ(measured.size(), 3u);
  constexpr int64_t kPass = PromptSource::kEvaluationPass;
  for (const auto& prompts : measured) {
    EXPECT_THAT(prompts, ElementsAre(GroupId{kPass, 0}, GroupId{kPass, 1}, GroupId{kPass, 2}));
  }
  std::vector<double> losses;
  for (const StepReport& step : world.observer.steps.All()) {
    losses.push_back(step.held_out.has_value() ? step.held_out->loss : -1);
  }
  EXPECT_THAT(losses, ElementsAre(-1, 2, -1, 4, 5)) << "of the weights that the step made";
  EXPECT_GT(world.observer.SecondsIn(LoopPhase::kEvaluate), 0);
}

TEST(SupervisedLoopTest, TheLastStepOfAWarmStartHasAHeldOutLossAndStepsOnRewardsHaveNone) {
  StepLoopWorld world(/*supervised_steps=*/3);
  StepLoop::Options options = Steps(5);
  options.supervised_steps = 3;
  options.evaluate_every_steps = 0;
  options.held_out_prompts = 2;
  world.Start(options);
  ASSERT_THAT(world.Wait(), IsOk());
  const std::vector<StepReport> steps = world.observer.steps.All();
  ASSERT_EQ(steps.size(), 5u);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i].held_out.has_value(), i == 2) << i;
}

TEST_F(StepLoopTest, AnIncarnationThatFindsTheRunCompletePublishesOnlyIfItStaysAndEvaluatesNothing) {
  StepLoop::Options options = Steps(0);
  options.evaluate_every_steps = 1;
  options.serve_complete = true;
  world_.Start(options);
  const auto outcome = world_.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  EXPECT_THAT(world_.published.All(), ElementsAre(PolicyVersion{1, 0}));
  for (const Lease& lease : world_.rollouter().leases.All()) EXPECT_EQ(lease.kind, LeaseKind::kTraining);

  StepLoopWorld other;
  other.Start(Steps(0));
  ASSERT_THAT(other.Wait(), IsOk());
  EXPECT_TRUE(other.published.All().empty());
}

TEST_F(StepLoopTest, NoStepBeginsAfterThePauseWasAnsweredThoughABatchIsReady) {
  world_.rollouter().HoldAnswers(true);
  world_.Start(Steps(3));
  ASSERT_TRUE(world_.rollouter().leases.WaitFor(kBatchGroups));  // the loop waits for the answers
  world_.loop().Pause();
  world_.rollouter().HoldAnswers(false);
  ASSERT_TRUE(world_.rollouter().acks.WaitFor(kBatchGroups));
  for (int i = 0; i < 2; ++i) EXPECT_THAT(world_.SaveCheckpoint(), IsOk());
  EXPECT_EQ(world_.policy.begun(), 0);
  EXPECT_EQ(world_.loop().GetStatus().version.step, 0);

  world_.loop().Resume();
  const auto outcome = world_.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(world_.policy.begun(), 3);
}

TEST_F(StepLoopTest, APauseLetsTheStepUnderWayEndAndCheckpointsAreSavedInIt) {
  world_.policy.Hold();
  world_.Start(Steps(1000));
  ASSERT_TRUE(world_.policy.AwaitBegun(1));
  world_.loop().Pause();
  world_.policy.Release();
  const auto saved = world_.SaveCheckpoint();
  ASSERT_THAT(saved, IsOk());
  EXPECT_EQ(*saved, "e1-s1");
  EXPECT_THAT(world_.SaveCheckpoint(), IsOk());
  EXPECT_EQ(world_.policy.begun(), 1);
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s1"));
}

TEST_F(StepLoopTest, AStopEndsTheRunAfterTheStepUnderWayWithACheckpoint) {
  world_.policy.Hold();
  world_.Start(Steps(1000));
  ASSERT_TRUE(world_.policy.AwaitBegun(1));
  world_.loop().Stop();
  world_.policy.Release();
  const auto outcome = world_.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kStopped);
  EXPECT_EQ(world_.policy.begun(), 1);
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s1"));
}

TEST_F(StepLoopTest, AStopEndsAPauseToo) {
  world_.rollouter().HoldAnswers(true);
  world_.Start(Steps(1000));
  ASSERT_TRUE(world_.published.WaitFor(1));
  world_.loop().Pause();
  world_.loop().Stop();
  const auto outcome = world_.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kStopped);
  EXPECT_EQ(world_.policy.begun(), 0);
}

TEST_F(StepLoopTest, AStepThatFailsEndsTheRunWithItsErrorAndSavesNothing) {
  world_.policy.FailFrom(2);
  world_.Start(Steps(1000));
  EXPECT_THAT(world_.Wait(), HasReason("TORCH"));
  EXPECT_EQ(world_.loop().GetStatus().state, "failed");
  EXPECT_EQ(world_.loop().GetStatus().version, (PolicyVersion{1, 1}));
  EXPECT_THAT(world_.Checkpoints(), IsEmpty());
  EXPECT_THAT(world_.SaveCheckpoint(), HasReason("RUN_OVER"));
}

// The versions that were evaluated, in order.
std::vector<PolicyVersion> Evaluated(StepLoopWorld& world) {
  std::vector<PolicyVersion> versions;
  for (const Lease& lease : world.rollouter().leases.All()) {
    if (lease.kind != LeaseKind::kEvaluation) continue;
    if (versions.empty() || versions.back() != lease.version) versions.push_back(lease.version);
  }
  return versions;
}

TEST_F(StepLoopTest, EachCheckpointIsPublishedAndEvaluatedAndTheBestIsNamedInAFile) {
  StepLoop::Options options = Steps(4);
  options.checkpoint_every_steps = 2;
  options.evaluate_every_steps = 1000;
  options.publish_every_steps = 3;
  // Step 1 waits until version 0 is evaluated, step 3 until the version of step 2 is.
  world_.policy.HoldFrom(1);
  world_.Start(options);
  ASSERT_TRUE(world_.rollouter().AwaitEvaluated({1, 0}));
  world_.policy.HoldFrom(3);
  ASSERT_TRUE(world_.rollouter().AwaitEvaluated({1, 2}));
  world_.policy.Release();
  ASSERT_THAT(world_.Wait(), IsOk());
  EXPECT_THAT(world_.published.All(),
              ElementsAre(PolicyVersion{1, 0}, PolicyVersion{1, 2}, PolicyVersion{1, 3}, PolicyVersion{1, 4}));
  EXPECT_THAT(Evaluated(world_), ElementsAre(PolicyVersion{1, 0}, PolicyVersion{1, 2}, PolicyVersion{1, 4}));
  // All answers are right: among equally good checkpoints the newer one is the best.
  EXPECT_THAT(ReadFile(&world_.checkpoint_disk, "/checkpoints/best.json", 1000).value(), HasSubstr("e1-s4"));
  EXPECT_EQ(world_.loop().GetStatus().best_checkpoint, "e1-s4");
  EXPECT_EQ(world_.loop().GetStatus().best_checkpoint_reward, 1);
}

TEST_F(StepLoopTest, ACheckpointThatAnOperatorAskedForIsEvaluatedToo) {
  StepLoop::Options options = Steps(1000);
  options.evaluate_every_steps = 1000;
  world_.policy.HoldFrom(1);
  world_.Start(options);
  ASSERT_TRUE(world_.rollouter().AwaitEvaluated({1, 0}));
  world_.policy.HoldFrom(2);
  ASSERT_TRUE(world_.policy.AwaitBegun(2));
  world_.loop().Pause();
  world_.policy.Release();
  ASSERT_THAT(world_.SaveCheckpoint(), IsOk());
  EXPECT_TRUE(world_.rollouter().AwaitEvaluated({1, 2}));
}

TEST_F(StepLoopTest, AnEvaluationIsOverThePromptsThatWereJudgedAndHasNoFigureWithoutAny) {
  StepLoop::Options options = Steps(2);
  options.evaluate_every_steps = 1000;
  // The first step waits until the evaluation of version 0 is over, the second until it is reported.
  world_.policy.HoldFrom(1);
  world_.rollouter().FailEvaluationPrompts({2});
  world_.Start(options);
  ASSERT_TRUE(world_.rollouter().returned.WaitFor(Evaluation::kMaxRewardFailures));
  world_.policy.HoldFrom(2);
  ASSERT_TRUE(world_.observer.evaluations.WaitFor(1));
  EXPECT_EQ(world_.observer.evaluations.All()[0].asked, TrainingDataWorld::kEvaluationPrompts);
  EXPECT_EQ(world_.observer.evaluations.All()[0].prompts, TrainingDataWorld::kEvaluationPrompts - 1);

  world_.rollouter().FailEvaluationPrompts({0, 1, 2, 3, 4, 5});  // all prompts of the last evaluation
  world_.policy.Release();
  ASSERT_THAT(world_.Wait(), IsOk());
  EXPECT_THAT(Evaluated(world_), ElementsAre(PolicyVersion{1, 0}, PolicyVersion{1, 2}));
  EXPECT_EQ(world_.observer.evaluations.size(), 1u);
}

TEST_F(StepLoopTest, WithoutEvaluationsOnTheWayCheckpointsAreNotEvaluated) {
  StepLoop::Options options = Steps(3);
  options.checkpoint_every_steps = 1;
  world_.Start(options);
  ASSERT_THAT(world_.Wait(), IsOk());
  EXPECT_THAT(Evaluated(world_), ElementsAre(PolicyVersion{1, 3}));  // evaluated at the end
}

TEST_F(StepLoopTest, WeightsThatAreNotFiniteAreNeitherPublishedNorSaved) {
  StepLoop::Options options = Steps(1000);
  options.checkpoint_every_steps = 1;
  world_.policy.SpoilFrom(2);
  world_.Start(options);
  const auto outcome = world_.Wait();
  EXPECT_THAT(outcome, HasReason("NON_FINITE"));
  EXPECT_THAT(outcome, HasMessage(HasSubstr(FakePolicy::kTensor)));
  EXPECT_THAT(outcome, HasMessage(HasSubstr("e1-s2")));
  EXPECT_THAT(world_.published.All(), ElementsAre(PolicyVersion{1, 0}, PolicyVersion{1, 1}));
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s1"));
}

TEST_F(StepLoopTest, NorAreThoseOfAStepThatIsNotPublished) {
  StepLoop::Options options = Steps(1000);
  options.publish_every_steps = 4;
  options.checkpoint_every_steps = 1;
  world_.policy.SpoilFrom(2);
  world_.Start(options);
  const auto outcome = world_.Wait();
  EXPECT_THAT(outcome, HasReason("NON_FINITE"));
  EXPECT_THAT(outcome, HasMessage(HasSubstr(FakePolicy::kTensor)));
  EXPECT_EQ(world_.policy.begun(), 2);
  EXPECT_THAT(world_.Checkpoints(), ElementsAre("e1-s1"));
}

TEST_F(StepLoopTest, ARequestForACheckpointOfSpoiltWeightsIsAnsweredWithWhatIsWrong) {
  StepLoop::Options options = Steps(1000);
  options.publish_every_steps = 4;
  world_.policy.SpoilFrom(1);
  world_.policy.Hold();
  world_.Start(options);
  ASSERT_TRUE(world_.policy.AwaitBegun(1));
  world_.loop().Pause();
  world_.policy.Release();
  EXPECT_THAT(world_.SaveCheckpoint(), HasReason("NON_FINITE"));
  EXPECT_THAT(world_.Checkpoints(), IsEmpty());
}

// The versions that a rollouter was asked to evaluate, without repetitions.
std::set<int64_t> EvaluatedSteps(FakeRollouter& rollouter) {
  std::set<int64_t> steps;
  for (const Lease& lease : rollouter.leases.All()) {
    if (lease.kind == LeaseKind::kEvaluation) steps.insert(lease.version.step);
  }
  return steps;
}

TEST_F(StepLoopTest, AnEvaluationThatNobodyCanAnswerBecauseItsSyncsFailedGivesWayToTheNext) {
  world_.AddLaggard(/*last=*/0);
  // So the evaluation of step 2 waits; it is not superseded while a rollouter may come to serve its version.
  world_.failing_syncs = {2};
  StepLoop::Options options = Steps(4);
  options.evaluate_every_steps = 2;
  world_.Start(options);
  const auto outcome = world_.Wait();
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(*outcome, Outcome::kCompleted);
  EXPECT_THAT(EvaluatedSteps(world_.rollouter()), ::testing::Contains(4));
  EXPECT_THAT(EvaluatedSteps(world_.rollouter()), ::testing::Not(::testing::Contains(2)));
  EXPECT_THAT(world_.observer.lost_evaluations.All(), ::testing::Contains(PolicyVersion{1, 2}));
}

TEST_F(StepLoopTest, AfterABadWireTheVersionThenServedIsEvaluatedAtOnceAndTheOneThatWasDueIsLost) {
  world_.failing_syncs = {3, 4, 5, 6};  // so the evaluation of step 3 waits
  world_.policy.HoldFrom(1);
  StepLoop::Options options = Steps(1000);
  options.evaluate_every_steps = 3;
  world_.Start(options);
  ASSERT_TRUE(world_.rollouter().AwaitEvaluated({1, 0}));  // no later version supersedes it
  world_.policy.HoldFrom(5);
  ASSERT_TRUE(world_.policy.AwaitBegun(5));
  world_.Sync({1, 4});        // no rollouter will serve version 3 any more
  world_.policy.HoldFrom(6);  // by then version 5 is published, and no rollouter serves it
  EXPECT_TRUE(world_.rollouter().AwaitEvaluated({1, 4}));
  ASSERT_TRUE(world_.observer.lost_evaluations.WaitFor(1));
  world_.loop().Stop();
  world_.policy.Release();
  ASSERT_THAT(world_.Wait(), IsOk());
  EXPECT_THAT(world_.observer.lost_evaluations.All(), ElementsAre(PolicyVersion{1, 3}));
}

TEST_F(StepLoopTest, AnEvaluationThatIsDueWhileAnotherIsAnsweredComesAfterIt) {
  FakeRollouter& laggard = world_.AddLaggard(/*last=*/0);
  laggard.HoldAnswers(LeaseKind::kEvaluation, true);
  world_.failing_syncs = {0};  // so only the laggard gets prompts for version 0
  world_.policy.HoldFrom(5);
  StepLoop::Options options = Steps(1000);
  options.evaluate_every_steps = 4;
  world_.Start(options);
  ASSERT_TRUE(world_.policy.AwaitBegun(5));  // the evaluation of step 4 was due, and the laggard is at that of step 0
  laggard.HoldAnswers(LeaseKind::kEvaluation, false);
  ASSERT_TRUE(laggard.AwaitEvaluated({1, 0}));
  world_.policy.HoldFrom(8);  // the evaluation of this step does not matter here
  auto comes_after = [&] {
    const std::set<int64_t> steps = EvaluatedSteps(world_.rollouter());
    return steps.lower_bound(4) != steps.end();
  };
  for (size_t heard = 1; !comes_after(); ++heard) ASSERT_TRUE(world_.rollouter().leases.WaitFor(heard)) << "none after";
  world_.loop().Stop();
  world_.policy.Release();
  ASSERT_THAT(world_.Wait(), IsOk());
}

}  // namespace
}  // namespace syncopate::trainer
