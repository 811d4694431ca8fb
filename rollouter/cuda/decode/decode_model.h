#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/model_config.h"
#include "rollouter/cuda/decode/adapter_kernels.h"
#include "rollouter/cuda/decode/paged_cache.h"

// The model in the form that decode steps read: sizes and addresses. No libtorch.
namespace syncopate::rollouter {

struct DecodeShape {
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;
  int32_t vocab = 0;
  HeadCounts heads = {};
  float norm_epsilon = 1e-6f;
  bool qkv_bias = false;
  bool qk_norm = false;
  int32_t adapter_rank = 0;  // 0: no projection has an adapter
  float adapter_scale = 1;

  int32_t query_size() const { return heads.heads * heads.head_dim; }
  int32_t qkv_size() const { return (heads.heads + 2 * heads.kv_heads) * heads.head_dim; }
  // The columns that a product of `adapters` adapters has beside the base's: x a^T of each in `places` places.
  int32_t inner_columns(size_t adapters, int32_t places = kAdapterPlaces) const {
    return places * static_cast<int32_t>(adapters) * adapter_rank;
  }

  // Elements from row to row of a product of `columns` columns of the base and `adapters` adapters.
  int32_t row_stride(int32_t columns, size_t adapters, int32_t places = kAdapterPlaces) const {
    const int32_t inner = inner_columns(adapters, places);
    return inner == 0 ? columns : GetRowStride(columns + inner);
  }

  // FAILED_PRECONDITION (reason UNSUPPORTED_SHAPE), naming what the kernels do not support.
  absl::Status Validate() const;
};
DecodeShape GetShape(const model::ModelConfig& config);

// The weights of one layer: bf16 device memory, rows as in Hugging Face checkpoints; q, k and v are one matrix, gate
// and up are another. Behind each matrix that has adapters are rows for their A in kAdapterPlaces places, one place behind
// the other, and behind the bias as many zeros (TensorSpec::spare_rows). All layers have adapters of the same columns.
struct DecodeLayer {
  const void* input_norm = nullptr;  // [hidden]
  const void* qkv = nullptr;         // [qkv_size, hidden]
  const void* qkv_bias = nullptr;    // [qkv_size], null without qkv_bias
  const void* q_norm = nullptr;      // [head_dim], null without qk_norm
  const void* k_norm = nullptr;
  const void* output = nullptr;     // [hidden, query_size]
  const void* post_norm = nullptr;  // [hidden]
  const void* gate_up = nullptr;    // [2 intermediate, hidden]
  const void* down = nullptr;       // [hidden, intermediate]
  // At most kMostAdapters each.
  std::vector<AdapterColumns> qkv_adapters = {}, output_adapters = {}, gate_up_adapters = {}, down_adapters = {};
};
struct DecodeWeights {
  const void* tokens = nullptr;  // [vocab, hidden]
  std::vector<DecodeLayer> layers = {};
  const void* norm = nullptr;       // [hidden]
  const void* head = nullptr;       // [vocab, hidden]; equals `tokens` when tied
  const void* positions = nullptr;  // [positions, hidden], added to the token at each position; nullptr: none
};

// Returns cosine and sine of each position's angles, [positions, head_dim / 2, 2], as Transformer (model/transformer.h)
// computes them.
std::vector<float> RotaryTable(int32_t positions, int32_t head_dim, double theta);

}  // namespace syncopate::rollouter
