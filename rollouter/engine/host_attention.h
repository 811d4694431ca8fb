#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/model_config.h"
#include "model/transformer.h"
#include "rollouter/engine/kv_cache.h"

namespace syncopate::rollouter {

// Attention of one batch over a float32 cache on the CPU: writes the rows' keys and values at their places, then lets
// each row attend to positions [0, its own] of its slot. Rows of one sequence may come together (prefill, in chunks or
// whole) or alone (decode): the arithmetic of a row is the same loop over its own positions, so its bits depend on
// nothing else.
class HostAttention final : public model::Attention {
 public:
  // `config` and `cache` must outlive this object. Every position of a row's slot before its own is either in the cache
  // or in `rows`.
  HostAttention(const model::ModelConfig& config, KvCache& cache, std::vector<RowPlace> rows);

  at::Tensor Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;

 private:
  // Keys of `slot` in `layer`: [positions, kv_heads, head_dim]; the values are value_offset() further.
  float* Keys(int64_t layer, int64_t slot);
  void Store(int64_t layer, const at::Tensor& k, const at::Tensor& v);
  void AttendRow(int64_t layer, const RowPlace& row, const float* q, float* out);

  const model::ModelConfig& config_;
  KvCache& cache_;
  float* const data_;
  const std::vector<RowPlace> rows_;
  std::vector<float> scores_;
};

}  // namespace syncopate::rollouter
