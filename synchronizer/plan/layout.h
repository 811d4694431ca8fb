#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"

namespace syncopate::synchronizer {

// Elements [begin, end) of a tensor, in row-major order, lie densely at byte `offset` of `rank`'s arena.
struct Piece {
  int32_t rank = 0;
  int32_t tensor = 0;  // index in the manifest
  int64_t begin = 0;
  int64_t end = 0;
  int64_t offset = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

// Where each rank of a group keeps which part of each tensor of a manifest. Several ranks may hold the same elements.
// Bytes of an arena that no piece covers are padding and zero. Immutable.
class Layout {
 public:
  // INVALID_ARGUMENT reason BAD_LAYOUT if a piece is empty, outside its tensor, misaligned for its dtype, of no such
  // rank, or overlaps another one in the same arena. Not every element needs a place; SyncPlan asks for that.
  static absl::StatusOr<Layout> Create(const Manifest& manifest, int32_t ranks, std::vector<Piece> pieces);

  // Every rank holds everything, in the manifest's own order: its arena is the manifest's.
  static Layout Whole(const Manifest& manifest, int32_t ranks);

  // The manifest's arena cut into `ranks` contiguous parts at bucket boundaries, as equal as these allow: what a
  // sharded actor stages, each rank digesting whole buckets of its own.
  static Layout FlatShards(const Manifest& manifest, int32_t ranks);

  // Tensor parallelism: tensor i is cut along dimension split_dim[i] into `ranks` equal slices, or held whole by all
  // if that is -1. Each rank's slices lie in the manifest's order, each on a kAlignment boundary. INVALID_ARGUMENT
  // reason BAD_LAYOUT if there is no such dimension or its extent is no multiple of `ranks`.
  static absl::StatusOr<Layout> TensorParallel(const Manifest& manifest, int32_t ranks,
                                               const std::vector<int>& split_dim);

  int32_t ranks() const { return static_cast<int32_t>(arena_bytes_.size()); }
  const std::vector<Piece>& pieces() const { return pieces_; }  // by (rank, offset)
  int64_t arena_bytes(int32_t rank) const { return arena_bytes_[rank]; }

 private:
  Layout(std::vector<Piece> pieces, std::vector<int64_t> arena_bytes)
      : pieces_(std::move(pieces)), arena_bytes_(std::move(arena_bytes)) {}

  std::vector<Piece> pieces_;
  std::vector<int64_t> arena_bytes_;
};

}  // namespace syncopate::synchronizer
