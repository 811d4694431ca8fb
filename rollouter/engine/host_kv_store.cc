#include "rollouter/engine/host_kv_store.h"

#include <algorithm>
#include <utility>

#include "rollouter/engine/host_attention.h"

namespace syncopate::rollouter {
namespace {

constexpr int64_t kSlabBytes = 1 << 20;
// Padding between blocks, in floats: with a power-of-two distance, blocks would compete for the same cache lines.
constexpr int64_t kGap = 32;

int64_t BlockFloats(const model::ModelConfig& config) {
  return config.num_hidden_layers * 2 * kBlockTokens * config.key_value_size() + kGap;
}

}  // namespace

int64_t HostKvStore::BlockBytes(const model::ModelConfig& config) {
  return BlockFloats(config) * static_cast<int64_t>(sizeof(float));
}

HostKvStore::HostKvStore(const model::ModelConfig& config, int64_t blocks, SwapSpace swapped)
    : config_(config),
      blocks_(blocks),
      value_offset_(kBlockTokens * config.key_value_size()),
      block_size_(BlockFloats(config)),
      slab_blocks_(std::max<int64_t>(1, kSlabBytes / (block_size_ * static_cast<int64_t>(sizeof(float))))),
      slabs_(static_cast<size_t>(blocks / slab_blocks_ + 1)),
      swapped_(std::move(swapped)) {
  Reserve(padding_block());
}

void HostKvStore::Reserve(BlockIndex block) {
  std::unique_ptr<float[]>& slab = slabs_[block / slab_blocks_];
  if (slab != nullptr) return;
  // The memory is not zeroed: every position is written before it is read.
  slab.reset(new float[static_cast<size_t>(slab_blocks_ * block_size_)]);
  bytes_ += slab_blocks_ * block_size_ * static_cast<int64_t>(sizeof(float));
}

void HostKvStore::Release() {
  for (std::unique_ptr<float[]>& slab : slabs_) slab.reset();
  bytes_ = 0;
}

void HostKvStore::SwapOut(absl::Span<const BlockSwap> swaps) {
  for (const BlockSwap& swap : swaps) {
    std::copy_n(Keys(0, swap.block), block_size_, swapped_.floats() + swap.host_block * block_size_);
  }
}

void HostKvStore::SwapIn(absl::Span<const BlockSwap> swaps) {
  for (const BlockSwap& swap : swaps) {
    Reserve(swap.block);
    std::copy_n(swapped_.floats() + swap.host_block * block_size_, block_size_, Keys(0, swap.block));
  }
}

void HostKvStore::Copy(absl::Span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    Reserve(copy.to);
    const float* from = Keys(0, copy.from);
    float* to = Keys(0, copy.to);
    const int64_t used = copy.tokens * config_.key_value_size();
    for (int64_t plane = 0; plane < block_size_ - kGap; plane += value_offset_)
      std::copy_n(from + plane, used, to + plane);
  }
}

std::unique_ptr<model::Attention> HostKvStore::MakeAttention(KvBatch batch) {
  return std::make_unique<HostAttention>(config_, *this, std::move(batch));
}

}  // namespace syncopate::rollouter
