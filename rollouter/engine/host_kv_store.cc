#include "rollouter/engine/host_kv_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rollouter/engine/host_attention.h"

namespace syncopate::rollouter {
namespace {

constexpr int64_t kSlabBytes = 1 << 20;
// Padding between blocks, in floats: with a power-of-two distance, blocks would compete for the same cache lines.
constexpr int64_t kGap = 32;

int64_t BlockFloats(const model::ModelConfig& config) {
  return config.num_hidden_layers * 2 * kBlockTokens * config.key_value_size() + kGap;
}

int64_t SlabBlocks(const model::ModelConfig& config) {
  return std::max<int64_t>(1, kSlabBytes / HostKvStore::BlockBytes(config));
}

}  // namespace

absl::StatusOr<LentBlocks> HostKvStore::FindLent(const model::ModelConfig& config, const RunnerOptions& options) {
  LentBlocks found{.blocks = options.blocks > 0 ? options.blocks : options.BlocksForAll()};
  if (options.lent_bytes == 0) return found;
  const int64_t slab = SlabBlocks(config);
  const int64_t needed = (options.lent_bytes + BlockBytes(config) - 1) / BlockBytes(config);
  const int64_t of_one = (options.max_context + kBlockTokens - 1) / kBlockTokens;
  const int64_t stay = (of_one + slab - 1) / slab * slab;
  // Host memory is taken as it is used, so without a number of its own the storage has room for both.
  if (options.blocks == 0) found.blocks = std::max(found.blocks, stay + needed);
  const int64_t first = (found.blocks - needed) / slab * slab;
  if (found.blocks <= needed || first < of_one) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
                 absl::StrCat("sync.install: borrowed lends the keys and values of ", needed * kBlockTokens,
                              " tokens to the new weights, and one sequence has up to ", options.max_context,
                              "; rollout.kv_tokens ", found.blocks * kBlockTokens, " is not enough: set it to ",
                              (stay + needed) * kBlockTokens, " or more, or sync.install to swap"));
  }
  found.lent = found.blocks - first;
  return found;
}

int64_t HostKvStore::BlockBytes(const model::ModelConfig& config) {
  return BlockFloats(config) * static_cast<int64_t>(sizeof(float));
}

HostKvStore::HostKvStore(const model::ModelConfig& config, int64_t blocks, SwapSpace swapped)
    : config_(config),
      blocks_(blocks),
      value_offset_(kBlockTokens * config.key_value_size()),
      block_size_(BlockFloats(config)),
      slab_blocks_(SlabBlocks(config)),
      slabs_(static_cast<size_t>((blocks + slab_blocks_ - 1) / slab_blocks_)),
      swapped_(std::move(swapped)) {
  Reserve(padding_block());
}

void HostKvStore::Reserve(BlockIndex block) {
  const bool is_padding = block == padding_block();
  std::unique_ptr<float[]>& slab = is_padding ? padding_ : slabs_[block / slab_blocks_];
  if (slab != nullptr) return;
  const int64_t floats = (is_padding ? 1 : slab_blocks_) * block_size_;
  // The memory is not zeroed: every position is written before it is read.
  slab.reset(new float[static_cast<size_t>(floats)]);
  bytes_ += floats * static_cast<int64_t>(sizeof(float));
}

void HostKvStore::Release() {
  FreeFrom(0);
  padding_.reset();
  bytes_ = 0;
}

void HostKvStore::FreeFrom(BlockIndex first) {
  SYNCOPATE_CHECK(first % slab_blocks_ == 0);
  for (size_t slab = static_cast<size_t>(first / slab_blocks_); slab < slabs_.size(); ++slab) {
    if (slabs_[slab] == nullptr) continue;
    slabs_[slab].reset();
    bytes_ -= slab_blocks_ * block_size_ * static_cast<int64_t>(sizeof(float));
  }
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
