#include "synchronizer/cuda/shard_bases.h"

namespace syncopate::synchronizer {

ShardBases FlatShard(const Manifest& manifest, const void* buffer) {
  return ShardBases(manifest.tensors().size(), reinterpret_cast<uint64_t>(buffer));
}

ShardBases SplitShard(const Layout& source, int32_t rank, const std::vector<const void*>& tensors) {
  ShardBases bases(tensors.size(), 0);
  for (const Piece& piece : source.pieces()) {
    if (piece.rank != rank) continue;
    const size_t tensor = static_cast<size_t>(piece.tensor);
    bases[tensor] = reinterpret_cast<uint64_t>(tensors[tensor]) - static_cast<uint64_t>(piece.offset);
  }
  return bases;
}

}  // namespace syncopate::synchronizer
