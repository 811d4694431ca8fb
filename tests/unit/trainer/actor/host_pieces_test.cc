#include "trainer/actor/host_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace syncopate::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CutPiecesTest, PiecesAreAsLargeAsTheyMayBeAndEndAtTheBorder) {
  EXPECT_THAT(CutPieces(0, 0, 10, 4), ElementsAre(0, 4, 8, 10));
  EXPECT_THAT(CutPieces(0, 5, 10, 4), ElementsAre(0, 4, 5, 9, 10));
  EXPECT_THAT(CutPieces(5, 5, 10, 4), ElementsAre(5, 9, 10));
  EXPECT_THAT(CutPieces(0, 10, 10, 10), ElementsAre(0, 10));
  EXPECT_THAT(CutPieces(7, 3, 7, 4), ElementsAre(7));
}

TEST(CutPiecesTest, EveryRangeIsCoveredByPiecesOfOneSideEach) {
  for (int64_t end = 0; end <= 12; ++end) {
    for (int64_t begin = 0; begin <= end; ++begin) {
      for (int64_t border = 0; border <= 13; ++border) {
        for (int64_t most = 1; most <= 13; ++most) {
          const std::vector<int64_t> borders = CutPieces(begin, border, end, most);
          ASSERT_EQ(borders.front(), begin);
          ASSERT_EQ(borders.back(), end);
          for (size_t i = 1; i < borders.size(); ++i) {
            const int64_t first = borders[i - 1], last = borders[i];
            ASSERT_LT(first, last);
            ASSERT_LE(last - first, most);
            ASSERT_FALSE(first < border && border < last) << border << " in " << first << ", " << last;
          }
        }
      }
    }
  }
}

class UseOnHostTest : public ::testing::Test {
 protected:
  // Uses `count` tensors of three numbers each: those of tensor i are i.
  absl::Status Use(int64_t count, int64_t failing = -1) {
    return UseOnHost(
        count,
        [this](int64_t i) {
          made_.push_back(i);
          return at::full({3}, static_cast<float>(i), at::kFloat);
        },
        [this, failing](int64_t i, absl::string_view bytes) {
          if (i == failing) return absl::DataLossError("full");
          used_.push_back(i);
          const auto* numbers = reinterpret_cast<const float*>(bytes.data());
          EXPECT_EQ(bytes.size(), 3 * sizeof(float));
          EXPECT_THAT(std::vector<float>(numbers, numbers + 3), ElementsAre(i, i, i));
          return absl::OkStatus();
        });
  }

  std::vector<int64_t> made_, used_;
};

TEST_F(UseOnHostTest, UsesEachTensorInOrder) {
  EXPECT_TRUE(Use(0).ok());
  EXPECT_THAT(used_, IsEmpty());
  EXPECT_TRUE(Use(1).ok());
  EXPECT_THAT(used_, ElementsAre(0));
  used_.clear();
  EXPECT_TRUE(Use(4).ok());
  EXPECT_THAT(used_, ElementsAre(0, 1, 2, 3));
}

TEST_F(UseOnHostTest, TheFirstErrorEndsItAndIsReturned) {
  EXPECT_EQ(Use(5, /*failing=*/2).message(), "full");
  EXPECT_THAT(used_, ElementsAre(0, 1));
  EXPECT_THAT(made_, ElementsAre(0, 1, 2, 3)) << "the next one is on its way while one is used";
}

TEST_F(UseOnHostTest, WhatMakingATensorThrowsIsThrown) {
  int64_t used = 0;
  const auto make = [](int64_t i) -> at::Tensor {
    if (i == 1) throw std::runtime_error("no memory");
    return at::zeros({1});
  };
  const auto use = [&used](int64_t, absl::string_view) {
    ++used;
    return absl::OkStatus();
  };
  EXPECT_THROW(UseOnHost(3, make, use).IgnoreError(), std::runtime_error);
  EXPECT_EQ(used, 0);
}

}  // namespace
}  // namespace syncopate::trainer
