#include "ranks/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "base/clock.h"
#include "ranks/socket_ranks.h"
#include "ranks/thread_ranks.h"

namespace syncopate {
namespace {

constexpr absl::Duration kSoon = absl::Milliseconds(300), kLong = absl::Seconds(20);

TEST(RankMeetingTest, RanksThatDoNotComeAreCounted) {
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

TEST(RankMeetingTest, AProcessWithAnotherSecretIsRefusedAndBothSidesNoticeIt) {
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

TEST(MeetRanksTest, ARankThatCannotBeInvitedIsNotWaitedFor) {
  auto invite = [](const RankInvitation&) { return RankLost("rank 1 takes no commands"); };
  EXPECT_EQ(ErrorReason(MeetRanks({}, {.world = 2}, "127.0.0.1", invite, GoOn).status()), "RANK_LOST");
}

TEST(MeetRanksTest, AWaitForTheOthersEndsWithTheErrorOfGoOn) {
  int asked = 0;
  auto go_on = [&asked]() -> absl::Status {
    return ++asked < 3 ? absl::OkStatus() : Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop");
  };
  auto invite = [](const RankInvitation&) { return absl::OkStatus(); };
  EXPECT_EQ(ErrorReason(MeetRanks({}, {.world = 2}, "127.0.0.1", invite, go_on).status()), "STOPPED");
}

TEST(MeetRanksTest, AnInvitationWithADamagedSecretIsNotFollowed) {
  const RankInvitation damaged{.port = 1, .secret = "short"};
  EXPECT_EQ(ErrorReason(FollowInvitation({}, {.rank = 1, .world = 2}, "127.0.0.1", damaged, GoOn).status()),
            "RANK_LOST");
}

TEST(RankMeetingTest, ASecondProcessOfTheSameRankTakesNobodysPlace) {
  const RankSecret secret = DrawRankSecret();
  RankMeeting meeting = RankMeeting::Open("127.0.0.1", secret).value();
  const HostPort address{"127.0.0.1", meeting.port()};
  auto join = [&](int32_t rank) {
    return std::async(std::launch::async,
                      [&, rank] { return JoinRanks(address, secret, rank, 3, kLong, kLong).status(); });
  };
  auto one = join(1), same = join(1);
  const absl::Status status = meeting.Meet(3, kSoon, kLong).status();
  EXPECT_EQ(ErrorReason(status), "RANK_LOST") << "rank 2 has not come, whatever came twice";
  EXPECT_THAT(status.message(), ::testing::HasSubstr("1 of 2 ranks have not come"));
  one.wait();
  same.wait();
}

}  // namespace
}  // namespace syncopate
