#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"

// Layouts of a trainer's shards. `dtype` is the shards' dtype (fp32 masters, or bf16); without it, the manifest's. All
// functions: INVALID_ARGUMENT reason BAD_LAYOUT if ranks < 1.
namespace syncopate::synchronizer {

// The whole model as one flat parameter, tensors in the manifest's order without gaps, cut into equal parts of
// ceil(elements / ranks) elements: the last part is padded, or empty. Cuts fall inside tensors and rows. BAD_LAYOUT
// also if the shards' dtypes differ in width.
absl::StatusOr<Layout> FlatLayout(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype);

// One flat parameter for each transformer layer ("model.layers.7."), and one for all other tensors; each is cut as in
// FlatLayout. A rank's buffer contains its part of each, in the order in which they first appear, on kAlignment
// boundaries.
absl::StatusOr<Layout> FlatLayersLayout(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype);

// A trainer's own layout: each unit (base/manifest.h) is one flat shard a rank, cut by CutUnits (base/unit_shards.h).
// A rank may have no part of a unit, or of the model.
absl::StatusOr<Layout> UnitShardsLayout(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype);

// Every tensor cut along its first dimension into parts of ceil(extent / ranks) rows (torch's chunk, as FSDP2 does):
// late ranks may have fewer rows, or none. A tensor's part is at the same byte of every rank's buffer, on a
// kAlignment boundary. A scalar is one row.
absl::StatusOr<Layout> RowShardsLayout(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype);

// Every rank stores all tensors, each on a kAlignment boundary, in the manifest's order.
absl::StatusOr<Layout> ReplicatedLayout(const Manifest& manifest, int32_t ranks, std::optional<DType> dtype);

}  // namespace syncopate::synchronizer
