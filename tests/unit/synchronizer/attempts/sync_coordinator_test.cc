#include "tests/unit/synchronizer/attempts/coordinator_fixture.h"

namespace syncopate::synchronizer {
namespace {

TEST_F(SyncCoordinatorTest, OneAttemptGoesFromPrepareToFinishAndItsPartsAddUp) {
  SetSources();
  AddReceiver(0);
  Publish(3);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"}));
  now_ = At(0.010);
  FromReceiver(0, Report(SyncStage::kPrepare));
  EXPECT_TRUE(output_.sends.empty());
  FromSource(Report(SyncStage::kPrepare));
  ASSERT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-0"}));
  Transfer transfer = std::get<Transfer>(output_.sends[0].second);
  EXPECT_EQ(transfer.sources, (std::vector<SyncMember>{{TrainerId("t"), "trainer:1"}}));
  EXPECT_EQ(transfer.receivers, (std::vector<SyncMember>{{RollouterId(0, "r"), "trainer:1"}}));
  EXPECT_EQ(transfer.group, GroupName({TrainerId("t")}, {RollouterId(0, "r")}));
  now_ = At(0.050);
  SyncReport transferred = Report(SyncStage::kTransfer);
  transferred.verify_seconds = 0.015;
  FromReceiver(0, transferred);
  EXPECT_EQ(Receivers<Install>(), (Names{"rollouter-0"}));
  now_ = At(0.055);
  SyncReport installed = Report(SyncStage::kInstall);
  installed.pause_seconds = 0.001;
  FromReceiver(0, installed);
  EXPECT_EQ(Receivers<Finish>(), (Names{"rollouter-0", "trainer"}));
  ASSERT_EQ(records_.size(), 1u);
  SyncRecord record = records_[0];
  EXPECT_EQ(record.result(), "ok");
  EXPECT_EQ(record.bytes, 100);
  EXPECT_EQ(record.pause_seconds, 0.001);
  EXPECT_NEAR(record.seconds.stage, 0.25, 1e-9);
  EXPECT_NEAR(record.seconds.prepare, 0.010, 1e-9);
  EXPECT_NEAR(record.seconds.transfer, 0.025, 1e-9);
  EXPECT_NEAR(record.seconds.verify, 0.015, 1e-9);
  EXPECT_NEAR(record.seconds.install, 0.005, 1e-9);
  EXPECT_NEAR(record.seconds.total, 0.305, 1e-9);
  EXPECT_EQ(coordinator_.attempts_under_way(), 0);
  EXPECT_EQ(coordinator_.behind(), 0);
}

TEST_F(SyncCoordinatorTest, AReceiverThatHoldsTheBitsIsRelabelledWithoutBytes) {
  SetSources();
  AddReceiver(0);
  Publish(3);
  now_ = At(0.5);
  SyncReport held = Report(SyncStage::kPrepare);
  held.already_serves = true;
  FromReceiver(0, held);
  EXPECT_EQ(Receivers<Install>(), (Names{"rollouter-0"}));
  FromReceiver(0, Report(SyncStage::kInstall));
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].result(), "relabelled");
  EXPECT_EQ(records_[0].bytes, 0);
  EXPECT_EQ(records_[0].seconds.transfer, 0.0);
  EXPECT_EQ(records_[0].seconds.verify, 0.0);
}

TEST_F(SyncCoordinatorTest, ASilentReceiverHoldsTheOthersUpOnceForThePrepareDeadlineAndNoMore) {
  SetSources();
  AddReceiver(0);
  AddReceiver(1);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  EXPECT_TRUE(output_.sends.empty()) << "all receivers start together";
  now_ = coordinator_.NextDeadline();
  EXPECT_EQ(now_, At(1));
  Take(coordinator_.Tick(now_));
  EXPECT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-0"}));
  EXPECT_EQ(Receivers<Finish>(), (Names{"rollouter-1"}));
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].replica_id, "rollouter-1");
  EXPECT_EQ(records_[0].result(), "NOT_PREPARED");
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromReceiver(0, Report(SyncStage::kInstall));
  // From here on the silent replica gets attempts of its own.
  now_ = At(2);
  Publish(2);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0", "trainer", "rollouter-1"}));
  EXPECT_NE(coordinator_.MakeAttempt("rollouter-0"), coordinator_.MakeAttempt("rollouter-1"));
}

TEST_F(SyncCoordinatorTest, ALaggardThatAnswersAgainGoesWithTheOthersAgain) {
  SetSources();
  AddReceiver(0);
  AddReceiver(1);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  now_ = At(1);
  Take(coordinator_.Tick(now_));
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromReceiver(0, Report(SyncStage::kInstall));
  now_ = At(1.1);
  Take(coordinator_.Tick(now_));
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-1"}));
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(1, Report(SyncStage::kPrepare));
  FromReceiver(1, Report(SyncStage::kTransfer));
  FromReceiver(1, Report(SyncStage::kInstall));
  EXPECT_TRUE(records_.back().ok());
  Publish(2);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0", "rollouter-1"}));
}

TEST_F(SyncCoordinatorTest, AReceiverThatStopsInItsTransferEndsByTheDeadlineAndDelaysNobody) {
  SetSources();
  AddReceiver(0);
  AddReceiver(1);
  Publish(1);
  int64_t first = attempt_;
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  FromReceiver(1, Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromReceiver(0, Report(SyncStage::kInstall));
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].replica_id, "rollouter-0");
  // The next version goes to the healthy replica while the other one still hangs in the first attempt.
  now_ = At(1);
  Publish(2);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"}));
  EXPECT_EQ(coordinator_.MakeAttempt("rollouter-1"), first);
  now_ = At(10);
  Take(coordinator_.Tick(now_));
  EXPECT_EQ(coordinator_.MakeAttempt("rollouter-1"), 0);
  EXPECT_EQ(records_[1].result(), "DEADLINE");
}

TEST_F(SyncCoordinatorTest, ABusyReceiverJoinsTheNextAttemptWhenItsOwnEnds) {
  SetSources();
  AddReceiver(0);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  int64_t first = attempt_;
  Publish(2);
  EXPECT_TRUE(output_.sends.empty()) << "a publication aborts nothing";
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromReceiver(0, Report(SyncStage::kInstall));
  EXPECT_EQ(records_.back().version, (PolicyVersion{1, 1}));
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"}));
  EXPECT_GT(attempt_, first);
}

TEST_F(SyncCoordinatorTest, ARefusalEndsOnlyThatReceiverAndIsRepeatedAfterADoublingBackOff) {
  SetSources();
  AddReceiver(0);
  AddReceiver(1);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  double backoff = 0.1;
  for (int failure = 1; failure <= 7; ++failure) {
    FromReceiver(1, Report(SyncStage::kPrepare, Failure("BUSY")));
    EXPECT_EQ(records_.back().result(), "BUSY");
    EXPECT_EQ(records_.back().replica_id, "rollouter-1");
    if (failure == 1) {
      FromReceiver(0, Report(SyncStage::kPrepare));
      EXPECT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-0"})) << "the other receiver goes on";
    }
    EXPECT_EQ(coordinator_.NextDeadline(), std::min(now_ + absl::Seconds(backoff), At(10)));
    now_ += absl::Seconds(backoff);
    Take(coordinator_.Tick(now_));
    EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-1"}));
    backoff = std::min(2.0, backoff * 2);
  }
}

TEST_F(SyncCoordinatorTest, ASourceThatRefusesFailsTheAttemptForAll) {
  SetSources();
  AddReceiver(0);
  AddReceiver(1);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare, Failure("NO_MEMORY")));
  ASSERT_EQ(records_.size(), 2u);
  EXPECT_EQ(records_[0].result(), "NO_MEMORY");
  EXPECT_EQ(Receivers<Finish>(), (Names{"rollouter-0", "rollouter-1", "trainer"}));
  EXPECT_EQ(coordinator_.attempts_under_way(), 0);
}

TEST_F(SyncCoordinatorTest, ALostSourceEndsThoseThatNeedBytesAndSparesThoseThatHaveThem) {
  SetSources();
  AddReceiver(0);
  AddReceiver(1);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  FromReceiver(1, Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kTransfer));
  Take(coordinator_.SetSources(SourceGroup{}, now_));
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].replica_id, "rollouter-1");
  EXPECT_EQ(records_[0].result(), "SOURCE_LOST");
  FromReceiver(0, Report(SyncStage::kInstall));
  ASSERT_EQ(records_.size(), 2u);
  EXPECT_EQ(records_[1].result(), "ok");
}

TEST_F(SyncCoordinatorTest, ASupersededReceiverJoinsTheAttemptOfTheNextPublicationAtOnce) {
  SetSources();
  AddReceiver(0);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kTransfer, Failure("SUPERSEDED")));
  EXPECT_TRUE(Receivers<Prepare>().empty()) << "the newer version is staged but not published yet";
  now_ = At(0.001);
  Publish(2);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"}));
  // The reverse order: published first, superseded afterwards.
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  Publish(3);
  FromReceiver(0, Report(SyncStage::kTransfer, Failure("SUPERSEDED")));
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"}));
}

TEST_F(SyncCoordinatorTest, ALateJoinerGetsAnAttemptOfItsOwnAtOnceWithoutAStageCost) {
  SetSources();
  AddReceiver(0);
  Publish(1);
  AddReceiver(1);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-1"}));
  EXPECT_EQ(coordinator_.attempts_under_way(), 2);
  Take(coordinator_.RemoveReceiver("rollouter-1", "DISCONNECTED", "", now_));
  EXPECT_EQ(records_.back().seconds.stage, 0.0);
}

TEST_F(SyncCoordinatorTest, NothingIsSentOfAnEpochWhoseTrainerIsGone) {
  SetSources();
  Publish(1);
  SourceGroup next;
  next.epoch = 2;
  next.manifest = model_;
  next.ranks.push_back({TrainerId("t2"), {"grpc"}});
  Take(coordinator_.SetSources(std::move(next), now_));
  AddReceiver(0);
  EXPECT_TRUE(output_.sends.empty());
  Take(coordinator_.Publish(VersionWith({2, 0}), 0, now_));
  EXPECT_EQ(Receivers<Prepare>().size(), 2u);
}

TEST_F(SyncCoordinatorTest, AReceiverThatServesANewerVersionIsLeftAlone) {
  SetSources();
  Publish(1);
  AddReceiver(0, {1, 2});
  EXPECT_TRUE(output_.sends.empty());
  EXPECT_EQ(coordinator_.behind(), 0);
}

TEST_F(SyncCoordinatorTest, AllRanksOfAReplicaInstallTogether) {
  SetSources(2);
  AddReceiver(0, {}, 2);
  Publish(1);
  EXPECT_EQ(Receivers<Prepare>().size(), 4u);
  FromSource(Report(SyncStage::kPrepare), 0, 2);
  FromReceiver(0, Report(SyncStage::kPrepare), 0, 2);
  FromReceiver(0, Report(SyncStage::kPrepare), 1, 2);
  EXPECT_TRUE(output_.sends.empty());
  FromSource(Report(SyncStage::kPrepare), 1, 2);
  EXPECT_EQ(Receivers<Transfer>().size(), 4u) << "both sources too";
  FromReceiver(0, Report(SyncStage::kTransfer), 0, 2);
  EXPECT_TRUE(output_.sends.empty());
  FromReceiver(0, Report(SyncStage::kTransfer), 1, 2);
  EXPECT_EQ(Receivers<Install>().size(), 2u);
  FromReceiver(0, Report(SyncStage::kInstall), 0, 2);
  EXPECT_TRUE(records_.empty());
  FromReceiver(0, Report(SyncStage::kInstall), 1, 2);
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].bytes, 200);
}

TEST_F(SyncCoordinatorTest, ReportsThatAnswerNoCommandAreIgnored) {
  SetSources();
  AddReceiver(0);
  Publish(1);
  FromReceiver(0, Report(SyncStage::kInstall));
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromReceiver(5, Report(SyncStage::kPrepare));
  FromSource(Report(SyncStage::kTransfer, Failure("OLD")));
  SyncReport stale = Report(SyncStage::kPrepare, Failure("OLD"));
  stale.attempt += 7;
  FromReceiver(0, stale);
  EXPECT_TRUE(records_.empty());
  EXPECT_TRUE(output_.sends.empty());
}

TEST_F(SyncCoordinatorTest, TheDeadlineIsFourMediansButAtLeastTheFloor) {
  SetSources();
  AddReceiver(0);
  EXPECT_EQ(coordinator_.CurrentDeadline(), absl::Seconds(10));
  for (int64_t step = 1; step <= 3; ++step) {
    Publish(step);
    FromSource(Report(SyncStage::kPrepare));
    FromReceiver(0, Report(SyncStage::kPrepare));
    now_ += absl::Seconds(8);
    FromReceiver(0, Report(SyncStage::kTransfer));
    FromReceiver(0, Report(SyncStage::kInstall));
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(coordinator_.CurrentDeadline()), 4 * 8.25, 1e-6);
}

TEST_F(SyncCoordinatorTest, AReceiverThatHoldsInstallsBackIsNeitherFailedNorALaggardAndIsAskedAgain) {
  SetSources();
  AddReceiver(0);
  AddReceiver(1);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  FromReceiver(1, Report(SyncStage::kPrepare, Failure("HELD")));
  EXPECT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-0"})) << "no receiver waits for the silent one";
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_TRUE(records_[0].held());
  EXPECT_FALSE(records_[0].failed());
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromReceiver(0, Report(SyncStage::kInstall));
  now_ = At(2);
  Take(coordinator_.Tick(now_));
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-1"}));
  FromReceiver(1, Report(SyncStage::kPrepare, Failure("HELD")));
  now_ = At(4);
  Publish(2);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0", "rollouter-1"})) << "with the others, not alone";
}

TEST_F(SyncCoordinatorTest, WhoSaysThatItTakesNoVersionIsLeftOutUntilItTakesOneAgain) {
  SetSources();
  AddReceiver(0);
  AddReceiver(1, {}, 1, "ASLEEP");
  Publish(1);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"}));
  EXPECT_EQ(coordinator_.behind(), 1);
  EXPECT_THAT(coordinator_.WhyLeftAlone("rollouter-1"), ::testing::HasSubstr("ASLEEP"));
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromReceiver(0, Report(SyncStage::kInstall));
  EXPECT_EQ(coordinator_.behind(), 0);
  AddReceiver(1);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-1"})) << "at once";
  EXPECT_EQ(coordinator_.WhyLeftAlone("rollouter-1"), "");
}

TEST_F(SyncCoordinatorTest, ATriggerForgetsBackOffs) {
  SetSources();
  AddReceiver(0);
  Publish(1);
  FromReceiver(0, Report(SyncStage::kPrepare, Failure("BUSY")));
  Take(coordinator_.Trigger(now_));
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"}));
}

}  // namespace
}  // namespace syncopate::synchronizer
