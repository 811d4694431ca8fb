#include "tools/run/supervision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace syncopate::run {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const ChildId kSynchronizer{"synchronizer", 0};
const ChildId kTrainer{"trainer", 0};
const ChildId kFirst{"rollouter", 0};
const ChildId kSecond{"rollouter", 1};
const ChildExit kCrash{true, 9};
const ChildExit kWell{false, 0};
const ChildExit kRefusal{false, 2};
const ChildExit kError{false, 1};
const ChildExit kLostPeer{false, 4};

ChildAction MakeStart(const ChildId& child) { return {ChildAction::Kind::kStart, child}; }
ChildAction GetTerminate(const ChildId& child) { return {ChildAction::Kind::kTerminate, child}; }
ChildAction ReadKill(const ChildId& child) { return {ChildAction::Kind::kKill, child}; }

class RunSupervisionTest : public ::testing::Test {
 protected:
  static RunSupervision::Options TwoRollouters() {
    RunSupervision::Options options;
    options.rollouters = 2;
    options.grace = absl::Seconds(10);
    return options;
  }
  absl::Time At(double seconds) const { return start_ + absl::Seconds(seconds); }
  // All four daemons become ready at 0 s.
  void GetReady() {
    supervision_.Start(start_);
    supervision_.OnReady(kSynchronizer, start_);
    for (const ChildId& child : {kTrainer, kFirst, kSecond}) supervision_.OnReady(child, start_);
  }
  // Advances the time to the next tick.
  std::vector<ChildAction> TickAtNext() {
    EXPECT_LT(supervision_.NextTick(), absl::InfiniteFuture());
    return supervision_.OnTick(supervision_.NextTick());
  }

  const absl::Time start_ = absl::UnixEpoch() + absl::Hours(1);
  RunSupervision supervision_{TwoRollouters()};
};

TEST_F(RunSupervisionTest, StartsTheSynchronizerAndOnceItIsReadyTheOthers) {
  EXPECT_THAT(supervision_.Start(start_), ElementsAre(MakeStart(kSynchronizer)));
  EXPECT_THAT(supervision_.OnReady(kSynchronizer, At(1)),
              UnorderedElementsAre(MakeStart(kTrainer), MakeStart(kFirst), MakeStart(kSecond)));
  EXPECT_THAT(supervision_.OnReady(kTrainer, At(2)), IsEmpty());
  EXPECT_FALSE(supervision_.done());
}

TEST_F(RunSupervisionTest, StartsACrashedRollouterAgainAfterABackoff) {
  GetReady();
  EXPECT_THAT(supervision_.OnExit(kSecond, kCrash, At(5)), IsEmpty());
  EXPECT_TRUE(supervision_.WillRestart(kSecond));
  EXPECT_FALSE(supervision_.WillRestart(kFirst));
  EXPECT_THAT(supervision_.OnTick(At(5.1)), IsEmpty());
  EXPECT_EQ(supervision_.NextTick(), At(5.2));
  EXPECT_THAT(supervision_.OnTick(At(5.2)), ElementsAre(MakeStart(kSecond)));
  EXPECT_EQ(supervision_.Restarts().at(kSecond), 1);
  EXPECT_EQ(supervision_.Restarts().at(kFirst), 0);
  EXPECT_FALSE(supervision_.stopping());
}

TEST(RollouterRanksSupervisionTest, NoRankStartsAgainBesideOneOfAnEarlierStart) {
  const absl::Time start = absl::UnixEpoch() + absl::Hours(1);
  const ChildId other{"rollouter", 0, 1};
  RunSupervision supervision({.rollouters = 1, .rollouter_ranks = 2, .lost_replica_grace = absl::Seconds(10)});
  supervision.Start(start);
  EXPECT_THAT(supervision.OnReady(kSynchronizer, start),
              UnorderedElementsAre(MakeStart(kTrainer), MakeStart(kFirst), MakeStart(other)));
  for (const ChildId& child : {kTrainer, kFirst, other}) supervision.OnReady(child, start);
  supervision.OnExit(other, kCrash, start);
  EXPECT_THAT(supervision.OnTick(start + absl::Seconds(5)), IsEmpty());
  supervision.OnExit(kFirst, {false, 4}, start + absl::Seconds(6));
  // No rank of the earlier start is left: a rank that is due starts, also beside the other rank's new process.
  EXPECT_THAT(supervision.OnTick(start + absl::Seconds(6)), ElementsAre(MakeStart(other)));
  EXPECT_THAT(supervision.OnTick(start + absl::Seconds(7)), ElementsAre(MakeStart(kFirst)));
}

TEST(RollouterRanksSupervisionTest, ARankThatDoesNotEndWithTheOthersIsKilledSoThatAllStartAgain) {
  const absl::Time start = absl::UnixEpoch() + absl::Hours(1);
  const ChildId stopped{"rollouter", 0, 1};
  RunSupervision supervision({.rollouters = 1, .rollouter_ranks = 2});
  supervision.Start(start);
  supervision.OnReady(kSynchronizer, start);
  for (const ChildId& child : {kTrainer, kFirst, stopped}) supervision.OnReady(child, start);
  supervision.OnExit(kFirst, kLostPeer, start);
  EXPECT_THAT(supervision.OnTick(start + absl::Seconds(1)), IsEmpty());
  const absl::Time late = supervision.NextTick();
  EXPECT_GT(late, start + absl::Seconds(1)) << "no action is due before";
  EXPECT_THAT(supervision.OnTick(late), ElementsAre(ReadKill(stopped)));
  EXPECT_THAT(supervision.OnTick(late + absl::Seconds(1)), IsEmpty()) << "once";
  supervision.OnExit(stopped, kCrash, late + absl::Seconds(1));
  EXPECT_THAT(supervision.OnTick(late + absl::Seconds(2)), UnorderedElementsAre(MakeStart(kFirst), MakeStart(stopped)));
}

TEST_F(RunSupervisionTest, ARollouterThatLeavesWithCodeZeroIsStartedAgainToo) {
  GetReady();
  supervision_.OnExit(kFirst, kWell, At(5));
  EXPECT_THAT(TickAtNext(), ElementsAre(MakeStart(kFirst)));
}

TEST_F(RunSupervisionTest, StartsACrashedSynchronizerAgainAndNobodyElseTwice) {
  GetReady();
  supervision_.OnExit(kSynchronizer, kCrash, At(5));
  EXPECT_THAT(TickAtNext(), ElementsAre(MakeStart(kSynchronizer)));
  EXPECT_THAT(supervision_.OnReady(kSynchronizer, At(6)), IsEmpty());
}

TEST_F(RunSupervisionTest, TheTrainersGoodEndCompletesTheRunAndStopsTheOthers) {
  GetReady();
  EXPECT_THAT(supervision_.OnExit(kTrainer, kWell, At(9)),
              UnorderedElementsAre(GetTerminate(kSynchronizer), GetTerminate(kFirst), GetTerminate(kSecond)));
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kCompleted);
  for (const ChildId& child : {kFirst, kSynchronizer}) supervision_.OnExit(child, kWell, At(9));
  EXPECT_FALSE(supervision_.done());
  supervision_.OnExit(kSecond, kWell, At(9));
  EXPECT_TRUE(supervision_.done());
}

TEST_F(RunSupervisionTest, TheTrainersDeathFailsTheRun) {
  GetReady();
  EXPECT_THAT(supervision_.OnExit(kTrainer, kCrash, At(9)),
              UnorderedElementsAre(GetTerminate(kSynchronizer), GetTerminate(kFirst), GetTerminate(kSecond)));
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kFailed);
  EXPECT_EQ(supervision_.culprit(), "trainer-0");
  EXPECT_EQ(supervision_.reason(), "trainer-0 was killed by signal 9");
}

TEST_F(RunSupervisionTest, AnInterruptAsksTheTrainerFirstAndTheOthersWhenItIsGone) {
  GetReady();
  EXPECT_THAT(supervision_.OnInterrupt(At(9)), ElementsAre(GetTerminate(kTrainer)));
  EXPECT_THAT(supervision_.OnExit(kTrainer, kWell, At(10)),
              UnorderedElementsAre(GetTerminate(kSynchronizer), GetTerminate(kFirst), GetTerminate(kSecond)));
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kInterrupted);
}

TEST_F(RunSupervisionTest, ADaemonThatIsLateIsKilledWithinTheGrace) {
  GetReady();
  supervision_.OnInterrupt(At(0));
  EXPECT_THAT(supervision_.OnTick(At(6.9)), IsEmpty());
  EXPECT_THAT(supervision_.OnTick(At(7)), ElementsAre(ReadKill(kTrainer)));
  supervision_.OnExit(kTrainer, kCrash, At(7));
  EXPECT_THAT(supervision_.OnTick(At(8.9)), IsEmpty());
  EXPECT_THAT(supervision_.OnTick(At(9)),
              UnorderedElementsAre(ReadKill(kSynchronizer), ReadKill(kFirst), ReadKill(kSecond)));
  EXPECT_EQ(supervision_.NextTick(), absl::InfiniteFuture());
}

TEST_F(RunSupervisionTest, ASecondInterruptKillsEverybodyAtOnce) {
  GetReady();
  supervision_.OnInterrupt(At(1));
  EXPECT_THAT(supervision_.OnInterrupt(At(1.5)),
              UnorderedElementsAre(ReadKill(kTrainer), ReadKill(kSynchronizer), ReadKill(kFirst), ReadKill(kSecond)));
}

TEST_F(RunSupervisionTest, NothingIsStartedWhileStopping) {
  GetReady();
  supervision_.OnExit(kFirst, kCrash, At(1));
  supervision_.OnInterrupt(At(1.1));
  supervision_.OnExit(kSecond, kCrash, At(1.2));
  for (double at = 1.2; at < 12; at += 0.1) {
    for (const ChildAction& action : supervision_.OnTick(At(at))) EXPECT_NE(action.kind, ChildAction::Kind::kStart);
  }
  supervision_.OnExit(kTrainer, kWell, At(12));
  supervision_.OnExit(kSynchronizer, kWell, At(12));
  EXPECT_TRUE(supervision_.done());
}

TEST_F(RunSupervisionTest, AnInterruptBeforeTheSynchronizerIsReadyStartsNobody) {
  supervision_.Start(start_);
  EXPECT_THAT(supervision_.OnInterrupt(At(0.1)), ElementsAre(GetTerminate(kSynchronizer)));
  EXPECT_THAT(supervision_.OnReady(kSynchronizer, At(0.2)), IsEmpty());
  supervision_.OnExit(kSynchronizer, kWell, At(0.3));
  EXPECT_TRUE(supervision_.done());
}

TEST_F(RunSupervisionTest, ARollouterThatNeverStartsIsGivenUpWithGrowingBackoffAndTheRunGoesOn) {
  GetReady();
  supervision_.OnExit(kSecond, kCrash, At(1));
  std::vector<absl::Duration> backoffs;
  for (absl::Time now = At(1); supervision_.NextTick() < absl::InfiniteFuture();) {
    backoffs.push_back(supervision_.NextTick() - now);
    now = supervision_.NextTick();
    EXPECT_THAT(supervision_.OnTick(now), ElementsAre(MakeStart(kSecond)));
    supervision_.OnExit(kSecond, kError, now);
  }
  EXPECT_THAT(backoffs, ElementsAre(absl::Milliseconds(200), absl::Milliseconds(200), absl::Milliseconds(400),
                                    absl::Milliseconds(800), absl::Milliseconds(1600)));
  EXPECT_FALSE(supervision_.WillRestart(kSecond));
  EXPECT_FALSE(supervision_.stopping());
}

TEST_F(RunSupervisionTest, TheRunFailsWhenNoRollouterIsLeft) {
  GetReady();
  for (const ChildId& child : {kFirst, kSecond}) {
    supervision_.OnExit(child, kCrash, At(1));
    while (!supervision_.stopping() && supervision_.NextTick() < absl::InfiniteFuture()) {
      absl::Time now = supervision_.NextTick();
      supervision_.OnTick(now);
      supervision_.OnExit(child, kError, now);
    }
  }
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kFailed);
  EXPECT_THAT(supervision_.reason(), HasSubstr("rollouter-1 failed to start 5 times"));
}

TEST_F(RunSupervisionTest, ARollouterThatWorksBetweenCrashesIsNotGivenUpForThem) {
  GetReady();
  for (int crash = 0; crash < 20; ++crash) {
    absl::Time now = At(3 * crash + 1);
    supervision_.OnExit(kFirst, kCrash, now);
    EXPECT_THAT(supervision_.OnTick(now + absl::Seconds(1)), ElementsAre(MakeStart(kFirst))) << crash;
    supervision_.OnReady(kFirst, now + absl::Seconds(2));
  }
  EXPECT_EQ(supervision_.Restarts().at(kFirst), 20);
}

TEST_F(RunSupervisionTest, ASynchronizerThatCrashesAllTheTimeFailsTheRun) {
  GetReady();
  absl::Time now = At(1);
  for (int crash = 0; crash < 100 && !supervision_.stopping(); ++crash) {
    supervision_.OnExit(kSynchronizer, kCrash, now);
    now += absl::Milliseconds(200);
    supervision_.OnTick(now);
    supervision_.OnReady(kSynchronizer, now);
  }
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kFailed);
  EXPECT_THAT(supervision_.reason(), HasSubstr("died 31 times within a minute"));
}

TEST_F(RunSupervisionTest, ADaemonThatFindsTheDiskFullIsStartedAgainEachSecondHoweverLongThatTakes) {
  const ChildExit no_room{false, 5};
  supervision_.Start(start_);
  for (int second = 0; second < 500; ++second) {
    EXPECT_THAT(supervision_.OnExit(kSynchronizer, no_room, At(second)), IsEmpty());
    EXPECT_TRUE(supervision_.WaitsForRoom(kSynchronizer));
    ASSERT_EQ(supervision_.NextTick(), At(second + 1));
    ASSERT_THAT(supervision_.OnTick(At(second + 1)), ElementsAre(MakeStart(kSynchronizer)));
  }
  supervision_.OnReady(kSynchronizer, At(500));
  for (const ChildId& child : {kFirst, kSecond}) supervision_.OnReady(child, At(500));
  // The trainer is restarted, too; in other cases its end is the end of the run.
  for (int second = 500; second < 600; ++second) {
    EXPECT_THAT(supervision_.OnExit(kTrainer, no_room, At(second)), IsEmpty());
    ASSERT_THAT(supervision_.OnTick(At(second + 1)), ElementsAre(MakeStart(kTrainer)));
  }
  EXPECT_FALSE(supervision_.stopping());
  EXPECT_EQ(supervision_.Restarts().at(kSynchronizer), 0);
  EXPECT_EQ(supervision_.Restarts().at(kTrainer), 0);
  // Once the trainer was ready, the same code is a failure like any other.
  supervision_.OnReady(kTrainer, At(601));
  supervision_.OnExit(kTrainer, no_room, At(602));
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kFailed);
}

TEST_F(RunSupervisionTest, ADaemonThatRefusesItsConfigurationFailsTheRunAtOnce) {
  GetReady();
  supervision_.OnExit(kFirst, kRefusal, At(1));
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kFailed);
  EXPECT_EQ(supervision_.reason(), "rollouter-0 refuses its configuration");
}

TEST_F(RunSupervisionTest, AResumeIsOfferedOnlyWhereItCanEndOtherwise) {
  struct Case {
    bool ready;
    ChildId child;
    ChildExit exit;
    bool helps;
  };
  const Case cases[] = {
      {true, kTrainer, kCrash, true},    {true, kTrainer, kError, true},      {true, kTrainer, kLostPeer, true},
      {true, kTrainer, kRefusal, false}, {true, kTrainer, {false, 3}, false}, {true, kTrainer, kWell, false},
      {true, kFirst, kRefusal, false},   {false, kTrainer, kCrash, true},     {false, kTrainer, kError, false}};
  for (const Case& c : cases) {
    RunSupervision run(TwoRollouters());
    run.Start(start_);
    run.OnReady(kSynchronizer, start_);
    for (const ChildId& child : {kTrainer, kFirst, kSecond}) {
      if (c.ready) run.OnReady(child, start_);
    }
    run.OnExit(c.child, c.exit, At(1));
    EXPECT_EQ(run.resume_helps(), c.helps) << c.child.Name() << " " << c.exit.ToString();
  }
  GetReady();
  EXPECT_FALSE(supervision_.resume_helps()) << "the run goes on";
  supervision_.OnInterrupt(At(1));
  EXPECT_TRUE(supervision_.resume_helps());
}

TEST_F(RunSupervisionTest, ARollouterThatWasGivenUpLongAgoDoesNotSpeakAgainstAResume) {
  GetReady();
  supervision_.OnExit(kSecond, kCrash, At(1));
  while (supervision_.NextTick() < absl::InfiniteFuture()) {
    const absl::Time now = supervision_.NextTick();
    supervision_.OnTick(now);
    supervision_.OnExit(kSecond, kError, now);
  }
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kRunning);
  supervision_.OnExit(kTrainer, kCrash, At(1000));
  EXPECT_TRUE(supervision_.resume_helps());
}

TEST_F(RunSupervisionTest, ASynchronizerHasAMinuteToGetReadyAsItReadsNoModel) {
  supervision_.Start(start_);
  EXPECT_THAT(supervision_.OnTick(At(59.9)), IsEmpty());
  EXPECT_THAT(supervision_.OnTick(At(60)), ElementsAre(ReadKill(kSynchronizer)));
}

TEST_F(RunSupervisionTest, AChildThatNeverGetsReadyIsKilledAndStartedAgain) {
  supervision_.Start(start_);
  supervision_.OnReady(kSynchronizer, start_);
  supervision_.OnReady(kTrainer, start_);
  supervision_.OnReady(kFirst, start_);
  EXPECT_THAT(supervision_.OnTick(At(299.9)), IsEmpty());
  EXPECT_THAT(supervision_.OnTick(At(300)), ElementsAre(ReadKill(kSecond)));
  EXPECT_THAT(supervision_.OnTick(At(300.1)), IsEmpty());
  supervision_.OnExit(kSecond, kCrash, At(300.2));
  EXPECT_THAT(supervision_.OnTick(At(300.4)), ElementsAre(MakeStart(kSecond)));
}

// What it waited for, such as a worker that is not there, its log says; the signal alone would say nothing.
TEST_F(RunSupervisionTest, ATrainerThatDoesNotGetReadyInTimeEndsTheRunWithThatReason) {
  supervision_.Start(start_);
  supervision_.OnReady(kSynchronizer, start_);
  for (const ChildId& rollouter : {kFirst, kSecond}) supervision_.OnReady(rollouter, start_);
  EXPECT_THAT(supervision_.OnTick(At(300)), ElementsAre(ReadKill(kTrainer)));
  supervision_.OnExit(kTrainer, kCrash, At(300.1));
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kFailed);
  EXPECT_THAT(supervision_.reason(), HasSubstr("trainer-0 was not ready 5m after its start and was killed"));
}

TEST_F(RunSupervisionTest, AFailureOutsideStopsTheRunInOrder) {
  GetReady();
  EXPECT_THAT(supervision_.OnFailure("the disk is full", At(1)), ElementsAre(GetTerminate(kTrainer)));
  EXPECT_EQ(supervision_.reason(), "the disk is full");
  EXPECT_EQ(supervision_.culprit(), "");
}

class RunSupervisionWithWorkerTest : public ::testing::Test {
 protected:
  const ChildId worker_{"environment", 0};
  const absl::Time start_ = absl::UnixEpoch() + absl::Hours(1);
  RunSupervision supervision_{{.rollouters = 1, .workers = 1}};
};

TEST_F(RunSupervisionWithWorkerTest, NobodyTrainsBeforeTheWorkerIsReady) {
  EXPECT_THAT(supervision_.Start(start_), ElementsAre(MakeStart(kSynchronizer), MakeStart(worker_)));
  EXPECT_THAT(supervision_.OnReady(kSynchronizer, start_), IsEmpty());
  EXPECT_THAT(supervision_.OnReady(worker_, start_), UnorderedElementsAre(MakeStart(kTrainer), MakeStart(kFirst)));
}

TEST_F(RunSupervisionWithWorkerTest, AWorkerThatDiesIsStartedAgainAndTheOthersStay) {
  supervision_.Start(start_);
  for (const ChildId& child : {kSynchronizer, worker_, kTrainer, kFirst}) supervision_.OnReady(child, start_);
  EXPECT_THAT(supervision_.OnExit(worker_, kCrash, start_), IsEmpty());
  EXPECT_TRUE(supervision_.WillRestart(worker_));
  EXPECT_THAT(supervision_.OnTick(supervision_.NextTick()), ElementsAre(MakeStart(worker_)));
  EXPECT_THAT(supervision_.OnReady(worker_, start_), IsEmpty());
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kRunning);
}

TEST_F(RunSupervisionWithWorkerTest, AWorkerThatNeverStartsEndsTheRun) {
  supervision_.Start(start_);
  supervision_.OnReady(kSynchronizer, start_);
  for (int i = 0; i < 5; ++i) {
    supervision_.OnExit(worker_, kError, start_);
    if (!supervision_.stopping()) supervision_.OnTick(supervision_.NextTick());
  }
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kFailed);
  EXPECT_EQ(supervision_.culprit(), "environment-0");
}

class RunSupervisionWithWorkersTest : public ::testing::Test {
 protected:
  // Lets a worker die and fail to start until it is given up.
  void GiveUp(const ChildId& worker) {
    for (int i = 0; i < 6; ++i) {
      supervision_.OnExit(worker, kError, start_);
      if (!supervision_.stopping()) supervision_.OnTick(supervision_.NextTick());
    }
  }

  const ChildId first_{"environment", 0}, second_{"environment", 1};
  const absl::Time start_ = absl::UnixEpoch() + absl::Hours(1);
  RunSupervision supervision_{{.rollouters = 1, .workers = 2}};
};

TEST_F(RunSupervisionWithWorkersTest, NobodyTrainsBeforeAllWorkersAreReady) {
  EXPECT_THAT(supervision_.Start(start_), ElementsAre(MakeStart(kSynchronizer), MakeStart(first_), MakeStart(second_)));
  EXPECT_THAT(supervision_.OnReady(kSynchronizer, start_), IsEmpty());
  EXPECT_THAT(supervision_.OnReady(second_, start_), IsEmpty());
  EXPECT_THAT(supervision_.OnReady(first_, start_), UnorderedElementsAre(MakeStart(kTrainer), MakeStart(kFirst)));
}

TEST_F(RunSupervisionWithWorkersTest, TheRunGoesOnAsLongAsOneWorkerIsLeft) {
  supervision_.Start(start_);
  for (const ChildId& child : {kSynchronizer, first_, second_, kTrainer, kFirst}) supervision_.OnReady(child, start_);
  GiveUp(second_);
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kRunning);
  GiveUp(first_);
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kFailed);
  EXPECT_EQ(supervision_.culprit(), "environment-0");
}

TEST_F(RunSupervisionWithWorkersTest, OneThatNeverStartsEndsTheRunAsTheOthersWaitForIt) {
  supervision_.Start(start_);
  supervision_.OnReady(kSynchronizer, start_);
  supervision_.OnReady(first_, start_);
  GiveUp(second_);
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kFailed);
  EXPECT_EQ(supervision_.culprit(), "environment-1");
}

class TrainerRanksTest : public ::testing::Test {
 protected:
  TrainerRanksTest() {
    supervision_.Start(start_);
    supervision_.OnReady(kSynchronizer, start_);
    for (const ChildId& child : {kTrainer, kOtherRank, kFirst}) supervision_.OnReady(child, start_);
  }
  static RunSupervision::Options TwoRanks() {
    RunSupervision::Options options;
    options.trainer_ranks = 2;
    options.grace = absl::Seconds(10);
    return options;
  }
  const ChildId kOtherRank{"trainer", 1};
  const absl::Time start_ = absl::UnixEpoch() + absl::Hours(1);
  RunSupervision supervision_{TwoRanks()};
};

TEST_F(TrainerRanksTest, OneThatFailsEndsTheRunAndRankZeroIsAskedFirst) {
  EXPECT_THAT(supervision_.OnExit(kOtherRank, kCrash, start_), ElementsAre(GetTerminate(kTrainer)));
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kFailed);
  EXPECT_EQ(supervision_.culprit(), "trainer-1");
  EXPECT_THAT(supervision_.OnExit(kTrainer, kError, start_),
              UnorderedElementsAre(GetTerminate(kSynchronizer), GetTerminate(kFirst)));
}

// Rank 0 has detected a silent rank: a stopped process reacts only to SIGKILL.
TEST_F(TrainerRanksTest, TheRanksLeftAfterALostRankAreKilledSoonWhateverTheGrace) {
  EXPECT_THAT(supervision_.OnExit(kTrainer, kLostPeer, start_),
              UnorderedElementsAre(GetTerminate(kOtherRank), GetTerminate(kSynchronizer), GetTerminate(kFirst)));
  EXPECT_TRUE(supervision_.lost_peer());
  EXPECT_EQ(supervision_.NextTick(), start_ + absl::Seconds(1.5));
  EXPECT_THAT(supervision_.OnTick(supervision_.NextTick()), ElementsAre(ReadKill(kOtherRank)));
  supervision_.OnExit(kOtherRank, kCrash, start_ + absl::Seconds(1.6));
  EXPECT_EQ(supervision_.NextTick(), start_ + absl::Seconds(2.5));
  EXPECT_THAT(supervision_.OnTick(supervision_.NextTick()),
              UnorderedElementsAre(ReadKill(kSynchronizer), ReadKill(kFirst)));
  EXPECT_EQ(supervision_.reason(), "trainer-0 exited with code 4; trainer-1 did not end and was killed");
}

TEST_F(TrainerRanksTest, AStoppedRankZeroIsKilledSoonToo) {
  EXPECT_THAT(supervision_.OnExit(kOtherRank, kLostPeer, start_), ElementsAre(GetTerminate(kTrainer)));
  EXPECT_THAT(supervision_.OnTick(start_ + absl::Seconds(1.5)), ElementsAre(ReadKill(kTrainer)));
  EXPECT_THAT(supervision_.OnExit(kTrainer, kCrash, start_ + absl::Seconds(1.6)),
              UnorderedElementsAre(GetTerminate(kSynchronizer), GetTerminate(kFirst)));
  EXPECT_EQ(supervision_.reason(), "trainer-1 exited with code 4; trainer-0 did not end and was killed");
}

TEST_F(TrainerRanksTest, OneThatIsKilledIsLostAndOneThatFailsByItselfIsNot) {
  RunSupervision other{TwoRanks()};
  other.OnExit(kOtherRank, kError, start_);
  EXPECT_FALSE(other.lost_peer());
  supervision_.OnExit(kOtherRank, kCrash, start_);
  EXPECT_TRUE(supervision_.lost_peer());
  EXPECT_EQ(supervision_.reason(), "trainer-1 was killed by signal 9");
  // Rank 0 is notified at once and gets the time of an orderly stop.
  EXPECT_EQ(supervision_.NextTick(), start_ + absl::Seconds(7));
}

TEST_F(TrainerRanksTest, OneThatEndsWellIsNotStartedAgainAndTheRunGoesOnToRankZerosEnd) {
  EXPECT_THAT(supervision_.OnExit(kOtherRank, kWell, start_), IsEmpty());
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kRunning);
  supervision_.OnExit(kFirst, kCrash, start_);
  EXPECT_THAT(supervision_.OnTick(supervision_.NextTick()), ElementsAre(MakeStart(kFirst)));
  EXPECT_THAT(supervision_.OnReady(kFirst, start_ + absl::Seconds(1)), IsEmpty());
  supervision_.OnExit(kTrainer, kWell, start_);
  EXPECT_EQ(supervision_.outcome(), RunOutcome::kCompleted);
}

}  // namespace
}  // namespace syncopate::run
