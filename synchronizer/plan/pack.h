#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"

namespace syncopate::synchronizer {

// A strided copy, with a cast, from a source rank's shard buffer to its send arena. Row r copies `row_elements`
// elements from byte source_offset + r * source_stride to byte send_offset + r * send_stride. The elements of a row are
// contiguous on both sides. Offsets need only be multiples of the element's size.
struct PackOp {
  int32_t tensor = 0;  // index in the manifest; all elements belong to this tensor
  DType from = DType::kFloat32;
  DType to = DType::kFloat32;
  int64_t source_offset = 0;  // in bytes, as all offsets and strides are
  int64_t source_stride = 0;  // positive; ignored if rows is 1
  int64_t send_offset = 0;
  int64_t send_stride = 0;
  int64_t rows = 1;
  int64_t row_elements = 0;

  friend bool operator==(const PackOp&, const PackOp&) = default;
};

// Runs `ops`. Supports casts from fp32 to bf16 and copies within one dtype (SyncPlan makes no others). Bytes of the
// send arena between the rows are not written; the caller keeps them zero. The reference for the GPU kernels.
void PackOnHost(const std::vector<PackOp>& ops, const char* shard, char* send_arena);

// Runs the parts of `ops` that read bytes `part` of the shard; `bytes` are those bytes. So a shard that is not in host
// memory is packed piece by piece; borders of pieces are multiples of the elements' size.
void PackPartOnHost(const std::vector<PackOp>& ops, ByteRange part, const char* bytes, char* send_arena);

// DigestBytes of each of `ranges` in `arena`.
std::vector<uint64_t> DigestRanges(const std::vector<ByteRange>& ranges, const char* arena);

}  // namespace syncopate::synchronizer
