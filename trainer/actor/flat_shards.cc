#include "trainer/actor/flat_shards.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {

absl::StatusOr<FlatShards> FlatShards::Create(const model::ModelConfig& config, const Manifest& manifest, int32_t rank,
                                              int32_t world) {
  FlatShards shards;
  shards.rank_ = rank;
  shards.world_ = world;
  shards.units_ = CutUnits(manifest, world);
  // Units ascend in a manifest, and none of a decoder's is empty.
  shards.output_unit_ = LayerUnit(config.num_hidden_layers);
  SYNCOPATE_CHECK(shards.units() == shards.output_unit_ + (config.lora.enabled() ? 2 : 1));
  for (size_t u = 0; u < shards.units_.size(); ++u) {
    const Unit& one = shards.units_[u];
    const int64_t blocks = (one.count + kShardBlock - 1) / kShardBlock;
    const bool is_layer = u > 0 && static_cast<int>(u) < shards.output_unit_;
    if (is_layer && blocks < world) {
      return Error(absl::StatusCode::kInvalidArgument, "TOO_MANY_RANKS",
                   absl::StrCat("a layer of this model is ", blocks, " blocks of ", Manifest::kAlignment,
                                " bytes, which trainer.world ", world, " ranks cannot share; have at most ", blocks));
    }
    shards.local_elements_ = one.local_begin + one.shard;
  }
  return shards;
}

int FlatShards::UnitAt(int64_t element) const {
  const auto next = std::upper_bound(units_.begin(), units_.end(), element,
                                     [](int64_t wanted, const Unit& one) { return wanted < one.begin; });
  return static_cast<int>(next - units_.begin()) - 1;
}

ByteRange FlatShards::bytes(int index) const {
  const Unit& one = unit(index);
  const auto size = static_cast<int64_t>(sizeof(float));
  return {one.begin * size, (one.begin + one.count) * size};
}

std::vector<FlatShards::Piece> FlatShards::MakePieces(int64_t begin, int64_t count) const {
  std::vector<Piece> pieces;
  for (const Unit& one : units_) {
    const int64_t mine = one.begin + rank_ * one.shard;
    const int64_t first = std::max(begin, mine);
    const int64_t last = std::min({begin + count, mine + one.shard, one.begin + one.count});
    if (first < last) pieces.push_back({first, one.local_begin + first - mine, last - first});
  }
  return pieces;
}

}  // namespace syncopate::trainer
