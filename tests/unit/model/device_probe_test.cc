#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "model/device.h"

namespace syncopate::model {
namespace {

TEST(ReadMemoryUseTest, FollowsTheTensorsOfTheCpu) {
  const MemoryUse before = ReadMemoryUse("cpu");
  if (before.reserved_bytes == 0) GTEST_SKIP() << "another malloc stands in for the C library's";
  constexpr int64_t kBytes = 64 << 20;
  {
    const at::Tensor tensor = at::empty({kBytes}, at::kByte);
    const MemoryUse with = ReadMemoryUse("cpu");
    EXPECT_GE(with.allocated_bytes, before.allocated_bytes + kBytes);
    EXPECT_GE(with.reserved_bytes, with.allocated_bytes);
  }
  EXPECT_LT(ReadMemoryUse("cpu").allocated_bytes, before.allocated_bytes + kBytes / 2);
}

// The allocations of small steps: a tensor is made, small objects that stay are allocated, the tensor is freed. With
// libtorch's own allocator, 60 MiB of these tensors are left.
int64_t GrowthOverSmallSteps() {
  constexpr int kSteps = 4000;
  constexpr int64_t kBytes = 20480;
  std::vector<std::unique_ptr<char[]>> kept;
  kept.reserve(size_t{5} * kSteps);
  const int64_t before = ReadMemoryUse("cpu").reserved_bytes;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor tensor = at::empty({kBytes}, at::kByte);
    for (size_t bytes = 24; bytes <= 88; bytes += 16) kept.push_back(std::make_unique<char[]>(bytes));
  }
  return ReadMemoryUse("cpu").reserved_bytes - before;
}

TEST(ReuseFreedTensorsTest, ManySmallStepsTakeNoMoreMemoryThanWhatStays) {
  if (ReadMemoryUse("cpu").reserved_bytes == 0) GTEST_SKIP() << "another malloc stands in for the C library's";
  const at::Tensor older = at::ones({100});
  ReuseFreedTensors();
  EXPECT_LT(GrowthOverSmallSteps(), 4 << 20);
  // Tensors from before ReuseFreedTensors and newer ones live beside each other.
  at::Tensor newer = at::ones({100});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(newer.data_ptr()) % 64, 0u);
  newer.resize_({100000}).copy_(older.sum());
  EXPECT_EQ(newer.sum().item<float>(), 1e7f);
  EXPECT_EQ(at::empty({0}).numel(), 0);
}

}  // namespace
}  // namespace syncopate::model
