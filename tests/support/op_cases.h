#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "model/ops.h"

namespace syncopate::testing {

// The largest difference of any element, relative to the largest element of `expected`.
inline double RelativeDifference(const at::Tensor& actual, const at::Tensor& expected) {
  at::Tensor a = actual.to(at::kCPU, at::kDouble), e = expected.to(at::kCPU, at::kDouble);
  const double scale = e.abs().max().item<double>();
  return (a - e).abs().max().item<double>() / (scale > 0 ? scale : 1);
}

// Inputs of every operation, drawn on the CPU in float32. One seed always gives the same inputs.
struct OpCase {
  int64_t columns = 64;  // D: the size of a row
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 16;
  int64_t width = 96;  // F: the size of the feed-forward layer
  int64_t vocab = 40;
  std::vector<int64_t> lengths = {5, 1, 9, 2};
};

// The results of every operation for one case, in a fixed order, for comparison between implementations.
std::vector<at::Tensor> RunAllOps(const model::Ops& ops, const OpCase& one, at::Device device, at::ScalarType dtype);

}  // namespace syncopate::testing
