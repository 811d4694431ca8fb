#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/stream.h"
#include "rollouter/cuda/decode/decode_model.h"

namespace syncopate::bench {

// A model of model/presets.h, in the form that the decode kernels use.
struct NamedShape {
  std::string name;
  rollouter::DecodeShape shape;
  double rope_theta = 0;
  bool tied = false;
};
// NOT_FOUND reason UNKNOWN_MODEL.
absl::StatusOr<NamedShape> FindShape(const std::string& name);

// Random weights, keys and values of a model. Move-only.
class RandomModel {
 public:
  // RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY. The blocks have room for at least `tokens` tokens.
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

// The least time of a step on an H200, in seconds: weights read at 4.3 TB/s or products at 790 TFLOP/s, whichever takes
// longer; keys and values read, and logits written and read in bf16, at 4.3 TB/s.
struct StepLimits {
  double products = 0;
  double attention = 0;
  double logits = 0;
  double total() const { return products + attention + logits; }
};
StepLimits MakeLimits(const rollouter::DecodeShape& shape, int64_t rows, int64_t context);

}  // namespace syncopate::bench
