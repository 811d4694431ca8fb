#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "rollouter/cuda/decode/decode_buffers.h"

namespace syncopate::rollouter {

// How the prompt tokens of a step go through the model: in passes, of two kinds. Few rows attend one by one, by the
// kernel for decode steps; many as packed sequences, whose keys and values so far are gathered first.
struct ChunkLimits {
  int32_t max_paged_rows = 0;   // of a pass
  int32_t max_packed_rows = 0;  // of a pass; 0: none is packed
  int32_t max_packed_keys = 0;  // of a pass: tokens of its sequences, those that are in the cache included
};

struct ChunkPass {
  size_t begin = 0, end = 0;            // of the step's rows
  std::vector<PassDraw> draws;          // `row` counts from the pass's first
  std::vector<PassSequence> sequences;  // empty: its rows attend one by one
  int32_t keys = 0;                     // of all sequences
  int32_t longest_query = 0, longest_key = 0;

  int32_t rows() const { return static_cast<int32_t>(end - begin); }
};

// Cuts `rows` (neighbours of one slot are a sequence, in order) and their draws into passes. A sequence has at most
// max_packed_keys tokens.
std::vector<ChunkPass> CutChunks(absl::Span<const PassRow> rows, absl::Span<const PassDraw> draws,
                                 const ChunkLimits& limits);

}  // namespace syncopate::rollouter
