#include "base/serving.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace syncopate {
namespace {

TEST(FreedMemoryWatchTest, ActsOnWhatNothingNeededForTheWholeTime) {
  FreedMemoryWatch watch(/*keep_bytes=*/100, /*looks=*/3);
  for (int64_t freed : {500, 500}) EXPECT_FALSE(watch.ShouldGiveBack(freed));
  EXPECT_TRUE(watch.ShouldGiveBack(500));
  EXPECT_FALSE(watch.ShouldGiveBack(500)) << "memory is returned once, and measured anew afterwards";
}

TEST(FreedMemoryWatchTest, LeavesMemoryAloneThatIsFreedAndTakenAgain) {
  FreedMemoryWatch watch(/*keep_bytes=*/100, /*looks=*/3);
  for (int look = 0; look < 100; ++look) EXPECT_FALSE(watch.ShouldGiveBack(look % 3 == 0 ? 50 : 500));
  for (int look = 0; look < 100; ++look) EXPECT_FALSE(watch.ShouldGiveBack(100));
}

int64_t ResidentBytes() {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/statm", "r"), &std::fclose);
  long long all = 0, resident = 0;
  if (file == nullptr || std::fscanf(file.get(), "%lld %lld", &all, &resident) != 2) return 0;
  return resident * 4096;
}

// The messages of the flood are freed between blocks that stay, so the heap cannot shrink from its end.
TEST(GiveFreedMemoryBackTest, WhatAFloodHasLeftGoesBackThoughSomethingLivesBehindIt) {
  if (FreedBytes() == 0) GTEST_SKIP() << "another malloc stands in for the C library's";
  constexpr size_t kMessage = 1 << 17, kMessages = 512;
  std::vector<std::unique_ptr<char[]>> flood, kept;
  for (size_t i = 0; i < kMessages; ++i) {
    flood.push_back(std::make_unique<char[]>(kMessage - 4096));
    std::memset(flood.back().get(), 1, kMessage - 4096);
    kept.push_back(std::make_unique<char[]>(64));
  }
  const int64_t most = ResidentBytes();
  flood.clear();
  constexpr int64_t kFlood = int64_t{kMessage} * kMessages;
  EXPECT_GT(FreedBytes(), kFlood / 2);
  GiveFreedMemoryBack();
  EXPECT_LT(ResidentBytes(), most - kFlood / 2);
}

}  // namespace
}  // namespace syncopate
