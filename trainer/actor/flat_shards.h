#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"
#include "base/unit_shards.h"
#include "model/model_config.h"

namespace syncopate::trainer {

// How the ranks of a trainer divide its weights, moments and gradients among them, and in which units they gather
// the weights: the embeddings; each layer; the last norm and, unless tied, the head; the adapters, if there are any. A
// unit is a byte range of the manifest, cut into one flat shard a rank, of equal size, at boundaries of 256 bytes of
// float32; the last ones reach beyond its end, where there are zeros. A rank's own arena contains its shard of each
// unit, in the order of units; with one rank it is the manifest's whole arena. If there are adapters, they alone are
// trained, and moments and gradients are only of their shards, the end of the arena. All numbers are elements.
// Immutable. The cut is CutUnits(), by which weight syncs plan too (layout "units:T").
class FlatShards {
 public:
  // `rank` of `world`. The manifest is the float32 manifest of `config`. INVALID_ARGUMENT (reason TOO_MANY_RANKS) if a
  // layer has fewer blocks of 256 bytes than there are ranks.
  static absl::StatusOr<FlatShards> Create(const model::ModelConfig& config, const Manifest& manifest, int32_t rank,
                                           int32_t world);

  static constexpr int kEmbeddings = 0;
  static constexpr int LayerUnit(int64_t layer) { return static_cast<int>(layer) + 1; }
  int output_unit() const { return output_unit_; }
  int units() const { return static_cast<int>(units_.size()); }

  int32_t rank() const { return rank_; }
  int32_t world() const { return world_; }
  bool is_whole() const { return world_ == 1; }

  using Unit = UnitShards;
  const Unit& unit(int index) const { return units_[static_cast<size_t>(index)]; }
  int UnitAt(int64_t element) const;  // of the manifest's arena
  ByteRange bytes(int index) const;   // of the unit in the manifest's arena
  int64_t local_elements() const { return local_elements_; }

  // Trained are all units from this one on; of the rank's arena all elements from trained_begin() on.
  int first_trained_unit() const { return output_unit_ + 1 < units() ? output_unit_ + 1 : kEmbeddings; }
  int64_t trained_begin() const { return unit(first_trained_unit()).local_begin; }
  int64_t trained_elements() const { return local_elements_ - trained_begin(); }

  // This rank's part of elements [begin, begin + count) of the manifest's arena: pieces of both arenas.
  struct Piece {
    int64_t whole_begin = 0;
    int64_t local_begin = 0;
    int64_t count = 0;
  };
  std::vector<Piece> MakePieces(int64_t begin, int64_t count) const;

 private:
  FlatShards() = default;

  int32_t rank_ = 0;
  int32_t world_ = 1;
  int output_unit_ = 0;
  std::vector<Unit> units_;
  int64_t local_elements_ = 0;
};

}  // namespace syncopate::trainer
