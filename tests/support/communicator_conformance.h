#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/half.h"
#include "base/philox.h"
#include "ranks/communicator.h"

// What every group of trainer ranks must do. A test program says how one is made and
//   INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorTest, ::testing::Values(CommunicatorCase{"threads", &Make}));
// Calls are made on host memory.
namespace syncopate::trainer {

using Ranks = std::vector<std::unique_ptr<Communicator>>;
struct CommunicatorCase {
  const char* name;
  // A group of `world` ranks in this process. `deadline` applies to each of its calls.
  Ranks (*make)(int32_t world, absl::Duration deadline);
};
inline void PrintTo(const CommunicatorCase& one, std::ostream* out) { *out << one.name; }

class CommunicatorTest : public ::testing::TestWithParam<CommunicatorCase> {
 protected:
  static constexpr absl::Duration kLong = absl::Seconds(30);

  // Makes a group, and calls `body` for each rank on a thread of its own.
  void OnEachRank(int32_t world, const std::function<void(Communicator&)>& body, absl::Duration deadline = kLong) {
    RunOnEach(GetParam().make(world, deadline), body);
  }
  static void RunOnEach(Ranks ranks, const std::function<void(Communicator&)>& body) {
    std::vector<std::thread> threads;
    for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
    for (std::thread& thread : threads) thread.join();
  }
  // Numbers whose sum depends on the order of addition; a rank always gets the same numbers.
  template <typename Number>
  static std::vector<Number> Numbers(int32_t rank, size_t count) {
    std::vector<Number> numbers(count);
    for (size_t i = 0; i < count; ++i) {
      const auto drawn = Philox4x32(static_cast<uint64_t>(rank) + 1, i);
      numbers[i] = static_cast<Number>((static_cast<double>(drawn[0]) - 2147483648.0) * std::pow(2.0, drawn[1] % 24));
    }
    return numbers;
  }
  template <typename Number>
  static std::vector<Number> SumInRankOrder(int32_t world, size_t count) {
    std::vector<Number> sums = Numbers<Number>(0, count);
    for (int32_t rank = 1; rank < world; ++rank) {
      const std::vector<Number> numbers = Numbers<Number>(rank, count);
      for (size_t i = 0; i < count; ++i) sums[i] += numbers[i];
    }
    return sums;
  }
  static constexpr size_t kSizes[] = {0, 1, 7, 64, 4099, 300007};
};

TEST_P(CommunicatorTest, KnowsItsRanks) {
  const Ranks ranks = GetParam().make(3, kLong);
  ASSERT_EQ(ranks.size(), 3u);
  for (int32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks[static_cast<size_t>(rank)]->rank(), rank);
    EXPECT_EQ(ranks[static_cast<size_t>(rank)]->world(), 3);
  }
}

TEST_P(CommunicatorTest, GathersInRankOrder) {
  for (int32_t world : {1, 2, 4}) {
    OnEachRank(world, [&](Communicator& ranks) {
      for (size_t size : kSizes) {
        const std::vector<float> mine = Numbers<float>(ranks.rank(), size);
        std::vector<float> all(size * static_cast<size_t>(world), -1);
        ASSERT_TRUE(ranks.AllGather(mine.data(), all.data(), static_cast<int64_t>(size * sizeof(float))).ok());
        for (int32_t rank = 0; rank < world; ++rank) {
          const std::vector<float> expected = Numbers<float>(rank, size);
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), all.begin() + static_cast<int64_t>(size) * rank));
        }
      }
    });
  }
}

TEST_P(CommunicatorTest, GathersInPlace) {
  OnEachRank(3, [&](Communicator& ranks) {
    std::vector<int64_t> all(3, -1);
    int64_t* const mine = &all[static_cast<size_t>(ranks.rank())];
    *mine = 10 + ranks.rank();
    ASSERT_TRUE(ranks.AllGather(mine, all.data(), sizeof(int64_t)).ok());
    EXPECT_THAT(all, ::testing::ElementsAre(10, 11, 12));
  });
}

TEST_P(CommunicatorTest, SumsAreMadeInRankOrderAndAreTheSameBitsEverywhere) {
  for (int32_t world : {1, 2, 3, 4}) {
    OnEachRank(world, [&](Communicator& ranks) {
      for (size_t size : kSizes) {
        std::vector<float> narrow = Numbers<float>(ranks.rank(), size);
        ASSERT_TRUE(
            ranks.AllReduce(narrow.data(), static_cast<int64_t>(size), Element::kFloat32, Reduction::kSum).ok());
        EXPECT_EQ(narrow, SumInRankOrder<float>(world, size)) << world << " ranks, " << size;
        std::vector<double> wide = Numbers<double>(ranks.rank(), size);
        ASSERT_TRUE(ranks.AllReduceSum(absl::MakeSpan(wide)).ok());
        EXPECT_EQ(wide, SumInRankOrder<double>(world, size)) << world << " ranks, " << size;
      }
    });
  }
}

TEST_P(CommunicatorTest, ScattersTheSumsOfWhatEachRankHasForIt) {
  for (int32_t world : {1, 2, 3, 4}) {
    OnEachRank(world, [&](Communicator& ranks) {
      for (size_t size : kSizes) {
        const size_t whole = size * static_cast<size_t>(world);
        std::vector<float> all = Numbers<float>(ranks.rank(), whole), mine(size, -1);
        ASSERT_TRUE(ranks.ReduceScatter(all.data(), mine.data(), static_cast<int64_t>(size), Element::kFloat32).ok());
        const std::vector<float> sums = SumInRankOrder<float>(world, whole);
        EXPECT_TRUE(std::equal(mine.begin(), mine.end(), sums.begin() + static_cast<int64_t>(size) * ranks.rank()));
        std::vector<double> wide = Numbers<double>(ranks.rank(), whole), of_rank(size, -1);
        ASSERT_TRUE(
            ranks.ReduceScatter(wide.data(), of_rank.data(), static_cast<int64_t>(size), Element::kFloat64).ok());
        const std::vector<double> wide_sums = SumInRankOrder<double>(world, whole);
        EXPECT_TRUE(
            std::equal(of_rank.begin(), of_rank.end(), wide_sums.begin() + static_cast<int64_t>(size) * ranks.rank()));
      }
    });
  }
}

TEST_P(CommunicatorTest, SumsOfBFloat16AreRoundedToItInRankOrder) {
  for (int32_t world : {1, 2, 4}) {
    OnEachRank(world, [&](Communicator& ranks) {
      for (size_t size : kSizes) {
        const size_t whole = size * static_cast<size_t>(world);
        auto rounded = [whole](int32_t rank) {
          std::vector<uint16_t> numbers;
          for (float number : Numbers<float>(rank, whole)) numbers.push_back(RoundToBFloat16(number));
          return numbers;
        };
        std::vector<uint16_t> sums = rounded(0), all = rounded(ranks.rank()), mine(size, 1);
        for (int32_t rank = 1; rank < world; ++rank) {
          const std::vector<uint16_t> theirs = rounded(rank);
          for (size_t i = 0; i < whole; ++i) {
            sums[i] = RoundToBFloat16(WidenBFloat16(sums[i]) + WidenBFloat16(theirs[i]));
          }
        }
        ASSERT_TRUE(ranks.ReduceScatter(all.data(), mine.data(), static_cast<int64_t>(size), Element::kBFloat16).ok());
        EXPECT_TRUE(std::equal(mine.begin(), mine.end(), sums.begin() + static_cast<int64_t>(size) * ranks.rank()));
      }
    });
  }
}

TEST_P(CommunicatorTest, TheLargestIsFoundAndWhatIsNoNumberIsSeenByAll) {
  OnEachRank(3, [&](Communicator& ranks) {
    const double r = ranks.rank();
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> values = {r, -r, -std::numeric_limits<double>::infinity(), ranks.rank() == 1 ? nan : r};
    ASSERT_TRUE(ranks.AllReduceMax(absl::MakeSpan(values)).ok());
    EXPECT_EQ(values[0], 2);
    EXPECT_EQ(values[1], 0);
    EXPECT_EQ(values[2], -std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(values[3]));
  });
}

TEST_P(CommunicatorTest, BroadcastsFromAnyRank) {
  for (int32_t root : {0, 1, 2}) {
    OnEachRank(3, [&](Communicator& ranks) {
      for (size_t size : kSizes) {
        std::vector<float> data = Numbers<float>(ranks.rank(), size);
        ASSERT_TRUE(ranks.Broadcast(data.data(), static_cast<int64_t>(size * sizeof(float)), root).ok());
        EXPECT_EQ(data, Numbers<float>(root, size));
      }
    });
  }
}

TEST_P(CommunicatorTest, NobodyPassesABarrierBeforeAllAreThere) {
  Ranks ranks = GetParam().make(2, kLong);
  absl::Notification passed;
  std::thread other([&] {
    EXPECT_TRUE(ranks[1]->Barrier().ok());
    passed.Notify();
  });
  EXPECT_FALSE(passed.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  EXPECT_TRUE(ranks[0]->Barrier().ok());
  EXPECT_TRUE(passed.WaitForNotificationWithTimeout(kLong));
  other.join();
}

TEST_P(CommunicatorTest, ManyCallsInARowStayApart) {
  OnEachRank(4, [&](Communicator& ranks) {
    for (int i = 0; i < 300; ++i) {
      std::vector<double> values = {1.0 * i, 1.0 * ranks.rank()};
      ASSERT_TRUE(ranks.AllReduceSum(absl::MakeSpan(values)).ok());
      ASSERT_THAT(values, ::testing::ElementsAre(4.0 * i, 6.0));
      if (i % 7 == 0) {
        ASSERT_TRUE(ranks.Barrier().ok());
      }
    }
  });
}

TEST_P(CommunicatorTest, CallsThatDifferAreAnErrorOnAllRanksThatNamesBoth) {
  OnEachRank(3, [&](Communicator& ranks) {
    // The message is large, so that a rank is still sending when rank 0 has detected that the rank's call is wrong.
    std::vector<double> values(ranks.rank() == 2 ? 2000000 : 3, 1.0);
    const absl::Status status = ranks.AllReduceSum(absl::MakeSpan(values));
    EXPECT_EQ(ErrorReason(status), "RANK_MISMATCH") << status;
    EXPECT_THAT(status.message(), ::testing::HasSubstr("rank 2 makes all-reduce (sum) of 2000000 float64"));
    // `other` is the call of the rank with which the differing rank is compared.
    EXPECT_THAT(std::string(status.message()),
                ::testing::ContainsRegex("rank [01] makes all-reduce .sum. of 3 float64"));
    EXPECT_FALSE(ranks.Barrier().ok());
  });
}

TEST_P(CommunicatorTest, AnotherKindOfCallIsNoticedToo) {
  OnEachRank(2, [&](Communicator& ranks) {
    double value = 1;
    const absl::Status status = ranks.rank() == 0 ? ranks.AllReduceSum(absl::MakeSpan(&value, 1))
                                                  : ranks.AllReduceMax(absl::MakeSpan(&value, 1));
    EXPECT_EQ(ErrorReason(status), "RANK_MISMATCH") << status;
  });
}

TEST_P(CommunicatorTest, ARankThatEndsIsLostToTheOthers) {
  for (size_t lost : {0u, 1u, 2u}) {
    Ranks ranks = GetParam().make(3, kLong);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 3; ++rank) {
      if (rank == lost) continue;
      threads.emplace_back([&ranks, rank] {
        double value = 1;
        const absl::Status status = ranks[rank]->AllReduceSum(absl::MakeSpan(&value, 1));
        EXPECT_EQ(ErrorReason(status), "RANK_LOST") << status;
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
        ranks[rank]->Abort("the call has failed");  // the owner of a communicator does this, too
      });
    }
    ranks[lost].reset();
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_P(CommunicatorTest, ARankThatMakesNoCallIsLostAfterTheDeadline) {
  Ranks ranks = GetParam().make(2, absl::Milliseconds(100));
  double value = 1;
  EXPECT_EQ(ErrorReason(ranks[0]->AllReduceSum(absl::MakeSpan(&value, 1))), "RANK_LOST");
  EXPECT_EQ(ErrorReason(ranks[0]->Barrier()), "RANK_LOST");
}

TEST_P(CommunicatorTest, AnAbortEndsTheCallUnderWayWithItsWords) {
  Ranks ranks = GetParam().make(2, kLong);
  std::thread stopper([&] { ranks[1]->Abort("rank 1 was told to stop"); });
  double value = 1;
  EXPECT_EQ(ErrorReason(ranks[0]->AllReduceSum(absl::MakeSpan(&value, 1))), "RANK_LOST");
  stopper.join();
  const absl::Status after = ranks[1]->Barrier();
  EXPECT_EQ(ErrorReason(after), "RANK_LOST");
  EXPECT_THAT(after.message(), ::testing::HasSubstr("rank 1 was told to stop"));
}

}  // namespace syncopate::trainer
