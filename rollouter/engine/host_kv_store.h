#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/model_config.h"
#include "rollouter/engine/kv_store.h"

namespace syncopate::rollouter {

// Float32 on the CPU. Memory is taken when a block is used for the first time, in slabs of several blocks, and kept: as
// the scheduler gives low blocks first, there is memory for the tokens there were at once, not for all there could be.
class HostKvStore final : public KvStore {
 public:
  // `config` must outlive it.
  HostKvStore(const model::ModelConfig& config, int64_t blocks, int64_t host_blocks);

  int64_t bytes() const override { return bytes_; }
  void Release() override;
  void Restore() override { Reserve(padding_block()); }
  void SwapOut(absl::Span<const BlockSwap> swaps) override;
  void SwapIn(absl::Span<const BlockSwap> swaps) override;
  void Copy(absl::Span<const BlockCopy> copies) override;
  std::unique_ptr<model::Attention> MakeAttention(KvBatch batch) override;

  BlockIndex padding_block() const { return static_cast<BlockIndex>(blocks_); }
  // Keys of a block in a layer: [kBlockTokens, kv_heads, head_dim]; its values lie value_offset() further.
  float* Keys(int64_t layer, BlockIndex block) {
    return slabs_[block / slab_blocks_].get() + block % slab_blocks_ * block_size_ + layer * 2 * value_offset_;
  }
  int64_t value_offset() const { return value_offset_; }
  // Memory for a block that is about to be written to.
  void Reserve(BlockIndex block);

 private:
  const model::ModelConfig& config_;
  const int64_t blocks_;
  const int64_t value_offset_;  // floats: the keys of a block in a layer
  const int64_t block_size_;    // floats: from one block to the next
  const int64_t slab_blocks_;
  std::vector<std::unique_ptr<float[]>> slabs_, swapped_;
  int64_t bytes_ = 0;
};

}  // namespace syncopate::rollouter
