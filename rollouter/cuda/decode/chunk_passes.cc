#include "rollouter/cuda/decode/chunk_passes.h"

#include <algorithm>

#include "base/status.h"

namespace syncopate::rollouter {
namespace {

// Adds rows from pass.end on, until no rows are left or a limit is reached.
void FillPacked(absl::Span<const PassRow> rows, const ChunkLimits& limits, ChunkPass& pass) {
  while (pass.end < rows.size() && pass.rows() < limits.max_packed_rows) {
    const PassRow& first = rows[pass.end];
    const size_t room = static_cast<size_t>(limits.max_packed_rows - pass.rows());
    size_t end = pass.end;
    while (end < rows.size() && rows[end].slot == first.slot && end - pass.end < room) ++end;
    const int32_t keys = rows[end - 1].length, queries = static_cast<int32_t>(end - pass.end);
    if (pass.keys + keys > limits.max_packed_keys && !pass.sequences.empty()) return;
    SYNCOPATE_CHECK(keys <= limits.max_packed_keys);
    pass.sequences.push_back({first.slot, queries, keys});
    pass.keys += keys;
    pass.longest_query = std::max(pass.longest_query, queries);
    pass.longest_key = std::max(pass.longest_key, keys);
    pass.end = end;
  }
}

}  // namespace

std::vector<ChunkPass> CutChunks(absl::Span<const PassRow> rows, absl::Span<const PassDraw> draws,
                                 const ChunkLimits& limits) {
  std::vector<ChunkPass> passes;
  size_t draw = 0;
  for (size_t begin = 0; begin < rows.size(); begin = passes.back().end) {
    ChunkPass& pass = passes.emplace_back();
    pass.begin = pass.end = begin;
    const size_t left = rows.size() - begin;
    if (limits.max_packed_rows > 0 && left > static_cast<size_t>(limits.max_paged_rows)) {
      FillPacked(rows, limits, pass);
    } else {
      pass.end = begin + std::min(left, static_cast<size_t>(limits.max_paged_rows));
    }
    for (; draw < draws.size() && draws[draw].row < static_cast<int32_t>(pass.end); ++draw) {
      pass.draws.push_back(draws[draw]);
      pass.draws.back().row -= static_cast<int32_t>(begin);
    }
  }
  return passes;
}

}  // namespace syncopate::rollouter
