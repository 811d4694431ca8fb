#include "synchronizer/plan/pack.h"

#include <cstring>

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

void PackOnHost(const std::vector<PackOp>& ops, const char* shard, char* send_arena) {
  for (const PackOp& op : ops) {
    SYNCOPATE_CHECK(op.from == op.to || (op.from == DType::kFloat32 && op.to == DType::kBFloat16));
    for (int64_t row = 0; row < op.rows; ++row) {
      const char* from = shard + op.source_offset + row * op.source_stride;
      char* to = send_arena + op.send_offset + row * op.send_stride;
      if (op.from == op.to) {
        std::memcpy(to, from, op.row_elements * DTypeBytes(op.to));
      } else {
        CastRow(from, to, op.row_elements);
      }
    }
  }
}

std::vector<uint64_t> DigestRanges(const std::vector<ByteRange>& ranges, const char* arena) {
  std::vector<uint64_t> digests;
  digests.reserve(ranges.size());
  for (const ByteRange& range : ranges) digests.push_back(DigestBytes(arena + range.begin, range.size()));
  return digests;
}

}  // namespace syncopate::synchronizer
