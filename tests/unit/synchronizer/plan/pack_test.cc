#include "synchronizer/plan/pack.h"

#include <bit>
#include <limits>

#include "base/half.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/synchronizer/plan/plan_fixtures.h"

namespace syncopate::synchronizer {
namespace {

TEST(PackTest, RoundsToTheNearestBFloat16TiesToEven) {
  auto rounded = [](uint32_t bits) { return RoundToBFloat16(std::bit_cast<float>(bits)); };
  EXPECT_EQ(rounded(0x3f800000), 0x3f80);
  EXPECT_EQ(rounded(0x3f807fff), 0x3f80);
  EXPECT_EQ(rounded(0x3f808000), 0x3f80) << "a tie goes to the even neighbour below";
  EXPECT_EQ(rounded(0x3f808001), 0x3f81);
  EXPECT_EQ(rounded(0x3f818000), 0x3f82) << "a tie goes to the even neighbour above";
  EXPECT_EQ(rounded(0xbf818000), 0xbf82);
  EXPECT_EQ(rounded(0x80000000), 0x8000);
  EXPECT_EQ(rounded(0x00008001), 0x0001) << "the smallest denormals";
  EXPECT_EQ(rounded(0x7f7fffff), 0x7f80) << "beyond the largest finite number";
  EXPECT_EQ(rounded(0x7f7f7fff), 0x7f7f);
  EXPECT_EQ(rounded(0xff800000), 0xff80);
  for (uint32_t nan : {0x7f800001u, 0x7fffffffu, 0xff80ffffu}) {
    EXPECT_EQ(rounded(nan) & 0x7f80, 0x7f80);
    EXPECT_NE(rounded(nan) & 0x007f, 0) << "a NaN must not become an infinity";
  }
}

TEST(PackTest, AgreesWithTheNearestNeighbourOfAnyNumber) {
  for (int64_t i = 0; i < 20000; ++i) ASSERT_EQ(RoundToBFloat16(Truth(1, i)), NearestBFloat16(Truth(1, i)));
}

TEST(PackTest, CopiesRowsWithTheirStridesAndNothingElse) {
  const std::vector<float> shard = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};  // 3 x 4
  std::vector<uint16_t> send(12, 0x4242);
  PackOp op;
  op.from = DType::kFloat32;
  op.to = DType::kBFloat16;
  op.source_offset = 4;
  op.source_stride = 16;
  op.send_offset = 2;
  op.send_stride = 6;
  op.rows = 3;
  op.row_elements = 2;
  PackOnHost({op}, reinterpret_cast<const char*>(shard.data()), reinterpret_cast<char*>(send.data()));
  auto b = [](float value) { return RoundToBFloat16(value); };
  EXPECT_THAT(send, ::testing::ElementsAre(0x4242, b(1), b(2), 0x4242, b(5), b(6), 0x4242, b(9), b(10), 0x4242, 0x4242,
                                           0x4242));
}

}  // namespace
}  // namespace syncopate::synchronizer
