#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/philox.h"
#include "model/device.h"
#include "model/model_config.h"
#include "rollouter/cuda/cuda_backend.h"
#include "rollouter/engine/engine.h"

// Skips the test that calls it where there is no GPU.
#define SYNCOPATE_NEEDS_GPU() \
  if (::syncopate::model::ProbeHardware().gpus == 0) GTEST_SKIP() << "no GPU: the driver lists none"

namespace syncopate::testing {

// Random weights as an arena of `manifest`, float32 or bfloat16.
inline std::vector<char> RandomWeights(const model::ModelConfig& config, const Manifest& manifest, uint64_t seed) {
  const Manifest wide = model::MakeManifest(config, DType::kFloat32).value();
  std::vector<float> values(static_cast<size_t>(wide.arena_bytes()) / sizeof(float));
  model::InitialiseWeights(config, wide, seed, values.data());
  std::vector<char> arena(static_cast<size_t>(manifest.arena_bytes()));
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    at::Tensor from = at::from_blob(values.data() + wide.ranges()[i].begin / sizeof(float), spec.shape, at::kFloat);
    at::from_blob(arena.data() + manifest.ranges()[i].begin, spec.shape, model::ScalarTypeOf(spec.dtype)).copy_(from);
  }
  return arena;
}

inline void CopyToGpu(char* to, const std::vector<char>& bytes) {
  ASSERT_EQ(cudaMemcpy(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
}

inline std::vector<char> CopyFromGpu(const char* from, int64_t bytes) {
  std::vector<char> copy(static_cast<size_t>(bytes));
  EXPECT_EQ(cudaMemcpy(copy.data(), from, copy.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  return copy;
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
