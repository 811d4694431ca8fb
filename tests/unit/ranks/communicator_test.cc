#include <future>

#include "base/clock.h"
#include "ranks/socket_meeting.h"
#include "ranks/thread_ranks.h"
#include "tests/support/communicator_conformance.h"

namespace syncopate::trainer {
namespace {

// The ranks meet over loopback, as processes do.
Ranks MakeSocketRanks(int32_t world, absl::Duration deadline) {
  std::vector<SocketMeeting> meetings;
  std::vector<HostPort> addresses;
  for (int32_t rank = 0; rank < world; ++rank) {
    meetings.push_back(SocketMeeting::Open({"127.0.0.1", 0}, "ranks_listen").value());
    addresses.push_back(meetings.back().address());
  }
  SocketGroup group{.world = world, .secret = DrawRankSecret(), .meet = absl::Seconds(20), .deadline = deadline};
  std::vector<std::future<std::unique_ptr<Communicator>>> others;
  for (int32_t rank = 0; rank < world; ++rank) {
    others.push_back(std::async(std::launch::async, [&, rank] {
      SocketGroup mine = group;
      mine.rank = rank;
      return meetings[static_cast<size_t>(rank)].Meet(mine, addresses).value();
    }));
  }
  Ranks ranks;
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

}  // namespace
}  // namespace syncopate::trainer
