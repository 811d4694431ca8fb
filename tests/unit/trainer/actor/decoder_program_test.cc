#include "trainer/actor/decoder_program.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "model/arena_parts.h"
#include "model/decoder_spec.h"
#include "tests/support/op_cases.h"
#include "tests/support/packed_attention.h"
#include "tests/support/small_model.h"
#include "trainer/actor/fused_head.h"

namespace syncopate::trainer {
namespace {

using syncopate::testing::RelativeDifference;

constexpr double kClose = 1e-5;

// A model with its weights and a batch: two implementations compute the gradient of sum(logprob * a + entropy * b).
class World {
 public:
  explicit World(const model::ModelConfig& config, std::vector<int64_t> lengths)
      : config_(config),
        manifest_(model::MakeManifest(config, DType::kFloat32).value()),
        arena_(at::zeros({manifest_.arena_bytes() / 4}, at::kFloat)),
        transformer_(config, at::kCPU),
        sequences_(std::move(lengths)) {
    at::set_num_threads(1);  // two threads on products this small would wait for each other
    at::manual_seed(9);
    model::InitialiseWeights(config, manifest_, 4, arena_.data_ptr<float>());
    if (config.lora.enabled())
      adapters(arena_).normal_(0, 0.2);  // B begins with 0, which would leave A without a gradient
    ids_ = at::randint(config.vocab_size, {sequences_.rows()}, at::kLong);
    targets_ = at::randint(config.vocab_size, {sequences_.rows()}, at::kLong);
    dlogprob_ = at::randn({sequences_.rows()});
    dentropy_ = at::randn({sequences_.rows()});
  }

  // The part of an arena that contains the adapters; the whole arena if the model has no adapters.
  at::Tensor trained(const at::Tensor& arena) const { return config_.lora.enabled() ? adapters(arena) : arena; }

  at::Tensor ByAutograd(at::Tensor* logprob) {
    at::Tensor gradient = at::zeros_like(arena_);
    model::TransformerWeights weights = model::ViewWeights(config_, manifest_, arena_);
    std::vector<at::Tensor> leaves = weights.Distinct();
    std::vector<at::Tensor> places = model::ViewWeights(config_, manifest_, gradient).Distinct();
    for (size_t i = 0; i < leaves.size(); ++i) leaves[i].set_requires_grad(true).mutable_grad() = places[i];
    testing::PackedAttention attention(sequences_);
    at::Tensor hidden = transformer_.Forward(weights, ids_, sequences_.positions(), attention);
    at::Tensor logprobs = at::log_softmax(transformer_.Logits(weights, hidden), -1);
    *logprob = logprobs.gather(1, targets_.unsqueeze(1)).squeeze(1);
    at::Tensor entropy = -(logprobs.exp() * logprobs).sum(-1);
    ((*logprob * dlogprob_).sum() + (entropy * dentropy_).sum()).backward();
    return gradient;
  }

  at::Tensor ByProgram(Recompute recompute, int64_t chunk_rows, at::Tensor* logprob, int64_t* tape_bytes) {
    at::NoGradGuard no_grad;
    at::Tensor gradient = at::zeros_like(arena_);
    const model::TransformerWeights weights = model::ViewWeights(config_, manifest_, arena_);
    // The base has no gradients, and no memory for them, so the test reads none.
    const int64_t begin = config_.lora.enabled() ? manifest_.ranges()[base_tensors()].begin : 0;
    const model::TransformerWeights gradients = model::ViewWeights(
        config_, manifest_,
        std::vector<model::ArenaPart>{
            {{begin, manifest_.arena_bytes()}, gradient.narrow(0, begin / 4, gradient.numel() - begin / 4)}});
    const DecoderProgram program(transformer_, at::kCPU, recompute);
    const FusedHead head(at::kCPU, {.chunk_rows = chunk_rows});
    DecoderProgram::Tape tape;
    at::Tensor hidden = program.Forward(weights, ids_, sequences_, &tape);
    *tape_bytes = tape.bytes();
    *logprob = at::empty({sequences_.rows()});
    at::Tensor dhidden = head.ForwardBackward(
        hidden, weights.head, targets_,
        [&](int64_t begin, const FusedHead::Rows& rows) {
          const int64_t size = rows.logprob.size(0);
          logprob->narrow(0, begin, size).copy_(rows.logprob);
          return FusedHead::RowGradients{dlogprob_.narrow(0, begin, size), dentropy_.narrow(0, begin, size)};
        },
        gradients.head);
    program.Backward(weights, ids_, sequences_, dhidden, &tape, gradients);
    return gradient;
  }

  at::Tensor ForwardOnly(int64_t chunk_rows) const {
    at::NoGradGuard no_grad;
    const model::TransformerWeights weights = model::ViewWeights(config_, manifest_, arena_);
    const DecoderProgram program(transformer_, at::kCPU);
    return FusedHead(at::kCPU, {.chunk_rows = chunk_rows})
        .Forward(program.Forward(weights, ids_, sequences_, nullptr), weights.head, targets_)
        .logprob;
  }

  // The log-probs of the model without its adapters, by the reference.
  at::Tensor BaseLogProbs() const {
    at::NoGradGuard no_grad;
    testing::PackedAttention attention(sequences_);
    const model::TransformerWeights base = model::WithoutAdapters(model::ViewWeights(config_, manifest_, arena_));
    const at::Tensor hidden = transformer_.Forward(base, ids_, sequences_.positions(), attention);
    return at::log_softmax(transformer_.Logits(base, hidden), -1).gather(1, targets_.unsqueeze(1)).squeeze(1);
  }

 private:
  size_t base_tensors() const { return model::CountBaseTensors(manifest_); }
  at::Tensor adapters(const at::Tensor& arena) const {
    const int64_t begin = manifest_.ranges()[base_tensors()].begin / 4;
    return arena.narrow(0, begin, arena.numel() - begin);
  }

  const model::ModelConfig config_;
  const Manifest manifest_;
  at::Tensor arena_;
  const model::Transformer transformer_;
  const model::PackedSequences sequences_;
  at::Tensor ids_, targets_, dlogprob_, dentropy_;
};

std::vector<model::ModelConfig> Models() {
  model::ModelConfig grouped_with_norms = testing::GroupedQueryModel();
  grouped_with_norms.qk_norm = true;
  grouped_with_norms.tie_word_embeddings = false;
  model::ModelConfig unscaled_experts = testing::RoutedModel();
  unscaled_experts.norm_topk_prob = false;
  return {testing::SmallModel(),  testing::GroupedQueryModel(), grouped_with_norms,
          testing::BiasedModel(), testing::RoutedModel(),       unscaled_experts};
}

TEST(DecoderProgramTest, GivesAutogradsLogProbsAndGradients) {
  for (const model::ModelConfig& config : Models()) {
    World world(config, {4, 1, 7, 3});
    at::Tensor expected_logprob, logprob;
    const at::Tensor expected = world.ByAutograd(&expected_logprob);
    for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      int64_t bytes = 0;
      const at::Tensor gradient = world.ByProgram(recompute, 6, &logprob, &bytes);
      EXPECT_LT(RelativeDifference(logprob, expected_logprob), kClose);
      EXPECT_LT(RelativeDifference(gradient, expected), kClose) << static_cast<int>(recompute);
    }
  }
}

TEST(DecoderProgramTest, GivesAutogradsGradientsOfAdaptersAlone) {
  std::vector<model::ModelConfig> models;
  for (const model::ModelConfig& config : Models()) models.push_back(testing::WithAdapters(config));
  models.push_back(models.front());
  models.back().lora.projections = {"v_proj",
                                    // In layer 0, q has no adapter, and some layers' products have none at all.
                                    "o_proj"};
  models.back().lora.rank_stabilised = true;
  for (const model::ModelConfig& config : models) {
    World world(config, {4, 1, 7, 3});
    at::Tensor expected_logprob, logprob, before;
    const at::Tensor expected = world.trained(world.ByAutograd(&expected_logprob));
    EXPECT_GT(RelativeDifference(expected_logprob, world.BaseLogProbs()), 0.01);
    for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      int64_t bytes = 0;
      const at::Tensor gradient = world.ByProgram(recompute, 6, &logprob, &bytes);
      EXPECT_LT(RelativeDifference(logprob, expected_logprob), kClose);
      EXPECT_LT(RelativeDifference(world.trained(gradient), expected), kClose) << static_cast<int>(recompute);
      EXPECT_EQ(at::count_nonzero(gradient).item<int64_t>(),
                at::count_nonzero(world.trained(gradient)).item<int64_t>());
      EXPECT_TRUE(!before.defined() || at::equal(before, gradient));
      before = gradient;
    }
  }
}

TEST(DecoderProgramTest, KeepsLessTheMoreItComputesAgain) {
  World world(testing::GroupedQueryModel(), {6, 6});
  at::Tensor logprob;
  int64_t none = 0, selective = 0, full = 0;
  const at::Tensor a = world.ByProgram(Recompute::kNone, 100, &logprob, &none);
  const at::Tensor b = world.ByProgram(Recompute::kSelective, 100, &logprob, &selective);
  const at::Tensor c = world.ByProgram(Recompute::kFull, 100, &logprob, &full);
  EXPECT_GT(none, selective);
  EXPECT_GT(selective, full);
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_TRUE(at::equal(a, c));
}

TEST(DecoderProgramTest, ForwardAloneGivesTheLogProbsOfTraining) {
  World world(testing::SmallModel(), {3, 8, 1});
  at::Tensor logprob;
  int64_t bytes = 0;
  world.ByProgram(Recompute::kSelective, 5, &logprob, &bytes);
  EXPECT_TRUE(at::equal(world.ForwardOnly(5), logprob));
  EXPECT_LT(RelativeDifference(world.ForwardOnly(100), logprob), 1e-6);
}

}  // namespace
}  // namespace syncopate::trainer
