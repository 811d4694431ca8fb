// What the driver's management library counts, against what this process takes. A program by itself: its first test must
// begin before anything has made a context.
#include "cuda/driver_memory.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/daemon/card_account.h"
#include "cuda/device.h"
#include "cuda/gpu_memory.h"
#include "tests/support/status_matchers.h"

namespace syncopate::cuda {
namespace {

using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(DriverMemoryGpuTest, MeasuresTheContextAndCountsWhatIsAllocatedBesideIt) {
  if (GpuCount() == 0) GTEST_SKIP() << "no GPU";
  const absl::StatusOr<std::string> uuid = ReadGpuUuid(0);
  ASSERT_THAT(uuid, IsOk());
  absl::StatusOr<daemon::CardReader> read = ReadByManagementLibrary(*uuid);
  ASSERT_THAT(read, IsOk());
  daemon::CardAccount account(*read);
  ASSERT_THAT(account.Begin(/*own=*/0), IsOk());
  ASSERT_THAT(ReadGpuMemory(0), IsOk());  // makes the context
  std::optional<GpuMemoryBlock> block;
  {
    auto made = GpuMemoryBlock::Create(0, 1024 * kMiB, /*chunk_bytes=*/0, "a block");
    ASSERT_THAT(made, IsOk());
    block.emplace(*std::move(made));
  }
  ASSERT_THAT(account.End(block->bytes()), IsOk());
  // If other processes of this GPU are still.
  EXPECT_GT(account.context_bytes(), 20 * kMiB);
  EXPECT_LT(account.context_bytes(), 2048 * kMiB);
  const daemon::CardReading with = (*read)().value();
  block.reset();
  const daemon::CardReading without = (*read)().value();
  EXPECT_NEAR(static_cast<double>(with.used - without.used), static_cast<double>(1024 * kMiB),
              static_cast<double>(16 * kMiB));
  // CUDA counts as much free memory as the library counts unused.
  const GpuMemory memory = ReadGpuMemory(0).value();
  EXPECT_NEAR(static_cast<double>(memory.total - memory.free), static_cast<double>(without.used),
              static_cast<double>(64 * kMiB));
}

TEST(DriverMemoryGpuTest, AGpuThatIsNotThereIsNamed) {
  if (GpuCount() == 0) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(ReadByManagementLibrary("GPU-00000000-0000-0000-0000-000000000000").status(), HasReason("NO_NVML"));
}

}  // namespace
}  // namespace syncopate::cuda
