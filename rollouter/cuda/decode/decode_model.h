#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/model_config.h"
#include "rollouter/cuda/decode/paged_cache.h"

// The model as decode steps see it: sizes and addresses. No libtorch.
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

  int32_t query_size() const { return heads.heads * heads.head_dim; }
  int32_t qkv_size() const { return (heads.heads + 2 * heads.kv_heads) * heads.head_dim; }

  // FAILED_PRECONDITION reason UNSUPPORTED_SHAPE, naming what the kernels are not made for.
  absl::Status Validate() const;
};
DecodeShape GetShape(const model::ModelConfig& config);

// Device memory in bf16, rows as Hugging Face has them; q, k and v in one matrix, gate and up in another.
struct DecodeLayer {
  const void* input_norm = nullptr;  // [hidden]
  const void* qkv = nullptr;         // [qkv_size, hidden]
  const void* qkv_bias = nullptr;    // [qkv_size], with qkv_bias
  const void* q_norm = nullptr;      // [head_dim], with qk_norm
  const void* k_norm = nullptr;
  const void* output = nullptr;     // [hidden, query_size]
  const void* post_norm = nullptr;  // [hidden]
  const void* gate_up = nullptr;    // [2 intermediate, hidden]
  const void* down = nullptr;       // [hidden, intermediate]
};
struct DecodeWeights {
  const void* tokens = nullptr;  // [vocab, hidden]
  std::vector<DecodeLayer> layers = {};
  const void* norm = nullptr;       // [hidden]
  const void* head = nullptr;       // [vocab, hidden]; `tokens` itself when tied
  const void* positions = nullptr;  // [positions, hidden], what each adds to the token in it; nullptr: nothing
};

// Cosine and sine of each position's angles, [positions, head_dim / 2, 2], as Transformer (model/transformer.h) has
// them.
std::vector<float> RotaryTable(int32_t positions, int32_t head_dim, double theta);

}  // namespace syncopate::rollouter
