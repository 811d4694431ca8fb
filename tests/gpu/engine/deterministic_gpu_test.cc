// `rollout.deterministic` on a GPU: graphs of our kernels in bf16, and operators of libtorch in float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "rollouter/cuda/cuda_backend.h"
#include "rollouter/engine/engine.h"
#include "tests/gpu/engine/gpu_engine.h"
#include "tests/support/disturbed_engine.h"
#include "tests/support/recording_sink.h"
#include "tests/support/small_model.h"

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
  int64_t rank = 0;  // of adapters; 0: none
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
  return kind.rank > 0 ? testing::WithAdapters(config, kind.rank) : config;
}

class Rig {
 public:
  Rig(const Kind& kind, const Engine::Options& options)
      : config_(MakeModel(kind)),
        manifest_(model::MakeWireManifest(config_, kind.dtype).value()),
        engine_(Engine::Create(
                    config_,
                    CudaBackend::Create(config_, manifest_, /*device=*/0, CudaInstall::kRemap, {.share = 0.4}).value(),
                    options)
                    .value()) {
    const auto base = static_cast<size_t>(manifest_.adapters_begin());
    for (uint64_t set = 0; set < kWeightSets; ++set) {
      weights_.push_back(RandomWeights(config_, manifest_, 7 + set));
      // All versions have one base if there are adapters.
      if (kind.rank > 0) std::copy_n(weights_[0].begin(), base, weights_.back().begin());
    }
    engine_->BindThread();
  }
  ~Rig() { engine_->UnbindThread(); }
  Engine& engine() { return *engine_; }
  TriedEngine tried() {
    return {engine_.get(), [this](const PolicyVersion& version, int64_t weights) {
              // Its sinks compare each token's version with the one that serves when the token comes.
              ASSERT_TRUE(engine_->Synchronize().ok());
              Install(version, static_cast<size_t>(weights));
            }};
  }
  // With adapters nothing that is launched waits, and the base, which that reads, is written once.
  void Install(const PolicyVersion& version, size_t weights) {
    const std::vector<char>& bytes = weights_[weights];
    const int64_t begin = engine_->policy().has_weights() ? manifest_.adapters_begin() % manifest_.arena_bytes() : 0;
    ToDevice(0, engine_->policy().shadow() + begin, bytes.data() + begin, static_cast<int64_t>(bytes.size()) - begin);
    if (!engine_->policy().has_sets()) {
      ASSERT_TRUE(engine_->Synchronize().ok());
    }
    ASSERT_TRUE(engine_->policy().Install(version, 7).ok());
  }
  std::shared_ptr<testing::RecordingSink> Add(const GenerationRequest& request) {
    auto sink = std::make_shared<testing::RecordingSink>();
    EXPECT_TRUE(engine_->CheckShape(request).ok());
    engine_->Add(request, sink);
    return sink;
  }
  void RunDry() {
    while (engine_->HasWork()) ASSERT_TRUE(engine_->Step().ok());
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
                                           Kind{"Adapters", 64, 14, 2, DType::kBFloat16, 24},
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

// The policy, a version that an evaluation has pinned, and the base, in the same batches, while versions are installed.
TEST(DeterministicAdaptersOnGpu, ThePolicyAPinnedVersionAndTheBaseAnswerBesideEachOtherAsEachDoesAlone) {
  SYNCOPATE_NEED_GPUS(1);
  for (const int64_t rank : {8, 32, 72}) {
    const Kind kind{"", 64, 14, 2, DType::kBFloat16, rank};
    const Engine::Options options{.max_sequences = 48, .max_prefill_tokens = 64, .deterministic = true};
    std::vector<GenerationRequest> requests = MixedRequests(MakeModel(kind), kContext, /*count=*/12, /*seed=*/4);
    for (GenerationRequest& request : requests) request.sampling.max_new_tokens = 60;
    // What each of the adapters, and the base, answer alone.
    std::vector<std::vector<std::shared_ptr<testing::RecordingSink>>> alone(3);
    for (size_t by = 0; by < 3; ++by) {
      Rig rig(kind, options);
      rig.Install({1, 0}, by % 2);
      for (GenerationRequest request : requests) {
        request.by_base = by == 2;
        alone[by].push_back(rig.Add(request));
      }
      rig.RunDry();
    }
    Rig rig(kind, options);
    rig.Install({1, 0}, 0);
    std::vector<std::shared_ptr<testing::RecordingSink>> pinned, base, policy;
    for (GenerationRequest request : requests) {
      request.holds_install = true;
      pinned.push_back(rig.Add(request));
      request.holds_install = false;
      request.by_base = true;
      base.push_back(rig.Add(request));
    }
    for (int64_t step = 1; step < 4; ++step) {
      ASSERT_TRUE(rig.engine().Step().ok());
      ASSERT_TRUE(rig.engine().policy().has_shadow());
      rig.Install({1, step}, 1);
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(rig.engine().Step().ok());
    }
    for (const GenerationRequest& request : requests) policy.push_back(rig.Add(request));
    rig.RunDry();
    int differ = 0, apart = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      for (const auto& [sample, answer] : pinned[i]->finished) {
        differ += answer.logprobs != alone[0][i]->finished.at(sample).logprobs ? 1 : 0;
        differ += base[i]->finished.at(sample).logprobs != alone[2][i]->finished.at(sample).logprobs ? 1 : 0;
        differ += policy[i]->finished.at(sample).logprobs != alone[1][i]->finished.at(sample).logprobs ? 1 : 0;
        apart += answer.logprobs != policy[i]->finished.at(sample).logprobs ? 1 : 0;
        apart += answer.logprobs != base[i]->finished.at(sample).logprobs ? 1 : 0;
        EXPECT_EQ(answer.spans.front().version, (PolicyVersion{1, 0}));
      }
    }
    EXPECT_EQ(differ, 0) << "rank " << rank;
    EXPECT_GE(apart, 20) << "they are three models";
  }
}

}  // namespace
}  // namespace syncopate::rollouter
