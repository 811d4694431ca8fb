#include "bench/sync/token_stream.h"

#include <gtest/gtest.h>

#include <vector>

#include "bench/sync/gpu_list.h"

namespace syncopate::bench {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(TokenStreamTest, CountsTheTokensOfAWindowInPart) {
  const std::vector<absl::Time> arrivals = {At(1), At(2), At(3), At(7), At(8)};
  EXPECT_DOUBLE_EQ(StepsWithin(arrivals, {{At(0), At(10)}}), 4);
  EXPECT_DOUBLE_EQ(StepsWithin(arrivals, {{At(1.5), At(2.5)}}), 1);
  // One decode step is long: it begins before the window and ends after it.
  EXPECT_DOUBLE_EQ(StepsWithin(arrivals, {{At(4), At(5)}}), 0.25);
  EXPECT_DOUBLE_EQ(StepsWithin(arrivals, {{At(4), At(5)}, {At(7), At(7.5)}}), 0.75);
  EXPECT_DOUBLE_EQ(StepsWithin(arrivals, {{At(8), At(9)}}), 0);
  EXPECT_DOUBLE_EQ(StepsWithin({}, {{At(0), At(9)}}), 0);
  EXPECT_DOUBLE_EQ(StepsWithin({At(1)}, {{At(0), At(9)}}), 0);
}

TEST(TokenStreamTest, TokensOfOneMessageCountWhole) {
  EXPECT_DOUBLE_EQ(StepsWithin({At(1), At(2), At(2), At(2)}, {{At(0), At(3)}}), 3);
}

TEST(TokenStreamTest, TheLongestGapIsBetweenNeighbours) {
  EXPECT_EQ(LongestGap({At(1), At(2), At(6), At(7)}), absl::Seconds(4));
  EXPECT_EQ(LongestGap({At(1)}), absl::ZeroDuration());
}

TEST(GpuListTest, ReadsAGpuALine) {
  const std::vector<GpuState> gpus = ParseGpuList("NVIDIA H200, 1024\nNVIDIA, with comma, 0\n");
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].name, "NVIDIA H200");
  EXPECT_EQ(gpus[0].used_bytes, int64_t{1} << 30);
  EXPECT_EQ(gpus[1].name, "NVIDIA, with comma");
  EXPECT_TRUE(ParseGpuList("sh: 1: nvidia-smi: not found\n").empty());
  EXPECT_TRUE(ParseGpuList("NVIDIA-SMI has failed, because\n").empty());
}

}  // namespace
}  // namespace syncopate::bench
