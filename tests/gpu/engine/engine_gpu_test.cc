#include "rollouter/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/digest.h"
#include "rollouter/cuda/cuda_backend.h"
#include "rollouter/engine/engine_loop.h"
#include "tests/gpu/engine/gpu_engine.h"
#include "tests/support/recording_sink.h"
#include "tests/support/small_model.h"

namespace syncopate::rollouter {
namespace {

using synchronizer::ToDevice;
using synchronizer::ToHost;
using ::testing::ElementsAre;
using testing::RandomWeights;
using testing::RecordingSink;
using Install = CudaInstall;

constexpr absl::Duration kDeadline = absl::Seconds(30);

// An engine on the CPU or on GPU 0.
class Rig {
 public:
  Rig(const model::ModelConfig& config, bool gpu, DType dtype = DType::kFloat32)
      : config_(config), manifest_(model::MakeWireManifest(config, dtype).value()), gpu_(gpu) {
    std::shared_ptr<EngineBackend> backend;
    if (gpu) {
      backend = CudaBackend::Create(config, manifest_, /*device=*/0, Install::kRemap).value();
    } else {
      backend = std::make_shared<HostBackend>(config, manifest_);
    }
    engine = Engine::Create(config, std::move(backend), {.max_sequences = 64}).value();
    engine->BindThread();
    InstallWeights({1, 0}, 7);
  }
  void InstallWeights(const PolicyVersion& version, uint64_t seed) {
    const std::vector<char> weights = RandomWeights(config_, manifest_, seed);
    if (gpu_) {
      ToDevice(0, engine->policy().shadow(), weights.data(), static_cast<int64_t>(weights.size()));
    } else {
      std::copy(weights.begin(), weights.end(), engine->policy().shadow());
    }
    ASSERT_TRUE(engine->Synchronize().ok());
    ASSERT_TRUE(engine->policy().Install(version, seed).ok());
  }
  std::shared_ptr<RecordingSink> Add(const GenerationRequest& request) {
    auto sink = std::make_shared<RecordingSink>();
    engine->Add(request, sink);
    return sink;
  }
  void RunDry() {
    while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
  }

  std::unique_ptr<Engine> engine;

 private:
  const model::ModelConfig config_;
  const Manifest manifest_;
  const bool gpu_;
};

GenerationRequest RandomRequest(const model::ModelConfig& config, uint64_t seed, float temperature, int samples) {
  GenerationRequest request;
  request.id = absl::StrCat("request-", seed);
  for (uint64_t i = 0; i < 2 + seed % 5; ++i) request.prompt_ids.push_back(Philox4x32(seed, i)[0] % config.vocab_size);
  request.sampling.temperature = temperature;
  request.sampling.max_new_tokens = 8;
  for (int i = 0; i < samples; ++i) request.seeds.push_back(SampleSeed(seed, i));
  return request;
}

class CudaEngineOverModels : public ::testing::TestWithParam<model::ModelConfig> {};
INSTANTIATE_TEST_SUITE_P(Models, CudaEngineOverModels,
                         ::testing::Values(testing::SmallModel(), testing::GroupedQueryModel()));

TEST_P(CudaEngineOverModels, GeneratesTheTokensOfTheCpuWithItsLogProbs) {
  SYNCOPATE_NEED_GPUS(1);
  for (float temperature : {0.0f, 1.0f}) {
    Rig host(GetParam(), /*gpu=*/false), gpu(GetParam(), /*gpu=*/true);
    std::vector<std::shared_ptr<RecordingSink>> expected, found;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const GenerationRequest request = RandomRequest(GetParam(), seed, temperature, /*samples=*/4);
      expected.push_back(host.Add(request));
      found.push_back(gpu.Add(request));
    }
    host.RunDry();
    gpu.RunDry();
    for (size_t i = 0; i < expected.size(); ++i) {
      for (int32_t sample = 0; sample < 4; ++sample) {
        const Trajectory &a = expected[i]->finished.at(sample), &b = found[i]->finished.at(sample);
        ASSERT_EQ(a.tokens, b.tokens) << "request " << i << ", temperature " << temperature;
        for (size_t t = 0; t < a.logprobs.size(); ++t) EXPECT_NEAR(a.logprobs[t], b.logprobs[t], 1e-3);
      }
    }
  }
}

// Parks its one sample after each of its first two turns.
class TwoParksSink final : public GenerationSink {
 public:
  bool OnTurnEnded(int32_t, FinishReason, const Trajectory&) override { return parked = ++turns < 3; }
  void OnFinished(int32_t, Trajectory trajectory) override { finished = std::move(trajectory); }
  bool parked = false;
  int turns = 0;
  Trajectory finished;
};

TEST_P(CudaEngineOverModels, TurnsBehindGivenTokensAndAnswersThatGoOnHaveTheTokensOfTheCpu) {
  SYNCOPATE_NEED_GPUS(1);
  std::map<bool, std::vector<Trajectory>> made;
  for (bool on_gpu : {false, true}) {
    Rig rig(GetParam(), on_gpu);
    std::vector<std::shared_ptr<TwoParksSink>> sinks;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      GenerationRequest request = RandomRequest(GetParam(), seed, /*temperature=*/1, /*samples=*/1);
      request.sampling.max_new_tokens = 2;
      request.max_total_tokens = 10;
      sinks.push_back(std::make_shared<TwoParksSink>());
      ASSERT_TRUE(rig.engine->CheckShape(request).ok());
      rig.engine->Add(request, sinks.back());
    }
    GenerationRequest going_on = RandomRequest(GetParam(), 9, /*temperature=*/1, /*samples=*/2);
    going_on.starts = {{3, 1, 4}, {}};
    auto sink = rig.Add(going_on);
    while (rig.engine->HasRequests()) {
      if (rig.engine->HasWork()) {
        ASSERT_TRUE(rig.engine->Step().ok());
      }
      for (uint64_t seed = 0; seed < sinks.size(); ++seed) {
        if (!std::exchange(sinks[seed]->parked, false)) continue;
        rig.engine->Extend(absl::StrCat("request-", seed), 0, {5, 2});
      }
    }
    for (const auto& one : sinks) made[on_gpu].push_back(one->finished);
    for (int32_t sample : {0, 1}) made[on_gpu].push_back(sink->finished.at(sample));
  }
  for (size_t i = 0; i < made[false].size(); ++i) {
    const Trajectory &a = made[false][i], &b = made[true][i];
    EXPECT_EQ(a.tokens, b.tokens) << i;
    EXPECT_EQ(a.given, b.given) << i;
    EXPECT_EQ(a.spans, b.spans) << i;
    for (size_t t = 0; t < std::min(a.logprobs.size(), b.logprobs.size()); ++t) {
      EXPECT_NEAR(a.logprobs[t], b.logprobs[t], 1e-3) << i;
    }
  }
  EXPECT_EQ(made[true][0].given.size(), 2u);
  EXPECT_THAT(made[true][4].given, ElementsAre(TokenRange{0, 3}));
}

TEST_P(CudaEngineOverModels, ARemapBetweenTwoStepsKeepsSequencesGoing) {
  SYNCOPATE_NEED_GPUS(1);
  const GenerationRequest request = RandomRequest(GetParam(), 3, /*temperature=*/0, /*samples=*/2);
  std::map<bool, Trajectory> made;
  for (bool on_gpu : {false, true}) {
    Rig rig(GetParam(), on_gpu);
    auto sink = rig.Add(request);
    ASSERT_TRUE(rig.engine->Step().ok());
    ASSERT_TRUE(rig.engine->Step().ok());
    const char* live = rig.engine->policy().live();
    rig.InstallWeights({1, 1}, 99);
    if (on_gpu) {
      EXPECT_EQ(rig.engine->policy().live(), live) << "the address must stay";
    }
    ASSERT_TRUE(rig.engine->Step().ok());
    rig.InstallWeights({1, 2}, 7);
    rig.RunDry();
    made[on_gpu] = sink->finished.at(0);
  }
  EXPECT_EQ(made[true].tokens, made[false].tokens);
  ASSERT_THAT(made[true].spans, ElementsAre(VersionSpan{{1, 0}, 0, 2}, VersionSpan{{1, 1}, 2, 3},
                                            VersionSpan{{1, 2}, 3, static_cast<int32_t>(made[true].tokens.size())}));
}

TEST(CudaEngineTest, BFloat16StaysNearFloat32) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = testing::SmallModel();
  Rig wide(config, /*gpu=*/true), narrow(config, /*gpu=*/true, DType::kBFloat16);
  GenerationRequest request = RandomRequest(config, 1, /*temperature=*/1, /*samples=*/16);
  request.sampling.max_new_tokens = 1;
  auto expected = wide.Add(request), found = narrow.Add(request);
  wide.RunDry();
  narrow.RunDry();
  int same = 0;
  for (int32_t sample = 0; sample < 16; ++sample) {
    if (expected->finished.at(sample).tokens != found->finished.at(sample).tokens) continue;
    ++same;
    EXPECT_NEAR(expected->finished.at(sample).logprobs[0], found->finished.at(sample).logprobs[0], 0.05);
  }
  EXPECT_GE(same, 12);
}

class CudaEngineLoopTest : public ::testing::Test {
 protected:
  void Start(Install install) {
    config_.max_position_embeddings = 4000;
    config_.learned_positions = false;
    manifest_ = model::MakeManifest(config_, DType::kFloat32).value();
    EngineLoop::Options options;
    options.model = config_;
    options.max_sequences = 8;
    options.backend = CudaBackend::Create(config_, manifest_, /*device=*/0, install).value();
    loop_ = EngineLoop::Start(options).value();
  }
  // Submits one request of `tokens` tokens, which runs as long as the test's loop lives.
  void Submit(int tokens) {
    GenerationRequest request;
    request.id = "a";
    request.prompt_ids = {1, 2, 3};
    request.sampling.max_new_tokens = tokens;
    request.seeds = {5};
    ASSERT_TRUE(loop_->Submit(request, std::make_shared<RecordingSink>()).ok());
  }
  absl::Status Receive(const PolicyVersion& version, uint64_t seed) {
    const std::vector<char> weights = RandomWeights(config_, manifest_, seed);
    ToDevice(0, loop_->shadow(), weights.data(), static_cast<int64_t>(weights.size()));
    return loop_->Install(version, seed, kDeadline).status();
  }

  model::ModelConfig config_ = testing::SmallModel();
  Manifest manifest_;
  std::unique_ptr<EngineLoop> loop_;
};

TEST_F(CudaEngineLoopTest, InstallsWhileSequencesRunAndDigestsTheShadow) {
  SYNCOPATE_NEED_GPUS(1);
  Start(Install::kRemap);
  ASSERT_TRUE(Receive({1, 0}, 7).ok());
  Submit(3000);
  for (int version = 1; version <= 20; ++version) {
    const std::vector<char> weights = RandomWeights(config_, manifest_, version);
    synchronizer::ShadowContents contents;
    contents.buckets = manifest_.buckets();
    auto check = loop_->BeginCheck(std::move(contents));
    ASSERT_TRUE(check.ok()) << check.status();
    ToDevice(0, loop_->shadow(), weights.data(), static_cast<int64_t>(weights.size()));
    (*check)->Arrived({0, manifest_.arena_bytes()}, nullptr);
    auto digests = (*check)->Finish(kDeadline);
    ASSERT_TRUE(digests.ok()) << digests.status();
    EXPECT_EQ(*digests, DigestBuckets(manifest_, weights.data()));
    check->reset();
    ASSERT_TRUE(loop_->Install({1, version}, 100 + version, kDeadline).ok());
    EXPECT_EQ(ToHost(0, loop_->live(), manifest_.arena_bytes()), weights);
  }
  const std::vector<char> live = ToHost(0, loop_->live(), manifest_.arena_bytes());
  ASSERT_TRUE(loop_->CopyLive({{0, manifest_.arena_bytes()}}).ok());
  EXPECT_EQ(ToHost(0, loop_->shadow(), manifest_.arena_bytes()), live);
  EXPECT_TRUE(loop_->GetStatus().failure.ok());
}

TEST_F(CudaEngineLoopTest, ATransferInPlaceStopsGenerationAndOneThatFailsLeavesNothingServing) {
  SYNCOPATE_NEED_GPUS(1);
  Start(Install::kInPlace);
  EXPECT_TRUE(loop_->in_place());
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kDeadline).ok());
  ASSERT_TRUE(Receive({1, 0}, 7).ok());
  Submit(3000);
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kDeadline).ok());
  const int64_t tokens = loop_->GetStatus().generated_tokens;
  loop_->Invalidate();
  EXPECT_TRUE(loop_->GetStatus().serving.IsNone());
  EXPECT_EQ(loop_->GetStatus().generated_tokens, tokens);
  GenerationRequest request;
  request.prompt_ids = {1};
  request.seeds = {1};
  EXPECT_EQ(ErrorReason(loop_->Submit(request, std::make_shared<RecordingSink>())), "NO_WEIGHTS");
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kDeadline).ok());
  ASSERT_TRUE(Receive({1, 1}, 8).ok());
  const absl::Time limit = Clock::Real()->Now() + kDeadline;
  while (loop_->GetStatus().generated_tokens == tokens) ASSERT_LT(Clock::Real()->Now(), limit);
}

TEST(CudaBackendSleepTest, KeptWeightsComeBackAsTheyWereAndDroppedOnesAsZeros) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = testing::SmallModel();
  const Manifest manifest = model::MakeWireManifest(config, DType::kBFloat16).value();
  const std::vector<char> weights = RandomWeights(config, manifest, 7);
  for (Install install : {Install::kRemap, Install::kInPlace}) {
    const auto backend = CudaBackend::Create(config, manifest, /*device=*/0, install).value();
    WeightArenas& arenas = backend->arenas();
    ToDevice(0, arenas.shadow(), weights.data(), static_cast<int64_t>(weights.size()));
    ASSERT_TRUE(arenas.Exchange({1, 0}, 1, kDeadline).ok());
    const char* const live = arenas.live();
    const int64_t held = arenas.bytes();
    ASSERT_TRUE(arenas.Release(/*keep_live=*/true).ok());
    ASSERT_TRUE(arenas.Release(/*keep_live=*/true).ok());
    EXPECT_EQ(arenas.bytes(), 0);
    EXPECT_EQ(ErrorReason(backend->ExportShadow().status()), install == Install::kRemap ? "RELEASED" : "NOT_LENT");
    ASSERT_TRUE(arenas.Restore().ok());
    EXPECT_EQ(arenas.bytes(), held);
    EXPECT_EQ(arenas.live(), live);
    EXPECT_EQ(ToHost(0, live, manifest.arena_bytes()), weights);
    // The live weights are kept, and then dropped without having been restored.
    ASSERT_TRUE(arenas.Release(/*keep_live=*/true).ok());
    ASSERT_TRUE(arenas.Release(/*keep_live=*/false).ok());
    ASSERT_TRUE(arenas.Restore().ok());
    EXPECT_EQ(ToHost(0, live, manifest.arena_bytes()), std::vector<char>(weights.size(), 0));
  }
}

}  // namespace
}  // namespace syncopate::rollouter
