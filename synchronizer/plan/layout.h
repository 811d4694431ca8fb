#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"

namespace syncopate::synchronizer {

// A block of one tensor in one rank's buffer: `rows` runs of elements. Run r is elements [begin + r * stride, end + r *
// stride) of the tensor in row-major order. The runs lie densely, one after another, from byte `offset` of the buffer.
// A whole tensor, a flat cut and a split by rows have one run. A split by columns has one run for each row, and is
// still one piece.
struct Piece {
  int32_t rank = 0;
  int32_t tensor = 0;  // index in the manifest
  int64_t begin = 0;
  int64_t end = 0;
  int64_t offset = 0;
  int64_t rows = 1;
  int64_t stride = 0;  // elements; ignored if rows is 1

  int64_t row_elements() const { return end - begin; }
  int64_t elements() const { return rows * (end - begin); }
  friend bool operator==(const Piece&, const Piece&) = default;
};

// Where each rank of a group stores which part of each tensor of a manifest. Several ranks may store the same elements;
// a rank may store nothing. Bytes of a buffer that no piece covers are padding and zero. Immutable.
//
// Describes both ends of a sync. A source's buffer is its training shard, in fp32 or bf16. A destination's buffer is
// the arena from which it serves, always in the manifest's dtypes. shard_layouts.h and tensor_parallel.h build the
// usual layouts; layout_text.h builds them from a descriptor.
class Layout {
 public:
  // `dtype`: that of all elements in these buffers; without it each tensor has the manifest's dtype. Every buffer has
  // at least `min_bytes` bytes. INVALID_ARGUMENT reason BAD_LAYOUT if `ranks` < 1, or a piece is empty, outside its
  // tensor, misaligned for its dtype, on a rank that does not exist, or overlaps another piece in the same buffer. A
  // layout need not contain every element; SyncPlan requires that.
  static absl::StatusOr<Layout> Create(const Manifest& manifest, int32_t ranks, std::vector<Piece> pieces,
                                       std::optional<DType> dtype = std::nullopt, int64_t min_bytes = 0);

  // Every rank stores all tensors in the manifest's own order: its arena is the manifest's.
  static Layout Whole(const Manifest& manifest, int32_t ranks);

  // The manifest's arena cut into `ranks` contiguous parts at bucket boundaries, as equal as these allow. For staging
  // in host memory: each rank digests its own whole buckets.
  static Layout FlatShards(const Manifest& manifest, int32_t ranks);

  // For destinations: the same places, but a plan moves only the tensors of these indices, a subset that the sender has
  // named. The bytes of other tensors are left alone, even between moved tensors.
  Layout Only(const std::vector<int32_t>& tensors) const;

  int32_t ranks() const { return static_cast<int32_t>(arena_bytes_.size()); }
  const std::vector<Piece>& pieces() const { return pieces_; }  // by (rank, offset)
  // Large enough for all pieces of the rank; a multiple of kAlignment.
  int64_t arena_bytes(int32_t rank) const { return arena_bytes_[rank]; }
  DType ToDType(const TensorSpec& spec) const { return dtype_.value_or(spec.dtype); }
  std::optional<DType> dtype() const { return dtype_; }
  bool Moves(int32_t tensor) const { return !only_ || (*only_)[tensor]; }

 private:
  Layout(std::vector<Piece> pieces, std::vector<int64_t> arena_bytes, std::optional<DType> dtype)
      : pieces_(std::move(pieces)), arena_bytes_(std::move(arena_bytes)), dtype_(dtype) {}

  std::vector<Piece> pieces_;
  std::vector<int64_t> arena_bytes_;
  std::optional<DType> dtype_;
  std::optional<std::vector<bool>> only_;  // by tensor
};

// `bytes` rounded up to a multiple of Manifest::kAlignment.
int64_t AlignUp(int64_t bytes);

// INVALID_ARGUMENT reason BAD_LAYOUT.
absl::Status BadLayout(const std::string& message);

}  // namespace syncopate::synchronizer
