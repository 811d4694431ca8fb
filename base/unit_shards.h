#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"

namespace syncopate {

// A unit of a manifest (TensorSpec::unit), cut into one flat shard for each rank. All numbers are elements of the
// float32 arena: the arena that the same tensors have when each is float32. So the cut does not depend on the dtypes in
// which tensors travel.
struct UnitShards {
  int64_t begin = 0;  // in the float32 arena
  int64_t count = 0;  // gaps behind tensors included
  int64_t shard = 0;  // elements of each rank's shard; the last ones reach beyond the unit's end, or lie behind it
  int64_t local_begin = 0;  // in every rank's own arena, which contains the rank's shard of each unit one after another
};

// The elements that have one digest or one shard border at least: Manifest::kAlignment bytes of float32.
inline constexpr int64_t kShardBlock = Manifest::kAlignment / static_cast<int64_t>(sizeof(float));

// Cuts the units of `manifest`, in their order, for `world` >= 1 ranks. Shards begin at multiples of kShardBlock, so
// that what a rank sends of a tensor shares no word with its neighbour's. A unit without elements gets an entry only if
// the manifest has a tensor of it. With one rank the shard is the whole unit, and the rank's arena is the float32
// arena.
std::vector<UnitShards> CutUnits(const Manifest& manifest, int32_t world);

// Where each tensor begins in the float32 arena, and behind them its size.
std::vector<int64_t> Float32Begins(const Manifest& manifest);

}  // namespace syncopate
