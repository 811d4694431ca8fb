#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/decoder_spec.h"
#include "model/presets.h"
#include "model/transformer.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/op_cases.h"
#include "tests/support/packed_attention.h"
#include "tests/support/small_model.h"
#include "trainer/actor/decoder_program.h"
#include "trainer/actor/fused_head.h"

namespace syncopate::trainer {
namespace {

using syncopate::testing::OpCase;
using syncopate::testing::RelativeDifference;

void ExpectSameResults(const OpCase& one, at::ScalarType dtype, double close) {
  at::NoGradGuard no_grad;
  const at::Device gpu("cuda:0");
  const auto expected = testing::RunAllOps(model::AtenOps(), one, at::kCPU, at::kFloat);
  const auto actual = testing::RunAllOps(model::OpsFor(gpu), one, gpu, dtype);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LT(RelativeDifference(actual[i], expected[i]), close) << "result " << i << " of width " << one.columns;
  }
}

const OpCase kCases[] = {
    {},
    {.columns = 896,
     .heads = 14,
     .kv_heads = 2,
     .head_dim = 64,
     .width = 4864,
     .vocab = 1024,
     .lengths = {300, 1, 129}},
    {.columns = 3584, .heads = 28, .kv_heads = 4, .head_dim = 128, .width = 1000, .vocab = 4096, .lengths = {65, 64}},
    {.columns = 8192, .heads = 8, .kv_heads = 8, .head_dim = 64, .width = 24, .vocab = 77, .lengths = {3}}};

TEST(CudaOpsTest, GivesTheResultsOfTheCpuInFloat32) {
  SYNCOPATE_NEED_GPUS(1);
  for (const OpCase& one : kCases) ExpectSameResults(one, at::kFloat, 1e-4);
}

TEST(CudaOpsTest, GivesTheResultsOfTheCpuInBFloat16WithinItsRounding) {
  SYNCOPATE_NEED_GPUS(1);
  for (const OpCase& one : kCases) ExpectSameResults(one, at::kBFloat16, 3e-2);
}

TEST(CudaOpsTest, AdamWMovesTheParametersAsTheCpuDoesAndReturnsTheSquaresOfTheirChanges) {
  SYNCOPATE_NEED_GPUS(1);
  const at::Device gpu("cuda:0");
  for (const int64_t elements : {4, 1024, 4 * 100003}) {
    const at::Tensor before = at::randn({elements}), first = 0.1 * at::randn({elements});
    const at::Tensor second = at::rand({elements}), gradients = at::randn({elements});
    const model::Ops::AdamW update = {.learning_rate = 0.01,
                                      .beta1 = 0.9,
                                      .beta2 = 0.99,
                                      .eps = 1e-8,
                                      .weight_decay = 0.3,
                                      .correction1 = 0.5,
                                      .correction2 = 0.25};
    auto run = [&](const model::Ops& ops, const at::Device& device, double factor) {
      const at::Tensor parameters = before.to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
      const at::Tensor squares =
          ops.UpdateByAdamW(update, at::scalar_tensor(factor, at::TensorOptions(at::kFloat).device(device)),
                            {parameters,
                             first.to(device, at::kFloat, false, true),
                             second.to(device, at::kFloat, false, true),
                             gradients.to(device, at::kFloat, false, true),
                             {}});
      return std::pair{squares.item<double>(), parameters.cpu()};
    };
    const auto expected = run(model::AtenOps(), at::kCPU, 0.7), found = run(model::OpsFor(gpu), gpu, 0.7);
    // The GPU sums squares in float32, in another order: 1.04e-5 was seen.
    EXPECT_NEAR(found.first, expected.first, 3e-5 * expected.first);
    EXPECT_LT(RelativeDifference(found.second, expected.second), 1e-6);
    const auto unchanged = run(model::OpsFor(gpu), gpu, std::nan(""));
    EXPECT_EQ(unchanged.first, 0);
    EXPECT_TRUE(at::equal(unchanged.second, before));
  }
}

TEST(CudaOpsTest, DeterministicOnesGiveTheResultsOfTheCpuAndRepeatTheirBits) {
  SYNCOPATE_NEED_GPUS(1);
  at::NoGradGuard no_grad;
  const at::Device gpu("cuda:0");
  const model::Ops& ops = model::OpsFor(gpu, /*deterministic=*/true);
  for (const OpCase& one : kCases) {
    for (const auto& [dtype, close] : {std::pair(at::kFloat, 1e-4), {at::kBFloat16, 3e-2}}) {
      const auto expected = testing::RunAllOps(model::AtenOps(), one, at::kCPU, at::kFloat);
      const auto first = testing::RunAllOps(ops, one, gpu, dtype), again = testing::RunAllOps(ops, one, gpu, dtype);
      for (size_t i = 0; i < first.size(); ++i) {
        EXPECT_LT(RelativeDifference(first[i], expected[i]), close) << "result " << i << " of width " << one.columns;
        EXPECT_TRUE(again[i].equal(first[i])) << "result " << i << " of width " << one.columns;
      }
    }
  }
}

// Thousands of rows have one token, like a separator in a batch: an atomic sum of them differs from run to run.
TEST(CudaOpsTest, ADeterministicEmbeddingGradientAddsRowsOfOneTokenInTheirOrder) {
  SYNCOPATE_NEED_GPUS(1);
  at::NoGradGuard no_grad;
  const at::Device gpu("cuda:0");
  constexpr int64_t kRows = 6000, kColumns = 896, kTokens = 700;
  at::manual_seed(3);
  const at::Tensor dx = at::randn({kRows, kColumns}).to(at::kBFloat16);
  at::Tensor ids = at::randint(kTokens, {kRows}, at::kLong);
  ids.narrow(0, 1000, 4000).fill_(7);
  at::Tensor expected = at::ones({kTokens, kColumns});
  for (int64_t row = 0; row < kRows; ++row) expected[ids[row].item<int64_t>()] += dx[row].to(at::kFloat);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor table = at::ones({kTokens, kColumns}, at::TensorOptions(gpu));
    model::OpsFor(gpu, /*deterministic=*/true).AddEmbeddingGradient(table, ids.to(gpu), dx.to(gpu));
    EXPECT_TRUE(table.to(at::kCPU).equal(expected)) << "the sums of the CPU, row by row";
  }
}

// The vocabulary has one token more than a multiple: rows of 16 bytes and a rest.
TEST(CudaFusedHeadTest, AVocabularyOfAnySizeGivesTheResultsOfTheCpu) {
  SYNCOPATE_NEED_GPUS(1);
  at::NoGradGuard no_grad;
  constexpr int64_t kRows = 70, kWidth = 64;
  for (const int64_t vocabulary : {1, 5, 1001, 1007, 1008}) {
    at::manual_seed(vocabulary);
    const at::Tensor hidden = at::randn({kRows, kWidth}).to(at::kBFloat16).to(at::kFloat);
    const at::Tensor head = (at::randn({vocabulary, kWidth}) / 4).to(at::kBFloat16).to(at::kFloat);
    const at::Tensor targets = at::randint(vocabulary, {kRows}, at::kLong);
    const at::Tensor dlogprob = at::randn({kRows}), dentropy = at::randn({kRows});
    const auto run = [&](at::Device device, at::ScalarType dtype, bool float32_logits) {
      std::vector<at::Tensor> rows;
      at::Tensor dhead = at::zeros({vocabulary, kWidth}, at::TensorOptions(device));
      at::Tensor dhidden = FusedHead(device, {.temperature = 0.7, .chunk_rows = 32, .float32_logits = float32_logits})
                               .ForwardBackward(
                                   hidden.to(device, dtype), head.to(device, dtype), targets.to(device),
                                   [&](int64_t begin, const FusedHead::Rows& chunk) {
                                     const int64_t count = chunk.logprob.size(0);
                                     rows.push_back(at::stack({chunk.logprob, chunk.entropy}));
                                     return FusedHead::RowGradients{dlogprob.narrow(0, begin, count).to(device),
                                                                    dentropy.narrow(0, begin, count).to(device)};
                                   },
                                   dhead);
      return std::vector<at::Tensor>{at::cat(rows, 1), dhidden, dhead};
    };
    const auto expected = run(at::kCPU, at::kFloat, false);
    const at::Device gpu("cuda:0");
    for (const auto& [dtype, float32_logits, close] :
         {std::tuple(at::kFloat, false, 1e-4), {at::kBFloat16, false, 3e-2}, {at::kBFloat16, true, 2e-2}}) {
      const auto actual = run(gpu, dtype, float32_logits);
      for (size_t i = 0; i < actual.size(); ++i) {
        // With a vocabulary of one token every log-probability and every gradient is 0.
        const double difference = (actual[i].cpu().to(at::kFloat) - expected[i]).abs().max().item<double>();
        EXPECT_LE(difference, close * std::max(1.0, expected[i].abs().max().item<double>()))
            << "result " << i << " of " << vocabulary << " tokens in " << dtype
            << (float32_logits ? ", wide logits" : "");
      }
    }
  }
}

// Compares the gradients of a whole model in bf16 on the GPU with those in float32 on the CPU.
TEST(CudaDecoderProgramTest, GradientsAreThoseOfTheCpu) {
  SYNCOPATE_NEED_GPUS(1);
  at::NoGradGuard no_grad;
  model::ModelConfig config = testing::GroupedQueryModel();
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.head_dim = 64;
  config.num_attention_heads = 4;
  const Manifest manifest = model::MakeManifest(config, DType::kFloat32).value();
  at::Tensor initial = at::zeros({manifest.arena_bytes() / 4}, at::kFloat);
  model::InitialiseWeights(config, manifest, 2, initial.data_ptr<float>());
  initial = initial.to(at::kBFloat16).to(at::kFloat);
  at::manual_seed(3);
  at::Tensor ids = at::randint(config.vocab_size, {40}, at::kLong);
  at::Tensor targets = at::randint(config.vocab_size, {40}, at::kLong), dlogprob = at::randn({40});
  std::vector<at::Tensor> results;
  for (const auto& [device, dtype] : {std::pair(at::Device("cpu"), at::kFloat),
                                      {at::Device("cuda:0"), at::kFloat},
                                      {at::Device("cuda:0"), at::kBFloat16}}) {
    const model::Transformer transformer(config, device);
    at::Tensor arena = initial.to(device, dtype), gradient = at::zeros_like(initial, at::TensorOptions(device));
    const auto weights = model::ViewWeights(config, manifest, arena);
    const auto gradients = model::ViewWeights(config, manifest, gradient);
    const model::PackedSequences sequences({17, 1, 22}, device);
    const DecoderProgram program(transformer, device);
    DecoderProgram::Tape tape;
    at::Tensor hidden = program.Forward(weights, ids.to(device), sequences, &tape);
    at::Tensor dhidden =
        FusedHead(device, {.chunk_rows = 16, .float32_logits = true})
            .ForwardBackward(
                hidden, weights.head, targets.to(device),
                [&](int64_t begin, const FusedHead::Rows& rows) {
                  return FusedHead::RowGradients{dlogprob.narrow(0, begin, rows.logprob.size(0)).to(device), {}};
                },
                gradients.head);
    program.Backward(weights, ids.to(device), sequences, dhidden, &tape, gradients);
    results.push_back(gradient);
  }
  EXPECT_LT(RelativeDifference(results[1], results[0]), 1e-4);
  EXPECT_LT(RelativeDifference(results[2], results[0]), 5e-2);
}

// One layer of a model's real width, with a small vocabulary, on `device`: two implementations go from the same weights
// and batch to the gradient of sum(logprob * dlogprob). With adapters of a rank above 0 theirs alone are compared.
class FullSizeLayer {
 public:
  FullSizeLayer(const std::string& preset, at::Device device, int64_t rank = 0)
      : device_(device),
        config_(KeepOneLayer(preset, rank)),
        manifest_(model::MakeManifest(config_, DType::kFloat32).value()),
        transformer_(config_, device),
        sequences_({150, 1, 233, 128}, device) {
    at::Tensor weights = at::zeros({manifest_.arena_bytes() / 4}, at::kFloat);
    model::InitialiseWeights(config_, manifest_, 2, weights.data_ptr<float>());
    if (rank > 0) {  // B begins with 0, which would leave A without a gradient
      const int64_t begin = manifest_.ranges()[model::CountBaseTensors(manifest_)].begin / 4;
      at::manual_seed(5);
      weights.narrow(0, begin, weights.numel() - begin).normal_(0, 0.02);
    }
    // The numbers are exact in both types, so any difference comes from the computation.
    weights_ = weights.to(at::kBFloat16).to(device, at::kFloat);
    at::manual_seed(3);
    ids_ = at::randint(config_.vocab_size, {sequences_.rows()}, at::kLong).to(device);
    targets_ = at::randint(config_.vocab_size, {sequences_.rows()}, at::kLong).to(device);
    dlogprob_ = at::randn({sequences_.rows()}).to(device);
  }

  // The gradient of each tensor, in wire order.
  std::vector<at::Tensor> ByAutograd() const {
    const at::Tensor gradient = at::zeros_like(weights_);
    const model::TransformerWeights weights = model::ViewWeights(config_, manifest_, weights_);
    std::vector<at::Tensor> leaves = weights.Distinct(), places = Parts(gradient);
    leaves.erase(leaves.begin(), leaves.end() - static_cast<int64_t>(places.size()));
    for (size_t i = 0; i < leaves.size(); ++i) leaves[i].set_requires_grad(true).mutable_grad() = places[i];
    testing::PackedAttention attention(sequences_);
    const at::Tensor hidden = transformer_.Forward(weights, ids_, sequences_.positions(), attention);
    const at::Tensor logprobs = at::log_softmax(transformer_.Logits(weights, hidden), -1);
    (logprobs.gather(1, targets_.unsqueeze(1)).squeeze(1) * dlogprob_).sum().backward();
    return places;
  }

  std::vector<at::Tensor> ByProgram(at::ScalarType dtype) const {
    const at::NoGradGuard no_grad;
    const at::Tensor arena = weights_.to(dtype), gradient = at::zeros_like(weights_);
    const model::TransformerWeights weights = model::ViewWeights(config_, manifest_, arena);
    const model::TransformerWeights gradients = model::ViewWeights(config_, manifest_, gradient);
    const DecoderProgram program(transformer_, device_);
    DecoderProgram::Tape tape;
    const at::Tensor hidden = program.Forward(weights, ids_, sequences_, &tape);
    const at::Tensor dhidden =
        FusedHead(device_, {.chunk_rows = 256, .float32_logits = true})
            .ForwardBackward(
                hidden, weights.head, targets_,
                [&](int64_t begin, const FusedHead::Rows& rows) {
                  return FusedHead::RowGradients{dlogprob_.narrow(0, begin, rows.logprob.size(0)), {}};
                },
                gradients.head);
    program.Backward(weights, ids_, sequences_, dhidden, &tape, gradients);
    return Parts(gradient);
  }

 private:
  static model::ModelConfig KeepOneLayer(const std::string& preset, int64_t rank) {
    model::ModelConfig config = model::FindPreset(preset).value();
    config.num_hidden_layers = 1;
    config.vocab_size = 1024;
    config.max_position_embeddings = 512;
    if (rank > 0) {
      config.lora = {
          .rank = rank, .alpha = 2 * static_cast<double>(rank), .projections = model::LoraConfig::AllProjections()};
    }
    return config;
  }
  std::vector<at::Tensor> Parts(const at::Tensor& arena) const {
    std::vector<at::Tensor> parts = model::ViewWeights(config_, manifest_, arena).Distinct();
    if (config_.lora.enabled()) {
      // Joint tensors of the base are one tensor here; those of adapters are not, and are the last ones.
      parts.erase(parts.begin(),
                  parts.end() - static_cast<int64_t>(manifest_.tensors().size() - model::CountBaseTensors(manifest_)));
    }
    return parts;
  }

  const at::Device device_;
  const model::ModelConfig config_;
  const Manifest manifest_;
  const model::Transformer transformer_;
  const model::PackedSequences sequences_;
  at::Tensor weights_, ids_, targets_, dlogprob_;
};

// Each preset with adapters of a rank; 0: without.
void ExpectGradientsOfAutograd(const std::vector<std::pair<std::string, int64_t>>& layers) {
  for (const auto& [preset, rank] : layers) {
    const FullSizeLayer layer(preset, at::Device("cuda:0"), rank);
    const auto expected = layer.ByAutograd();
    for (const auto& [dtype, close] : {std::pair(at::kFloat, 1e-4), {at::kBFloat16, 2e-2}}) {
      const auto found = layer.ByProgram(dtype);
      ASSERT_EQ(found.size(), expected.size());
      double largest = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_GT(expected[i].abs().max().item<double>(), 0) << preset << ", rank " << rank << ", tensor " << i;
        const double difference = RelativeDifference(found[i], expected[i]);
        EXPECT_LE(difference, close) << preset << ", rank " << rank << ", tensor " << i << " in " << dtype;
        largest = std::max(largest, difference);
      }
      std::cout << "| " << preset << (rank > 0 ? ", adapters" : "") << " in " << dtype
                << ": gradients differ by at most " << largest << " of their tensor's largest element" << std::endl;
    }
  }
}

TEST(CudaDecoderProgramTest, AFullSizeLayersGradientIsThatOfAutogradInFloat32) {
  SYNCOPATE_NEED_GPUS(1);
  ExpectGradientsOfAutograd({{"qwen2.5-0.5b", 0}, {"qwen2.5-7b", 0}, {"qwen3-8b", 0}, {"llama-3.1-8b", 0}});
}

TEST(CudaDecoderProgramTest, TheGradientOfAFullSizeLayersAdaptersIsThatOfAutogradInFloat32) {
  SYNCOPATE_NEED_GPUS(1);
  ExpectGradientsOfAutograd(
      {{"qwen2.5-0.5b", 32}, {"qwen2.5-1.5b", 24}, {"qwen2.5-1.5b", 64}, {"qwen3-8b", 8}, {"qwen2.5-0.5b", 64}});
}

}  // namespace
}  // namespace syncopate::trainer
