#include "synchronizer/plan/layout.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace syncopate::synchronizer {
namespace {

int64_t Align(int64_t bytes) {
  return (bytes + Manifest::kAlignment - 1) / Manifest::kAlignment * Manifest::kAlignment;
}

int64_t Bytes(const Manifest& manifest, const Piece& piece) {
  return (piece.end - piece.begin) * DTypeBytes(manifest.tensors()[piece.tensor].dtype);
}

absl::Status BadLayout(const Piece& piece, const std::string& problem) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_LAYOUT",
               absl::StrFormat("elements [%d, %d) of tensor %d at byte %d of rank %d: %s", piece.begin, piece.end,
                               piece.tensor, piece.offset, piece.rank, problem));
}

absl::Status CheckPiece(const Manifest& manifest, int32_t ranks, const Piece& piece) {
  if (piece.rank < 0 || piece.rank >= ranks) return BadLayout(piece, absl::StrFormat("there are %d ranks", ranks));
  if (piece.tensor < 0 || piece.tensor >= static_cast<int32_t>(manifest.tensors().size())) {
    return BadLayout(piece, absl::StrFormat("there are %d tensors", manifest.tensors().size()));
  }
  const TensorSpec& spec = manifest.tensors()[piece.tensor];
  if (piece.begin < 0 || piece.begin >= piece.end || piece.end > spec.NumElements()) {
    return BadLayout(piece, absl::StrFormat("%s has %d elements", spec.name, spec.NumElements()));
  }
  if (piece.offset < 0 || piece.offset % DTypeBytes(spec.dtype) != 0) return BadLayout(piece, "misaligned");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Layout> Layout::Create(const Manifest& manifest, int32_t ranks, std::vector<Piece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.rank, a.offset, a.tensor, a.begin) < std::tie(b.rank, b.offset, b.tensor, b.begin);
  });
  std::vector<int64_t> arena_bytes(std::max(ranks, 0), 0);
  for (const Piece& piece : pieces) {
    SYNCOPATE_RETURN_IF_ERROR(CheckPiece(manifest, ranks, piece));
    if (piece.offset < arena_bytes[piece.rank]) return BadLayout(piece, "overlaps the piece before it");
    arena_bytes[piece.rank] = piece.offset + Bytes(manifest, piece);
  }
  for (int64_t& bytes : arena_bytes) bytes = Align(bytes);
  return Layout(std::move(pieces), std::move(arena_bytes));
}

Layout Layout::Whole(const Manifest& manifest, int32_t ranks) {
  std::vector<Piece> pieces;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < manifest.tensors().size(); ++i) {
      int64_t elements = manifest.tensors()[i].NumElements();
      if (elements > 0) pieces.push_back({rank, static_cast<int32_t>(i), 0, elements, manifest.ranges()[i].begin});
    }
  }
  return Layout(std::move(pieces), std::vector<int64_t>(ranks, manifest.arena_bytes()));
}

Layout Layout::FlatShards(const Manifest& manifest, int32_t ranks) {
  int64_t buckets = static_cast<int64_t>(manifest.buckets().size());
  std::vector<Piece> pieces;
  std::vector<int64_t> arena_bytes;
  for (int32_t rank = 0; rank < ranks; ++rank) {
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
  return Layout(std::move(pieces), std::move(arena_bytes));
}

absl::StatusOr<Layout> Layout::TensorParallel(const Manifest& manifest, int32_t ranks,
                                              const std::vector<int>& split_dim) {
  if (split_dim.size() != manifest.tensors().size()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_LAYOUT", "one split dimension a tensor is needed");
  }
  std::vector<Piece> pieces;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    int64_t base = 0;
    for (size_t i = 0; i < split_dim.size(); ++i) {
      const TensorSpec& spec = manifest.tensors()[i];
      int64_t outer = 1;  // slices of the tensor before the split dimension
      int64_t parts = 1;  // ranks that share it
      if (split_dim[i] != -1) {
        bool exists = split_dim[i] >= 0 && split_dim[i] < static_cast<int>(spec.shape.size());
        if (!exists || spec.shape[split_dim[i]] % ranks != 0) {
          return Error(absl::StatusCode::kInvalidArgument, "BAD_LAYOUT",
                       absl::StrFormat("%s cannot be cut along dimension %d into %d", spec.name, split_dim[i], ranks));
        }
        for (int d = 0; d < split_dim[i]; ++d) outer *= spec.shape[d];
        parts = ranks;
      }
      int64_t row = outer == 0 ? 0 : spec.NumElements() / outer;
      int64_t run = row / parts;
      int64_t skip = parts == 1 ? 0 : rank * run;
      for (int64_t o = 0; o < outer && run > 0; ++o) {
        int64_t begin = o * row + skip;
        pieces.push_back({rank, static_cast<int32_t>(i), begin, begin + run, base + o * run * DTypeBytes(spec.dtype)});
      }
      base += Align(outer * run * DTypeBytes(spec.dtype));
    }
  }
  return Create(manifest, ranks, std::move(pieces));
}

}  // namespace syncopate::synchronizer
