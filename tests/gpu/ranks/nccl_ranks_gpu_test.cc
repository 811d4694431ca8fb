#include "ranks/nccl/nccl_ranks.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu/ranks/gpu_ranks.h"

namespace syncopate::trainer {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSizes[] = {0, 1, 7, 64, 4099, 3000007};

// The numbers of a rank, equal on every device.
at::Tensor Numbers(int32_t rank, int64_t count, at::ScalarType type) {
  return at::arange(count, at::kDouble).mul_(0.37 + rank).sin_().mul_(1000.0 / (1 + rank)).to(type);
}

TEST(NcclRanksTest, GathersInRankOrderAndInPlace) {
  SYNCOPATE_NEED_GPUS(2);
  OnGpus(2, [](Communicator& ranks) {
    for (int64_t size : kSizes) {
      const at::Tensor mine = Numbers(ranks.rank(), size, at::kFloat).to(GetGpu(ranks));
      at::Tensor all = at::full({2, size}, -1, mine.options()), in_place = all.clone();
      ASSERT_TRUE(ranks.AllGather(mine.data_ptr(), all.data_ptr(), size * 4).ok());
      in_place[ranks.rank()].copy_(mine);
      ASSERT_TRUE(ranks.AllGather(in_place[ranks.rank()].data_ptr(), in_place.data_ptr(), size * 4).ok());
      ASSERT_TRUE(ranks.Finish().ok());
      const at::Tensor expected = at::stack({Numbers(0, size, at::kFloat), Numbers(1, size, at::kFloat)});
      EXPECT_TRUE(at::equal(all.cpu(), expected)) << size;
      EXPECT_TRUE(at::equal(in_place.cpu(), expected)) << size;
    }
  });
}

TEST(NcclRanksTest, SumsAreTheSameBitsOnAllRanks) {
  SYNCOPATE_NEED_GPUS(2);
  OnGpus(2, [](Communicator& ranks) {
    for (int64_t size : kSizes) {
      for (const auto& [type, element] : {std::pair(at::kFloat, Element::kFloat32), {at::kDouble, Element::kFloat64}}) {
        // A sum of two is the same in either order.
        const at::Tensor sum = Numbers(0, size, type) + Numbers(1, size, type);
        at::Tensor values = Numbers(ranks.rank(), size, type).to(GetGpu(ranks));
        ASSERT_TRUE(ranks.AllReduce(values.data_ptr(), size, element, Reduction::kSum).ok());
        ASSERT_TRUE(ranks.Finish().ok());
        EXPECT_TRUE(at::equal(values.cpu(), sum)) << size;
      }
    }
  });
}

TEST(NcclRanksTest, ScattersTheSumsOfWhatEachRankHasForIt) {
  SYNCOPATE_NEED_GPUS(2);
  OnGpus(2, [](Communicator& ranks) {
    for (int64_t size : kSizes) {
      at::Tensor all = Numbers(ranks.rank(), 2 * size, at::kFloat).to(GetGpu(ranks));
      at::Tensor mine = at::full({size}, -1, all.options());
      ASSERT_TRUE(ranks.ReduceScatter(all.data_ptr(), mine.data_ptr(), size, Element::kFloat32).ok());
      ASSERT_TRUE(ranks.Finish().ok());
      const at::Tensor sums = Numbers(0, 2 * size, at::kFloat) + Numbers(1, 2 * size, at::kFloat);
      EXPECT_TRUE(at::equal(mine.cpu(), sums.narrow(0, ranks.rank() * size, size))) << size;
    }
  });
}

TEST(NcclRanksTest, SumsOfBFloat16AreRoundedOnce) {
  SYNCOPATE_NEED_GPUS(2);
  OnGpus(2, [](Communicator& ranks) {
    for (int64_t size : kSizes) {
      at::Tensor all = Numbers(ranks.rank(), 2 * size, at::kBFloat16).to(GetGpu(ranks));
      at::Tensor mine = at::full({size}, -1, all.options());
      ASSERT_TRUE(ranks.ReduceScatter(all.data_ptr(), mine.data_ptr(), size, Element::kBFloat16).ok());
      ASSERT_TRUE(ranks.Finish().ok());
      // A sum of two is the same in either order.
      const at::Tensor sums = Numbers(0, 2 * size, at::kBFloat16) + Numbers(1, 2 * size, at::kBFloat16);
      EXPECT_TRUE(at::equal(mine.cpu(), sums.narrow(0, ranks.rank() * size, size))) << size;
    }
  });
}

TEST(NcclRanksTest, TheLargestIsFoundAndWhatIsNoNumberIsSeenByAll) {
  SYNCOPATE_NEED_GPUS(2);
  OnGpus(2, [](Communicator& ranks) {
    const double r = ranks.rank(), nan = std::numeric_limits<double>::quiet_NaN();
    at::Tensor values =
        at::tensor({r, -r, -std::numeric_limits<double>::infinity(), r == 1 ? nan : r}, at::kDouble).to(GetGpu(ranks));
    ASSERT_TRUE(ranks.AllReduce(values.data_ptr(), 4, Element::kFloat64, Reduction::kMax).ok());
    ASSERT_TRUE(ranks.Finish().ok());
    const at::Tensor found = values.cpu();
    EXPECT_EQ(found[0].item<double>(), 1);
    EXPECT_EQ(found[1].item<double>(), 0);
    EXPECT_EQ(found[2].item<double>(), -std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(found[3].item<double>()));
  });
}

TEST(NcclRanksTest, BroadcastsFromAnyRank) {
  SYNCOPATE_NEED_GPUS(2);
  OnGpus(2, [](Communicator& ranks) {
    for (int32_t root : {0, 1}) {
      at::Tensor data = Numbers(ranks.rank(), 4099, at::kFloat).to(GetGpu(ranks));
      ASSERT_TRUE(ranks.Broadcast(data.data_ptr(), 4099 * 4, root).ok());
      ASSERT_TRUE(ranks.Finish().ok());
      EXPECT_TRUE(at::equal(data.cpu(), Numbers(root, 4099, at::kFloat)));
    }
  });
}

TEST(NcclRanksTest, NobodyPassesABarrierBeforeAllAreThere) {
  SYNCOPATE_NEED_GPUS(2);
  absl::Notification passed, looked;
  OnGpus(2, [&](Communicator& ranks) {
    if (ranks.rank() == 0) {
      EXPECT_FALSE(passed.WaitForNotificationWithTimeout(absl::Milliseconds(200)));
      looked.Notify();
      EXPECT_TRUE(ranks.Barrier().ok());
      return;
    }
    EXPECT_TRUE(ranks.Barrier().ok());
    EXPECT_TRUE(looked.HasBeenNotified());
    passed.Notify();
  });
}

TEST(NcclRanksTest, CallsOnSeveralStreamsAreDoneInTheirOrder) {
  SYNCOPATE_NEED_GPUS(2);
  OnGpus(2, [](Communicator& ranks) {
    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, GetGpu(ranks).index());
    at::Tensor values = at::ones({1 << 20}, at::TensorOptions(at::kDouble).device(GetGpu(ranks)));
    c10::Event there(at::kCUDA);
    there.record(c10::cuda::getCurrentCUDAStream(GetGpu(ranks).index()));
    there.block(side);
    double expected = 1;
    for (int i = 0; i < 60; ++i) {
      if (i % 3 == 0) {
        ASSERT_TRUE(ranks.AllReduce(values.data_ptr(), 1 << 20, Element::kFloat64, Reduction::kSum).ok());
      } else {
        const c10::StreamGuard guard(side);
        ASSERT_TRUE(ranks.AllReduce(values.data_ptr(), 1 << 20, Element::kFloat64, Reduction::kSum).ok());
      }
      expected *= 2;
    }
    ASSERT_TRUE(ranks.Barrier().ok());
    EXPECT_TRUE(at::equal(values.cpu(), at::full({1 << 20}, expected, at::kDouble)));
  });
}

TEST(NcclRanksTest, ARankThatMakesNoCallIsLostAfterTheDeadline) {
  SYNCOPATE_NEED_GPUS(2);
  absl::Notification over;
  auto body = [&](Communicator& ranks) {
    if (ranks.rank() == 1) {
      over.WaitForNotificationWithTimeout(absl::Seconds(60));
      return;
    }
    at::Tensor values = at::ones({1 << 20}, at::TensorOptions(at::kFloat).device(GetGpu(ranks)));
    const absl::Time begin = Clock::Real()->Now();
    absl::Status status = ranks.AllReduce(values.data_ptr(), 1 << 20, Element::kFloat32, Reduction::kSum);
    if (status.ok()) status = ranks.Finish();
    EXPECT_EQ(ErrorReason(status), "RANK_LOST") << status;
    EXPECT_THAT(status.message(), HasSubstr("all-reduce (sum) of 1048576 float32"));
    EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(10));
    EXPECT_EQ(ErrorReason(ranks.Barrier()), "RANK_LOST");
    // If the GPU were not free again, this call would wait for ever.
    EXPECT_EQ(at::ones({4}, values.options()).sum().item<float>(), 4);
    over.Notify();
  };
  OnGpus(2, body, absl::Seconds(1));
}

// Rank 0 queues a call that rank 1 never makes, and waits for it as `wait` does, while another thread aborts the group.
// Returns the result of the Finish() that follows.
absl::Status AbortDuring(const std::function<void(Communicator&, const at::Tensor&)>& wait) {
  absl::Notification over;
  absl::Status finished;
  OnGpus(2, [&](Communicator& ranks) {
    if (ranks.rank() == 1) {
      over.WaitForNotificationWithTimeout(absl::Seconds(60));
      return;
    }
    const at::Tensor values = at::ones({1 << 20}, at::TensorOptions(at::kFloat).device(GetGpu(ranks)));
    ASSERT_TRUE(ranks.AllReduce(values.data_ptr(), 1 << 20, Element::kFloat32, Reduction::kSum).ok());
    std::thread stopper([&] { ranks.Abort("rank 1 is gone"); });
    wait(ranks, values);
    stopper.join();
    finished = ranks.Finish();
    over.Notify();
  });
  return finished;
}

TEST(NcclRanksTest, AnAbortEndsTheCallUnderWayWithItsWords) {
  SYNCOPATE_NEED_GPUS(2);
  absl::Status waited;
  const absl::Status after =
      AbortDuring([&waited](Communicator& ranks, const at::Tensor&) { waited = ranks.Finish(); });
  for (const absl::Status& status : {waited, after}) {
    EXPECT_EQ(ErrorReason(status), "RANK_LOST") << status;
    EXPECT_THAT(status.message(), HasSubstr("rank 1 is gone"));
  }
}

// In practice: a copy to the host follows a call in a stream's order, and the other rank never makes that call.
TEST(NcclRanksTest, AnAbortFreesAThreadThatWaitsForTheGpuOutsideOfThis) {
  SYNCOPATE_NEED_GPUS(2);
  const absl::Status after = AbortDuring([](Communicator&, const at::Tensor& values) { values.sum().item<float>(); });
  EXPECT_EQ(ErrorReason(after), "RANK_LOST");
}

TEST(NcclRanksTest, RanksThatDoNotComeAreAnErrorInTimeAndTheWaitCanBeGivenUp) {
  SYNCOPATE_NEED_GPUS(2);
  const cuda::NcclId id = cuda::NewNcclId().value();
  const NcclRanksOptions options{.device = 0, .rank = 0, .world = 2};
  EXPECT_EQ(ErrorReason(JoinNcclRanks(options, id, absl::Seconds(1)).status()), "RANK_LOST");
  const cuda::NcclId other = cuda::NewNcclId().value();
  const auto given_up =
      JoinNcclRanks(options, other, absl::Seconds(60), [] { return absl::CancelledError("told to stop"); });
  EXPECT_EQ(given_up.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace syncopate::trainer
