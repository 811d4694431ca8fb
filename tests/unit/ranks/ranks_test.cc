#include <future>

#include "base/clock.h"
#include "ranks/group_secret.h"
#include "ranks/meeting.h"
#include "ranks/socket_ranks.h"
#include "ranks/thread_ranks.h"
#include "tests/support/communicator_conformance.h"

namespace syncopate::trainer {
namespace {

// Rank 0 and the others meet over loopback, as processes do.
Ranks MakeSocketRanks(int32_t world, absl::Duration deadline) {
  const RankSecret secret = DrawRankSecret();
  RankMeeting meeting = RankMeeting::Open("127.0.0.1", secret).value();
  const HostPort address{"127.0.0.1", meeting.port()};
  std::vector<std::future<std::unique_ptr<Communicator>>> others;
  for (int32_t rank = 1; rank < world; ++rank) {
    others.push_back(std::async(std::launch::async, [&, rank] {
      return JoinRanks(address, secret, rank, world, absl::Seconds(20), deadline).value();
    }));
  }
  Ranks ranks;
  ranks.push_back(meeting.Meet(world, absl::Seconds(20), deadline).value());
  for (auto& other : others) ranks.push_back(other.get());
  return ranks;
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorTest,
                         ::testing::Values(CommunicatorCase{"threads", &MakeThreadRanks},
                                           CommunicatorCase{"sockets", &MakeSocketRanks}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SingleRankTest, EveryCallGivesItsOwnBack) {
  SingleRank single;
  std::vector<double> values = {1, 2}, gathered(2), scattered(2);
  ASSERT_TRUE(single.AllReduceSum(absl::MakeSpan(values)).ok());
  ASSERT_TRUE(single.AllGather(values.data(), gathered.data(), 16).ok());
  ASSERT_TRUE(single.ReduceScatter(values.data(), scattered.data(), 2, Element::kFloat64).ok());
  ASSERT_TRUE(single.Barrier().ok());
  EXPECT_EQ(gathered, values);
  EXPECT_EQ(scattered, values);
}

constexpr absl::Duration kSoon = absl::Milliseconds(300), kLong = absl::Seconds(20);

TEST(RankMeetingTest, ThoseWhoDoNotComeAreCounted) {
  const RankSecret secret = DrawRankSecret();
  RankMeeting meeting = RankMeeting::Open("127.0.0.1", secret).value();
  auto one = std::async(std::launch::async, [&] {
    return JoinRanks({"127.0.0.1", meeting.port()}, secret, 1, 3, kLong, kLong).status();
  });
  const absl::Status status = meeting.Meet(3, kSoon, kLong).status();
  EXPECT_EQ(ErrorReason(status), "RANK_LOST");
  EXPECT_THAT(status.message(), ::testing::HasSubstr("1 of 2 ranks have not come"));
  EXPECT_TRUE(one.get().ok());
}

TEST(RankMeetingTest, WhoHasAnotherSecretIsNoRankAndIsNoticedOnBothSides) {
  RankMeeting meeting = RankMeeting::Open("127.0.0.1", DrawRankSecret()).value();
  auto stranger = std::async(std::launch::async, [&] {
    return JoinRanks({"127.0.0.1", meeting.port()}, DrawRankSecret(), 1, 2, kLong, kLong).status();
  });
  EXPECT_EQ(ErrorReason(meeting.Meet(2, kSoon, kLong).status()), "RANK_LOST");
  EXPECT_EQ(ErrorReason(stranger.get()), "WRONG_SECRET");
}

TEST(RankMeetingTest, ConnectionsThatSayNothingOrNonsenseDoNotStopIt) {
  const RankSecret secret = DrawRankSecret();
  RankMeeting meeting = RankMeeting::Open("127.0.0.1", secret).value();
  const HostPort address{"127.0.0.1", meeting.port()};
  const absl::Time until = Clock::Real()->Now() + kLong;
  TcpSocket nonsense = DialTcp(address, "rank 0", until).value();
  const std::string text(100, 'x');
  ASSERT_TRUE(nonsense.Send(text.data(), 100, until).ok());
  { TcpSocket gone = DialTcp(address, "rank 0", until).value(); }
  auto other =
      std::async(std::launch::async, [&] { return JoinRanks(address, secret, 1, 2, kLong, kLong).value()->Barrier(); });
  auto middle = meeting.Meet(2, kLong, kLong);
  ASSERT_TRUE(middle.ok()) << middle.status();
  EXPECT_TRUE((*middle)->Barrier().ok());
  EXPECT_TRUE(other.get().ok());
}

TEST(RankMeetingTest, NobodyAtTheAddressIsALostRank) {
  const uint16_t port = RankMeeting::Open("127.0.0.1", DrawRankSecret()).value().port();
  EXPECT_EQ(ErrorReason(JoinRanks({"127.0.0.1", port}, DrawRankSecret(), 1, 2, kLong, kLong).status()), "RANK_LOST");
}

absl::Status GoOn() { return absl::OkStatus(); }

TEST(MeetRanksTest, TheOthersFollowTheInvitationToTheHostWhereRank0Listens) {
  const RankPlace cpu;
  std::promise<RankInvitation> invited;
  auto other = std::async(std::launch::async, [&] {
    return FollowInvitation(cpu, {.rank = 1, .world = 2}, "127.0.0.1", invited.get_future().get(), GoOn).value();
  });
  auto invite = [&](const RankInvitation& invitation) {
    invited.set_value(invitation);
    return absl::OkStatus();
  };
  const auto first = MeetRanks(cpu, {.world = 2}, "127.0.0.1", invite, GoOn).value();
  EXPECT_EQ(first->world(), 2);
  EXPECT_EQ(other.get()->rank(), 1);
}

TEST(MeetRanksTest, PlacesThatHaveAnIdMeetByItAlone) {
  RankPlace gpu;
  gpu.new_id = [] { return absl::StatusOr<std::string>("id"); };
  gpu.join = [](const std::string& id, int32_t rank,
                const RankPlace::GoOn&) -> absl::StatusOr<std::unique_ptr<Communicator>> {
    if (id != "id" || rank > 1) return RankLost("another id");
    return std::unique_ptr<Communicator>(std::make_unique<SingleRank>());
  };
  RankInvitation said;
  auto invite = [&](const RankInvitation& invitation) {
    said = invitation;
    return absl::OkStatus();
  };
  EXPECT_TRUE(MeetRanks(gpu, {.world = 2}, "no such host", invite, GoOn).ok());
  EXPECT_EQ(said.port, 0);
  EXPECT_TRUE(FollowInvitation(gpu, {.rank = 1, .world = 2}, "", said, GoOn).ok());
  EXPECT_EQ(ErrorReason(FollowInvitation(gpu, {.rank = 1, .world = 2}, "", {}, GoOn).status()), "RANK_LOST");
}

TEST(MeetRanksTest, WhoCannotBeInvitedIsNotWaitedFor) {
  auto invite = [](const RankInvitation&) { return RankLost("rank 1 takes no commands"); };
  EXPECT_EQ(ErrorReason(MeetRanks({}, {.world = 2}, "127.0.0.1", invite, GoOn).status()), "RANK_LOST");
}

TEST(GroupSecretTest, IsDifferentEachTimeAndNothingElsePassesForIt) {
  const std::string secret = DrawGroupSecret();
  EXPECT_EQ(secret.size(), kGroupSecretBytes);
  EXPECT_NE(DrawGroupSecret(), secret);
  EXPECT_TRUE(IsGroupSecret(secret, secret));
  for (const std::string& wrong : {std::string(), secret.substr(1), secret + "x", DrawGroupSecret()}) {
    EXPECT_FALSE(IsGroupSecret(secret, wrong));
  }
  EXPECT_FALSE(IsGroupSecret("", ""));  // a group without one takes none
}

TEST(GroupSecretTest, TravelsByTheEnvironment) {
  const std::string secret = DrawGroupSecret();
  const std::string assignment = GroupSecretAssignment(secret);
  const std::string name = std::string(kGroupSecretVariable) + "=";
  ASSERT_EQ(assignment.substr(0, name.size()), name);
  EXPECT_EQ(ParseGroupSecret(assignment.c_str() + name.size()).value(), secret);
  EXPECT_EQ(ParseGroupSecret(nullptr).value(), "");
  EXPECT_EQ(ParseGroupSecret("").value(), "");
  for (const std::string& bad :
       {std::string("secret"), std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'g')}) {
    const absl::Status status = ParseGroupSecret(bad.c_str()).status();
    EXPECT_EQ(ErrorReason(status), "BAD_CONFIG");
    EXPECT_EQ(status.message().find(bad), std::string::npos);
  }
}

}  // namespace
}  // namespace syncopate::trainer
