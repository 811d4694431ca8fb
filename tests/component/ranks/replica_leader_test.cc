#include "services/rollouter/replica_leader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/rollouter/rank_codec.h"
#include "services/rpc/channel.h"
#include "services/rpc/rank_attendance.h"
#include "services/rpc/server.h"
#include "services/wire/codec.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"

namespace syncopate::rollouterd {
namespace {

using rollouter::EngineCommand;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using Attendance =
    rpc::RankAttendance<v1::ReplicaService, v1::ReplicaServiceAttendRequest, v1::ReplicaServiceAttendResponse>;

constexpr absl::Duration kPatience = absl::Seconds(20);
const PolicyVersion kVersion{3, 7};
const std::string kSecret(kGroupSecretBytes, 's');

// Rank 0's end of the connection, and the end of rank 1, operated by hand.
class ReplicaLeaderTest : public ::testing::Test {
 protected:
  ReplicaLeaderTest()
      : leader_({.rank0 = {.world = 2, .config_digest = "config", .manifest_fingerprint = 7, .build = "0.1"},
                 .secret = kSecret,
                 .on_lost = [](auto&) {}}),
        server_(rpc::Server::Start({}, {&leader_}).value()) {
    // The first read returns the secret from before rank 0 started anew.
    auto secret = [reads = std::make_shared<int>(0)]() -> absl::StatusOr<std::string> {
      return (*reads)++ == 0 ? "of an earlier life" : kSecret;
    };
    const Attendance::Options options = MakeOptions(1, secret);
    auto first = std::async(std::launch::async, [&] { return rank_->Begin(options, kPatience).status(); });
    EXPECT_THAT(leader_.AwaitRanks(kPatience, [] { return absl::OkStatus(); }), IsOk());
    EXPECT_THAT(leader_.Welcome({}), IsOk());
    EXPECT_THAT(first.get(), IsOk());
  }
  Attendance::Options MakeOptions(int32_t rank, std::function<absl::StatusOr<std::string>()> secret) const {
    return {.rank0_key = "rollouter.rank0",
            .rank0 = server_->address(),
            .role = "rollouter",
            .facts = {.rank = rank,
                      .world = 2,
                      .config_digest = "config",
                      .manifest_fingerprint = 7,
                      .build = "0.1",
                      .card = absl::StrCat("card-", rank)},
            .secret = std::move(secret),
            .on_lost = [](const absl::Status&) {}};
  }
  ~ReplicaLeaderTest() override {
    rank_.reset();
    server_->Stop(absl::Seconds(2));
  }
  void SayReady() {
    v1::ReplicaServiceAttendRequest message;
    *message.mutable_weights_ready()->mutable_version() = wire::ToProto(kVersion);
    rank_->Write(message);
  }
  void Withdraw() {
    v1::ReplicaServiceAttendRequest message;
    *message.mutable_weights_withdrawn()->mutable_version() = wire::ToProto(kVersion);
    rank_->Write(message);
  }
  // The number of the next question whether commands were obeyed.
  int64_t NextConfirm() {
    auto said = rank_->AwaitMessage();
    EXPECT_TRUE(said.ok() && said->has_confirm());
    confirm_ = said.ok() ? said->confirm().number() : 0;
    return confirm_;
  }
  void Confirm(int64_t number, const std::string& no_room = "") {
    v1::ReplicaServiceAttendRequest message;
    message.mutable_confirmed()->set_number(number);
    message.mutable_confirmed()->set_no_room(no_room);
    rank_->Write(message);
  }
  v1::ReplicaServiceAttendResponse::WeightsSettled NextSettled() {
    auto said = rank_->AwaitMessage();
    EXPECT_TRUE(said.ok() && said->has_weights_settled());
    return said.ok() ? said->weights_settled() : v1::ReplicaServiceAttendResponse::WeightsSettled();
  }

  ReplicaLeader leader_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<Attendance> rank_ = std::make_unique<Attendance>();
  int64_t confirm_ = 0;
};

TEST_F(ReplicaLeaderTest, ARankWithAnotherSecretOrANumberThatCannotBeLosesNothing) {
  auto attend = [this](int32_t rank, const std::string& secret) {
    Attendance stranger;
    return stranger.Begin(MakeOptions(rank, [secret] { return secret; }), kPatience).status();
  };
  EXPECT_THAT(attend(1, std::string(kGroupSecretBytes, 't')), HasReason("WRONG_SECRET"));
  const absl::Status missing = attend(1, "");
  EXPECT_THAT(missing, HasReason("WRONG_SECRET"));
  EXPECT_THAT(missing.message(), ::testing::HasSubstr("syncopate replica"));
  EXPECT_THAT(attend(2, kSecret), HasReason("BAD_RANK"));
  EXPECT_THAT(attend(0, kSecret), HasReason("BAD_RANK"));
  EXPECT_THAT(attend(1, kSecret), HasReason("RANK_TAKEN"));
  EXPECT_THAT(leader_.lost(), IsOk());
  EXPECT_THAT(leader_.Send({.kind = EngineCommand::Kind::kReleaseBlocks}), IsOk());
}

TEST_F(ReplicaLeaderTest, PlansArriveAsTheyWereSentAndInOrder) {
  rollouter::StepPlan plan;
  plan.id = 5;
  plan.version = kVersion;
  plan.swaps_out = {{1, 2}};
  plan.swaps_in = {{3, 4}, {5, 6}};
  plan.copies = {{7, 8, 9}};
  auto sampling = std::make_shared<SamplingParams>();
  sampling->temperature = 0.5f;
  sampling->stop_token_ids = {3};
  plan.starts.push_back(
      {1, 2, 3, 4, std::make_shared<std::vector<int32_t>>(std::vector<int32_t>{5, 6}), sampling, {7}, -1});
  plan.tables = {{1, 0, 9}};
  plan.chunks.push_back({1, 4, {5, 6, 7}, {1, 2}});
  plan.rows = {{0, 11}, {2, 12}};
  ASSERT_THAT(leader_.Send({.kind = EngineCommand::Kind::kPlan, .plan = plan}), IsOk());
  ASSERT_THAT(leader_.Send({.kind = EngineCommand::Kind::kExchange, .version = kVersion, .digest = 17}), IsOk());

  const EngineCommand first = FromProto(rank_->AwaitMessage().value()).value();
  ASSERT_EQ(first.kind, EngineCommand::Kind::kPlan);
  EXPECT_EQ(first.plan.id, 5);
  EXPECT_EQ(first.plan.version, kVersion);
  EXPECT_EQ(first.plan.swaps_out[0].host_block, 2);
  EXPECT_EQ(first.plan.swaps_in[1].block, 5);
  EXPECT_EQ(first.plan.copies[0].tokens, 9);
  EXPECT_EQ(first.plan.starts[0].seed, 4u);
  EXPECT_EQ(*first.plan.starts[0].prompt, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(*first.plan.starts[0].sampling, *sampling);
  EXPECT_EQ(first.plan.starts[0].drawn, (std::vector<int32_t>{7}));
  EXPECT_EQ(first.plan.starts[0].adapter, -1);
  EXPECT_EQ(first.plan.tables[0].block, 9);
  EXPECT_EQ(first.plan.chunks[0].tokens, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(first.plan.chunks[0].draws, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(first.plan.rows[1].position, 12);
  const EngineCommand second = FromProto(rank_->AwaitMessage().value()).value();
  EXPECT_EQ(second.kind, EngineCommand::Kind::kExchange);
  EXPECT_EQ(second.version, kVersion);
  EXPECT_EQ(second.digest, 17u);
}

TEST_F(ReplicaLeaderTest, CommandsAreObeyedWhenTheOtherRankSaysSoBehindThem) {
  auto obeyed = std::async(std::launch::async, [&] {
    EXPECT_THAT(leader_.Send({.kind = EngineCommand::Kind::kReleaseBlocks}), IsOk());
    return leader_.AwaitObeyed(kPatience);
  });
  EXPECT_TRUE(rank_->AwaitMessage()->has_release_blocks());
  Confirm(NextConfirm() - 1);  // an answer to an earlier question
  EXPECT_NE(obeyed.wait_for(std::chrono::milliseconds(20)), std::future_status::ready);
  Confirm(confirm_);
  EXPECT_THAT(obeyed.get(), IsOk());
  EXPECT_THAT(leader_.lost(), IsOk());
}

TEST_F(ReplicaLeaderTest, ARankThatHasNoRoomSaysSoAndTheReplicaGoesOn) {
  auto obeyed = std::async(std::launch::async, [&] { return leader_.AwaitObeyed(kPatience); });
  NextConfirm();
  Confirm(confirm_, "7 MiB are free");
  const absl::Status why = obeyed.get();
  EXPECT_THAT(why, HasReason("NO_ROOM"));
  EXPECT_THAT(why.message(), ::testing::HasSubstr("rank 1 of this replica has no room on its device: 7 MiB are free"));
  EXPECT_THAT(leader_.lost(), IsOk());
}

TEST_F(ReplicaLeaderTest, ARankThatDoesNotObeyInTimeOrLeavesEndsTheReplica) {
  EXPECT_THAT(leader_.AwaitObeyed(absl::Milliseconds(1)), HasReason("RANK_LOST"));
  EXPECT_THAT(leader_.lost(), HasReason("RANK_LOST"));
  EXPECT_THAT(leader_.AwaitObeyed(kPatience), HasReason("RANK_LOST"));
}

TEST_F(ReplicaLeaderTest, ARankThatLeavesWhileItIsWaitedForEndsTheWait) {
  auto obeyed = std::async(std::launch::async, [&] { return leader_.AwaitObeyed(kPatience); });
  NextConfirm();
  rank_->Stop();
  EXPECT_THAT(obeyed.get(), HasReason("RANK_LOST"));
}

TEST_F(ReplicaLeaderTest, TheCardsOfTheOtherRanksAreKnown) {
  EXPECT_THAT(leader_.cards(), ::testing::ElementsAre("card-1"));
}

TEST_F(ReplicaLeaderTest, AVersionIsClaimedWhenTheOtherRankHasIt) {
  EXPECT_THAT(leader_.Claim(kVersion, absl::Milliseconds(1)), HasReason("INSTALL_DEADLINE"));
  SayReady();
  EXPECT_THAT(leader_.Claim(kVersion, kPatience), IsOk());
  leader_.EndClaim(kVersion, ReplicaLeader::End::kRelabelled);
  EXPECT_TRUE(NextSettled().relabelled());
}

TEST_F(ReplicaLeaderTest, ARankThatWithdrawsIsReleasedAtOnceOrWhenTheClaimEnds) {
  SayReady();
  Withdraw();
  EXPECT_FALSE(NextSettled().relabelled());
  SayReady();
  ASSERT_THAT(leader_.Claim(kVersion, kPatience), IsOk());
  Withdraw();
  leader_.EndClaim(kVersion, ReplicaLeader::End::kGivenUp);
  EXPECT_EQ(wire::FromProto(NextSettled().version()), kVersion);
}

TEST_F(ReplicaLeaderTest, ATransferInPlaceBeginsWhenTheOtherRankWaitsForItAndItSaysHowItEnded) {
  Mailbox<std::pair<PolicyVersion, bool>> abandoned;
  leader_.SetAbandonListener([&](int32_t rank, const PolicyVersion& version, bool overwritten) {
    EXPECT_EQ(rank, 1);
    abandoned.Put({version, overwritten});
  });
  EXPECT_THAT(leader_.AwaitStopAwaited(kVersion, absl::Milliseconds(1)), HasReason("INSTALL_DEADLINE"));
  v1::ReplicaServiceAttendRequest waits;
  *waits.mutable_stop_awaited()->mutable_version() = wire::ToProto(kVersion);
  rank_->Write(waits);
  EXPECT_THAT(leader_.AwaitStopAwaited(kVersion, kPatience), IsOk());
  EXPECT_THAT(leader_.AwaitStopAwaited(kVersion, kPatience), IsOk())
      << "the replica waits while the engine does not stop";
  ASSERT_THAT(leader_.Send({.kind = EngineCommand::Kind::kBeginInPlace, .version = kVersion}), IsOk());
  leader_.EndStopAwaited(kVersion);
  EXPECT_THAT(leader_.AwaitStopAwaited(kVersion, absl::Milliseconds(1)), HasReason("INSTALL_DEADLINE"));
  const EngineCommand begin = FromProto(rank_->AwaitMessage().value()).value();
  EXPECT_EQ(begin.kind, EngineCommand::Kind::kBeginInPlace);
  EXPECT_EQ(begin.version, kVersion);
  v1::ReplicaServiceAttendRequest over;
  *over.mutable_transfer_abandoned()->mutable_version() = wire::ToProto(kVersion);
  over.mutable_transfer_abandoned()->set_overwritten(true);
  rank_->Write(over);
  ASSERT_TRUE(abandoned.WaitFor(1));
  EXPECT_EQ(abandoned.All()[0], std::pair(kVersion, true));
  leader_.SendWeightsLost(kVersion);
  EXPECT_TRUE(rank_->AwaitMessage()->has_weights_lost());
  leader_.SetAbandonListener(nullptr);
}

TEST_F(ReplicaLeaderTest, ALostRankEndsTheWaitForIt) {
  auto claimed = std::async(std::launch::async, [this] { return leader_.Claim(kVersion, kPatience); });
  rank_->Stop();
  EXPECT_THAT(claimed.get(), HasReason("RANK_LOST"));
  EXPECT_THAT(leader_.Send({.kind = EngineCommand::Kind::kReleaseBlocks}), HasReason("RANK_LOST"));
}

}  // namespace
}  // namespace syncopate::rollouterd
