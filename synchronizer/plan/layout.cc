#include "synchronizer/plan/layout.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

absl::Status BadPiece(const Piece& piece, const std::string& problem) {
  return BadLayout(absl::StrFormat("elements [%d, %d) x %d of tensor %d at byte %d of rank %d: %s", piece.begin,
                                   piece.end, piece.rows, piece.tensor, piece.offset, piece.rank, problem));
}

bool IsInside(const Piece& piece, int64_t elements) {
  if (piece.begin < 0 || piece.begin >= piece.end || piece.end > elements || piece.rows < 1) return false;
  if (piece.rows == 1) return true;
  // Divides, because the product of rows and stride may overflow for numbers sent by a peer.
  return piece.stride >= piece.row_elements() && piece.rows - 1 <= (elements - piece.end) / piece.stride;
}

absl::Status CheckPiece(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype, const Piece& piece) {
  if (piece.rank < 0 || piece.rank >= ranks) return BadPiece(piece, absl::StrFormat("there are %d ranks", ranks));
  if (piece.tensor < 0 || piece.tensor >= static_cast<int32_t>(manifest.tensors().size())) {
    return BadPiece(piece, absl::StrFormat("there are %d tensors", manifest.tensors().size()));
  }
  const TensorSpec& spec = manifest.tensors()[piece.tensor];
  if (!IsInside(piece, spec.NumElements())) {
    return BadPiece(piece, absl::StrFormat("%s has %d elements", spec.name, spec.NumElements()));
  }
  if (piece.offset < 0 || piece.offset % DTypeBytes(dtype.value_or(spec.dtype)) != 0) {
    return BadPiece(piece, "misaligned");
  }
  return absl::OkStatus();
}

}  // namespace

int64_t AlignUp(int64_t bytes) {
  return (bytes + Manifest::kAlignment - 1) / Manifest::kAlignment * Manifest::kAlignment;
}

absl::Status BadLayout(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, reason::kBadLayout, message);
}

absl::StatusOr<Layout> Layout::Create(const Manifest& manifest, int32_t ranks, std::vector<Piece> pieces,
                                      std::optional<DType> dtype, int64_t min_bytes) {
  if (ranks < 1) return BadLayout(absl::StrFormat("a layout of %d ranks; at least one is needed", ranks));
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.rank, a.offset, a.tensor, a.begin) < std::tie(b.rank, b.offset, b.tensor, b.begin);
  });
  std::vector<int64_t> arena_bytes(ranks, 0);
  for (Piece& piece : pieces) {
    SYNCOPATE_RETURN_IF_ERROR(CheckPiece(manifest, ranks, dtype, piece));
    // Pieces are sorted, so comparing each with the previous one finds every overlap.
    if (piece.offset < arena_bytes[piece.rank]) return BadPiece(piece, "overlaps the piece before it");
    DType stored = dtype.value_or(manifest.tensors()[piece.tensor].dtype);
    arena_bytes[piece.rank] = piece.offset + piece.elements() * DTypeBytes(stored);
  }
  for (int64_t& bytes : arena_bytes) bytes = AlignUp(std::max(bytes, min_bytes));
  return Layout(std::move(pieces), std::move(arena_bytes), dtype);
}

Layout Layout::Whole(const Manifest& manifest, int32_t ranks) {
  std::vector<Piece> pieces;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < manifest.tensors().size(); ++i) {
      int64_t elements = manifest.tensors()[i].NumElements();
      if (elements > 0) pieces.push_back({rank, static_cast<int32_t>(i), 0, elements, manifest.ranges()[i].begin});
    }
  }
  return Layout(std::move(pieces), std::vector<int64_t>(ranks, manifest.arena_bytes()), std::nullopt);
}

Layout Layout::FlatShards(const Manifest& manifest, int32_t ranks) {
  int64_t buckets = static_cast<int64_t>(manifest.buckets().size());
  std::vector<Piece> pieces;
  std::vector<int64_t> arena_bytes;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    // Cut at bucket boundaries, so that each digest covers bytes of one rank only.
    int64_t first = std::min(buckets * rank / ranks * manifest.bucket_bytes(), manifest.arena_bytes());
    int64_t last = std::min(buckets * (rank + 1) / ranks * manifest.bucket_bytes(), manifest.arena_bytes());
    arena_bytes.push_back(last - first);
    for (size_t i = 0; i < manifest.tensors().size(); ++i) {
      ByteRange range = manifest.ranges()[i];
      int64_t begin = std::max(range.begin, first);
      int64_t end = std::min(range.end, last);
      if (begin >= end) continue;
      int64_t width = DTypeBytes(manifest.tensors()[i].dtype);
      pieces.push_back(
          {rank, static_cast<int32_t>(i), (begin - range.begin) / width, (end - range.begin) / width, begin - first});
    }
  }
  return Layout(std::move(pieces), std::move(arena_bytes), std::nullopt);
}

Layout Layout::Only(const std::vector<int32_t>& tensors) const {
  Layout subset = *this;
  int32_t count = 0;
  for (const Piece& piece : pieces_) count = std::max(count, piece.tensor + 1);
  subset.only_.emplace(count, false);
  for (int32_t tensor : tensors) {
    // Indices come from a peer, so they are checked; a restriction of a restricted layout is the intersection.
    if (tensor >= 0 && tensor < count) (*subset.only_)[tensor] = Moves(tensor);
  }
  return subset;
}

}  // namespace syncopate::synchronizer
