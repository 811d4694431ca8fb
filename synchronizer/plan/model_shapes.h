#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"

namespace syncopate::synchronizer {

// Shapes of published models, for benchmarks and tests that need no weights. Numbers are those of each model's
// config.json on Hugging Face.
struct ModelShape {
  std::string name;  // "qwen2.5-7b"
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate = 0;
  int64_t vocabulary = 0;
  bool tied = false;      // the embedding is also the output head
  bool qkv_bias = false;  // Qwen2.5
  bool qk_norm = false;   // Qwen3
};

std::vector<std::string> ModelShapeNames();

// NOT_FOUND reason UNKNOWN_MODEL listing the names.
absl::StatusOr<ModelShape> FindModelShape(const std::string& name);

// Every parameter in bf16, named and ordered as transformers' named_parameters().
std::vector<TensorSpec> TensorsOf(const ModelShape& shape);
absl::StatusOr<std::vector<TensorSpec>> ModelShapes(const std::string& name);

}  // namespace syncopate::synchronizer
