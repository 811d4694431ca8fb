#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "model/model_config.h"
#include "rollouter/engine/kv_store.h"

namespace syncopate::rollouter {

// Keys and values on a GPU, in float32 or bfloat16; all memory is allocated at once. Work is queued on the current
// stream.
class CudaKvStore final : public KvStore {
 public:
  // `config` must outlive it; its head_dim is at most kMaxHeadDim. `options` gives dtype and device. May throw
  // c10::Error.
  CudaKvStore(const model::ModelConfig& config, int64_t blocks, int64_t host_blocks, at::TensorOptions options);

  int64_t bytes() const override { return data_.defined() ? static_cast<int64_t>(data_.nbytes()) : 0; }
  int64_t host_bytes() const override { return static_cast<int64_t>(swapped_.nbytes()); }
  void Release() override;
  void Restore() override;
  // All memory is one tensor: only runners that lend none may use this store.
  void FreeFrom(BlockIndex first) override { SYNCOPATE_CHECK(first == blocks_); }
  void SwapOut(absl::Span<const BlockSwap> swaps) override;
  void SwapIn(absl::Span<const BlockSwap> swaps) override;
  void Copy(absl::Span<const BlockCopy> copies) override;
  // Computes in float32; a row's bits depend only on its own positions.
  std::unique_ptr<model::Attention> MakeAttention(KvBatch batch) override;

  // [blocks + 1, layers, 2, kBlockTokens, kv_heads * head_dim], dense; keys at index 0 of the third dimension.
  const at::Tensor& data() const { return data_; }

 private:
  const model::ModelConfig& config_;
  const at::TensorOptions options_;
  const int64_t blocks_;
  at::Tensor data_;           // undefined while released
  const at::Tensor swapped_;  // blocks on the host, dimensions as `data_`
};

// Attention of one batch over a CudaKvStore.
class CudaAttention final : public model::Attention {
 public:
  // See KvStore::MakeAttention.
  CudaAttention(const model::ModelConfig& config, const CudaKvStore& store, const KvBatch& batch);

  at::Tensor Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;

 private:
  const model::ModelConfig& config_;
  const CudaKvStore& store_;
  const at::Tensor rows_;    // [2, rows] int32: tables, positions
  const at::Tensor blocks_;  // [tables, blocks of the longest] int32
};

}  // namespace syncopate::rollouter
