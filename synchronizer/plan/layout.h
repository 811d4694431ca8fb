#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"

namespace syncopate::synchronizer {

// A block of one tensor in one rank's buffer: `rows` runs of elements, in row-major order of the tensor, run r being
// [begin + r * stride, end + r * stride). They lie densely, one after another, from byte `offset`. A whole tensor, a
// flat cut and a split by rows are one run; a split by columns is one run a row, and still one piece.
struct Piece {
  int32_t rank = 0;
  int32_t tensor = 0;  // index in the manifest
  int64_t begin = 0;
  int64_t end = 0;
  int64_t offset = 0;
  int64_t rows = 1;
  int64_t stride = 0;  // elements; of no meaning for one row

  int64_t row_elements() const { return end - begin; }
  int64_t elements() const { return rows * (end - begin); }
  friend bool operator==(const Piece&, const Piece&) = default;
};

// Where each rank of a group keeps which part of each tensor of a manifest. Several ranks may hold the same elements,
// a rank may hold nothing. Bytes of a buffer that no piece covers are padding and zero. Immutable.
//
// Serves for both ends of a sync: a source's buffer is its shard as it trains, in fp32 or bf16; a destination's is the
// arena that it serves from, always in the manifest's dtypes. shard_layouts.h and tensor_parallel.h make the usual
// ones, layout_text.h makes them from a word.
class Layout {
 public:
  // `dtype`: of all elements in these buffers; without it each tensor has the manifest's. Every buffer is at least
  // `min_bytes`. INVALID_ARGUMENT reason BAD_LAYOUT if there is no rank, or a piece is empty, outside its tensor,
  // misaligned for its dtype, of no such rank, or overlaps another one in the same buffer. Not every element needs a
  // place; SyncPlan asks for that.
  static absl::StatusOr<Layout> Create(const Manifest& manifest, int32_t ranks, std::vector<Piece> pieces,
                                       std::optional<DType> dtype = std::nullopt, int64_t min_bytes = 0);

  // Every rank holds everything, in the manifest's own order: its arena is the manifest's.
  static Layout Whole(const Manifest& manifest, int32_t ranks);

  // The manifest's arena cut into `ranks` contiguous parts at bucket boundaries, as equal as these allow: staged in
  // host memory, each rank digests whole buckets of its own.
  static Layout FlatShards(const Manifest& manifest, int32_t ranks);

  // As a destination: the same places, but what a plan moves is only the tensors of these indices, a subset that the
  // sender has named. The bytes of the others are left alone, also where they are neighbours of those.
  Layout Only(const std::vector<int32_t>& tensors) const;

  int32_t ranks() const { return static_cast<int32_t>(arena_bytes_.size()); }
  const std::vector<Piece>& pieces() const { return pieces_; }  // by (rank, offset)
  // Enough for all pieces, a multiple of kAlignment.
  int64_t arena_bytes(int32_t rank) const { return arena_bytes_[rank]; }
  DType DTypeOf(const TensorSpec& spec) const { return dtype_.value_or(spec.dtype); }
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

// BAD_LAYOUT, INVALID_ARGUMENT.
absl::Status BadLayout(const std::string& message);

}  // namespace syncopate::synchronizer
