#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/model_config.h"
#include "model/transformer.h"
#include "rollouter/engine/kv_cache.h"

namespace syncopate::rollouter {

// Attention of one batch over a cache on a GPU, in the cache's dtype (float32 or bfloat16), computed in float32: writes
// the rows' keys and values at their places, then lets each row attend to positions [0, its own] of its slot. A row's
// bits depend on its own positions alone. All work is queued on the current stream. May throw c10::Error.
class CudaAttention final : public model::Attention {
 public:
  // `config` and `cache` must outlive this object. Every position of a row's slot before its own is either in the cache
  // or in `rows`. config.head_dim is at most kMaxHeadDim.
  CudaAttention(const model::ModelConfig& config, KvCache& cache, const std::vector<RowPlace>& rows);

  at::Tensor Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;

 private:
  const model::ModelConfig& config_;
  KvCache& cache_;
  const at::Tensor table_;  // [2, rows] int64: slots, positions
};

}  // namespace syncopate::rollouter
