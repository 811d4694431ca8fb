#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model/model_config.h"
#include "model/transformer.h"

// A feed-forward of routed experts (arXiv 1701.06538), as Qwen3-MoE computes it. R rows, D hidden, N experts, k experts
// for each row, F columns of an expert.
namespace syncopate::model {

// The experts of the rows of a call, and their weights. A visit is a pair of a row and one of its experts.
struct Routing {
  at::Tensor probabilities;     // [R, N] float32: softmax of the router
  at::Tensor experts;           // [R, k] int64: the chosen experts of each row, by falling probability
  at::Tensor weights;           // [R, k] float32: weights of the experts' outputs
  at::Tensor rows;              // [R k] int64: the row of each visit; visits ascend by expert, then by row
  at::Tensor places;            // [R k] int64: flat index of each visit in `experts` and `weights`
  std::vector<int64_t> begins;  // [N + 1]: visits of expert e are [begins[e], begins[e + 1])

  int64_t visits(size_t expert) const { return begins[expert + 1] - begins[expert]; }
};

// Routes x [R, D] by router [N, D], both of one dtype; computes in float32. On the CPU a row's choice depends only on
// that row, if R >= Transformer::kMinRows. Only `weights` is part of an autograd graph.
Routing Route(const at::Tensor& x, const at::Tensor& router, int64_t experts_per_token, bool weights_sum_to_one);

// dweights [R, k] float32 -> gradient [R, N] of the router's outputs, float32.
at::Tensor RouteBackward(const Routing& routing, const at::Tensor& dweights, bool weights_sum_to_one);

// x W^T of `linears` side by side, without biases. Fewer than Transformer::kMinRows rows are padded to that number:
// smaller products round differently, and the number of an expert's rows depends on the other rows in the batch.
at::Tensor ExpertProduct(const JointLinear& linears, const at::Tensor& x);

// The layer's feed-forward of x [R, D] -> [R, D]: for each row the weighted sum of its experts' outputs, in ascending
// order of experts. `activate` computes [n, F] from gate and up [n, 2 F].
at::Tensor RoutedFeedForward(const ModelConfig& config, const LayerWeights& layer, const at::Tensor& x,
                             const std::function<at::Tensor(const at::Tensor& gate_up)>& activate);

}  // namespace syncopate::model
