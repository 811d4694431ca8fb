#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "rollouter/cuda/decode/decode_buffers.h"

namespace syncopate::rollouter {

// The prompt tokens of a step go through the model in passes of two kinds. In a pass of few rows each row attends by
// the kernel of decode steps; in a pass of many rows they attend as packed sequences, whose earlier keys and values are
// gathered first.
struct ChunkLimits {
  int32_t max_paged_rows = 0;   // rows of one pass without packing
  int32_t max_packed_rows = 0;  // rows of one packed pass; 0: no pass is packed
  int32_t max_packed_keys = 0;  // tokens of a packed pass's sequences, including tokens in the cache
};

struct ChunkPass {
  size_t begin = 0, end = 0;            // range in the step's rows
  std::vector<PassDraw> draws;          // `row` counts from the pass's first row
  std::vector<PassSequence> sequences;  // empty: the rows attend without packing
  int32_t keys = 0;                     // tokens of all sequences
  int32_t longest_query = 0, longest_key = 0;

  int32_t rows() const { return static_cast<int32_t>(end - begin); }
};

// Cuts `rows` and their draws into passes. Adjacent rows of one slot are one sequence, in order. A sequence has at most
// max_packed_keys tokens.
std::vector<ChunkPass> CutChunks(absl::Span<const PassRow> rows, absl::Span<const PassDraw> draws,
                                 const ChunkLimits& limits);

}  // namespace syncopate::rollouter
