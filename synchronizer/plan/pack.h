#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"

namespace syncopate::synchronizer {

// A strided copy, with a cast, from a source rank's shard buffer to its send arena: row r takes `row_elements` elements
// from byte source_offset + r * source_stride to byte send_offset + r * send_stride. Elements of a row lie densely on
// both sides; offsets are multiples of the element's size and of nothing more.
struct PackOp {
  int32_t tensor = 0;  // index in the manifest: all elements are of this tensor
  DType from = DType::kFloat32;
  DType to = DType::kFloat32;
  int64_t source_offset = 0;  // bytes, as all offsets and strides
  int64_t source_stride = 0;  // strides are positive; of no meaning for one row
  int64_t send_offset = 0;
  int64_t send_stride = 0;
  int64_t rows = 1;
  int64_t row_elements = 0;

  friend bool operator==(const PackOp&, const PackOp&) = default;
};

// Carries out `ops`, which know casts from fp32 to bf16 and to the same dtype (SyncPlan makes no others). Bytes of the
// send arena between them are left alone; who stages keeps them zero. What a GPU's kernel is compared with.
void PackOnHost(const std::vector<PackOp>& ops, const char* shard, char* send_arena);

// DigestBytes of each range of an arena.
std::vector<uint64_t> DigestRanges(const std::vector<ByteRange>& ranges, const char* arena);

}  // namespace syncopate::synchronizer
