// An engine whose base weights are memory that a trainer lends, against one that has them in memory of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_arena.h"
#include "cuda/device.h"
#include "rollouter/cuda/cuda_backend.h"
#include "rollouter/engine/engine.h"
#include "synchronizer/lent_memory.h"
#include "tests/gpu/engine/gpu_engine.h"
#include "tests/support/disturbed_engine.h"
#include "tests/support/recording_sink.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"

namespace syncopate::rollouter {
namespace {

using synchronizer::LentMemory;
using synchronizer::ToDevice;
using synchronizer::ToHost;
using testing::IsOk;
using testing::MixedRequests;
using testing::RandomWeights;

constexpr int64_t kContext = 640;
constexpr uint64_t kVersions = 3;

model::ModelConfig AdaptedModel() {
  model::ModelConfig config;
  config.vocab_size = 1003;
  config.hidden_size = 512;
  config.intermediate_size = 1408;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 14;
  config.num_key_value_heads = 2;
  config.head_dim = 64;
  config.max_position_embeddings = kContext;
  config.qk_norm = false;
  config.qkv_bias = true;
  config.tie_word_embeddings = false;
  config.head_init_std = 0.15;  // gives logits with a deviation of some units
  return testing::WithAdapters(config, /*rank=*/8);
}

// Weights of all versions, which have one base.
class Versions {
 public:
  Versions() {
    for (uint64_t version = 0; version < kVersions; ++version) {
      weights_.push_back(RandomWeights(config, manifest, 7 + version));
      std::copy_n(weights_[0].begin(), manifest.adapters_begin(), weights_.back().begin());
    }
  }
  const char* base() const { return weights_[0].data(); }
  const char* adapters(size_t version) const { return weights_[version].data() + manifest.adapters_begin(); }
  int64_t adapter_bytes() const { return manifest.arena_bytes() - manifest.adapters_begin(); }

  const model::ModelConfig config = AdaptedModel();
  const Manifest manifest = model::MakeWireManifest(config, DType::kBFloat16).value();

 private:
  std::vector<std::vector<char>> weights_;
};

// The trainer's memory of the base.
class Lender {
 public:
  explicit Lender(const Versions& versions)
      : versions_(versions),
        memory_(*cuda::CudaArena::Create(versions.manifest.adapters_begin(), {.what = "the lent base"})) {
    ToDevice(0, memory_->data(), versions.base(), memory_->bytes());
  }
  LentMemory Lend() const {
    cuda::ExportedMemory exported = *memory_->Export();
    LentMemory lent;
    lent.info = {exported.id, cuda::ReadGpuFacts(0)->gpu_uuid, std::move(exported.chunks)};
    lent.handles = std::move(exported.fds);
    return lent;
  }
  // The numbers of the base, without what lies between them.
  bool IsIntact() const {
    const std::vector<char> now = ToHost(0, memory_->data(), memory_->bytes());
    for (size_t i = 0; i < versions_.manifest.tensors().size(); ++i) {
      const ByteRange range = versions_.manifest.ranges()[i];
      if (versions_.manifest.tensors()[i].adapter) continue;
      if (std::memcmp(now.data() + range.begin, versions_.base() + range.begin, static_cast<size_t>(range.size())) != 0)
        return false;
    }
    return true;
  }
  // Whether somebody has written between the numbers.
  bool IsWritten() const {
    const std::vector<char> now = ToHost(0, memory_->data(), memory_->bytes());
    return !std::equal(now.begin(), now.end(), versions_.base());
  }

 private:
  const Versions& versions_;
  const std::unique_ptr<cuda::CudaArena> memory_;
};

class Rig {
 public:
  Rig(const Versions& versions, CudaInstall install)
      : versions_(versions),
        backend_(
            CudaBackend::Create(versions.config, versions.manifest, /*device=*/0, install, {.share = 0.4}).value()),
        engine_(Engine::Create(versions.config, backend_, {.max_sequences = 48, .deterministic = true}).value()) {
    engine_->BindThread();
  }
  ~Rig() { engine_->UnbindThread(); }
  Engine& engine() { return *engine_; }
  WeightArenas& arenas() { return backend_->arenas(); }

  void WriteBase() {
    ASSERT_THAT(arenas().OwnBase(), IsOk());
    ToDevice(0, engine_->policy().shadow(), versions_.base(), versions_.manifest.adapters_begin());
  }
  void Install(const PolicyVersion& version, size_t weights) {
    ASSERT_THAT(engine_->Synchronize(), IsOk());
    ToDevice(0, engine_->policy().shadow() + versions_.manifest.adapters_begin(), versions_.adapters(weights),
             versions_.adapter_bytes());
    ASSERT_THAT(engine_->policy().Install(version, 7 + weights), IsOk());
  }
  // The log-probabilities of the same requests, which are different for each version.
  std::vector<std::vector<float>> Answer() {
    std::vector<GenerationRequest> requests = MixedRequests(versions_.config, kContext, /*count=*/8, /*seed=*/4);
    std::vector<std::shared_ptr<testing::RecordingSink>> sinks;
    for (GenerationRequest& request : requests) {
      request.sampling.max_new_tokens = 24;
      sinks.push_back(std::make_shared<testing::RecordingSink>());
      EXPECT_THAT(engine_->CheckShape(request), IsOk());
      engine_->Add(request, sinks.back());
    }
    while (engine_->HasWork()) EXPECT_TRUE(engine_->Step().ok());
    std::vector<std::vector<float>> answers;
    for (const auto& sink : sinks) {
      for (const auto& [sample, answer] : sink->finished) answers.push_back(answer.logprobs);
    }
    return answers;
  }

 private:
  const Versions& versions_;
  const std::shared_ptr<CudaBackend> backend_;
  const std::unique_ptr<Engine> engine_;
};

TEST(MappedBaseEngineOnGpu, OverTurnsAndSleepsItAnswersAsAnEngineWithABaseOfItsOwn) {
  SYNCOPATE_NEED_GPUS(1);
  const Versions versions;
  std::vector<std::vector<std::vector<float>>> expected;
  for (size_t version = 0; version < kVersions; ++version) {
    Rig own(versions, CudaInstall::kRemap);
    EXPECT_FALSE(own.arenas().maps_base());
    ASSERT_NO_FATAL_FAILURE(own.WriteBase());
    ASSERT_NO_FATAL_FAILURE(own.Install({1, 0}, version));
    expected.push_back(own.Answer());
  }
  EXPECT_NE(expected[0], expected[1]);

  const Lender lender(versions);
  Rig rig(versions, CudaInstall::kMappedBase);
  ASSERT_TRUE(rig.arenas().maps_base());
  const int64_t adapters = versions.adapter_bytes(), base = versions.manifest.adapters_begin();
  EXPECT_LE(rig.arenas().bytes(), base + 3 * adapters) << "before the base is received";
  for (size_t turn = 0; turn < 2 * kVersions; ++turn) {
    const size_t version = turn % kVersions;
    ASSERT_THAT(rig.arenas().MapBase(lender.Lend()), IsOk());
    EXPECT_EQ(rig.arenas().bytes(), 3 * adapters) << "the base is the lender's";
    ASSERT_NO_FATAL_FAILURE(rig.Install({1, static_cast<int64_t>(turn)}, version));
    EXPECT_EQ(rig.Answer(), expected[version]) << "turn " << turn;
    EXPECT_TRUE(lender.IsWritten()) << "this decoder has its adapters between the matrices of the base";
    EXPECT_TRUE(lender.IsIntact());

    ASSERT_THAT(rig.engine().Sleep(/*keep_weights=*/true).status(), IsOk());
    EXPECT_EQ(rig.arenas().bytes(), 0);
    ASSERT_THAT(rig.engine().WakeUp(), IsOk());
    EXPECT_EQ(rig.Answer(), expected[version]) << "after a sleep that keeps the weights, in turn " << turn;

    ASSERT_THAT(rig.engine().Yield().status(), IsOk());
    EXPECT_EQ(rig.arenas().bytes(), 0);
    ASSERT_THAT(rig.engine().WakeUp(), IsOk());
    EXPECT_EQ(rig.arenas().bytes(), 3 * adapters);
  }
  // A base that is sent takes memory of the engine's own.
  ASSERT_NO_FATAL_FAILURE(rig.WriteBase());
  EXPECT_EQ(rig.arenas().bytes(), base + 3 * adapters);
  ASSERT_NO_FATAL_FAILURE(rig.Install({1, 100}, 1));
  EXPECT_EQ(rig.Answer(), expected[1]);
  ASSERT_THAT(rig.engine().Sleep(/*keep_weights=*/true).status(), IsOk());
  ASSERT_THAT(rig.engine().WakeUp(), IsOk());
  EXPECT_EQ(rig.arenas().bytes(), base + 3 * adapters);
  EXPECT_EQ(rig.Answer(), expected[1]) << "after a sleep that keeps its own base";
}

// What one engine has left in the free rows of the base is not what the next one computes with.
TEST(MappedBaseEngineOnGpu, AnEngineThatMapsTheBaseAfterAnotherHasNothingOfItsAdapters) {
  SYNCOPATE_NEED_GPUS(1);
  const Versions versions;
  const Lender lender(versions);
  std::vector<std::vector<float>> expected;
  {
    Rig fresh(versions, CudaInstall::kMappedBase);
    ASSERT_THAT(fresh.arenas().MapBase(lender.Lend()), IsOk());
    ASSERT_NO_FATAL_FAILURE(fresh.Install({1, 0}, 0));
    expected = fresh.Answer();
    for (int64_t step = 1; step < 4; ++step) ASSERT_NO_FATAL_FAILURE(fresh.Install({1, step}, 2));
  }
  Rig successor(versions, CudaInstall::kMappedBase);
  ASSERT_THAT(successor.arenas().MapBase(lender.Lend()), IsOk());
  ASSERT_NO_FATAL_FAILURE(successor.Install({1, 0}, 0));
  EXPECT_EQ(successor.Answer(), expected);
}

}  // namespace
}  // namespace syncopate::rollouter
