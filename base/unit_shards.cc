#include "base/unit_shards.h"

#include "base/status.h"

namespace syncopate {
namespace {

int64_t CountBlocks(int64_t elements) { return (elements + kShardBlock - 1) / kShardBlock; }

}  // namespace

std::vector<int64_t> Float32Begins(const Manifest& manifest) {
  std::vector<int64_t> begins = {0};
  for (const TensorSpec& tensor : manifest.tensors()) {
    begins.push_back(begins.back() + CountBlocks(tensor.NumElements()) * kShardBlock);
  }
  return begins;
}

std::vector<UnitShards> CutUnits(const Manifest& manifest, int32_t world) {
  SYNCOPATE_CHECK(world >= 1);
  const std::vector<int64_t> begins = Float32Begins(manifest);
  std::vector<UnitShards> units;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const bool is_first = i == 0 || manifest.tensors()[i].unit != manifest.tensors()[i - 1].unit;
    if (is_first) units.push_back({.begin = begins[i]});
    units.back().count = begins[i + 1] - units.back().begin;
  }
  int64_t local = 0;
  for (UnitShards& unit : units) {
    // Equal for all ranks, as a collective wants it; the last one's end is padding.
    unit.shard = world == 1 ? unit.count : (CountBlocks(unit.count) + world - 1) / world * kShardBlock;
    unit.local_begin = local;
    local += unit.shard;
  }
  return units;
}

}  // namespace syncopate
