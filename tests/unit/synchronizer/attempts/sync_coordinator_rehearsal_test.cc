#include "tests/unit/synchronizer/attempts/coordinator_fixture.h"

namespace syncopate::synchronizer {
namespace {

// Sources and receivers over a transport that forms groups.
class RehearsalTest : public SyncCoordinatorTest {
 protected:
  RehearsalTest() {
    SetTransport("nccl");
    SetSources();
  }

  // Advances the clock to the time of the next action.
  void Wait() {
    now_ = std::max(now_, coordinator_.NextDeadline());
    Take(coordinator_.Tick(now_));
  }
  const Prepare* Asked() const {
    for (const auto& [to, command] : output_.sends) {
      if (const auto* prepare = std::get_if<Prepare>(&command)) return prepare;
    }
    return nullptr;
  }
  void AllPrepare(std::vector<int> receivers) {
    FromSource(Report(SyncStage::kPrepare));
    for (int index : receivers) FromReceiver(index, Report(SyncStage::kPrepare));
  }
  void AllConnect(std::vector<int> receivers) {
    for (int index : receivers) FromReceiver(index, Report(SyncStage::kTransfer));
    FromSource(Report(SyncStage::kTransfer));
  }
  void Sync(int64_t step, std::vector<int> receivers) {
    Publish(step);
    AllPrepare(receivers);
    for (int index : receivers) FromReceiver(index, Report(SyncStage::kTransfer));
    for (int index : receivers) FromReceiver(index, Report(SyncStage::kInstall));
  }
};

TEST_F(RehearsalTest, TheGroupOfAllIsFormedBeforeAVersionIsThereAndMovesNone) {
  AddReceiver(0);
  now_ = At(0.1);
  AddReceiver(1);
  EXPECT_TRUE(output_.sends.empty()) << "more members may join";
  EXPECT_EQ(coordinator_.NextDeadline(), At(0.35));
  Wait();
  ASSERT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0", "rollouter-1"}));
  EXPECT_TRUE(Asked()->rehearsal);
  EXPECT_TRUE(Asked()->version.IsNone());
  EXPECT_EQ(coordinator_.attempts_under_way(), 0) << "a rehearsal is no sync";
  EXPECT_EQ(coordinator_.MakeAttempt("rollouter-0"), 0);
  AllPrepare({0, 1});
  ASSERT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-0", "rollouter-1"}));
  now_ += absl::Seconds(0.5);
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromSource(Report(SyncStage::kTransfer));
  EXPECT_TRUE(records_.empty()) << "the rehearsal ends for all members at once";
  FromReceiver(1, Report(SyncStage::kTransfer));
  EXPECT_EQ(Receivers<Finish>(), (Names{"rollouter-0", "rollouter-1", "trainer"}));
  EXPECT_TRUE(Receivers<Install>().empty());
  ASSERT_EQ(records_.size(), 2u);
  for (SyncRecord& record : records_) {
    EXPECT_EQ(record.result(), "connected");
    EXPECT_FALSE(record.ok() || record.failed() || record.superseded());
    EXPECT_EQ(record.bytes, 0);
    EXPECT_NEAR(record.seconds.prepare, 0.5, 1e-9);
    EXPECT_NEAR(record.seconds.total, 0.5, 1e-9);
    EXPECT_EQ(record.seconds.transfer, 0.0);
  }
  EXPECT_EQ(coordinator_.NextDeadline(), absl::InfiniteFuture()) << "once";
}

TEST_F(RehearsalTest, ALateJoinersOwnSyncIsFollowedByARehearsalWithAll) {
  AddReceiver(0);
  Sync(1, {0});
  Wait();
  EXPECT_TRUE(output_.sends.empty()) << "the sync has formed that group";
  AddReceiver(1);
  ASSERT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-1"})) << "the version first";
  now_ += absl::Seconds(0.6);
  AllPrepare({1});
  FromReceiver(1, Report(SyncStage::kTransfer));
  FromReceiver(1, Report(SyncStage::kInstall));
  ASSERT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0", "rollouter-1"}))
      << "as soon as no replica is behind";
  EXPECT_TRUE(Asked()->rehearsal);
}

TEST_F(RehearsalTest, TransportsWithoutGroupsAreNotRehearsed) {
  for (const char* transport : {"grpc", "ipc"}) {
    SetTransport(transport);
    SetSources();
    AddReceiver(0);
    Wait();
    EXPECT_TRUE(output_.sends.empty());
    EXPECT_EQ(coordinator_.NextDeadline(), absl::InfiniteFuture());
  }
}

TEST_F(RehearsalTest, ASyncThatComesBeforeAnybodyConnectsEndsTheRehearsalAtOnce) {
  AddReceiver(0);
  Wait();
  Publish(1);
  EXPECT_EQ(Receivers<Finish>(), (Names{"rollouter-0", "trainer"}));
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"}));
  EXPECT_FALSE(Asked()->rehearsal);
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].result(), "not_connected");
  EXPECT_THAT(records_[0].detail, ::testing::HasSubstr("SUPERSEDED"));
}

TEST_F(RehearsalTest, ASyncDoesNotWaitForARehearsalThatConnectsAndItsGroupIsTheSame) {
  AddReceiver(0);
  Wait();
  AllPrepare({0});
  const std::string group = std::get<Transfer>(output_.sends[0].second).group;
  const int64_t rehearsal = attempt_;
  Publish(1);
  ASSERT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0"}));
  EXPECT_TRUE(Receivers<Finish>().empty());
  EXPECT_EQ(Asked()->group, group);
  AllPrepare({0});
  ASSERT_EQ(Receivers<Transfer>(), (Names{"trainer", "rollouter-0"})) << "the rehearsal has not ended";
  EXPECT_EQ(std::get<Transfer>(output_.sends[0].second).group, group);
  const int64_t sync = std::exchange(attempt_, rehearsal);
  AllConnect({0});
  EXPECT_EQ(records_.at(0).result(), "connected");
  attempt_ = sync;
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromReceiver(0, Report(SyncStage::kInstall));
  EXPECT_EQ(records_.at(1).result(), "ok");
}

TEST_F(RehearsalTest, ARehearsalThatHangsIsEndedWhenASyncCouldHaveFormedTheGroupItself) {
  AddReceiver(0);
  Wait();
  AllPrepare({0});
  now_ += absl::Seconds(0.3);
  AllConnect({0});  // it takes 0.3 s
  AddReceiver(1, {9, 9});
  Wait();
  AllPrepare({0, 1});
  const absl::Time begun = now_;
  EXPECT_GE(coordinator_.NextDeadline(), begun + absl::Seconds(9))
      << "no deadline is near while there is nothing to do";
  now_ += absl::Seconds(4);
  Publish(1);
  EXPECT_EQ(coordinator_.NextDeadline(), now_ + absl::Seconds(0.3));
  Wait();
  EXPECT_EQ(records_.back().result(), "not_connected");
  EXPECT_THAT(records_.back().detail, ::testing::HasSubstr("DEADLINE"));
  EXPECT_EQ(Receivers<Finish>(), (Names{"rollouter-0", "rollouter-1", "trainer"}));
  EXPECT_EQ(coordinator_.attempts_under_way(), 1) << "the sync goes on";
}

TEST_F(RehearsalTest, OneThatFailsIsNotRepeatedUntilTheMembersChange) {
  AddReceiver(0);
  AddReceiver(1);
  Wait();
  FromReceiver(1, Report(SyncStage::kPrepare, Failure("NCCL_MISMATCH")));
  ASSERT_EQ(records_.size(), 2u);
  EXPECT_EQ(coordinator_.NextDeadline(), absl::InfiniteFuture());
  Take(coordinator_.RemoveReceiver("rollouter-1", "DISCONNECTED", "", now_));
  AddReceiver(1);
  Wait();
  EXPECT_TRUE(output_.sends.empty()) << "the same members";
  SetSources(2);
  Wait();
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "trainer", "rollouter-0", "rollouter-1"}));
}

TEST_F(RehearsalTest, EndsForAllHoweverItFails) {
  const std::vector<std::pair<std::string, std::function<void()>>> failures = {
      {"no answer",
       [this] {
         FromSource(Report(SyncStage::kPrepare));
         FromReceiver(0, Report(SyncStage::kPrepare));
         Wait();
       }},
      {"DEADLINE",
       [this] {
         AllPrepare({0, 1});
         Wait();
       }},
      {"source rank 0",
       [this] {
         AllPrepare({0, 1});
         FromSource(Report(SyncStage::kTransfer, Failure("NCCL_ERROR")));
       }},
      {"PEER_LOST",
       [this] {
         AllPrepare({0, 1});
         FromReceiver(0, Report(SyncStage::kTransfer));
         FromReceiver(1, Report(SyncStage::kTransfer, Failure("PEER_LOST")));
       }},
      {"DECLARED_DEAD",
       [this] {
         AllPrepare({0, 1});
         Take(coordinator_.RemoveReceiver("rollouter-1", "DECLARED_DEAD", "", now_));
       }},
      {"SOURCE_LOST", [this] { Take(coordinator_.SetSources(SourceGroup{}, now_)); }},
  };
  for (const auto& [why, fail] : failures) {
    SCOPED_TRACE(why);
    SetTransport("nccl");
    SetSources();
    AddReceiver(0);
    AddReceiver(1);
    records_.clear();
    Wait();
    fail();
    ASSERT_EQ(records_.size(), 2u);
    for (const SyncRecord& record : records_) {
      EXPECT_EQ(record.result(), "not_connected");
      EXPECT_THAT(record.detail, ::testing::HasSubstr(why));
    }
    EXPECT_EQ(Receivers<Finish>().size(), 3u) << "all members drop the group";
    EXPECT_TRUE(coordinator_.attempts().empty());
    Publish(1);
    const bool sources = why != "SOURCE_LOST";
    EXPECT_EQ(Receivers<Prepare>().empty(), !sources) << "a sync begins as if there had been no rehearsal";
  }
}

TEST_F(RehearsalTest, AReplicaThatIsLeftAloneOrLagsBehindIsNotAsked) {
  AddReceiver(0);
  AddReceiver(1);
  Publish(1);
  FromSource(Report(SyncStage::kPrepare));
  FromReceiver(0, Report(SyncStage::kPrepare));
  FromReceiver(1, Report(SyncStage::kPrepare, Failure("NCCL_MISMATCH")));
  FromReceiver(0, Report(SyncStage::kTransfer));
  FromReceiver(0, Report(SyncStage::kInstall));
  AddReceiver(2, {1, 1});
  Wait();
  EXPECT_EQ(Receivers<Prepare>(), (Names{"trainer", "rollouter-0", "rollouter-2"}));
}

}  // namespace
}  // namespace syncopate::synchronizer
