#include "tests/unit/synchronizer/attempts/coordinator_fixture.h"

namespace syncopate::synchronizer {
namespace {

TEST_F(SyncCoordinatorTest, AMemberThatLeavesAGroupTransportTakesThoseThatTransferWithItAndTheyAreRepeatedAtOnce) {
  SetTransport("nccl");
  SetSources();
  for (int index : {0, 1, 2}) AddReceiver(index);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  for (int index : {0, 1, 2}) FromReceiver(index, Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kTransfer));
  Take(coordinator_.RemoveReceiver("rollouter-2", "DECLARED_DEAD", "", now_));
  ASSERT_EQ(records_.size(), 2u);
  EXPECT_EQ(records_[0].result(), "DECLARED_DEAD");
  EXPECT_EQ(records_[1].replica_id, "rollouter-1");
  EXPECT_EQ(records_[1].result(), "GROUP_LOST");
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-1"})) << "at once, without the dead one";
  EXPECT_EQ(coordinator_.MakeAttempt("rollouter-0"), attempt_ - 1) << "the receiver has its bytes and installs them";
  FromSource(Report(SyncStage::kPrepare));
  now_ += absl::Seconds(2.5);
  Take(coordinator_.Tick(now_));
  EXPECT_EQ(records_.size(), 2u) << "the member may need a while to abort the group";
  now_ += absl::Seconds(0.5);
  Take(coordinator_.Tick(now_));
  EXPECT_EQ(records_.back().result(), "NOT_PREPARED");
}

TEST_F(SyncCoordinatorTest, ReceiversAreToldOfEachOtherOnlyWhereTheyMeet) {
  for (const char* transport : {"grpc", "nccl"}) {
    SetTransport(transport);
    SetSources();
    AddReceiver(0);
    AddReceiver(1);
    Publish(1);
    FromSource(Report(SyncStage::kPrepare));
    FromReceiver(0, Report(SyncStage::kPrepare));
    FromReceiver(1, Report(SyncStage::kPrepare));
    ASSERT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-0", "rollouter-1"}));
    for (const auto& [to, command] : output_.sends) {
      const Transfer& transfer = std::get<Transfer>(command);
      const bool all = to.role == kTrainerRole || transport == std::string("nccl");
      ASSERT_EQ(transfer.receivers.size(), all ? 2u : 1u);
      EXPECT_TRUE(all || transfer.receivers[0].id == to);
      EXPECT_EQ(transfer.group, GroupName({TrainerId("t")}, {RollouterId(0, "r"), RollouterId(1, "r")}));
    }
  }
}

TEST_F(SyncCoordinatorTest, AMemberThatHasTheBaseWeightsThatItWasToBeSentGetsAdaptersAtOnce) {
  for (const char* transport : {"grpc", "nccl"}) {
    SetTransport(transport);
    SetSources();
    AddReceiver(0);
    AddReceiver(1);
    PublishWithBase(1, 77);
    SyncReport holds = Report(SyncStage::kPrepare);
    holds.weights.base_present = true;
    FromSource(Report(SyncStage::kPrepare));
    FromReceiver(0, holds);
    FromReceiver(1, Report(SyncStage::kPrepare));
    EXPECT_EQ(records_.back().result(), "BASE_HELD");
    std::map<std::string, bool> base;
    for (const auto& [to, command] : output_.sends) {
      const auto* transfer = std::get_if<Transfer>(&command);
      if (transfer == nullptr) continue;
      for (const SyncMember& receiver : transfer->receivers) base[receiver.id.replica_id] = receiver.base;
    }
    EXPECT_EQ(base, (std::map<std::string, bool>{{"rollouter-1", true}}));
    ASSERT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"})) << "what serves there is not overwritten";
    holds.attempt = attempt_;
    FromSource(Report(SyncStage::kPrepare));
    FromReceiver(0, holds);
    ASSERT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-0"}));
    EXPECT_FALSE(std::get<Transfer>(output_.sends.back().second).receivers[0].base);
    Take(coordinator_.RemoveReceiver("rollouter-0", "DISCONNECTED", "", now_));
    Take(coordinator_.RemoveReceiver("rollouter-1", "DISCONNECTED", "", now_));
    records_.clear();
  }
}

TEST_F(SyncCoordinatorTest, ThoseWhoLackTheBaseOfAVersionGetAnAttemptOfTheirOwn) {
  for (const char* transport : {"grpc", "nccl"}) {
    SetTransport(transport);
    SetSources();
    AddReceiver(0, {}, 1, "", /*base_digest=*/77);
    AddReceiver(1, {}, 1, "", /*base_digest=*/78);
    AddReceiver(2, {}, 1, "", /*base_digest=*/77);
    PublishWithBase(1, 77);
    EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0", "rollouter-2", "trainer", "rollouter-1"}));
    FromSource(Report(SyncStage::kPrepare));
    FromReceiver(1, Report(SyncStage::kPrepare));
    ASSERT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-1"}));
    EXPECT_TRUE(std::get<Transfer>(output_.sends.back().second).receivers[0].base);
    FromSource(Report(SyncStage::kTransfer));
    FromReceiver(1, Report(SyncStage::kTransfer));
    FromReceiver(1, Report(SyncStage::kInstall));
    ASSERT_EQ(records_.back().result(), "ok");
    PublishWithBase(2, 77);
    EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-1"})) << "the others are still at the version before";
    PublishWithBase(3, 77);
    records_.clear();
  }
}

TEST_F(SyncCoordinatorTest, WhereTheBaseCanBeMappedIsSaidToThoseWhoLackItAndMappedBytesCountAsNoneSent) {
  SetSources();
  AddReceiver(0);
  SyncReport lends = Report(SyncStage::kPrepare);
  lends.base_rendezvous = "ipc1 host 0000000000000001 /tmp/s";
  for (const bool lacks : {true, false}) {
    PublishWithBase(lacks ? 1 : 2, 77);
    SyncReport ready = Report(SyncStage::kPrepare);
    ready.weights.base_present = !lacks;
    lends.attempt = attempt_;
    FromSource(lends);
    FromReceiver(0, ready);
    ASSERT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-0"}));
    const auto& transfer = std::get<Transfer>(output_.sends.back().second);
    EXPECT_EQ(transfer.sources[0].base_rendezvous, lacks ? lends.base_rendezvous : "");
    SyncReport moved = Report(SyncStage::kTransfer);
    moved.lora_bytes = moved.bytes;
    moved.mapped_bytes = lacks ? 5000 : 0;
    FromReceiver(0, moved);
    FromReceiver(0, Report(SyncStage::kInstall));
    ASSERT_EQ(records_.back().result(), "ok");
    EXPECT_EQ(records_.back().bytes, 100);
    EXPECT_EQ(records_.back().bytes_by_kind, (PayloadBytes{.lora = 100, .mapped = lacks ? 5000 : 0}));
  }
}

TEST_F(SyncCoordinatorTest, AMemberThatHasLostItsBaseIsLeftOutAndSentItAtOnce) {
  SetTransport("nccl");
  SetSources();
  for (int index : {0, 1}) AddReceiver(index, {}, 1, "", /*base_digest=*/77);
  PublishWithBase(1, 77);
  ASSERT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0", "rollouter-1"}));
  SyncReport holds = Report(SyncStage::kPrepare);
  holds.weights.base_present = true;
  const SyncReport lacks = Report(SyncStage::kPrepare);
  FromSource(lacks);
  FromReceiver(0, holds);
  FromReceiver(1, lacks);
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].result(), "BASE_LACKING");
  EXPECT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-0"}));
  for (const auto& [to, command] : output_.sends) {
    const auto* transfer = std::get_if<Transfer>(&command);
    EXPECT_FALSE(transfer != nullptr && transfer->receivers[0].base);
  }
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-1"})) << "at once, in an attempt of its own";
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(1, Report(SyncStage::kPrepare));
  ASSERT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-1"}));
  EXPECT_TRUE(std::get<Transfer>(output_.sends.back().second).receivers[0].base);
}

TEST_F(SyncCoordinatorTest, ATriggerHasEverybodyCheckItsWeightsUntilThatHasSucceeded) {
  SetSources();
  PublishWithBase(1, 77);
  AddReceiver(0, {1, 1}, 1, "", /*base_digest=*/77);
  AddReceiver(1, {1, 1}, 1, "ASLEEP", /*base_digest=*/77);
  AddReceiver(2, {}, 1, "", /*base_digest=*/0);
  const int64_t first = attempt_;
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-2"}));
  Take(coordinator_.Trigger(now_));
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"})) << "others sleep, or are busy";
  EXPECT_TRUE(std::get<Prepare>(output_.sends.back().second).check_weights);
  EXPECT_EQ(coordinator_.unchecked(), 3);
  now_ += absl::Seconds(5);  // digesting takes its time
  Take(coordinator_.Tick(now_));
  EXPECT_TRUE(records_.empty());
  SyncReport same = Report(SyncStage::kPrepare);
  same.already_serves = true;
  same.weights.base_present = true;
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, same);
  EXPECT_EQ(Receivers<Install>(), (Names{"rollouter-0"}));
  FromReceiver(0, Report(SyncStage::kInstall));
  EXPECT_EQ(records_.back().result(), "relabelled");
  EXPECT_EQ(records_.back().bytes, 0);
  EXPECT_EQ(coordinator_.unchecked(), 2);

  AddReceiver(1, {1, 1}, 1, "", /*base_digest=*/77);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-1"})) << "awake";
  FromReceiver(1, Report(SyncStage::kPrepare, Failure("WEIGHTS_DAMAGED")));
  EXPECT_EQ(records_.back().result(), "WEIGHTS_DAMAGED");
  EXPECT_EQ(coordinator_.unchecked(), 2);
  Take(coordinator_.RemoveReceiver("rollouter-1", "DISCONNECTED", "", now_));

  attempt_ = first;
  FromReceiver(2, Report(SyncStage::kPrepare, Failure("BUSY")));
  now_ += absl::Seconds(1);
  Take(coordinator_.Tick(now_));
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-2"}));
  EXPECT_TRUE(std::get<Prepare>(output_.sends.back().second).check_weights);
}

TEST_F(SyncCoordinatorTest, WhereAllWeightsAreTrainedATriggerAsksNobodyWhoIsUpToDate) {
  SetSources();
  Publish(1);
  AddReceiver(0, {1, 1});
  Take(coordinator_.Trigger(now_));
  EXPECT_TRUE(output_.sends.empty());
  EXPECT_EQ(coordinator_.unchecked(), 0);
}

TEST_F(SyncCoordinatorTest, ADamagedTransferDoesNotBreakItsGroup) {
  SetTransport("nccl");
  SetSources();
  AddReceiver(0);
  AddReceiver(1);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  FromReceiver(1, Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kTransfer, Failure("DIGEST_MISMATCH")));
  EXPECT_TRUE(records_.empty()) << "the source may still report that the version was superseded";
  FromSource(Report(SyncStage::kTransfer));
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].result(), "DIGEST_MISMATCH");
  FromReceiver(1, Report(SyncStage::kTransfer));
  EXPECT_EQ(Receivers<Install>(), (Names{"rollouter-1"}));
}

TEST_F(SyncCoordinatorTest, AGroupWhoseVersionIsSupersededSendsToTheEndAndStaysWhole) {
  SetTransport("nccl");
  SetSources(/*world=*/2);
  for (int index : {0, 1, 2}) AddReceiver(index);
  Publish(1);
  for (int32_t rank : {0, 1}) FromSource(Report(SyncStage::kPrepare), rank, 2);
  for (int index : {0, 1, 2}) FromReceiver(index, Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kTransfer));
  EXPECT_EQ(Receivers<Install>(), (Names{"rollouter-0"})) << "the receiver has every byte already";
  FromSource(Report(SyncStage::kTransfer, Failure("SUPERSEDED")), 0, 2);
  EXPECT_TRUE(records_.empty() && output_.sends.empty()) << "the other source still sends";
  FromReceiver(1, Report(SyncStage::kTransfer, Failure("DIGEST_MISMATCH")));
  EXPECT_TRUE(records_.empty());
  FromSource(Report(SyncStage::kTransfer), 1, 2);
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].replica_id, "rollouter-1");
  EXPECT_TRUE(records_[0].superseded()) << records_[0].result();
  FromReceiver(2, Report(SyncStage::kTransfer, Failure("DIGEST_MISMATCH")));
  ASSERT_EQ(records_.size(), 2u);
  EXPECT_TRUE(records_[1].superseded()) << records_[1].result();
  FromReceiver(0, Report(SyncStage::kInstall));
  EXPECT_EQ(records_.back().result(), "ok");
}

TEST_F(SyncCoordinatorTest, RanksOfOneReplicaAreJudgedTogether) {
  SetTransport("nccl");
  SetSources();
  AddReceiver(0, {}, /*world=*/2);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  for (int32_t rank : {0, 1}) FromReceiver(0, Report(SyncStage::kPrepare), rank, 2);
  FromSource(Report(SyncStage::kTransfer, Failure("SUPERSEDED")));
  FromReceiver(0, Report(SyncStage::kTransfer, Failure("DIGEST_MISMATCH")), 0, 2);
  EXPECT_TRUE(records_.empty()) << "the other rank still receives";
  FromReceiver(0, Report(SyncStage::kTransfer), 1, 2);
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_TRUE(records_[0].superseded());
}

// A replica that joins late over a slow link: when it has received a version, a newer one has replaced it.
TEST_F(SyncCoordinatorTest, AReplicaThatIsSupersededAgainAndAgainGoesWithTheOthersAtTheNextPublication) {
  SetSources();
  AddReceiver(0);
  AddReceiver(1);
  auto supersede = [this](int64_t attempt) {
    SyncReport report = Report(SyncStage::kTransfer, Failure("SUPERSEDED"));
    report.attempt = attempt;
    FromReceiver(1, report);
  };
  auto serve_the_other = [this] {
    FromSource(Report(SyncStage::kPrepare));
    FromReceiver(0, Report(SyncStage::kPrepare));
    FromReceiver(0, Report(SyncStage::kTransfer));
    FromReceiver(0, Report(SyncStage::kInstall));
  };
  Publish(1);
  FromReceiver(1, Report(SyncStage::kPrepare));
  int64_t slow = attempt_;
  serve_the_other();
  now_ += absl::Seconds(1);
  Publish(2);
  serve_the_other();
  supersede(slow);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-1"})) << "one time is not enough";
  slow = attempt_;
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(1, Report(SyncStage::kPrepare));
  now_ += absl::Seconds(1);
  Publish(3);
  serve_the_other();
  supersede(slow);
  EXPECT_TRUE(Receivers<Prepare>().empty()) << "in an attempt of its own the replica would be too late again";
  now_ += absl::Seconds(1) - absl::Milliseconds(1);
  Publish(4);
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0", "rollouter-1"}));
}

TEST_F(SyncCoordinatorTest, AReplicaThatWaitsForTheNextPublicationGoesAloneIfNoneComes) {
  SetSources();
  AddReceiver(0);
  AddReceiver(1, {1, 9});  // has every version that is published here
  for (int64_t step : {1, 2, 3}) {
    now_ += absl::Seconds(1);
    Publish(step);
    if (step > 1) FromReceiver(0, Report(SyncStage::kTransfer, Failure("SUPERSEDED")));
    FromSource(Report(SyncStage::kPrepare));
    FromReceiver(0, Report(SyncStage::kPrepare));
  }
  EXPECT_TRUE(Receivers<Prepare>().empty());
  EXPECT_EQ(coordinator_.NextDeadline(), now_ + absl::Seconds(1)) << "as long as the last publication took to come";
  now_ += absl::Seconds(1);
  Take(coordinator_.Tick(now_));
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"}));
}

TEST_F(SyncCoordinatorTest, AReceiverThatDiesBeforeTheTransferLeavesTheGroupWhole) {
  SetTransport("nccl");
  SetSources();
  AddReceiver(0);
  AddReceiver(1);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  Take(coordinator_.RemoveReceiver("rollouter-1", "DECLARED_DEAD", "", now_));
  ASSERT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-0"}));
  for (const auto& [to, command] : output_.sends) {
    if (const auto* transfer = std::get_if<Transfer>(&command)) {
      EXPECT_EQ(transfer->group, GroupName({TrainerId("t")}, {RollouterId(0, "r")})) << "of those who take part";
    }
  }
}

TEST_F(SyncCoordinatorTest, ASourceThatFailsWhileItSendsEndsThoseThatNeedBytes) {
  SetSources();
  AddReceiver(0);
  AddReceiver(1);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  FromReceiver(1, Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromSource(Report(SyncStage::kTransfer, Failure("SUPERSEDED")));
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].replica_id, "rollouter-1");
  EXPECT_TRUE(records_[0].superseded());
  FromReceiver(0, Report(SyncStage::kInstall));
  EXPECT_EQ(records_[1].result(), "ok");
}

TEST_F(SyncCoordinatorTest, ASourceThatHasSentEverythingEndsNothing) {
  SetSources();
  AddReceiver(0);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  FromSource(Report(SyncStage::kTransfer));
  FromSource(Report(SyncStage::kTransfer, Failure("TWICE")));
  EXPECT_TRUE(records_.empty());
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromReceiver(0, Report(SyncStage::kInstall));
  EXPECT_EQ(records_.at(0).result(), "ok");
}

TEST_F(SyncCoordinatorTest, TheTimeToConnectCountsAsPreparing) {
  SetSources();
  AddReceiver(0);
  Publish(3);
  FromReceiver(0, Report(SyncStage::kPrepare));
  now_ = At(0.010);
  FromSource(Report(SyncStage::kPrepare));
  now_ = At(0.110);
  SyncReport transferred = Report(SyncStage::kTransfer);
  transferred.connect_seconds = 0.060;
  transferred.verify_seconds = 0.015;
  FromReceiver(0, transferred);
  FromReceiver(0, Report(SyncStage::kInstall));
  const StageSeconds& seconds = records_.at(0).seconds;
  EXPECT_NEAR(seconds.prepare, 0.070, 1e-9);
  EXPECT_NEAR(seconds.transfer, 0.025, 1e-9);
  EXPECT_NEAR(seconds.verify, 0.015, 1e-9);
  EXPECT_NEAR(seconds.total, 0.360, 1e-9);
}

TEST_F(SyncCoordinatorTest, ARefusalForEverIsNotRepeatedUntilSomethingChanges) {
  SetSources();
  AddReceiver(0);
  auto refuse = [this] {
    ASSERT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"}));
    FromReceiver(0, Report(SyncStage::kPrepare, Failure("PLAN_MISMATCH")));
    EXPECT_EQ(coordinator_.NextDeadline(), absl::InfiniteFuture());
    EXPECT_THAT(coordinator_.WhyLeftAlone("rollouter-0"), ::testing::HasSubstr("PLAN_MISMATCH"));
    now_ += absl::Minutes(5);
    Take(coordinator_.Tick(now_));
    EXPECT_TRUE(output_.sends.empty());
  };
  Publish(1);
  refuse();
  Publish(2);
  refuse();
  SetSources();
  refuse();
  Take(coordinator_.RemoveReceiver("rollouter-0", "DISCONNECTED", "", now_));
  AddReceiver(0);
  refuse();
  Take(coordinator_.Trigger(now_));
  refuse();
}

TEST_F(SyncCoordinatorTest, AReplicaOfAnotherLayoutIsRefusedByNameBeforeAnybodyIsAsked) {
  SetSources();
  ReceiverReplica replica;
  replica.replica_id = "rollouter-0";
  replica.ranks.push_back({RollouterId(0, "r", 0, 2), {"grpc"}, {}, "tp:2"});
  replica.ranks.push_back({RollouterId(0, "r", 1, 2), {"grpc"}, {}, "tp:2"});
  Take(coordinator_.SetReceiver(std::move(replica), now_));
  Publish(1);
  EXPECT_TRUE(output_.sends.empty());
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].result(), "LAYOUT_MISMATCH");
  EXPECT_THAT(records_[0].detail, ::testing::HasSubstr("tp:2"));
}

TEST_F(SyncCoordinatorTest, MembersWithoutACommonTransportAreRefusedByName) {
  SetTransport("inproc");
  transports_ = {"grpc"};
  SetSources();
  AddReceiver(0);
  Publish(1);
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].result(), "NO_COMMON_TRANSPORT");
  EXPECT_TRUE(output_.sends.empty());
  EXPECT_EQ(coordinator_.NextDeadline(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace syncopate::synchronizer
