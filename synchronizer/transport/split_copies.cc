#include "synchronizer/transport/split_copies.h"

#include <algorithm>

#include "absl/algorithm/container.h"

namespace syncopate::synchronizer {
namespace {

// The byte ranges of the adapters in the rank's arena, by begin, disjoint. Adapters that lie side by side are one range:
// each range becomes a message or a copy of its own, of which a model of 28 layers would have 392.
std::vector<ByteRange> GetPlaces(const Manifest& manifest, const Layout& layout, int32_t rank,
                                 const std::vector<TensorRange>& adapters) {
  std::vector<ByteRange> places;
  for (const Piece& piece : layout.pieces()) {  // by (rank, offset)
    bool adapter = absl::c_any_of(adapters, [&piece](const TensorRange& range) {
      return piece.tensor >= range.begin && piece.tensor < range.end;
    });
    if (piece.rank != rank || !adapter) continue;
    const int64_t bytes = piece.elements() * DTypeBytes(manifest.tensors()[piece.tensor].dtype);
    if (!places.empty() && places.back().end == piece.offset) {
      places.back().end += bytes;
    } else {
      places.push_back({piece.offset, piece.offset + bytes});
    }
  }
  return places;
}

// The part of `copy` that covers bytes [begin, end) of the destination.
Copy GetPart(const Copy& copy, int64_t begin, int64_t end) {
  Copy part = copy;
  part.source_offset += begin - copy.destination_offset;
  part.destination_offset = begin;
  part.bytes = end - begin;
  return part;
}

}  // namespace

SplitCopies Split(const Manifest& manifest, const Layout& destination, int32_t rank, const std::vector<Copy>& copies,
                  const std::vector<TensorRange>& adapters, bool base) {
  const std::vector<ByteRange> places = GetPlaces(manifest, destination, rank, adapters);
  SplitCopies split;
  if (base) split.sent = copies;
  for (const Copy& copy : copies) {
    const int64_t end = copy.destination_offset + copy.bytes;
    int64_t at = copy.destination_offset;
    auto place = std::upper_bound(places.begin(), places.end(), at,
                                  [](int64_t offset, const ByteRange& range) { return offset < range.end; });
    for (; at < end; ++place) {
      const bool last = place == places.end() || place->begin >= end;
      const int64_t adapter_begin = last ? end : std::max(at, place->begin);
      const int64_t adapter_end = last ? end : std::min(end, place->end);
      if (adapter_begin > at && base) split.bytes.full += adapter_begin - at;
      if (adapter_begin > at && !base) split.kept.push_back({at, adapter_begin});
      if (adapter_end > adapter_begin && !base) split.sent.push_back(GetPart(copy, adapter_begin, adapter_end));
      split.bytes.lora += adapter_end - adapter_begin;
      at = adapter_end;
    }
  }
  return split;
}

}  // namespace syncopate::synchronizer
