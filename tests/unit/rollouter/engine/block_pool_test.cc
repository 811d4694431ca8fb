#include "rollouter/engine/block_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace syncopate::rollouter {
namespace {

constexpr PrefixScope kScope{{1, 0}, 0};

std::vector<int32_t> TokensOf(int32_t first) { return std::vector<int32_t>(kBlockTokens, first); }

// Blocks are taken and left in any order: what is taken is always the lowest free one, so that the last blocks are in
// use only when nearly all are.
TEST(BlockPoolTest, AllocatesTheLowestFreeBlockAlways) {
  constexpr int64_t kBlocks = 60;
  BlockPool pool(kBlocks, /*max_kept=*/0);
  std::set<BlockIndex> free;
  std::vector<BlockIndex> used;
  for (BlockIndex block = 0; block < kBlocks; ++block) free.insert(block);
  std::mt19937_64 random(3);
  for (int step = 0; step < 20000; ++step) {
    const bool takes = !free.empty() && (used.empty() || random() % 100 < (step / 1000 % 2 == 0 ? 60u : 40u));
    if (takes) {
      const BlockIndex block = pool.Allocate();
      ASSERT_EQ(block, *free.begin()) << "step " << step;
      free.erase(block);
      used.push_back(block);
    } else {
      std::swap(used[random() % used.size()], used.back());
      pool.RemoveUser(used.back());
      free.insert(used.back());
      used.pop_back();
    }
  }
}

TEST(BlockPoolTest, AKeptPrefixMakesRoomOnlyWhenNoBlockIsFree) {
  BlockPool pool(3, /*max_kept=*/3);
  pool.ForgetOtherVersions(kScope.version);
  const BlockIndex kept = pool.Allocate();
  pool.Index(kScope, 0, TokensOf(7), kept);
  pool.RemoveUser(kept);
  EXPECT_EQ(pool.Allocate(), 1) << "block 0 has a prefix that may be found again";
  EXPECT_EQ(pool.Allocate(), 2);
  EXPECT_EQ(pool.Find(kScope, TokensOf(7), 1).blocks.size(), 1u);
  EXPECT_EQ(pool.Allocate(), 0);
  EXPECT_TRUE(pool.Find(kScope, TokensOf(7), 1).blocks.empty());
}

TEST(BlockPoolTest, ClosedBlocksAreFreeAgainInTheirOrderWhenTheyAreOpened) {
  BlockPool pool(6, /*max_kept=*/0);
  for (BlockIndex block = 0; block < 5; ++block) EXPECT_EQ(pool.Allocate(), block);
  pool.CloseFree(3);
  EXPECT_EQ(pool.available(), 0);
  pool.RemoveUser(4);
  EXPECT_EQ(pool.available(), 0) << "a closed block that loses its last user does not become free";
  pool.RemoveUser(1);
  EXPECT_EQ(pool.Allocate(), 1);
  pool.Move(3, 1);
  pool.Reopen();
  EXPECT_EQ(pool.available(), 3);
  for (BlockIndex block : {3, 4, 5}) EXPECT_EQ(pool.Allocate(), block);
}

}  // namespace
}  // namespace syncopate::rollouter
