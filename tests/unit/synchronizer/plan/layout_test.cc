#include "synchronizer/plan/layout.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "synchronizer/plan/shard_layouts.h"
#include "tests/support/synchronizer_fixtures.h"
#include "tests/unit/synchronizer/plan/plan_fixtures.h"

namespace syncopate::synchronizer {
namespace {

using ::testing::HasSubstr;

// 10 elements in rows of 2, a layer of 6 and one of 3, then 5.
Manifest TwoLayers() {
  return ManifestFor(AsQwen({{"model.embed_tokens.weight", DType::kBFloat16, {5, 2}},
                             {"model.layers.0.w", DType::kBFloat16, {3, 2}},
                             {"model.layers.1.w", DType::kBFloat16, {3}},
                             {"model.norm.weight", DType::kBFloat16, {5}}},
                            /*head=*/1));
}

TEST(LayoutTest, RefusesPiecesThatCannotBe) {
  Manifest manifest = SmallModel();
  auto refuses = [&manifest](std::vector<Piece> pieces) {
    EXPECT_THAT(Layout::Create(manifest, 2, std::move(pieces)).status(), HasReason("BAD_LAYOUT"));
  };
  refuses({{2, 0, 0, 1, 0}});                       // no such rank
  refuses({{0, 9, 0, 1, 0}});                       // no such tensor
  refuses({{0, 0, 5, 5, 0}});                       // empty
  refuses({{0, 0, 100, 129, 0}});                   // beyond the tensor
  refuses({{0, 0, 0, 1, 2}});                       // misaligned
  refuses({{0, 0, 0, 1, -4}});                      // before the arena
  refuses({{0, 0, 0, 128, 0}, {0, 1, 0, 1, 508}});  // overlapping
  refuses({{0, 0, 0, 4, 0, 0, 8}});                 // no rows
  refuses({{0, 0, 0, 4, 0, 2, 3}});                 // rows that overlap
  refuses({{0, 0, 1, 5, 0, 17, 8}});                // the last row beyond the tensor
  refuses({{0, 0, 0, 4, 0, int64_t{1} << 62, int64_t{1} << 62}});
  EXPECT_TRUE(Layout::Create(manifest, 2, {{0, 0, 0, 4, 0, 16, 8}}).ok());
  EXPECT_THAT(Layout::Create(manifest, 0, {}).status(), HasReason("BAD_LAYOUT"));
}

TEST(LayoutTest, AFlatParameterIsCutIntoEqualPartsWhateverTensorsItHolds) {
  Manifest manifest = TwoLayers();  // 24 elements, 5 for each rank
  auto layout = FlatLayout(manifest, 5, DType::kFloat32);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->pieces(), (std::vector<Piece>{{0, 0, 0, 5, 0},
                                                  {1, 0, 5, 10, 0},
                                                  {2, 1, 0, 5, 0},
                                                  {3, 1, 5, 6, 0},
                                                  {3, 2, 0, 3, 4},
                                                  {3, 3, 0, 1, 16},
                                                  {4, 3, 1, 5, 0}}));
  EXPECT_EQ(layout->arena_bytes(4), 256);
}

TEST(LayoutTest, AFlatParameterAUnitIsCutByItself) {
  auto layout = FlatLayersLayout(TwoLayers(), 2, std::nullopt);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->pieces(), (std::vector<Piece>{{0, 0, 0, 5, 0},
                                                  {0, 1, 0, 3, 256},
                                                  {0, 2, 0, 2, 512},
                                                  {0, 3, 0, 3, 768},
                                                  {1, 0, 5, 10, 0},
                                                  {1, 1, 3, 6, 256},
                                                  {1, 2, 2, 3, 512},
                                                  {1, 3, 3, 5, 768}}));
}

// Three units: 130 elements, which are 3 blocks of 64 with their gap; 65 and 64 elements, 3 blocks together; 1 element.
Manifest ThreeUnits(DType dtype) {
  return Manifest::Create({{"a", dtype, {130}, 0}, {"b", dtype, {65}, 1}, {"c", dtype, {64}, 1}, {"d", dtype, {1}, 2}})
      .value();
}

TEST(LayoutTest, UnitsAreCutInBlocksOfTheFloat32ManifestWhateverTravels) {
  for (DType travels : {DType::kFloat32, DType::kBFloat16}) {
    for (DType read : {DType::kFloat32, travels}) {
      auto layout = UnitShardsLayout(ThreeUnits(travels), 2, read);
      ASSERT_TRUE(layout.ok());
      const int64_t width = DTypeBytes(read);
      // Each rank has two blocks of each of the first two units, and one of the last: rank 1 has none of the last.
      EXPECT_EQ(layout->pieces(), (std::vector<Piece>{{0, 0, 0, 128, 0},
                                                      {0, 1, 0, 65, 128 * width},
                                                      {0, 3, 0, 1, 256 * width},
                                                      {1, 0, 128, 130, 0},
                                                      {1, 2, 0, 64, 128 * width}}));
      EXPECT_EQ(layout->arena_bytes(1), AlignUp(320 * width));
    }
  }
}

TEST(LayoutTest, OneRankOfUnitsHasTheFloat32Arena) {
  const Manifest manifest = ThreeUnits(DType::kFloat32);
  auto layout = UnitShardsLayout(manifest, 1, DType::kFloat32);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->pieces(), Layout::Whole(manifest, 1).pieces());
  EXPECT_EQ(layout->arena_bytes(0), manifest.arena_bytes());
}

TEST(LayoutTest, MoreRanksThanBlocksLeaveSomeWithNothing) {
  auto layout = UnitShardsLayout(ThreeUnits(DType::kFloat32), 5, DType::kFloat32);
  ASSERT_TRUE(layout.ok());
  for (const Piece& piece : layout->pieces()) EXPECT_LT(piece.rank, 3);
  EXPECT_EQ(layout->arena_bytes(4), layout->arena_bytes(0));
}

TEST(LayoutTest, RowShardsAreUnevenAndMayBeEmpty) {
  auto layout = RowShardsLayout(TwoLayers(), 4, std::nullopt);
  ASSERT_TRUE(layout.ok());
  // Each rank has two rows of the first tensor: 2, 2, 1, 0.
  EXPECT_EQ(layout->pieces(), (std::vector<Piece>{{0, 0, 0, 4, 0},
                                                  {0, 1, 0, 2, 256},
                                                  {0, 2, 0, 1, 512},
                                                  {0, 3, 0, 2, 768},
                                                  {1, 0, 4, 8, 0},
                                                  {1, 1, 2, 4, 256},
                                                  {1, 2, 1, 2, 512},
                                                  {1, 3, 2, 4, 768},
                                                  {2, 0, 8, 10, 0},
                                                  {2, 1, 4, 6, 256},
                                                  {2, 2, 2, 3, 512},
                                                  {2, 3, 4, 5, 768}}));
  EXPECT_EQ(layout->arena_bytes(3), 0);
}

TEST(LayoutTest, AFlatShardNeedsOneDType) {
  Manifest mixed = SmallModel();
  absl::Status status = FlatLayout(mixed, 2, std::nullopt).status();
  EXPECT_THAT(status, HasReason("BAD_LAYOUT"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("layer.weight is bfloat16"));
  EXPECT_TRUE(FlatLayout(mixed, 2, DType::kFloat32).ok());
}

TEST(LayoutTextTest, EveryWordGivesItsLayout) {
  Manifest manifest = TwoLayers();
  struct Case {
    const char* text;
    int32_t ranks;
    std::optional<DType> dtype;
  };
  for (const Case& c : {Case{"whole", 1, std::nullopt},
                        {"whole:3", 3, std::nullopt},
                        {"buckets:2", 2, std::nullopt},
                        {"units:2", 2, std::nullopt},
                        {"units:3:bf16", 3, DType::kBFloat16},
                        {"flat:2", 2, std::nullopt},
                        {"flat:2:bf16", 2, DType::kBFloat16},
                        {"layers:3:fp32", 3, DType::kFloat32},
                        {"fsdp2:4:fp32", 4, DType::kFloat32},
                        {"replicated:2:bf16", 2, DType::kBFloat16},
                        {"tp:1", 1, std::nullopt},
                        {"tp:1:fused", 1, std::nullopt},
                        {"tp:1:fused:vocab", 1, std::nullopt}}) {
    SCOPED_TRACE(c.text);
    auto layout = BuildLayout(manifest, c.text);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->ranks(), c.ranks);
    EXPECT_EQ(layout->dtype(), c.dtype);
  }
}

TEST(LayoutTextTest, RefusesOtherWordsSayingWhatThereIs) {
  Manifest manifest = TwoLayers();
  for (const char* text :
       {"", "hole", "flat", "flat:", "flat:0", "flat:-1", "flat:two", "flat:2:fp16", "flat:2:fp32:x", "whole:2:fp32",
        "buckets", "flat:9999999", "tp", "tp:1:head", "tp:1:head64", "tp:1:fused:head8", "tp:1:vocab:fused", "tp:1:"}) {
    SCOPED_TRACE(text);
    absl::Status status = BuildLayout(manifest, text).status();
    EXPECT_THAT(status, HasReason("BAD_LAYOUT"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("fsdp2:T"));
  }
  EXPECT_THAT(BuildLayout(manifest, "tp:3").status(), HasReason("BAD_LAYOUT"));
}

}  // namespace
}  // namespace syncopate::synchronizer
