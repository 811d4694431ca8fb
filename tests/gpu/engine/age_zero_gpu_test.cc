// Compares the log-probabilities that a rollouter reports with those of the trainer for the same weights: two programs
// compute one policy.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "ranks/communicator.h"
#include "rollouter/cuda/cuda_backend.h"
#include "rollouter/engine/engine.h"
#include "tests/gpu/engine/gpu_engine.h"
#include "tests/support/disturbed_engine.h"
#include "trainer/actor/actor.h"
#include "trainer/step/train_step.h"

namespace syncopate::rollouter {
namespace {

using synchronizer::ToDevice;
using testing::AnswerSink;

constexpr uint64_t kSeed = 7;

struct Kind {
  const char* name;
  int64_t head_dim, heads;
  DType dtype;
  bool deterministic;
  double most_k3;
};

model::ModelConfig MakeModel(const Kind& kind) {
  model::ModelConfig config;
  config.vocab_size = 1003;
  config.hidden_size = 512;
  config.intermediate_size = 1408;
  config.num_hidden_layers = 4;
  config.num_attention_heads = kind.heads;
  config.num_key_value_heads = 2;
  config.head_dim = kind.head_dim;
  config.max_position_embeddings = 512;
  config.qk_norm = kind.head_dim == 128;
  config.qkv_bias = !config.qk_norm;
  config.tie_word_embeddings = false;
  config.head_init_std = 0.1;  // gives logits with a deviation of about 2
  return config;
}

class AgeZeroTest : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Engines, AgeZeroTest,
                         ::testing::Values(Kind{"Graphs64", 64, 14, DType::kBFloat16, false, 1e-3},
                                           Kind{"Graphs128", 128, 8, DType::kBFloat16, false, 1e-3},
                                           Kind{"Deterministic", 64, 14, DType::kBFloat16, true, 1e-3},
                                           Kind{"OperatorsInFloat32", 48, 8, DType::kFloat32, false, 1e-5}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(AgeZeroTest, LogProbsOfTheEngineAreThoseOfTheTrainersForward) {
  SYNCOPATE_NEED_GPUS(1);
  const at::NoGradGuard no_grad;
  const model::ModelConfig config = MakeModel(GetParam());
  const Manifest manifest = model::MakeManifest(config, GetParam().dtype).value();
  const auto engine =
      Engine::Create(config,
                     CudaBackend::Create(config, manifest, /*device=*/0, CudaInstall::kRemap, {.share = 0.4}).value(),
                     {.max_sequences = 64, .deterministic = GetParam().deterministic})
          .value();
  engine->BindThread();
  const std::vector<char> weights = testing::RandomWeights(config, manifest, kSeed);
  ToDevice(0, engine->policy().shadow(), weights.data(), static_cast<int64_t>(weights.size()));
  ASSERT_TRUE(engine->Synchronize().ok());
  ASSERT_TRUE(engine->policy().Install({1, 0}, 1).ok());
  std::vector<GenerationRequest> requests = testing::MixedRequests(config, 400, /*count=*/40, /*seed=*/5);
  testing::Sinks sinks;
  for (GenerationRequest& request : requests) {
    request.sampling = {.temperature = 0.8f, .max_new_tokens = 80};
    sinks.push_back(testing::AddTo({engine.get(), nullptr}, request));
  }
  while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
  engine->UnbindThread();

  const at::Device gpu(at::kCUDA, 0);
  trainer::Actor actor(config, model::MakeManifest(config, DType::kFloat32).value(), {}, kSeed, gpu, nullptr,
                       model::ToScalarType(GetParam().dtype));
  SingleRank ranks;
  trainer::TrainStepOptions options;
  options.temperature = 0.8f;
  const trainer::TrainStep step(actor, ranks, options);
  std::vector<trainer::TrainingSequence> sequences;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (const auto& [sample, answer] : sinks[i]->answers) {
      if (!answer.tokens.empty()) sequences.push_back({&requests[i].prompt_ids, &answer, 0});
    }
  }
  const trainer::PackedBatch batch = trainer::Pack(sequences, gpu);
  const at::Tensor log_ratio = step.LogProbs(batch)->to(at::kDouble) - batch.tokens.behaviour.to(gpu, at::kDouble);
  const at::Tensor k3 = log_ratio.exp() - 1 - log_ratio;
  EXPECT_GT(k3.numel(), 2000);
  EXPECT_LT(k3.mean().item<double>(), GetParam().most_k3);
  std::printf("k3 %.2e, largest difference %.4f, %d tokens\n", k3.mean().item<double>(),
              log_ratio.abs().max().item<double>(), static_cast<int>(k3.numel()));
}

}  // namespace
}  // namespace syncopate::rollouter
