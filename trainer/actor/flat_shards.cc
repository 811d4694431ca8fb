#include "trainer/actor/flat_shards.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {
namespace {

constexpr int64_t kBlock = Manifest::kAlignment / static_cast<int64_t>(sizeof(float));

}  // namespace

absl::StatusOr<FlatShards> FlatShards::Create(const model::ModelConfig& config, const Manifest& manifest, int32_t rank,
                                              int32_t world) {
  FlatShards shards;
  shards.rank_ = rank;
  shards.world_ = world;
  shards.units_.resize(static_cast<size_t>(config.num_hidden_layers) + 2);
  // Units ascend in a manifest, and none of a decoder's is empty.
  int32_t unit = -1;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    if (manifest.tensors()[i].unit == unit) continue;
    unit = manifest.tensors()[i].unit;
    SYNCOPATE_CHECK(static_cast<size_t>(unit) < shards.units_.size());
    shards.units_[static_cast<size_t>(unit)].begin = manifest.ranges()[i].begin / static_cast<int64_t>(sizeof(float));
  }
  const int64_t all = manifest.arena_bytes() / static_cast<int64_t>(sizeof(float));
  for (size_t u = 0; u < shards.units_.size(); ++u) {
    Unit& one = shards.units_[u];
    const int64_t end = u + 1 < shards.units_.size() ? shards.units_[u + 1].begin : all;
    one.count = end - one.begin;
    // Shards begin at whole blocks, which are the alignment of the wire: what a rank sends of a tensor never shares a
    // word with its neighbour's.
    const int64_t blocks = (one.count + kBlock - 1) / kBlock;
    const bool is_layer = u > 0 && u + 1 < shards.units_.size();
    if (is_layer && blocks < world) {
      return Error(absl::StatusCode::kInvalidArgument, "TOO_MANY_RANKS",
                   absl::StrCat("a layer of this model is ", blocks, " blocks of ", Manifest::kAlignment,
                                " bytes, which trainer.world ", world, " ranks cannot share; have at most ", blocks));
    }
    // Equal for all ranks, as a collective wants it; the last one's end is padding.
    one.shard = world == 1 ? one.count : (blocks + world - 1) / world * kBlock;
    one.local_begin = shards.local_elements_;
    shards.local_elements_ += one.shard;
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
