// `rollout.deterministic` on a GPU: graphs of our kernels in bf16, and operators of libtorch in float32.
#include <gtest/gtest.h>

#include "rollouter/cuda/cuda_backend.h"
#include "rollouter/engine/engine.h"
#include "tests/gpu/engine/gpu_engine.h"
#include "tests/support/disturbed_engine.h"

namespace syncopate::rollouter {
namespace {

using synchronizer::ToDevice;
using testing::Agreement;
using testing::CompareWithCalm;
using testing::DisturbedRun;
using testing::MixedRequests;
using testing::RandomWeights;
using testing::RunCalmly;
using testing::RunDisturbed;
using testing::Sinks;
using testing::TriedEngine;

constexpr int64_t kContext = 640;
constexpr int64_t kWeightSets = 2;

struct Kind {
  const char* name;
  int64_t head_dim, heads, kv_heads;
  DType dtype;
};

model::ModelConfig MakeModel(const Kind& kind) {
  model::ModelConfig config;
  config.vocab_size = 1003;
  config.hidden_size = 512;
  config.intermediate_size = 1408;
  config.num_hidden_layers = 3;
  config.num_attention_heads = kind.heads;
  config.num_key_value_heads = kind.kv_heads;
  config.head_dim = kind.head_dim;
  config.max_position_embeddings = kContext;
  config.qk_norm = kind.head_dim == 128;
  config.qkv_bias = !config.qk_norm;
  config.tie_word_embeddings = false;
  config.head_init_std = 0.15;  // gives logits with a deviation of some units
  return config;
}

class Rig {
 public:
  Rig(const Kind& kind, const Engine::Options& options)
      : config_(MakeModel(kind)),
        manifest_(model::MakeManifest(config_, kind.dtype).value()),
        engine_(Engine::Create(
                    config_,
                    CudaBackend::Create(config_, manifest_, /*device=*/0, CudaInstall::kRemap, {.share = 0.4}).value(),
                    options)
                    .value()) {
    for (uint64_t set = 0; set < kWeightSets; ++set) weights_.push_back(RandomWeights(config_, manifest_, 7 + set));
    engine_->BindThread();
  }
  ~Rig() { engine_->UnbindThread(); }
  Engine& engine() { return *engine_; }
  TriedEngine tried() {
    return {engine_.get(), [this](const PolicyVersion& version, int64_t weights) {
              const std::vector<char>& bytes = weights_[static_cast<size_t>(weights)];
              ToDevice(0, engine_->policy().shadow(), bytes.data(), static_cast<int64_t>(bytes.size()));
              ASSERT_TRUE(engine_->Synchronize().ok());
              ASSERT_TRUE(engine_->policy().Install(version, 7).ok());
            }};
  }

 private:
  const model::ModelConfig config_;
  const Manifest manifest_;
  const std::unique_ptr<Engine> engine_;
  std::vector<std::vector<char>> weights_;
};

class DeterministicOnGpu : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Models, DeterministicOnGpu,
                         ::testing::Values(Kind{"HeadsOf64", 64, 14, 2, DType::kBFloat16},
                                           Kind{"HeadsOf128", 128, 8, 2, DType::kBFloat16},
                                           Kind{"Operators", 48, 8, 2, DType::kFloat32}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(DeterministicOnGpu, RequestsUnderInstallsAbortsAndPreemptionsEqualCalmRuns) {
  SYNCOPATE_NEED_GPUS(1);
  const bool by_graphs = GetParam().dtype == DType::kBFloat16;
  const std::vector<GenerationRequest> requests =
      MixedRequests(MakeModel(GetParam()), kContext, /*count=*/by_graphs ? 1000 : 150, /*seed=*/11);
  std::vector<Sinks> calm;
  for (int64_t weights = 0; weights < kWeightSets; ++weights) {
    Rig rig(GetParam(), {.max_sequences = 48, .deterministic = true});
    calm.push_back(RunCalmly(rig.tried(), requests, weights));
    ASSERT_EQ(rig.engine().counters().preemptions, 0);
  }
  Rig rig(GetParam(), {.max_sequences = 48,
                       .max_prefill_tokens = 300,
                       .kv_blocks = 220,
                       .plans_under_way = 2,
                       .follow_usage = false,
                       .deterministic = true});
  const DisturbedRun run =
      RunDisturbed(rig.tried(), requests, kWeightSets, /*install_every=*/by_graphs ? 100 : 150, /*seed=*/5);
  const Scheduler::Counters& counters = rig.engine().counters();
  EXPECT_GT(run.installs, 10);
  EXPECT_GT(counters.preemptions, 20);
  EXPECT_GT(counters.shared_tokens, 100);
  EXPECT_EQ(rig.engine().running_sequences() + rig.engine().waiting_sequences(), 0);
  EXPECT_EQ(rig.engine().kv_usage(), 0) << "a block is lost";
  const Agreement agreement = CompareWithCalm(run, calm);
  EXPECT_EQ(agreement.differ, 0) << agreement.example;
  EXPECT_LE(static_cast<int64_t>(agreement.requests_between_versions.size()), run.installs) << "one prompt at a time";
  EXPECT_GT(agreement.whole, by_graphs ? 100 : 10);
  EXPECT_GT(agreement.parts, by_graphs ? 100 : 20);
  RecordProperty("whole", static_cast<int>(agreement.whole));
  RecordProperty("preemptions", static_cast<int>(counters.preemptions));
}

// The reference is the answer of an engine of another size, or of another process.
TEST_P(DeterministicOnGpu, AnAnswerHasTheSameBitsAloneAndInAnyBatch) {
  SYNCOPATE_NEED_GPUS(1);
  const std::vector<GenerationRequest> requests =
      MixedRequests(MakeModel(GetParam()), kContext, /*count=*/24, /*seed=*/3);
  Rig crowded(GetParam(), {.max_sequences = 48, .deterministic = true});
  DisturbedRun together;
  together.sinks = RunCalmly(crowded.tried(), requests, 0);
  Rig alone(GetParam(), {.max_sequences = 5, .max_prefill_tokens = 33, .max_kept_blocks = 0, .deterministic = true});
  alone.tried().install({1, 0}, 0);
  Sinks apart;
  for (const GenerationRequest& request : requests) {
    apart.push_back(AddTo(alone.tried(), request));
    while (alone.engine().HasWork()) ASSERT_TRUE(alone.engine().Step().ok());
  }
  const Agreement agreement = CompareWithCalm(together, {apart});
  EXPECT_EQ(agreement.differ, 0) << agreement.example;
  EXPECT_GE(agreement.whole, 24);
}

}  // namespace
}  // namespace syncopate::rollouter
