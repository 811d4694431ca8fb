#include "synchronizer/plan/pack.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/digest.h"
#include "base/half.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

void CastRow(const char* from, char* to, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) {
    float value;
    std::memcpy(&value, from + 4 * i, 4);
    uint16_t rounded = RoundToBFloat16(value);
    std::memcpy(to + 2 * i, &rounded, 2);
  }
}

}  // namespace

void PackPartOnHost(const std::vector<PackOp>& ops, ByteRange part, const char* bytes, char* send_arena) {
  for (const PackOp& op : ops) {
    SYNCOPATE_CHECK(op.from == op.to || (op.from == DType::kFloat32 && op.to == DType::kBFloat16));
    const int64_t width = DTypeBytes(op.from), row_bytes = op.row_elements * width;
    int64_t row = 0;
    // The first row that reaches into the part.
    if (op.rows > 1 && part.begin > op.source_offset) {
      row = std::max<int64_t>(0, (part.begin - op.source_offset - row_bytes) / op.source_stride);
    }
    for (; row < op.rows; ++row) {
      const int64_t first = op.source_offset + row * op.source_stride;
      const int64_t begin = std::max(first, part.begin), end = std::min(first + row_bytes, part.end);
      if (first >= part.end) break;
      if (begin >= end) continue;
      const char* from = bytes + begin - part.begin;
      const int64_t elements = (end - begin) / width;
      char* to = send_arena + op.send_offset + row * op.send_stride + (begin - first) / width * DTypeBytes(op.to);
      if (op.from == op.to) {
        std::memcpy(to, from, static_cast<size_t>(end - begin));
      } else {
        CastRow(from, to, elements);
      }
    }
  }
}

void PackOnHost(const std::vector<PackOp>& ops, const char* shard, char* send_arena) {
  PackPartOnHost(ops, {0, std::numeric_limits<int64_t>::max()}, shard, send_arena);
}

std::vector<uint64_t> DigestRanges(const std::vector<ByteRange>& ranges, const char* arena) {
  std::vector<uint64_t> digests;
  digests.reserve(ranges.size());
  for (const ByteRange& range : ranges) digests.push_back(DigestBytes(arena + range.begin, range.size()));
  return digests;
}

}  // namespace syncopate::synchronizer
