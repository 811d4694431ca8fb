#include "model/routed_experts.h"

namespace syncopate::model {

Routing Route(const at::Tensor& x, const at::Tensor& router, int64_t experts_per_token, bool weights_sum_to_one) {
  Routing routing;
  routing.probabilities = at::softmax(at::linear(x.to(at::kFloat), router.to(at::kFloat)), -1);
  std::tie(routing.weights, routing.experts) = at::topk(routing.probabilities, experts_per_token);
  if (weights_sum_to_one) routing.weights = routing.weights / routing.weights.sum(-1, /*keepdim=*/true);
  // The sort is stable, so the visits of an expert stay in the order of rows.
  routing.places = at::argsort(routing.experts.flatten(), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  routing.rows = routing.places.div(experts_per_token, "floor");
  const at::Tensor counts = at::bincount(routing.experts.flatten(), {}, router.size(0)).cpu();
  routing.begins = {0};
  for (int64_t expert = 0; expert < router.size(0); ++expert) {
    routing.begins.push_back(routing.begins.back() + counts.const_data_ptr<int64_t>()[expert]);
  }
  return routing;
}

at::Tensor RouteBackward(const Routing& routing, const at::Tensor& dweights, bool weights_sum_to_one) {
  at::Tensor dchosen = dweights;
  if (weights_sum_to_one) {
    // w = p / s with s the sum of the chosen p: dp = (dw - sum(dw w)) / s.
    const at::Tensor sum = routing.probabilities.gather(-1, routing.experts).sum(-1, /*keepdim=*/true);
    dchosen = (dweights - (dweights * routing.weights).sum(-1, /*keepdim=*/true)) / sum;
  }
  const at::Tensor dprobabilities = at::zeros_like(routing.probabilities).scatter_(-1, routing.experts, dchosen);
  const at::Tensor mean = (dprobabilities * routing.probabilities).sum(-1, /*keepdim=*/true);
  return routing.probabilities * (dprobabilities - mean);
}

at::Tensor ExpertProduct(const JointLinear& linears, const at::Tensor& x) {
  const int64_t rows = x.size(0);
  at::Tensor padded = x;
  if (rows < Transformer::kMinRows) padded = at::constant_pad_nd(x, {0, 0, 0, Transformer::kMinRows - rows});
  std::vector<at::Tensor> products;
  for (const Linear& linear : linears) products.push_back(at::linear(padded, linear.weight));
  const at::Tensor all = products.size() == 1 ? products[0] : at::cat(products, 1);
  return all.narrow(0, 0, rows);
}

at::Tensor RoutedFeedForward(const ModelConfig& config, const LayerWeights& layer, const at::Tensor& x,
                             const std::function<at::Tensor(const at::Tensor& gate_up)>& activate) {
  const Routing routing = Route(x, layer.router, config.num_experts_per_tok, config.norm_topk_prob);
  const at::Tensor weights = routing.weights.flatten().index_select(0, routing.places).unsqueeze(1);
  at::Tensor sum = at::zeros_like(x);
  for (size_t expert = 0; expert < layer.experts.size(); ++expert) {
    const int64_t begin = routing.begins[expert], visits = routing.visits(expert);
    if (visits == 0) continue;
    const at::Tensor rows = routing.rows.narrow(0, begin, visits);
    const at::Tensor activated = activate(ExpertProduct(layer.experts[expert].gate_up, x.index_select(0, rows)));
    const at::Tensor output = ExpertProduct({layer.experts[expert].down}, activated);
    sum = sum.index_add(0, rows, output * weights.narrow(0, begin, visits).to(x.scalar_type()));
  }
  return sum;
}

}  // namespace syncopate::model
