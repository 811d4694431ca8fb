// `rollout.deterministic` on the CPU; tests/gpu/engine has the same tests on a GPU.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "rollouter/engine/engine.h"
#include "tests/support/disturbed_engine.h"
#include "tests/support/small_model.h"

namespace syncopate::rollouter {
namespace {

using testing::Agreement;
using testing::CompareWithCalm;
using testing::DisturbedRun;
using testing::MixedRequests;
using testing::RunCalmly;
using testing::RunDisturbed;
using testing::Sinks;
using testing::TriedEngine;

constexpr int64_t kContext = 96;
constexpr int64_t kWeightSets = 3;

model::ModelConfig Model() {
  model::ModelConfig config = testing::GroupedQueryModel();
  config.max_position_embeddings = kContext;
  return config;
}

// Matrices of the sizes from which a library of products chooses by the number of rows.
model::ModelConfig WideModel() {
  model::ModelConfig config = Model();
  config.vocab_size = 509;
  config.hidden_size = 256;
  config.intermediate_size = 704;
  config.head_dim = 32;
  config.num_attention_heads = 8;
  return config;
}

struct Rig {
  Rig(const model::ModelConfig& model, const Engine::Options& options)
      : config(model),
        manifest(*model::MakeManifest(config, DType::kFloat32)),
        engine(Engine::Create(config, std::make_shared<HostBackend>(config, manifest), options).value()) {
    at::set_num_threads(1);
  }
  TriedEngine tried() {
    return {engine.get(), [this](const PolicyVersion& version, int64_t weights) {
              const uint64_t seed = 7 + static_cast<uint64_t>(weights);
              model::InitialiseWeights(config, manifest, seed, reinterpret_cast<float*>(engine->policy().shadow()));
              EXPECT_TRUE(engine->Synchronize().ok());
              EXPECT_TRUE(engine->policy().Install(version, seed).ok());
            }};
  }
  const model::ModelConfig config;
  const Manifest manifest;
  const std::unique_ptr<Engine> engine;
};

// On the CPU, small models are deterministic without the option.
struct Load {
  Scheduler::Preemption preemption = Scheduler::Preemption::kRecompute;
  bool deterministic = true;
};
class DeterministicTest : public ::testing::TestWithParam<Load> {};
INSTANTIATE_TEST_SUITE_P(Loads, DeterministicTest,
                         ::testing::Values(Load{Scheduler::Preemption::kRecompute, true},
                                           Load{Scheduler::Preemption::kSwap, false}));

TEST_P(DeterministicTest, AThousandRequestsUnderInstallsAbortsAndPreemptionsEqualCalmRuns) {
  const std::vector<GenerationRequest> requests = MixedRequests(Model(), kContext, /*count=*/1000, /*seed=*/11);
  std::vector<Sinks> calm;
  for (int64_t weights = 0; weights < kWeightSets; ++weights) {
    Rig rig(Model(), {.max_sequences = 48, .deterministic = GetParam().deterministic});
    calm.push_back(RunCalmly(rig.tried(), requests, weights));
    ASSERT_EQ(rig.engine->counters().preemptions, 0);
  }
  Rig rig(Model(), {.max_sequences = 32,
                    .max_prefill_tokens = 50,
                    .kv_blocks = 50,
                    .host_kv_blocks = GetParam().preemption == Scheduler::Preemption::kSwap ? 30 : 0,
                    .plans_under_way = 2,
                    .preemption = GetParam().preemption,
                    .follow_usage = false,
                    .deterministic = GetParam().deterministic});
  const DisturbedRun run = RunDisturbed(rig.tried(), requests, kWeightSets, /*install_every=*/25, /*seed=*/5);
  const Scheduler::Counters& counters = rig.engine->counters();
  EXPECT_GT(run.installs, 50);
  EXPECT_GT(run.aborted.size(), 10u);
  EXPECT_GT(counters.preemptions, 50);
  EXPECT_EQ(counters.swaps > 10, GetParam().preemption == Scheduler::Preemption::kSwap);
  EXPECT_GT(counters.shared_tokens, 100);
  EXPECT_GT(counters.thrown_away, 0);
  EXPECT_EQ(rig.engine->running_sequences() + rig.engine->waiting_sequences(), 0);
  EXPECT_EQ(rig.engine->kv_usage(), 0) << "a block is lost";
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(run.sinks[i]->answers.size(), requests[i].seeds.size()) << requests[i].id;
  }
  const Agreement agreement = CompareWithCalm(run, calm);
  EXPECT_EQ(agreement.differ, 0) << agreement.example;
  EXPECT_LE(static_cast<int64_t>(agreement.requests_between_versions.size()), run.installs) << "one prompt at a time";
  EXPECT_GT(agreement.whole, 300);
  EXPECT_GT(agreement.parts, 300);
}

TEST(DeterministicWideTest, AnAnswerHasTheSameBitsAloneAndInAnyBatchThoughMatricesAreLarge) {
  const std::vector<GenerationRequest> requests = MixedRequests(WideModel(), kContext, /*count=*/24, /*seed=*/3);
  Rig crowded(WideModel(), {.max_sequences = 64, .deterministic = true});
  DisturbedRun together;
  together.sinks = RunCalmly(crowded.tried(), requests, 0);
  Rig alone(WideModel(), {.max_sequences = 4, .max_prefill_tokens = 9, .deterministic = true});
  alone.tried().install({1, 0}, 0);
  Sinks apart;
  for (const GenerationRequest& request : requests) {
    apart.push_back(AddTo(alone.tried(), request));
    while (alone.engine->HasWork()) ASSERT_TRUE(alone.engine->Step().ok());
  }
  const Agreement agreement = CompareWithCalm(together, {apart});
  EXPECT_EQ(agreement.differ, 0) << agreement.example;
  EXPECT_GE(agreement.whole, 24);
}

}  // namespace
}  // namespace syncopate::rollouter
