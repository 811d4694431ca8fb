#include "model/routed_experts.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "model/transformer.h"
#include "tests/support/op_cases.h"
#include "tests/support/small_model.h"

namespace syncopate::model {
namespace {

using syncopate::testing::RelativeDifference;

TEST(RoutedExpertsTest, VisitsAscendByExpertAndThenByRow) {
  at::manual_seed(3);
  const Routing routing = Route(at::randn({20, 8}), at::randn({5, 8}), 2, /*weights_sum_to_one=*/true);
  ASSERT_EQ(routing.begins.size(), 6u);
  EXPECT_EQ(routing.begins.back(), 40);
  const at::Tensor experts = routing.experts.flatten();
  for (int64_t expert = 0; expert < 5; ++expert) {
    int64_t last = -1;
    for (int64_t visit = routing.begins[expert]; visit < routing.begins[expert + 1]; ++visit) {
      const int64_t place = routing.places[visit].item<int64_t>(), row = routing.rows[visit].item<int64_t>();
      EXPECT_EQ(experts[place].item<int64_t>(), expert);
      EXPECT_EQ(place / 2, row);
      EXPECT_GT(row, last);
      last = row;
    }
  }
  EXPECT_LT(RelativeDifference(routing.weights.sum(-1), at::ones({20})), 1e-6);
}

TEST(RoutedExpertsTest, TheRoutersGradientIsThatOfAutograd) {
  for (bool weights_sum_to_one : {true, false}) {
    at::manual_seed(4);
    const at::Tensor logits = at::randn({18, 6}).set_requires_grad(true);
    const at::Tensor dweights = at::randn({18, 3});
    // The rows of an identity matrix are the router's inputs, so its outputs are its weights.
    const Routing routing = Route(logits.detach(), at::eye(6), 3, weights_sum_to_one);
    at::Tensor weights = at::softmax(logits, -1).gather(-1, routing.experts);
    if (weights_sum_to_one) weights = weights / weights.sum(-1, true);
    (weights * dweights).sum().backward();
    EXPECT_LT(RelativeDifference(RouteBackward(routing, dweights, weights_sum_to_one), logits.grad()), 1e-5);
  }
}

// Rows of a batch in which each expert gets many rows, compared with batches in which an expert gets one or two.
TEST(RoutedExpertsTest, BitsOfARowDoNotDependOnTheBatch) {
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const ModelConfig config = testing::RoutedModel();
  const Manifest manifest = *MakeManifest(config, DType::kFloat32);
  const at::Tensor arena = at::zeros({manifest.arena_bytes() / 4});
  InitialiseWeights(config, manifest, 4, arena.data_ptr<float>());
  const TransformerWeights weights = ViewWeights(config, manifest, arena);
  at::manual_seed(5);
  const at::Tensor x = at::randn({200, config.hidden_size});
  const auto activate = [](const at::Tensor& gate_up) {
    const std::vector<at::Tensor> halves = gate_up.chunk(2, 1);
    return at::silu(halves[0]) * halves[1];
  };
  const at::Tensor all = RoutedFeedForward(config, weights.layers[0], x, activate);
  for (int64_t begin = 0; begin + Transformer::kMinRows <= 200; begin += 23) {
    const at::Tensor few =
        RoutedFeedForward(config, weights.layers[0], x.narrow(0, begin, Transformer::kMinRows), activate);
    EXPECT_TRUE(at::equal(few, all.narrow(0, begin, Transformer::kMinRows))) << begin;
  }
}

}  // namespace
}  // namespace syncopate::model
