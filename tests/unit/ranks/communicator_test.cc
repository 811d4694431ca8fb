#include <future>

#include "base/clock.h"
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

}  // namespace
}  // namespace syncopate::trainer
