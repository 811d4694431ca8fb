#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/model_config.h"
#include "model/transformer.h"

namespace syncopate::rollouter {

// Keys and values of every running sequence: one slot of max_position_embeddings positions a sequence, and one scratch
// slot for the rows that only pad a batch. float32 on the CPU. Not thread-safe.
class KvCache {
 public:
  KvCache(const model::ModelConfig& config, int64_t slots);

  int64_t slots() const { return slots_; }
  int64_t scratch_slot() const { return slots_; }
  int64_t bytes() const { return cache_.nbytes(); }

  // Copies positions [0, length) of one slot to another, in all layers.
  void Fork(int64_t from, int64_t to, int64_t length);

  // Start of the keys (values) of `slot` in `layer`: [positions, kv_heads, head_dim].
  float* Keys(int64_t layer, int64_t slot) { return At(layer, 0, slot); }
  float* Values(int64_t layer, int64_t slot) { return At(layer, 1, slot); }
  // Floats per position: kv_heads * head_dim.
  int64_t position_stride() const { return position_stride_; }

 private:
  float* At(int64_t layer, int64_t which, int64_t slot) {
    return data_ + ((layer * 2 + which) * (slots_ + 1) + slot) * slot_stride_;
  }

  const int64_t layers_, slots_, position_stride_, slot_stride_;
  at::Tensor cache_;
  float* data_;
};

// Where a row of a batch lives: token `position` of the sequence in `slot`.
struct RowPlace {
  int64_t slot = 0;
  int64_t position = 0;
};

// Attention of one batch over the cache: writes the rows' keys and values at their places, then lets each row attend to
// positions [0, its own] of its slot. Rows of one sequence may come together (prefill, in chunks or whole) or alone
// (decode): the arithmetic of a row is the same loop over its own positions, so its bits depend on nothing else.
class CachedAttention final : public model::Attention {
 public:
  // `cache` must outlive this object. Every position of a row's slot before its own is either in the cache or in
  // `rows`.
  CachedAttention(const model::ModelConfig& config, KvCache& cache, std::vector<RowPlace> rows);

  at::Tensor Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;

 private:
  void Store(int64_t layer, const at::Tensor& k, const at::Tensor& v);
  void AttendRow(int64_t layer, const RowPlace& row, const float* q, float* out);

  const model::ModelConfig& config_;
  KvCache& cache_;
  const std::vector<RowPlace> rows_;
  std::vector<float> scores_;
};

}  // namespace syncopate::rollouter
