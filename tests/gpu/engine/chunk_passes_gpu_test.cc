#include "rollouter/cuda/decode/chunk_passes.h"

#include <gtest/gtest.h>

#include "base/philox.h"

// Tests how prompts are divided into chunks; they need no GPU.
namespace syncopate::rollouter {
namespace {

// Sequences in slots 0, 1, ..., each with `begin` tokens in the cache and `count` tokens to add.
struct Chunk {
  int32_t begin = 0;
  int32_t count = 0;
};
std::vector<PassRow> MakeRows(const std::vector<Chunk>& chunks) {
  std::vector<PassRow> rows;
  for (size_t slot = 0; slot < chunks.size(); ++slot) {
    for (int32_t i = 0; i < chunks[slot].count; ++i) {
      rows.push_back({static_cast<int32_t>(slot), 100 + i, chunks[slot].begin + i + 1});
    }
  }
  return rows;
}

TEST(ChunkPassesTest, FewRowsAttendOneByOne) {
  const std::vector<PassRow> rows = MakeRows({{0, 10}, {5, 6}});
  const std::vector<ChunkPass> passes = CutChunks(rows, std::vector<PassDraw>{{0, 0, 9}, {1, 3, 15}}, {16, 64, 1000});
  ASSERT_EQ(passes.size(), 1u);
  EXPECT_TRUE(passes[0].sequences.empty());
  EXPECT_EQ(passes[0].rows(), 16);
  EXPECT_EQ(passes[0].draws.size(), 2u);
}

TEST(ChunkPassesTest, ASequenceThatIsCutGoesOnBehindItsOwnKeys) {
  const std::vector<PassRow> rows = MakeRows({{0, 50}, {7, 30}});
  const std::vector<ChunkPass> passes = CutChunks(rows, std::vector<PassDraw>{{0, 0, 49}, {1, 3, 79}}, {10, 64, 1000});
  ASSERT_EQ(passes.size(), 2u);
  ASSERT_EQ(passes[0].sequences.size(), 2u);
  EXPECT_EQ(passes[0].sequences[1].queries, 14);
  EXPECT_EQ(passes[0].sequences[1].keys, 21);
  EXPECT_EQ(passes[0].keys, 71);
  EXPECT_EQ(passes[0].longest_query, 50);
  ASSERT_EQ(passes[1].sequences.size(), 1u);
  EXPECT_EQ(passes[1].sequences[0].queries, 16);
  EXPECT_EQ(passes[1].sequences[0].keys, 37);
  ASSERT_EQ(passes[1].draws.size(), 1u);
  EXPECT_EQ(passes[1].draws[0].row, 15);
}

TEST(ChunkPassesTest, EveryRowAndDrawIsInOnePassWithinTheLimits) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    auto number = [&, n = uint64_t{0}](uint32_t below) mutable {
      return static_cast<int32_t>(Philox4x32(seed, n++)[0] % below);
    };
    const int32_t paged = 1 + number(20);
    const ChunkLimits limits = {paged, number(3) == 0 ? 0 : paged + 1 + number(60), 300};
    std::vector<Chunk> chunks(1 + static_cast<size_t>(number(8)));
    for (Chunk& chunk : chunks) chunk = {number(150), 1 + number(100)};
    const std::vector<PassRow> rows = MakeRows(chunks);
    std::vector<PassDraw> draws;
    for (size_t row = 0; row < rows.size(); ++row) {
      const bool last = row + 1 == rows.size() || rows[row + 1].slot != rows[row].slot;
      if (last && number(4) > 0) draws.push_back({rows[row].slot, 0, static_cast<int32_t>(row)});
    }
    size_t row = 0, draw = 0;
    for (const ChunkPass& pass : CutChunks(rows, draws, limits)) {
      EXPECT_EQ(pass.begin, row);
      EXPECT_GT(pass.end, row);
      int32_t queries = 0, keys = 0;
      for (const PassSequence& sequence : pass.sequences) {
        EXPECT_EQ(rows[pass.begin + queries].slot, sequence.slot);
        queries += sequence.queries;
        keys += sequence.keys;
        EXPECT_EQ(rows[pass.begin + queries - 1].length, sequence.keys);
      }
      if (pass.sequences.empty()) {
        EXPECT_LE(pass.rows(), limits.max_paged_rows);
      } else {
        EXPECT_EQ(queries, pass.rows());
        EXPECT_LE(queries, limits.max_packed_rows);
        EXPECT_EQ(keys, pass.keys);
        EXPECT_LE(keys, limits.max_packed_keys);
      }
      for (const PassDraw& one : pass.draws) {
        ASSERT_LT(draw, draws.size());
        EXPECT_EQ(one.row + static_cast<int32_t>(pass.begin), draws[draw++].row);
        EXPECT_LT(one.row, pass.rows());
      }
      row = pass.end;
    }
    EXPECT_EQ(row, rows.size());
    EXPECT_EQ(draw, draws.size());
  }
}

}  // namespace
}  // namespace syncopate::rollouter
