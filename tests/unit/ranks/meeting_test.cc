#include "ranks/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ranks/socket_meeting.h"
#include "ranks/thread_ranks.h"

namespace syncopate {
namespace {

constexpr absl::Duration kSoon = absl::Milliseconds(300), kLong = absl::Seconds(20);

constexpr char kKey[] = "trainer.ranks_listen";

SocketMeeting Listen() { return SocketMeeting::Open({"127.0.0.1", 0}, kKey).value(); }

// Makes rank `rank` of a group; the other ranks are at `addresses`.
absl::StatusOr<std::unique_ptr<Communicator>> Meet(SocketMeeting& meeting, const RankSecret& secret, int32_t rank,
                                                   std::vector<HostPort> addresses, absl::Duration meet = kLong,
                                                   const SocketGoOn& go_on = nullptr) {
  const auto world = static_cast<int32_t>(addresses.size());
  return meeting.Meet(
      {.rank = rank, .world = world, .secret = secret, .meet = meet, .deadline = kLong, .listen_key = kKey}, addresses,
      go_on);
}

TEST(SocketMeetingTest, ThoseWhoDoNotComeAreCounted) {
  const RankSecret secret = DrawRankSecret();
  SocketMeeting first = Listen(), second = Listen();
  const std::vector<HostPort> addresses = {first.address(), second.address(), {"127.0.0.1", 1}};
  auto one = std::async(std::launch::async, [&] { return Meet(second, secret, 1, addresses, kSoon).status(); });
  for (const absl::Status& status : {Meet(first, secret, 0, addresses, kSoon).status(), one.get()}) {
    EXPECT_EQ(ErrorReason(status), "RANK_LOST");
    EXPECT_THAT(std::string(status.message()), ::testing::ContainsRegex("1 of [12] ranks have not come"));
    EXPECT_THAT(status.message(), ::testing::HasSubstr(kKey));
  }
}

TEST(SocketMeetingTest, WhoHasAnotherSecretIsNoRankAndIsNoticedOnBothSides) {
  SocketMeeting first = Listen(), second = Listen();
  const std::vector<HostPort> addresses = {first.address(), second.address()};
  auto stranger = std::async(std::launch::async, [&] { return Meet(second, DrawRankSecret(), 1, addresses).status(); });
  EXPECT_EQ(ErrorReason(Meet(first, DrawRankSecret(), 0, addresses, kSoon).status()), "RANK_LOST");
  EXPECT_EQ(ErrorReason(stranger.get()), "WRONG_SECRET");
}

TEST(SocketMeetingTest, ConnectionsThatSayNothingOrNonsenseDoNotStopIt) {
  const RankSecret secret = DrawRankSecret();
  SocketMeeting first = Listen(), second = Listen();
  const std::vector<HostPort> addresses = {first.address(), second.address()};
  const absl::Time until = Clock::Real()->Now() + kLong;
  TcpSocket nonsense = DialTcp(first.address(), "rank 0", until).value();
  const std::string text(100, 'x');
  ASSERT_TRUE(nonsense.Send(text.data(), 100, until).ok());
  { TcpSocket gone = DialTcp(first.address(), "rank 0", until).value(); }
  auto other = std::async(std::launch::async, [&] { return Meet(second, secret, 1, addresses).value()->Barrier(); });
  auto rank0 = Meet(first, secret, 0, addresses);
  ASSERT_TRUE(rank0.ok()) << rank0.status();
  EXPECT_TRUE((*rank0)->Barrier().ok());
  EXPECT_TRUE(other.get().ok());
}

TEST(SocketMeetingTest, ARankThatCannotBeReachedIsNamedWithTheAddressThatItToldAndTheRemedy) {
  const RankSecret secret = DrawRankSecret();
  SocketMeeting mine = Listen();
  const HostPort closed = Listen().address();  // its listener is closed
  const absl::Status status = Meet(mine, secret, 1, {closed, mine.address()}).status();
  EXPECT_EQ(ErrorReason(status), "RANK_LOST");
  EXPECT_THAT(status.message(), ::testing::HasSubstr(closed.ToString()));
  EXPECT_THAT(status.message(), ::testing::HasSubstr("the address that rank 0 told"));
  EXPECT_THAT(status.message(), ::testing::HasSubstr(kKey));
}

TEST(SocketMeetingTest, AnAddressThatCannotBeBoundIsNamedWithItsKey) {
  const SocketMeeting taken = Listen();
  for (const HostPort& address : {taken.address(), HostPort{"192.0.2.1", 0}}) {
    const absl::Status status = SocketMeeting::Open(address, kKey).status();
    EXPECT_EQ(ErrorReason(status), "SYSTEM") << status;
    EXPECT_THAT(status.message(), ::testing::HasSubstr(address.ToString()));
    EXPECT_THAT(status.message(), ::testing::HasSubstr(kKey));
  }
}

TEST(SocketMeetingTest, ARankThatWaitsForALowerOneEndsWithTheErrorOfGoOn) {
  SocketMeeting silent = Listen(), mine = Listen();  // rank 0 listens and never accepts
  int asked = 0;
  auto go_on = [&asked]() -> absl::Status {
    return ++asked < 3 ? absl::OkStatus() : Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop");
  };
  EXPECT_EQ(ErrorReason(Meet(mine, DrawRankSecret(), 1, {silent.address(), mine.address()}, kLong, go_on).status()),
            "STOPPED");
}

TEST(SocketMeetingTest, ASecondProcessOfTheSameRankTakesNobodysPlace) {
  const RankSecret secret = DrawRankSecret();
  SocketMeeting first = Listen();
  SocketMeeting again[] = {Listen(), Listen()};
  const std::vector<HostPort> addresses = {first.address(), again[0].address(), again[1].address()};
  auto join = [&](SocketMeeting& meeting) {
    return std::async(std::launch::async, [&] { return Meet(meeting, secret, 1, addresses, kSoon).status(); });
  };
  auto one = join(again[0]), same = join(again[1]);
  const absl::Status status = Meet(first, secret, 0, addresses, kSoon).status();
  EXPECT_EQ(ErrorReason(status), "RANK_LOST") << "rank 2 has not joined, although another rank joined twice";
  EXPECT_THAT(status.message(), ::testing::HasSubstr("1 of 2 ranks have not come"));
  EXPECT_FALSE(one.get().ok());
  EXPECT_FALSE(same.get().ok());
}

absl::Status GoOn() { return absl::OkStatus(); }

TEST(MeetRanksTest, TheOthersFollowTheInvitationToWhereAllRanksListen) {
  const RankPlace cpu;
  std::vector<RankListener> listeners;
  for (const char* host : {"0.0.0.0", "127.0.0.1", "127.0.0.1"}) {
    listeners.push_back(RankListener::Open(cpu, {host, 0}, kKey).value());
  }
  std::promise<RankInvitation> invited;
  const auto invitation = invited.get_future().share();
  auto follow = [&](int32_t rank) {
    return std::async(std::launch::async, [&, rank] {
      // Rank 0 listens on all addresses, so each rank uses the host name by which it reaches rank 0.
      return FollowInvitation(cpu, {.rank = rank, .world = 3}, &listeners[static_cast<size_t>(rank)], "127.0.0.1",
                              invitation.get(), GoOn)
          .value();
    });
  };
  auto one = follow(1), two = follow(2);
  auto invite = [&](const RankInvitation& told) {
    invited.set_value(told);
    return absl::OkStatus();
  };
  const auto first =
      MeetRanks(cpu, {.world = 3}, listeners.data(), {listeners[1].address(), listeners[2].address()}, invite, GoOn)
          .value();
  EXPECT_EQ(first->world(), 3);
  EXPECT_EQ(one.get()->rank(), 1);
  EXPECT_EQ(two.get()->rank(), 2);
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
  RankListener none = RankListener::Open(gpu, {"no such host", 0}, kKey).value();
  EXPECT_EQ(none.address(), "");
  EXPECT_TRUE(MeetRanks(gpu, {.world = 2}, &none, {""}, invite, GoOn).ok());
  EXPECT_TRUE(said.addresses.empty());
  EXPECT_TRUE(FollowInvitation(gpu, {.rank = 1, .world = 2}, &none, "", said, GoOn).ok());
  EXPECT_EQ(ErrorReason(FollowInvitation(gpu, {.rank = 1, .world = 2}, &none, "", {}, GoOn).status()), "RANK_LOST");
}

TEST(MeetRanksTest, ARankThatCannotBeInvitedIsNotWaitedFor) {
  auto invite = [](const RankInvitation&) { return RankLost("rank 1 takes no commands"); };
  RankListener listener = RankListener::Open({}, {"127.0.0.1", 0}, kKey).value();
  EXPECT_EQ(ErrorReason(MeetRanks({}, {.world = 2}, &listener, {""}, invite, GoOn).status()), "RANK_LOST");
}

TEST(MeetRanksTest, AWaitForTheOthersEndsWithTheErrorOfGoOn) {
  int asked = 0;
  auto go_on = [&asked]() -> absl::Status {
    return ++asked < 3 ? absl::OkStatus() : Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop");
  };
  auto invite = [](const RankInvitation&) { return absl::OkStatus(); };
  RankListener listener = RankListener::Open({}, {"127.0.0.1", 0}, kKey).value();
  EXPECT_EQ(ErrorReason(MeetRanks({}, {.world = 2}, &listener, {""}, invite, go_on).status()), "STOPPED");
}

TEST(MeetRanksTest, ADamagedInvitationIsNotFollowed) {
  RankListener listener = RankListener::Open({}, {"127.0.0.1", 0}, kKey).value();
  const std::string secret(sizeof(RankSecret), 'x');
  const std::string good = listener.address();
  for (const RankInvitation& damaged : {RankInvitation{.addresses = {good, good}, .secret = "short"},
                                        RankInvitation{.addresses = {"nowhere", good}, .secret = secret},
                                        RankInvitation{.addresses = {good}, .secret = secret}}) {
    EXPECT_EQ(
        ErrorReason(FollowInvitation({}, {.rank = 1, .world = 2}, &listener, "127.0.0.1", damaged, GoOn).status()),
        "RANK_LOST");
  }
}

}  // namespace
}  // namespace syncopate
