#include "synchronizer/plan/shard_layouts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/unit_shards.h"

namespace syncopate::synchronizer {
namespace {

using Group = std::vector<int32_t>;  // tensors that share one flat parameter

absl::Status CheckRanks(int32_t ranks) {
  return ranks >= 1 ? absl::OkStatus() : BadLayout(absl::StrFormat("%d ranks; at least one is needed", ranks));
}

absl::StatusOr<int64_t> GetWidth(const Manifest& manifest, const Group& group, std::optional<DType> dtype) {
  if (dtype) return DTypeBytes(*dtype);
  const TensorSpec& first = manifest.tensors()[group.front()];
  for (int32_t tensor : group) {
    const TensorSpec& spec = manifest.tensors()[tensor];
    if (spec.dtype == first.dtype) continue;
    return BadLayout(absl::StrFormat("%s is %s and %s is %s: a flat shard needs one dtype, name it (flat:2:fp32)",
                                     first.name, DTypeName(first.dtype), spec.name, DTypeName(spec.dtype)));
  }
  return DTypeBytes(first.dtype);
}

absl::StatusOr<Layout> FlatGroups(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype,
                                  const std::vector<Group>& groups) {
  SYNCOPATE_RETURN_IF_ERROR(CheckRanks(ranks));
  std::vector<Piece> pieces;
  int64_t base = 0;  // where the group's part begins in each rank's buffer
  for (const Group& group : groups) {
    SYNCOPATE_ASSIGN_OR_RETURN(int64_t width, GetWidth(manifest, group, dtype));
    int64_t total = 0;
    for (int32_t tensor : group) total += manifest.tensors()[tensor].NumElements();
    int64_t part = (total + ranks - 1) / ranks;
    int64_t first = 0;  // element of the flat parameter at which the tensor begins
    for (int32_t tensor : group) {
      int64_t last = first + manifest.tensors()[tensor].NumElements();
      for (int64_t at = first; at < last;) {
        int64_t rank = at / part;
        int64_t end = std::min(last, (rank + 1) * part);
        int64_t offset = base + (at - rank * part) * width;
        pieces.push_back({static_cast<int32_t>(rank), tensor, at - first, end - first, offset});
        at = end;
      }
      first = last;
    }
    base += AlignUp(part * width);
  }
  return Layout::Create(manifest, ranks, std::move(pieces), dtype, base);
}

}  // namespace

absl::StatusOr<Layout> FlatLayout(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype) {
  Group all;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) all.push_back(static_cast<int32_t>(i));
  return FlatGroups(manifest, ranks, dtype, all.empty() ? std::vector<Group>{} : std::vector<Group>{all});
}

absl::StatusOr<Layout> FlatLayersLayout(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype) {
  std::vector<Group> groups;
  int32_t unit = -1;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    if (manifest.tensors()[i].unit != unit) groups.emplace_back();  // units are contiguous in the manifest
    unit = manifest.tensors()[i].unit;
    groups.back().push_back(static_cast<int32_t>(i));
  }
  return FlatGroups(manifest, ranks, dtype, groups);
}

absl::StatusOr<Layout> UnitShardsLayout(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype) {
  SYNCOPATE_RETURN_IF_ERROR(CheckRanks(ranks));
  Group all;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) all.push_back(static_cast<int32_t>(i));
  if (all.empty()) return Layout::Create(manifest, ranks, {}, dtype);
  // The shards are one arena of one dtype.
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t width, GetWidth(manifest, all, dtype));
  const std::vector<int64_t> begins = Float32Begins(manifest);
  const std::vector<UnitShards> units = CutUnits(manifest, ranks);
  std::vector<Piece> pieces;
  size_t unit = 0;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const int64_t first = begins[i], last = first + manifest.tensors()[i].NumElements();
    if (first == last) continue;  // an empty tensor at the end lies behind the last unit
    while (first >= units[unit].begin + units[unit].count) ++unit;
    const UnitShards& one = units[unit];
    for (int64_t at = first; at < last;) {
      const int64_t rank = (at - one.begin) / one.shard;
      const int64_t mine = one.begin + rank * one.shard;
      const int64_t end = std::min(last, mine + one.shard);
      pieces.push_back({static_cast<int32_t>(rank), static_cast<int32_t>(i), at - first, end - first,
                        (one.local_begin + at - mine) * width});
      at = end;
    }
  }
  const int64_t bytes = (units.back().local_begin + units.back().shard) * width;
  return Layout::Create(manifest, ranks, std::move(pieces), dtype, bytes);
}

absl::StatusOr<Layout> RowShardsLayout(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype) {
  SYNCOPATE_RETURN_IF_ERROR(CheckRanks(ranks));
  std::vector<Piece> pieces;
  int64_t base = 0;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    int64_t elements = spec.NumElements();
    if (elements == 0) continue;
    int64_t extent = spec.shape.empty() ? 1 : spec.shape[0];
    int64_t part = (extent + ranks - 1) / ranks * (elements / extent);
    for (int64_t rank = 0; rank < ranks && rank * part < elements; ++rank) {
      int64_t end = std::min(elements, (rank + 1) * part);
      pieces.push_back({static_cast<int32_t>(rank), static_cast<int32_t>(i), rank * part, end, base});
    }
    base += AlignUp(part * DTypeBytes(dtype.value_or(spec.dtype)));
  }
  return Layout::Create(manifest, ranks, std::move(pieces), dtype);
}

absl::StatusOr<Layout> ReplicatedLayout(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype) {
  SYNCOPATE_RETURN_IF_ERROR(CheckRanks(ranks));
  std::vector<Piece> pieces;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    int64_t base = 0;
    for (size_t i = 0; i < manifest.tensors().size(); ++i) {
      const TensorSpec& spec = manifest.tensors()[i];
      int64_t elements = spec.NumElements();
      if (elements > 0) pieces.push_back({rank, static_cast<int32_t>(i), 0, elements, base});
      base += AlignUp(elements * DTypeBytes(dtype.value_or(spec.dtype)));
    }
  }
  return Layout::Create(manifest, ranks, std::move(pieces), dtype);
}

}  // namespace syncopate::synchronizer
