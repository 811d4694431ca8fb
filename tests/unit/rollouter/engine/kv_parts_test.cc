#include "rollouter/engine/kv_parts.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/status_matchers.h"

namespace syncopate::rollouter {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::testing::HasSubstr;

constexpr int64_t kMebi = int64_t{1} << 20;
constexpr int64_t kGibi = int64_t{1} << 30;

// A 7B model: 28 layers, 4 key/value heads of 128; 14526 MiB of weights.
constexpr KvForm kForm = {.layers = 28, .piece_bytes = 4 * 16 * 128 * 2};
constexpr int64_t kSet = 14526 * kMebi;

// A card of 80 GB with one weight set on it.
KvBudget SevenBillion() {
  return {.total = 80 * kGibi,
          .free = 80 * kGibi - kSet - 600 * kMebi,
          .share = 0.9,
          .reserved = 2 * kGibi,
          .block_bytes = kForm.block_bytes(),
          .max_context = 4096,
          .blocks_of_use = 256 * 256 + 128};
}

// Every piece of every block, as kernels compute it, is in its part and is nobody else's.
TEST(KvPartsTest, PiecesOfBlocksAreApartAndLentBlocksLieBehindTheOffset) {
  constexpr KvForm kSmall = {.layers = 3, .piece_bytes = 3 * 16 * 64 * 2};  // three heads: no power of two
  KvBudget budget = SevenBillion();
  budget.total = budget.free = 400 * kMebi;
  budget.reserved = 0;
  budget.max_context = 100;
  budget.blocks_of_use = 7000;
  const auto choice = ChooseKvParts(budget, kSmall, KvLending::kAlways, 130 * kMebi);
  ASSERT_TRUE(choice.ok()) << choice.status();
  const KvParts& parts = choice->parts;
  EXPECT_EQ(parts.lent_parts, 2);
  EXPECT_GE(parts.bytes() - parts.lent_offset(), 130 * kMebi);
  EXPECT_EQ(parts.lent_offset() % (2 * kMebi), 0);
  EXPECT_LE(parts.bytes(), 360 * kMebi);
  std::set<int64_t> pieces;
  for (BlockIndex block = 0; block < parts.blocks(); ++block) {
    const bool lent = block >= parts.blocks() - parts.lent_blocks();
    for (int64_t layer = 0; layer < kSmall.layers; ++layer) {
      for (int64_t values : {0, 1}) {
        const int64_t piece = parts.Place(block) + layer * parts.layer_pieces + values * parts.value_pieces;
        ASSERT_TRUE(pieces.insert(piece).second) << "block " << block << " layer " << layer;
        ASSERT_EQ(piece * parts.piece_bytes >= parts.lent_offset(), lent) << "block " << block;
        ASSERT_LE((piece + 1) * parts.piece_bytes, parts.bytes());
      }
    }
  }
}

TEST(KvPartsTest, AStorageThatLendsNothingIsOnePartWithTheOldPlaces) {
  const KvParts whole = ChooseKvParts(SevenBillion(), kForm, KvLending::kNever, 0)->parts;
  EXPECT_EQ(whole.blocks(), BlocksThatFit(SevenBillion()).value());
  EXPECT_EQ(whole.Place(12345), 12345);
  EXPECT_EQ(whole.layer_pieces, whole.blocks());
  EXPECT_EQ(whole.value_pieces, 28 * whole.blocks());
  EXPECT_EQ(whole.lent_blocks(), 0);
  EXPECT_EQ(whole.bytes(), whole.blocks() * kForm.block_bytes());
}

TEST(KvPartsTest, AutoBorrowsIfTwoSetsLeaveFewerBlocksThanAreOfUse) {
  const auto choice = ChooseKvParts(SevenBillion(), kForm, KvLending::kAuto, kSet);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_TRUE(choice->lends) << choice->why;
  EXPECT_THAT(choice->why, HasSubstr("borrowed: two weight sets of 14526 MiB leave keys and values of"));
  const int64_t room = RoomForBlocks(SevenBillion());
  EXPECT_GT(choice->parts.blocks(), (room - kSet) / kForm.block_bytes());
  EXPECT_GE(choice->parts.bytes(), room - room / 20) << "little is left over";
  EXPECT_LE(choice->parts.bytes(), room);
  KvBudget few = SevenBillion();
  few.blocks_of_use = 4000;
  const auto ample = ChooseKvParts(few, kForm, KvLending::kAuto, kSet);
  EXPECT_FALSE(ample->lends);
  EXPECT_EQ(ample->parts.blocks(), 4000);
  EXPECT_THAT(ample->why, HasSubstr("remap: two weight sets"));
}

TEST(KvPartsTest, AutoDoesNotBorrowWhereNoSequenceFitsBesideTheLentBlocks) {
  KvBudget tight = SevenBillion();
  tight.free = 8 * kGibi + kSet + 4 * kGibi;  // 8 GiB of the card stay free
  tight.reserved = 2 * kGibi;
  const int64_t room = RoomForBlocks(tight);
  ASSERT_GT(room, kSet);
  tight.max_context = (room - kSet / 2) / kForm.block_bytes() * kBlockTokens;
  EXPECT_THAT(ChooseKvParts(tight, kForm, KvLending::kAuto, kSet), HasReason("OUT_OF_GPU_MEMORY"));
  tight.max_context = 4096;
  tight.blocks_of_use = 1;
  const auto apart = ChooseKvParts(tight, kForm, KvLending::kAuto, kSet);
  ASSERT_TRUE(apart.ok()) << apart.status();
  EXPECT_FALSE(apart->lends) << "two sets leave what is of use";
}

TEST(KvPartsTest, BorrowedHasWhatIsOfUseEvenWhileABlockIsLent) {
  KvBudget few = SevenBillion();
  few.blocks_of_use = 4000;
  const auto choice = ChooseKvParts(few, kForm, KvLending::kAlways, kSet);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_TRUE(choice->lends);
  EXPECT_GE(choice->parts.blocks() - choice->parts.lent_blocks(), 4000);
  EXPECT_LE(choice->parts.blocks() - choice->parts.lent_blocks(), 4000 + choice->parts.part_blocks);
}

TEST(KvPartsTest, BorrowedThatDoesNotFitIsRefusedWithTheSum) {
  KvBudget asked = SevenBillion();
  asked.blocks_asked = 1000;  // less than is lent
  const auto refused = ChooseKvParts(asked, kForm, KvLending::kAlways, kSet);
  EXPECT_THAT(refused, HasReason("OUT_OF_GPU_MEMORY"));
  EXPECT_THAT(refused, HasMessage(HasSubstr("sync.install: borrowed lends")));
  EXPECT_THAT(refused, HasMessage(HasSubstr("rollout.kv_tokens 16000 in all")));
}

}  // namespace
}  // namespace syncopate::rollouter
