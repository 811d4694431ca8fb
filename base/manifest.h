#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace syncopate {

enum class DType : uint8_t { kFloat32 = 1, kBFloat16 = 2 };

int64_t DTypeBytes(DType dtype);
std::string DTypeName(DType dtype);  // "float32", "bfloat16"

// How a tensor is divided among the ranks of a replica.
enum class Split : uint8_t {
  kAll = 0,         // each rank has the whole tensor
  kRows = 1,        // each rank has the same number of rows
  kColumns = 2,     // each rank has the same number of columns of a matrix
  kVocabulary = 3,  // by rows, one per token; if the ranks do not divide them, the last ranks' rows are padding
};

// One named parameter on the wire: its Hugging Face name, dtype and row-major dense shape; and what sharding and
// sending must know about it, so that they need no knowledge of the model.
struct TensorSpec {
  std::string name = {};
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  int32_t unit = 0;  // tensors of one unit are sharded, gathered and sent together; ascending in a manifest
  Split split = Split::kAll;
  int64_t head = 0;  // rows (kRows) or columns (kColumns) of an attention head, which stay on one rank; 0: no heads
  std::string joint = {};  // the tensor into which a rank joins its parts of all tensors with this `joint`; "" if none
  bool adapter = false;    // of an adapter: the last tensors of a manifest, which lie apart from the base
  // Rows that an arena leaves free behind the tensor, where a receiver may put rows of its own: they are neither sent
  // nor digested.
  int64_t spare_rows = 0;

  int64_t NumElements() const;
  int64_t NumBytes() const { return NumElements() * DTypeBytes(dtype); }
  int64_t SpareBytes() const;  // of spare_rows
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// A half-open byte range of an arena.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// The wire order of one model's weights: which tensors, where each lies in an arena, and how the arena is cut into
// buckets. Sender and receiver build it from the model alone and compare fingerprints; nothing about shapes is ever
// taken from a peer's data. Immutable, cheap to share by const reference.
class Manifest {
 public:
  static constexpr int64_t kAlignment = 256;               // bytes; every tensor starts on such a boundary
  static constexpr int64_t kDefaultBucketBytes = 4 << 20;  // a bucket has one digest and is one unit of transfer
  static constexpr int64_t kMappingBytes = 2 << 20;        // of a GPU's memory; a multiple of a host's pages

  // The place where adapters begin in an arena whose base ends at `base_end`: behind it, at a multiple of the bucket
  // and of kMappingBytes. So a base and its adapters share no bucket, and may be in different memory.
  static int64_t AlignAdapters(int64_t base_end, int64_t bucket_bytes);

  // INVALID_ARGUMENT (reason BAD_MANIFEST) on an empty or duplicate name, a negative or overflowing shape, units that
  // descend, a tensor of the base behind one of an adapter, a head or spare rows of less than 0, a bucket size that is not a positive multiple of kAlignment, or one that makes more
  // than 4,194,304 buckets.
  static absl::StatusOr<Manifest> Create(std::vector<TensorSpec> tensors, int64_t bucket_bytes = kDefaultBucketBytes);
  Manifest() = default;

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // Bytes of tensors()[i] in the arena; gaps up to the next tensor are zero.
  const std::vector<ByteRange>& ranges() const { return ranges_; }
  const std::vector<ByteRange>& buckets() const { return buckets_; }
  int64_t arena_bytes() const { return arena_bytes_; }        // with gaps
  int64_t adapters_begin() const { return adapters_begin_; }  // AlignAdapters(); arena_bytes() if there are none
  int64_t weight_bytes() const { return weight_bytes_; }      // without
  int64_t bucket_bytes() const { return bucket_bytes_; }
  // Equal iff all fields of all tensors, their order and the bucket size are equal.
  uint64_t fingerprint() const { return fingerprint_; }

  // Whether all tensors have this type.
  bool HasOnly(DType dtype) const;
  // OK if `other` describes the same weights; else FAILED_PRECONDITION (reason MODEL_MISMATCH) naming the first
  // tensor that differs and how.
  absl::Status CheckSame(const Manifest& other) const;

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<ByteRange> ranges_;
  std::vector<ByteRange> buckets_;
  int64_t arena_bytes_ = 0;
  int64_t adapters_begin_ = 0;
  int64_t weight_bytes_ = 0;
  int64_t bucket_bytes_ = kDefaultBucketBytes;
  uint64_t fingerprint_ = 0;
};

}  // namespace syncopate
