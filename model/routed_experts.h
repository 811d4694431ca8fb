#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model/model_config.h"
#include "model/transformer.h"

// A feed-forward of routed experts (arXiv 1701.06538), as Qwen3-MoE computes it. R rows, D hidden, N experts, k of them a row,
// F columns of an expert.
namespace syncopate::model {

// Which experts the rows of a call go to, and how much each of them counts. A visit is a row at one of its experts.
struct Routing {
  at::Tensor probabilities;     // [R, N] float32: softmax of the router
  at::Tensor experts;           // [R, k] int64, each row's chosen ones, by falling probability
  at::Tensor weights;           // [R, k] float32, of their outputs
  at::Tensor rows;              // [R k] int64: the row of each visit; visits ascend by expert, then by row
  at::Tensor places;            // [R k] int64: of each visit in `experts` and `weights`, flat
  std::vector<int64_t> begins;  // [N + 1]: visits of expert e are [begins[e], begins[e + 1])

  int64_t visits(size_t expert) const { return begins[expert + 1] - begins[expert]; }
};

// x [R, D], router [N, D], in one dtype; computed in float32. On the CPU a row's choice depends on nothing but that row, as
// long as R >= Transformer::kMinRows. Part of no autograd graph but by `weights`.
Routing Route(const at::Tensor& x, const at::Tensor& router, int64_t experts_per_token, bool weights_sum_to_one);

// dweights [R, k] float32 -> gradient [R, N] of the router's outputs, float32.
at::Tensor RouteBackward(const Routing& routing, const at::Tensor& dweights, bool weights_sum_to_one);

// x W^T of `linears` side by side, without biases. Of fewer rows than Transformer::kMinRows a product is made of that many:
// smaller ones round differently, and how many rows come to an expert depends on all others in the batch.
at::Tensor ExpertProduct(const JointLinear& linears, const at::Tensor& x);

// The layer's feed-forward of x [R, D] -> [R, D]: of each row the weighted sum of its experts' outputs, in ascending order of
// experts. `activate` makes [n, F] of gate and up [n, 2 F].
at::Tensor RoutedFeedForward(const ModelConfig& config, const LayerWeights& layer, const at::Tensor& x,
                             const std::function<at::Tensor(const at::Tensor& gate_up)>& activate);

}  // namespace syncopate::model
