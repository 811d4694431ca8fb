#include "bench/decode/random_model.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "bench/decode/random_fill.h"
#include "cuda/cuda_status.h"
#include "model/presets.h"

namespace syncopate::bench {

using cuda::CudaStatus;
using rollouter::DecodeLayer;
using rollouter::DecodeShape;

absl::StatusOr<NamedShape> FindShape(const std::string& name) {
  SYNCOPATE_ASSIGN_OR_RETURN(const model::ModelConfig config, model::FindPreset(name));
  return NamedShape{name, rollouter::GetShape(config), config.rope_theta, config.tie_word_embeddings};
}

// Random weights, because times depend on values: GPUs take less power for zeros, and raise their clock.
absl::StatusOr<void*> RandomModel::AllocateRandom(int64_t count, float mean, float deviation) {
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::Create(0, count * 2, "a random model"));
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(FillNormal(buffer.data(), count, mean, deviation, buffers_.size() + 1, nullptr), "drawing weights"));
  buffers_.push_back(std::move(buffer));
  return static_cast<void*>(buffers_.back().data());
}

absl::Status RandomModel::DrawWeights(const NamedShape& named) {
  const DecodeShape& shape = named.shape;
  const int64_t hidden = shape.hidden, width = shape.intermediate, queries = shape.query_size();
  // Scaled so that activations stay near 1 through the layers, and no kernel works with infinities.
  const float d = 1 / std::sqrt(static_cast<float>(hidden));
  const float q = 1 / std::sqrt(static_cast<float>(queries)), f = 1 / std::sqrt(static_cast<float>(width));
  SYNCOPATE_ASSIGN_OR_RETURN(weights_.tokens, AllocateRandom(int64_t{shape.vocab} * hidden, 0, 2.5f * d));
  weights_.head = weights_.tokens;
  if (!named.tied) {
    SYNCOPATE_ASSIGN_OR_RETURN(weights_.head, AllocateRandom(int64_t{shape.vocab} * hidden, 0, 2.5f * d));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(weights_.norm, AllocateRandom(hidden, 1, 0.1f));
  for (int32_t i = 0; i < shape.layers; ++i) {
    DecodeLayer& layer = weights_.layers.emplace_back();
    SYNCOPATE_ASSIGN_OR_RETURN(layer.input_norm, AllocateRandom(hidden, 1, 0.1f));
    SYNCOPATE_ASSIGN_OR_RETURN(layer.qkv, AllocateRandom(shape.qkv_size() * hidden, 0, d));
    if (shape.qkv_bias) {
      SYNCOPATE_ASSIGN_OR_RETURN(layer.qkv_bias, AllocateRandom(shape.qkv_size(), 0, 0.1f));
    }
    if (shape.qk_norm) {
      SYNCOPATE_ASSIGN_OR_RETURN(layer.q_norm, AllocateRandom(shape.heads.head_dim, 1, 0.1f));
      SYNCOPATE_ASSIGN_OR_RETURN(layer.k_norm, AllocateRandom(shape.heads.head_dim, 1, 0.1f));
    }
    SYNCOPATE_ASSIGN_OR_RETURN(layer.output, AllocateRandom(hidden * queries, 0, q));
    SYNCOPATE_ASSIGN_OR_RETURN(layer.post_norm, AllocateRandom(hidden, 1, 0.1f));
    SYNCOPATE_ASSIGN_OR_RETURN(layer.gate_up, AllocateRandom(2 * width * hidden, 0, d));
    SYNCOPATE_ASSIGN_OR_RETURN(layer.down, AllocateRandom(hidden * width, 0, f));
  }
  return absl::OkStatus();
}

absl::StatusOr<RandomModel> RandomModel::Create(const NamedShape& named, int64_t tokens) {
  RandomModel model;
  SYNCOPATE_RETURN_IF_ERROR(model.DrawWeights(named));
  const rollouter::HeadCounts& heads = named.shape.heads;
  model.storage_.layers = named.shape.layers;
  model.storage_.layer_pieces = (tokens + rollouter::kTokensPerBlock - 1) / rollouter::kTokensPerBlock;
  model.storage_.pieces = named.shape.layers * model.storage_.layer_pieces;
  const int64_t elements = model.storage_.pieces * heads.kv_heads * rollouter::kTokensPerBlock * heads.head_dim;
  SYNCOPATE_ASSIGN_OR_RETURN(model.storage_.keys, model.AllocateRandom(elements, 0, 1));
  SYNCOPATE_ASSIGN_OR_RETURN(model.storage_.values, model.AllocateRandom(elements, 0, 1));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "drawing weights"));
  return model;
}

StepLimits MakeLimits(const DecodeShape& shape, int64_t rows, int64_t context) {
  // Measured rates of an H200's memory and tensor cores. No step can be faster than these allow.
  constexpr double kBytesPerSecond = 4.3e12, kFlopPerSecond = 790e12;
  const double hidden = shape.hidden;
  const double body =
      shape.layers * (shape.qkv_size() * hidden + hidden * shape.query_size() + 3.0 * hidden * shape.intermediate);
  const double weights = body + shape.vocab * hidden;
  StepLimits limits;
  // bfloat16 has two bytes a weight; a product takes two operations for each.
  limits.products = std::max(2 * weights / kBytesPerSecond, 2 * weights * static_cast<double>(rows) / kFlopPerSecond);
  // Keys and values of all tokens, two bytes each.
  limits.attention = static_cast<double>(rows * context) * 4.0 * shape.heads.kv_heads * shape.heads.head_dim *
                     shape.layers / kBytesPerSecond;
  limits.logits = static_cast<double>(rows) * shape.vocab * 4 / kBytesPerSecond;
  return limits;
}

}  // namespace syncopate::bench
