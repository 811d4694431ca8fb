#include "synchronizer/loop/control_plane.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

class ControlPlaneTest : public ::testing::Test {
 protected:
  ControlPlaneTest() : plane_(Start({})) {}

  ControlPlane Start(const std::vector<LedgerRecord>& records) {
    ControlPlane::Options options;
    options.run_id = "run";
    auto plane = ControlPlane::Restore(options, records);
    SYNCOPATE_CHECK(plane.ok());
    return *std::move(plane);
  }

  void Restart() {
    Take();
    plane_ = Start(disk_);
  }

  void Join(SessionId session, const MemberId& id, int64_t held_epoch = 0, const std::string& run_id = "",
            PolicyVersion serving = {}) {
    Hello hello = HelloFor(id, model_);
    hello.held_epoch = held_epoch;
    hello.run_id = run_id;
    hello.serving = serving;
    hello.serving_digest = ComputeDigest(serving);
    plane_.OnHello(session, hello, now_);
    Take();
  }

  std::vector<uint64_t> ComputeDigests(PolicyVersion version) const {
    return std::vector<uint64_t>(model_->buckets().size(), version.step + 1);
  }
  uint64_t ComputeDigest(PolicyVersion version) const { return CombineDigests(ComputeDigests(version)); }

  absl::StatusOr<int> Publish(const std::string& incarnation, PolicyVersion version) {
    auto receivers =
        plane_.OnPublish({TrainerId(incarnation), version, ComputeDigests(version), model_->fingerprint(), 0, 0}, now_);
    Take();
    return receivers;
  }

  void Report(SessionId session, SyncStage stage) {
    SyncReport report;
    report.attempt = attempt_;
    report.stage = stage;
    plane_.OnReport(session, report, now_);
    Take();
  }

  // One whole sync, in the current attempt, between the trainer on session 1 and the rollouter on `session`.
  void SyncAll(SessionId session) {
    Report(1, SyncStage::kPrepare);
    Report(session, SyncStage::kPrepare);
    Report(session, SyncStage::kTransfer);
    Report(session, SyncStage::kInstall);
  }

  void Take() {
    actions_ = plane_.TakeActions();
    for (const Action& action : actions_) {
      if (const auto* persist = std::get_if<Persist>(&action)) disk_.push_back(persist->record);
      if (const auto* send = std::get_if<SendCommand>(&action)) {
        if (const auto* prepare = std::get_if<Prepare>(&send->command)) attempt_ = prepare->attempt;
      }
    }
  }

  // Returns the T that the newest actions sent on `session`.
  template <typename T>
  std::vector<T> Sent(SessionId session) const {
    std::vector<T> commands;
    for (const Action& action : actions_) {
      const auto* send = std::get_if<SendCommand>(&action);
      if (send == nullptr || send->session != session) continue;
      if (const auto* command = std::get_if<T>(&send->command)) commands.push_back(*command);
    }
    return commands;
  }

  std::string ClosedWith(SessionId session) const {
    for (const Action& action : actions_) {
      const auto* close = std::get_if<CloseSession>(&action);
      if (close != nullptr && close->session == session) return ErrorReason(close->status);
    }
    return "still open";
  }

  std::shared_ptr<const Manifest> model_ = std::make_shared<Manifest>(SmallModel());
  absl::Time now_ = absl::UnixEpoch();
  std::vector<LedgerRecord> disk_;
  std::vector<Action> actions_;
  int64_t attempt_ = 0;
  ControlPlane plane_;
};

TEST_F(ControlPlaneTest, AMemberIsWelcomedFirstAndToldWhereTheTrainerIs) {
  Join(1, TrainerId("t"));
  ASSERT_EQ(Sent<Welcome>(1).size(), 1u);
  EXPECT_EQ(Sent<Welcome>(1)[0].epoch, 1);
  EXPECT_EQ(Sent<Welcome>(1)[0].run_id, "run");
  EXPECT_EQ(disk_, (std::vector<LedgerRecord>{RunIdRecord{"run"}, EpochRecord{1}})) << "durable before the welcome";
  ASSERT_TRUE(Publish("t", {1, 0}).ok());
  Join(2, RollouterId(0, "r"));
  Directory directory = Sent<Welcome>(2).at(0).directory;
  EXPECT_EQ(directory, (Directory{"trainer:1", 1, {1, 0}}));
  EXPECT_EQ(Sent<Prepare>(2).size(), 1u) << "a late joiner gets the newest version at once";
}

TEST_F(ControlPlaneTest, EverybodyHearsOfANewTrainer) {
  Join(2, RollouterId(0, "r"));
  EXPECT_EQ(Sent<Welcome>(2).at(0).directory.trainer_address, "");
  Join(1, TrainerId("t"));
  ASSERT_EQ(Sent<Directory>(2).size(), 1u);
  EXPECT_EQ(Sent<Directory>(2)[0].trainer_address, "trainer:1");
}

TEST_F(ControlPlaneTest, EveryMemberHearsThatTheRunIsCompleteOnceThatIsDurableAlsoAfterARestart) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  ASSERT_TRUE(plane_.OnComplete(TrainerId("t"), {1, 7}).ok());
  Take();
  EXPECT_EQ(disk_.back(), LedgerRecord(CompletedRecord{1}));
  ASSERT_FALSE(actions_.empty());
  EXPECT_TRUE(std::holds_alternative<Persist>(actions_.front())) << "no member gets a version that may be lost";
  ASSERT_EQ(Sent<Directory>(2).size(), 1u);
  EXPECT_TRUE(Sent<Directory>(2)[0].completed);
  Restart();
  Join(3, RollouterId(1, "r"));
  EXPECT_TRUE(Sent<Welcome>(3).at(0).directory.completed);
  Join(4, TrainerId("u"));  // this trainer continues the run
  ASSERT_EQ(Sent<Directory>(3).size(), 1u);
  EXPECT_FALSE(Sent<Directory>(3)[0].completed);
}

TEST_F(ControlPlaneTest, OnlyTheTrainerOfTheNewestEpochMayEndTheRun) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  EXPECT_THAT(plane_.OnComplete(RollouterId(0, "r"), {1, 7}), HasReason("NOT_JOINED"));
  Join(3, TrainerId("u"));
  EXPECT_THAT(plane_.OnComplete(TrainerId("t"), {1, 7}), HasReason("FENCED"));
  Take();
  EXPECT_TRUE(Sent<Directory>(2).empty());
  EXPECT_FALSE(plane_.ledger().completed());
}

TEST_F(ControlPlaneTest, RefusesARollouterOfAnotherModelNamingTheTensor) {
  Join(1, TrainerId("t"));
  model_ = std::make_shared<Manifest>(*Manifest::Create({{"embed", DType::kFloat32, {16, 9}}}));
  Join(2, RollouterId(0, "r"));
  EXPECT_EQ(ClosedWith(2), "MODEL_MISMATCH");
  EXPECT_THAT(std::string(std::get<CloseSession>(actions_.back()).status.message()), ::testing::HasSubstr("embed"));
  EXPECT_TRUE(plane_.membership().Find(SessionId{2}) == nullptr);
}

TEST_F(ControlPlaneTest, TheTrainersModelDecidesAlsoIfItComesLast) {
  auto model = model_;
  model_ = std::make_shared<Manifest>(*Manifest::Create({{"embed", DType::kFloat32, {16, 9}}}));
  Join(2, RollouterId(0, "r"));
  model_ = model;
  Join(3, RollouterId(1, "r"));
  Join(1, TrainerId("t"));
  EXPECT_EQ(ClosedWith(2), "MODEL_MISMATCH");
  EXPECT_EQ(ClosedWith(3), "still open");
}

TEST_F(ControlPlaneTest, ARollouterThatDoesNotKnowTheModelYetIsToldWhereTheTrainerIsAndReceivesNothing) {
  plane_.OnHello(2, HelloFor(RollouterId(0, "r"), nullptr), now_);
  Take();
  ASSERT_EQ(Sent<Welcome>(2).size(), 1u);
  Join(1, TrainerId("t"));
  ASSERT_EQ(Sent<Directory>(2).size(), 1u);
  EXPECT_EQ(Sent<Directory>(2)[0].trainer_address, "trainer:1");
  ASSERT_TRUE(Publish("t", {1, 0}).ok());
  EXPECT_TRUE(Sent<Prepare>(2).empty());
  EXPECT_EQ(ClosedWith(2), "still open");
  plane_.OnLeave(2, "it joins again", now_);
  Join(3, RollouterId(0, "r"));  // the rollouter has the model now
  EXPECT_EQ(ClosedWith(3), "still open");
  EXPECT_EQ(Sent<Prepare>(3).size(), 1u);
}

TEST_F(ControlPlaneTest, ATrainerMustNameItsModel) {
  plane_.OnHello(1, HelloFor(TrainerId("t"), nullptr), now_);
  Take();
  EXPECT_EQ(ClosedWith(1), "BAD_MEMBER");
}

TEST_F(ControlPlaneTest, ASecondTrainerFencesTheFirstWhoseVersionsAreRefused) {
  Join(1, TrainerId("t"));
  ASSERT_TRUE(Publish("t", {1, 0}).ok());
  Join(2, TrainerId("u"));
  EXPECT_EQ(Sent<Welcome>(2).at(0).epoch, 2);
  EXPECT_EQ(ClosedWith(1), "FENCED");
  EXPECT_EQ(Sent<Evicted>(1).at(0).reason, "FENCED");
  EXPECT_THAT(Publish("t", {1, 1}).status(), HasReason("FENCED"));
  Join(3, TrainerId("t"), 1);
  EXPECT_EQ(ClosedWith(3), "FENCED");
  EXPECT_TRUE(Publish("u", {2, 0}).ok());
}

TEST_F(ControlPlaneTest, AfterARestartVersionsGoOnAndNoEpochIsUsedTwice) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  ASSERT_TRUE(Publish("t", {1, 4}).ok());
  SyncAll(2);
  Restart();
  EXPECT_EQ(plane_.ledger().newest()->version, (PolicyVersion{1, 4}));
  EXPECT_THAT(Publish("t", {1, 5}).status(), HasReason("NOT_JOINED"));
  Join(3, TrainerId("t"), 1, "run");
  Join(4, RollouterId(0, "r"), 0, "run", {1, 4});
  EXPECT_TRUE(Sent<Prepare>(4).empty()) << "the rollouter serves the newest version already";
  EXPECT_TRUE(Publish("t", {1, 5}).ok());
  EXPECT_EQ(Sent<Prepare>(4).size(), 1u);
  Restart();
  Join(5, TrainerId("u"), 0, "");
  EXPECT_EQ(Sent<Welcome>(5).at(0).epoch, 2);
}

TEST_F(ControlPlaneTest, PublishingAgainAfterALostAnswerIsHarmless) {
  Join(1, TrainerId("t"));
  ASSERT_TRUE(Publish("t", {1, 0}).ok());
  size_t records = disk_.size();
  EXPECT_TRUE(Publish("t", {1, 0}).ok());
  EXPECT_EQ(disk_.size(), records);
}

TEST_F(ControlPlaneTest, RefusesPublicationsThatDoNotFitTheModel) {
  Join(1, TrainerId("t"));
  EXPECT_THAT(plane_.OnPublish({TrainerId("t"), {1, 0}, {1}, model_->fingerprint(), 0, 0}, now_).status(),
              HasReason("BAD_DIGESTS"));
  EXPECT_THAT(plane_.OnPublish({TrainerId("t"), {1, 0}, {1}, 17, 0, 0}, now_).status(), HasReason("MODEL_MISMATCH"));
  EXPECT_EQ(plane_.ledger().newest(), nullptr);
}

TEST_F(ControlPlaneTest, Rank0PublishesAVersionOfTwoRanksWholeAndBothSendIt) {
  Join(1, TrainerId("t", 0, 2));
  Join(2, TrainerId("u", 1, 2));
  Join(3, RollouterId(0, "r"));
  const std::vector<uint64_t> all(model_->buckets().size(), 7);
  const std::vector<uint64_t> part(model_->buckets().size() / 2, 7);
  EXPECT_THAT(plane_.OnPublish({TrainerId("t", 0, 2), {1, 0}, part, model_->fingerprint(), 0, 0}, now_).status(),
              HasReason("BAD_DIGESTS"));
  EXPECT_THAT(plane_.OnPublish({TrainerId("u", 1, 2), {1, 0}, all, model_->fingerprint(), 0, 0}, now_).status(),
              HasReason("NOT_RANK_0"));
  EXPECT_EQ(plane_.ledger().newest(), nullptr);
  ASSERT_TRUE(plane_.OnPublish({TrainerId("t", 0, 2), {1, 0}, all, model_->fingerprint(), 0.5, 0}, now_).ok());
  Take();
  ASSERT_EQ(Sent<Prepare>(3).size(), 1u);
  EXPECT_EQ(Sent<Prepare>(3)[0].digest, CombineDigests(all));
  EXPECT_EQ(Sent<Prepare>(1).size() + Sent<Prepare>(2).size(), 2u);
}

TEST_F(ControlPlaneTest, AVersionIsSentWhenAllRanksThatSendItHaveJoined) {
  Join(1, TrainerId("t", 0, 2));
  Join(3, RollouterId(0, "r"));
  const std::vector<uint64_t> all(model_->buckets().size(), 7);
  ASSERT_TRUE(plane_.OnPublish({TrainerId("t", 0, 2), {1, 0}, all, model_->fingerprint(), 0, 0}, now_).ok());
  Take();
  EXPECT_TRUE(Sent<Prepare>(3).empty());
  Join(2, TrainerId("u", 1, 2));
  EXPECT_EQ(Sent<Prepare>(3).size(), 1u);
}

TEST_F(ControlPlaneTest, RanksOfAnotherStartFenceTheWholeGroupAndOneThatNamesNoStartIsRefused) {
  Hello first = HelloFor(TrainerId("a", 0, 2), model_);
  first.start = "a";
  plane_.OnHello(1, first, now_);
  Hello other = HelloFor(TrainerId("d", 1, 2), model_);
  other.start = "c";
  plane_.OnHello(2, other, now_);
  Take();
  EXPECT_EQ(ClosedWith(1), "FENCED");
  Hello late = HelloFor(TrainerId("b", 1, 2), model_);
  late.start = "a";
  plane_.OnHello(3, late, now_);
  Take();
  EXPECT_EQ(ClosedWith(3), "FENCED");
  Hello nameless = HelloFor(TrainerId("c", 0, 2), model_);
  nameless.start.clear();
  plane_.OnHello(4, nameless, now_);
  Take();
  EXPECT_EQ(ClosedWith(4), "BAD_MEMBER");
  nameless.start = "c";
  plane_.OnHello(5, nameless, now_);
  Take();
  EXPECT_EQ(Sent<Welcome>(5).at(0).epoch, 2);
}

// Such a process has the role of a trainer and knows the name of its start, but rank 0 never lists it.
TEST_F(ControlPlaneTest, AProcessThatTakesTheSeatOfARankAndNeverAttendsEndsThatStartAndTheNextOneFencesIt) {
  Join(1, TrainerId("a", 0, 2));
  Join(2, TrainerId("stray", 1, 2));
  Join(3, RollouterId(0, "r"));
  Join(4, TrainerId("b", 1, 2));  // the rank that attends
  EXPECT_EQ(ClosedWith(4), "FENCED");
  EXPECT_TRUE(Sent<Prepare>(2).empty()) << "nothing is sent that rank 0 has not published";
  SessionId session = 5;
  for (const MemberId& id : {TrainerId("c", 0, 2), TrainerId("d", 1, 2)}) {
    Hello again = HelloFor(id, model_);
    again.start = "again";
    plane_.OnHello(session, again, now_);
    Take();
    EXPECT_EQ(Sent<Welcome>(session).at(0).epoch, 2);
    if (id.rank == 0) {
      EXPECT_EQ(ClosedWith(2), "FENCED");
    }
    ++session;
  }
  const std::vector<uint64_t> all(model_->buckets().size(), 7);
  ASSERT_TRUE(plane_.OnPublish({TrainerId("c", 0, 2), {2, 0}, all, model_->fingerprint(), 0, 0}, now_).ok());
  Take();
  EXPECT_EQ(Sent<Prepare>(3).size(), 1u);
}

TEST_F(ControlPlaneTest, TrainerRanksThatShardInDifferentWaysAreRefusedByName) {
  Hello first = HelloFor(TrainerId("t", 0, 2), model_);
  first.layout = "flat:2:fp32";
  plane_.OnHello(1, first, now_);
  Hello second = HelloFor(TrainerId("u", 1, 2), model_);
  second.layout = "flat:2:bf16";
  plane_.OnHello(2, second, now_);
  Take();
  EXPECT_EQ(ClosedWith(2), "DTYPE_MISMATCH");
  second.layout = "fsdp2:2:fp32";
  plane_.OnHello(3, second, now_);
  Take();
  EXPECT_EQ(ClosedWith(3), "LAYOUT_MISMATCH");
  second.layout = "flat:2:fp32";
  plane_.OnHello(4, second, now_);
  Take();
  EXPECT_EQ(Sent<Welcome>(4).size(), 1u);
}

TEST_F(ControlPlaneTest, ARollouterOfTheSameModelInAnotherDtypeIsRefusedByName) {
  Join(1, TrainerId("t"));
  std::vector<TensorSpec> specs = model_->tensors();
  specs[3].dtype = DType::kBFloat16;
  model_ = std::make_shared<Manifest>(*Manifest::Create(specs, model_->bucket_bytes()));
  Join(2, RollouterId(0, "r"));
  EXPECT_EQ(ClosedWith(2), "DTYPE_MISMATCH");
  EXPECT_THAT(std::string(std::get<CloseSession>(actions_.back()).status.message()), ::testing::HasSubstr("head"));
}

TEST_F(ControlPlaneTest, RefusesMembersOfAnotherRun) {
  Join(2, RollouterId(0, "r"), 0, "another");
  EXPECT_EQ(ClosedWith(2), "WRONG_RUN");
}

TEST_F(ControlPlaneTest, AMemberThatComesBackBeforeItsBreakWasNoticedIsSyncedAfreshAtOnce) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  ASSERT_TRUE(Publish("t", {1, 0}).ok());
  int64_t first = attempt_;
  Join(3, RollouterId(0, "r"), 0, "run");
  EXPECT_EQ(ClosedWith(2), "NEW_STREAM");
  ASSERT_EQ(Sent<Prepare>(3).size(), 1u);
  EXPECT_GT(attempt_, first);
  EXPECT_EQ(plane_.coordinator().attempts_under_way(), 1);
}

TEST_F(ControlPlaneTest, ACommittedSyncIsServedBeforeAnyHeartbeatSaysSo) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  ASSERT_TRUE(Publish("t", {1, 0}).ok());
  SyncAll(2);
  EXPECT_EQ(plane_.membership().Find(SessionId{2})->hello.serving, (PolicyVersion{1, 0}));
  EXPECT_EQ(plane_.coordinator().behind(), 0);
}

TEST_F(ControlPlaneTest, WhatHeartbeatsSayOfTheBaseIsBelievedUnlessItIsOlderThanWhatIsKnown) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  ASSERT_TRUE(Publish("t", {1, 0}).ok());
  SyncAll(2);
  ASSERT_TRUE(Publish("t", {1, 1}).ok());
  SyncAll(2);
  auto base = [this] { return plane_.membership().Find(SessionId{2})->hello.base_digest; };
  plane_.OnHeartbeat(2, {1, 1}, ComputeDigest({1, 1}), now_, "", 77);
  EXPECT_EQ(base(), 77u);
  plane_.OnHeartbeat(2, {1, 0}, ComputeDigest({1, 0}), now_, "", 0);  // a report has overtaken this heartbeat
  EXPECT_EQ(base(), 77u);
  plane_.OnHeartbeat(2, {1, 1}, ComputeDigest({1, 1}), now_, "", 0);
  EXPECT_EQ(base(), 0u);
  plane_.OnHeartbeat(2, {1, 1}, ComputeDigest({1, 1}), now_, "", 77);
  plane_.OnHeartbeat(2, {}, 0, now_, "", 0);  // the rollouter has dropped its weights
  EXPECT_EQ(base(), 0u);
}

TEST_F(ControlPlaneTest, AHeartbeatOfAPublishedVersionIsBelieved) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  ASSERT_TRUE(Publish("t", {1, 3}).ok());
  plane_.OnHeartbeat(2, {1, 3}, ComputeDigest({1, 3}), now_);
  EXPECT_EQ(plane_.membership().Find(SessionId{2})->hello.serving, (PolicyVersion{1, 3}));
  EXPECT_EQ(plane_.coordinator().behind(), 0);
}

TEST_F(ControlPlaneTest, ARollouterThatSaysItSleepsIsSentTheNewestVersionWhenItSaysThatItIsAwake) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  ASSERT_TRUE(Publish("t", {1, 0}).ok());
  SyncAll(2);
  plane_.OnHeartbeat(2, {1, 0}, ComputeDigest({1, 0}), now_, "ASLEEP");
  ASSERT_TRUE(Publish("t", {1, 1}).ok());
  EXPECT_TRUE(Sent<Prepare>(2).empty());
  plane_.OnHeartbeat(2, {}, 0, now_, "ASLEEP");  // the rollouter has dropped its weights
  Take();
  EXPECT_TRUE(Sent<Prepare>(2).empty());
  plane_.OnHeartbeat(2, {}, 0, now_);
  Take();
  ASSERT_EQ(Sent<Prepare>(2).size(), 1u);
  EXPECT_EQ(Sent<Prepare>(2)[0].version, (PolicyVersion{1, 1}));
  SyncAll(2);
  EXPECT_EQ(plane_.coordinator().behind(), 0);
}

TEST_F(ControlPlaneTest, AMemberThatServesOtherBitsThanWerePublishedIsOutWithTheReason) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  ASSERT_TRUE(Publish("t", {1, 3}).ok());
  Take();
  plane_.OnHeartbeat(2, {1, 3}, 77, now_);
  Take();
  EXPECT_EQ(ClosedWith(2), "WRONG_DIGEST");
  EXPECT_EQ(Sent<Evicted>(2).at(0).reason, "WRONG_DIGEST");
  Hello again = HelloFor(RollouterId(0, "s"), model_);
  again.serving = {1, 3};
  again.serving_digest = 77;
  plane_.OnHello(3, again, now_);
  Take();
  EXPECT_EQ(ClosedWith(3), "WRONG_DIGEST");
  Join(4, RollouterId(0, "s"));
  EXPECT_EQ(Sent<Welcome>(4).size(), 1u) << "a process without weights may join";
}

TEST_F(ControlPlaneTest, AVersionThatNobodyPublishedIsNotBelievedAndTheMemberIsOutOnceItCannotBeTrue) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  Join(3, RollouterId(1, "r"));
  ASSERT_TRUE(Publish("t", {1, 3}).ok());
  for (int again = 0; again < 3; ++again) plane_.OnHeartbeat(2, {1, 1000000000}, 77, now_);
  Take();
  const Member* liar = plane_.membership().Find(SessionId{2});
  EXPECT_TRUE(liar->hello.serving.IsNone());
  EXPECT_EQ(liar->unbacked, (PolicyVersion{1, 1000000000}));
  const auto notes = std::count_if(actions_.begin(), actions_.end(), [](const Action& action) {
    return std::holds_alternative<Note>(action) && std::get<Note>(action).alarm;
  });
  EXPECT_EQ(notes, 1) << "reported once";
  ASSERT_TRUE(Publish("t", {1, 4}).ok());
  EXPECT_EQ(ClosedWith(2), "UNPUBLISHED_VERSION");
  EXPECT_NE(plane_.membership().Find(SessionId{3}), nullptr);
}

// The synchronizer was killed after it had sent the version and before it had written the version's record.
TEST_F(ControlPlaneTest, AVersionWhoseRecordWasLostIsBelievedWhenItIsPublishedAgain) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  ASSERT_TRUE(Publish("t", {1, 3}).ok());
  Restart();
  Join(3, TrainerId("t"), 1, "run");
  Join(4, RollouterId(0, "r"), 0, "run", {1, 4});
  EXPECT_TRUE(Sent<Prepare>(4).empty()) << "nothing older is sent to it";
  plane_.OnHeartbeat(4, {1, 4}, ComputeDigest({1, 4}), now_);
  EXPECT_TRUE(plane_.membership().Find(SessionId{4})->hello.serving.IsNone());
  ASSERT_TRUE(Publish("t", {1, 4}).ok());
  EXPECT_EQ(ClosedWith(4), "still open");
  plane_.OnHeartbeat(4, {1, 4}, ComputeDigest({1, 4}), now_);
  Take();
  EXPECT_EQ(ClosedWith(4), "still open");
  EXPECT_EQ(plane_.membership().Find(SessionId{4})->hello.serving, (PolicyVersion{1, 4}));
  EXPECT_TRUE(plane_.membership().Find(SessionId{4})->unbacked.IsNone());
}

TEST_F(ControlPlaneTest, ATrainersHeartbeatSaysNothingOfWhatIsServed) {
  Join(1, TrainerId("t"));
  ASSERT_TRUE(Publish("t", {1, 3}).ok());
  plane_.OnHeartbeat(1, {1, 3}, 77, now_);
  Take();
  EXPECT_EQ(ClosedWith(1), "still open");
  EXPECT_TRUE(plane_.membership().Find(SessionId{1})->hello.serving.IsNone());
}

TEST_F(ControlPlaneTest, AnEvictedMemberIsToldAndItsStreamCloses) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  EXPECT_THAT(plane_.OnEvict("nobody", 0, "", now_), HasReason("UNKNOWN_MEMBER"));
  ASSERT_TRUE(plane_.OnEvict("rollouter-0", 0, "asked for", now_).ok());
  Take();
  EXPECT_EQ(Sent<Evicted>(2).at(0).reason, "EVICTED");
  EXPECT_EQ(ClosedWith(2), "EVICTED");
  Join(3, RollouterId(0, "r"));
  EXPECT_EQ(ClosedWith(3), "EVICTED");
}

TEST_F(ControlPlaneTest, ASilentMemberIsDroppedAndMayComeBack) {
  Join(1, TrainerId("t"));
  Join(2, RollouterId(0, "r"));
  for (int second = 1; second <= 5; ++second) {
    now_ += absl::Seconds(1);
    plane_.OnHeartbeat(1, {}, 0, now_);
    plane_.Tick(now_);
  }
  Take();
  EXPECT_EQ(ClosedWith(2), "DECLARED_DEAD");
  EXPECT_TRUE(Sent<Evicted>(2).empty());
  Join(3, RollouterId(0, "r"), 0, "run");
  EXPECT_EQ(Sent<Welcome>(3).size(), 1u);
}

TEST_F(ControlPlaneTest, ATriggerNeedsAVersion) {
  EXPECT_THAT(plane_.OnTrigger(now_).status(), HasReason("NO_VERSION"));
  Join(1, TrainerId("t"));
  ASSERT_TRUE(Publish("t", {1, 0}).ok());
  EXPECT_TRUE(plane_.OnTrigger(now_).ok());
}

}  // namespace
}  // namespace syncopate::synchronizer
