#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/stream.h"
#include "rollouter/cuda/decode/decode_model.h"

namespace syncopate::bench {

// A model of model/presets.h, as the decode kernels see it.
struct NamedShape {
  std::string name;
  rollouter::DecodeShape shape;
  double rope_theta = 0;
  bool tied = false;
};
// NOT_FOUND reason UNKNOWN_MODEL.
absl::StatusOr<NamedShape> FindShape(const std::string& name);

// Its weights, and blocks of keys and values, random. Move-only.
class RandomModel {
 public:
  // RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY. `tokens` is what the blocks hold at least.
  static absl::StatusOr<RandomModel> Create(const NamedShape& named, int64_t tokens);

  const rollouter::DecodeWeights& weights() const { return weights_; }
  const rollouter::BlockStorage& storage() const { return storage_; }

 private:
  absl::StatusOr<void*> AllocateRandom(int64_t count, float mean, float deviation);
  absl::Status DrawWeights(const NamedShape& named);

  std::vector<cuda::DeviceBuffer> buffers_;
  rollouter::DecodeWeights weights_;
  rollouter::BlockStorage storage_;
};

// The least that a step takes on an H200, in seconds: weights and keys and values at 4.3 TB/s or products at
// 790 TFLOP/s, whichever is longer for them, and logits written and read in bf16.
struct StepLimits {
  double products = 0;
  double attention = 0;
  double logits = 0;
  double total() const { return products + attention + logits; }
};
StepLimits LimitsOf(const rollouter::DecodeShape& shape, int64_t rows, int64_t context);

}  // namespace syncopate::bench
