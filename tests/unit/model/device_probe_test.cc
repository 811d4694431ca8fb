#include <ATen/ATen.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace syncopate::model
