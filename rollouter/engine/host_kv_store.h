#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "rollouter/engine/kv_store.h"
#include "rollouter/engine/model_runner.h"
#include "rollouter/engine/swap_space.h"

namespace syncopate::rollouter {

// The number of blocks of a storage, and how many of them, the last ones, are lent.
struct LentBlocks {
  int64_t blocks = 0;
  int64_t lent = 0;
};

// Keys and values in float32 on the CPU. Memory is allocated when a block is first used, in slabs of several blocks, and
// kept. Because the scheduler allocates low blocks first, memory follows the peak number of tokens in use, not the
// possible maximum. Swapped blocks lie in memory of their own, which Release() leaves as it is.
class HostKvStore final : public KvStore {
 public:
  // `config` must outlive it.
  // `swapped` has room for the blocks for swapping, BlockBytes() each.
  HostKvStore(const model::ModelConfig& config, int64_t blocks, SwapSpace swapped = {});

  // The blocks for options.blocks and options.lent_bytes: the lent ones are whole slabs, and one sequence of the longest
  // has room beside them. INVALID_ARGUMENT (reason BAD_OPTIONS) if options.blocks are too few for that.
  static absl::StatusOr<LentBlocks> FindLent(const model::ModelConfig& config, const RunnerOptions& options);

  // The memory of one block in all layers.
  static int64_t BlockBytes(const model::ModelConfig& config);

  int64_t bytes() const override { return bytes_; }
  int64_t host_bytes() const override { return swapped_.bytes(); }
  void Release() override;
  void Restore() override { Reserve(padding_block()); }
  // Precondition: `first` begins a slab.
  void FreeFrom(BlockIndex first) override;
  void SwapOut(absl::Span<const BlockSwap> swaps) override;
  void SwapIn(absl::Span<const BlockSwap> swaps) override;
  void Copy(absl::Span<const BlockCopy> copies) override;
  std::unique_ptr<model::Attention> MakeAttention(KvBatch batch) override;

  BlockIndex padding_block() const { return static_cast<BlockIndex>(blocks_); }
  // The keys of a block in a layer: [kBlockTokens, kv_heads, head_dim]; its values are value_offset() floats further.
  float* Keys(int64_t layer, BlockIndex block) {
    float* const found = block == padding_block()
                             ? padding_.get()
                             : slabs_[block / slab_blocks_].get() + block % slab_blocks_ * block_size_;
    return found + layer * 2 * value_offset_;
  }
  int64_t value_offset() const { return value_offset_; }
  // Allocates memory for a block that is about to be written.
  void Reserve(BlockIndex block);

 private:
  const model::ModelConfig& config_;
  const int64_t blocks_;
  const int64_t value_offset_;  // floats: the keys of one block in one layer
  const int64_t block_size_;    // floats: the distance from one block to the next
  const int64_t slab_blocks_;
  std::vector<std::unique_ptr<float[]>> slabs_;
  std::unique_ptr<float[]> padding_;  // its own, so that every slab may be freed
  const SwapSpace swapped_;
  int64_t bytes_ = 0;  // of slabs_ and padding_
};

}  // namespace syncopate::rollouter
