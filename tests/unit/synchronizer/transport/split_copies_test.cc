#include "synchronizer/transport/split_copies.h"

#include <random>

#include "gtest/gtest.h"
#include "synchronizer/transport/plan_cache.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

// One entry for each byte of the rank's arena: 0 not moved, 1 a base weight or padding, 2 an adapter.
std::vector<int> Expected(const Manifest& manifest, const Layout& layout, const std::vector<Copy>& copies,
                          const std::vector<TensorRange>& adapters) {
  std::vector<int> bytes(layout.arena_bytes(0), 0);
  for (const Copy& copy : copies) {
    std::fill_n(bytes.begin() + copy.destination_offset, copy.bytes, 1);
  }
  for (const Piece& piece : layout.pieces()) {
    for (const TensorRange& range : adapters) {
      if (piece.rank != 0 || piece.tensor < range.begin || piece.tensor >= range.end) continue;
      std::fill_n(bytes.begin() + piece.offset, piece.elements() * DTypeBytes(manifest.tensors()[piece.tensor].dtype),
                  2);
    }
  }
  return bytes;
}

TEST(SplitCopiesTest, SendsTheAdaptersAloneAndKeepsTheRestByteForByte) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<TensorSpec> specs;
    for (int i = 0; i < 12; ++i) {
      DType dtype = random() % 2 == 0 ? DType::kFloat32 : DType::kBFloat16;
      specs.push_back({absl::StrCat("t", i), dtype, {static_cast<int64_t>(1 + random() % 40), 6}});
    }
    auto manifest = std::make_shared<const Manifest>(*Manifest::Create(specs, 512));
    const int32_t sources = 1 + static_cast<int32_t>(random() % 3);
    auto planned = PlanCache(manifest).Get({absl::StrCat("fsdp2:", sources), sources, "", 1});
    ASSERT_TRUE(planned.ok()) << planned.status();
    std::vector<TensorRange> adapters;
    for (int32_t at = static_cast<int32_t>(random() % 3); at < 11; at += 2 + static_cast<int32_t>(random() % 4)) {
      adapters.push_back({at, at + 1 + static_cast<int32_t>(random() % 2)});
    }
    const std::vector<Copy> copies = (*planned)->plan.CopiesTo(0);
    std::vector<int> expected = Expected(*manifest, (*planned)->destination, copies, adapters);
    SplitCopies split = Split(*manifest, (*planned)->destination, 0, copies, adapters, /*base=*/false);
    std::vector<int> seen(expected.size(), 0);
    for (const Copy& copy : split.sent) {
      std::fill_n(seen.begin() + copy.destination_offset, copy.bytes, 2);
      auto whole = std::find_if(copies.begin(), copies.end(), [&copy](const Copy& c) {
        return copy.destination_offset >= c.destination_offset &&
               copy.destination_offset + copy.bytes <= c.destination_offset + c.bytes;
      });
      ASSERT_NE(whole, copies.end());
      EXPECT_EQ(copy.source, whole->source);
      EXPECT_EQ(copy.source_offset - whole->source_offset, copy.destination_offset - whole->destination_offset);
    }
    for (const ByteRange& range : split.kept) std::fill_n(seen.begin() + range.begin, range.size(), 1);
    EXPECT_EQ(seen, expected) << "seed " << seed;
    const int64_t lora = std::count(expected.begin(), expected.end(), 2);
    EXPECT_EQ(split.bytes, (PayloadBytes{0, lora, 0}));

    SplitCopies all = Split(*manifest, (*planned)->destination, 0, copies, adapters, /*base=*/true);
    EXPECT_EQ(all.sent, copies);
    EXPECT_TRUE(all.kept.empty());
    EXPECT_EQ(all.bytes, (PayloadBytes{std::count(expected.begin(), expected.end(), 1), lora, 0}));
  }
}

TEST(SplitCopiesTest, AdaptersThatLieSideBySideAreOneCopy) {
  std::vector<TensorSpec> specs = {{.name = "base", .dtype = DType::kBFloat16, .shape = {100, 64}, .spare_rows = 16}};
  for (int i = 0; i < 12; ++i) {
    specs.push_back({.name = absl::StrCat("a", i), .dtype = DType::kBFloat16, .shape = {8, 64}, .adapter = true});
  }
  specs.push_back({.name = "behind a gap", .dtype = DType::kBFloat16, .shape = {7, 1}, .adapter = true});
  specs.push_back({.name = "last", .dtype = DType::kBFloat16, .shape = {8, 64}, .adapter = true});
  auto manifest = std::make_shared<const Manifest>(*Manifest::Create(specs, /*bucket_bytes=*/1 << 20));
  auto planned = *PlanCache(manifest).Get({"", 1, "", 1});
  const std::vector<Copy> copies = planned->plan.CopiesTo(0);
  const SplitCopies split = Split(*manifest, planned->destination, 0, copies, {{1, 15}}, /*base=*/false);
  ASSERT_EQ(split.sent.size(), 2u);
  EXPECT_EQ(split.sent[0].bytes, 12 * 8 * 64 * 2 + 7 * 2);
  EXPECT_EQ(split.sent[1].bytes, 8 * 64 * 2);
}

TEST(SplitCopiesTest, WithoutAdaptersEverythingIsSentAsFullWeights) {
  auto manifest = std::make_shared<const Manifest>(SmallModel());
  auto planned = *PlanCache(manifest).Get({"", 1, "", 1});
  SplitCopies split = Split(*manifest, planned->destination, 0, planned->plan.CopiesTo(0), {}, /*base=*/true);
  EXPECT_EQ(split.sent, planned->plan.CopiesTo(0));
  EXPECT_EQ(split.bytes.full, planned->plan.bytes());
  EXPECT_EQ(split.bytes.lora, 0);
}

}  // namespace
}  // namespace syncopate::synchronizer
