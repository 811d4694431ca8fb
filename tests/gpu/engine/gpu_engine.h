#pragma once

#include <string>
#include <vector>

#include "base/digest.h"
#include "base/manifest.h"
#include "base/philox.h"
#include "model/decoder_spec.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "tests/gpu/gpu_support.h"

namespace syncopate::testing {

// Random weights in the layout of `manifest`, float32 or bfloat16.
inline std::vector<char> RandomWeights(const model::ModelConfig& config, const Manifest& manifest, uint64_t seed) {
  const Manifest wide = model::MakeManifest(config, DType::kFloat32).value();
  std::vector<float> values(static_cast<size_t>(wide.arena_bytes()) / sizeof(float));
  model::InitialiseWeights(config, wide, seed, values.data());
  for (size_t i = 0; i < wide.tensors().size(); ++i) {
    // An adapter's B begins with zeros, with which the adapter would add nothing.
    const TensorSpec& spec = wide.tensors()[i];
    if (!model::IsAdapterName(spec.name) || spec.name.find(".lora_B.") == std::string::npos) continue;
    float* const numbers = values.data() + wide.ranges()[i].begin / sizeof(float);
    for (int64_t at = 0; at < spec.NumElements(); ++at) {
      numbers[at] = 0.05f * static_cast<float>(PhiloxNormal(HashCombine(seed, i), at));
    }
  }
  std::vector<char> arena(static_cast<size_t>(manifest.arena_bytes()));
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    at::Tensor from = at::from_blob(values.data() + wide.ranges()[i].begin / sizeof(float), spec.shape, at::kFloat);
    at::from_blob(arena.data() + manifest.ranges()[i].begin, spec.shape, model::ToScalarType(spec.dtype)).copy_(from);
  }
  return arena;
}

inline at::Tensor RandomTensor(at::IntArrayRef shape, uint64_t seed) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  float* values = tensor.data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = static_cast<float>(PhiloxNormal(seed, i));
  return tensor;
}

inline double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kCPU).to(at::kDouble) - b.to(at::kCPU).to(at::kDouble)).abs().max().item<double>();
}

}  // namespace syncopate::testing
