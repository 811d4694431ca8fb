#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "ranks/thread_ranks.h"
#include "rollouter/engine/engine.h"
#include "rollouter/engine/engine_commands.h"
#include "rollouter/engine/rank_slice.h"
#include "tests/support/follower_threads.h"
#include "tests/support/recording_sink.h"
#include "tests/support/small_model.h"

namespace syncopate::rollouter {
namespace {

using ::testing::HasSubstr;
using testing::RecordingSink;

std::vector<char> Weights(const model::ModelConfig& config, const Manifest& whole, uint64_t seed) {
  std::vector<char> arena(static_cast<size_t>(whole.arena_bytes()));
  auto* const numbers = reinterpret_cast<float*>(arena.data());
  // With adapters all versions have one base.
  model::InitialiseWeights(config, whole, config.lora.enabled() ? 7 : seed, numbers);
  for (size_t i = 0; i < whole.tensors().size(); ++i) {
    if (!whole.tensors()[i].adapter) continue;
    for (int64_t n = 0; n < whole.tensors()[i].NumElements(); ++n) {
      numbers[whole.ranges()[i].begin / 4 + n] =
          static_cast<float>(Philox4x32(seed * 1000 + i, static_cast<uint64_t>(n))[0] % 1000) * 4e-4f - 0.2f;
    }
  }
  return arena;
}

// An engine over `world` ranks, which are threads. One rank is an engine without tensor parallelism.
class Replica {
 public:
  Replica(const model::ModelConfig& config, int32_t world, const Engine::Options& options)
      : config_(config), whole_(*model::MakeWireManifest(config, DType::kFloat32)), world_(world) {
    at::set_num_threads(1);
    std::shared_ptr<EngineBackend> backend;
    if (world == 1) {
      backend = std::make_shared<HostBackend>(config, whole_);
      backends_.push_back(backend);
    } else {
      slice_ = MakeRankSlice(config, whole_, world).value();
      ranks_ = MakeThreadRanks(world, absl::Seconds(20));
      for (const auto& rank : ranks_) {
        backends_.push_back(
            std::make_shared<HostBackend>(slice_->config, slice_->manifest, HostInstall::kSwap, rank.get()));
      }
      followers_ = std::make_unique<testing::FollowerThreads>(
          world, [this](int32_t rank) { return backends_[static_cast<size_t>(rank)]; },
          [](const absl::Status& why) { ADD_FAILURE() << why; });
      backend = MakeLeadingBackend(backends_[0], followers_.get());
    }
    engine_ = Engine::Create(config, backend, options).value();
    Install({1, 0}, 7);
  }
  ~Replica() {
    if (followers_ != nullptr) followers_->Stop();
  }

  // Does the work of the receivers of all ranks: each rank has its slice before any rank installs.
  void Install(const PolicyVersion& version, uint64_t seed) {
    const std::vector<char> arena = Weights(config_, whole_, seed);
    if (followers_ != nullptr) followers_->AwaitDone();  // the followers' weights change a moment after rank 0's
    for (int32_t rank = 0; rank < world_; ++rank) {
      char* const to = backends_[static_cast<size_t>(rank)]->arenas().shadow();
      if (world_ == 1) {
        std::copy(arena.begin(), arena.end(), to);
      } else {
        CopyRankSlice(whole_, *slice_, rank, arena.data(), to);
      }
    }
    EXPECT_TRUE(engine_->Synchronize().ok());
    EXPECT_TRUE(engine_->policy().Install(version, seed).ok());
  }
  std::shared_ptr<RecordingSink> Add(GenerationRequest request) {
    auto sink = std::make_shared<RecordingSink>();
    EXPECT_TRUE(engine_->CheckShape(request).ok());
    engine_->Add(std::move(request), sink);
    return sink;
  }
  void Step() { ASSERT_TRUE(engine_->Step().ok()); }
  void RunDry() {
    while (engine_->HasWork()) Step();
  }
  Engine& engine() { return *engine_; }
  EngineBackend& backend(int32_t rank) { return *backends_[static_cast<size_t>(rank)]; }
  const RankSlice& slice() const { return *slice_; }
  testing::FollowerThreads& followers() { return *followers_; }

 private:
  const model::ModelConfig config_;
  const Manifest whole_;
  const int32_t world_;
  std::optional<RankSlice> slice_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
  std::vector<std::shared_ptr<EngineBackend>> backends_;
  std::unique_ptr<testing::FollowerThreads> followers_;
  std::unique_ptr<Engine> engine_;
};

GenerationRequest RandomRequest(const model::ModelConfig& config, uint64_t seed, float temperature) {
  GenerationRequest request;
  request.id = absl::StrCat("request-", seed);
  const int64_t length = 1 + Philox4x32(seed, 0)[0] % (config.max_position_embeddings / 2);
  for (int64_t i = 0; i < length; ++i)
    request.prompt_ids.push_back(static_cast<int32_t>(Philox4x32(seed, 1 + i)[0] % config.vocab_size));
  request.sampling.max_new_tokens = static_cast<int32_t>(config.max_position_embeddings / 2);
  request.sampling.temperature = temperature;
  request.seeds = {SampleSeed(seed, 0), SampleSeed(seed, 1)};
  return request;
}

std::vector<Trajectory> Answers(Replica& replica, const model::ModelConfig& config, float temperature) {
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (uint64_t i = 0; i < 6; ++i) sinks.push_back(replica.Add(RandomRequest(config, 100 + i, temperature)));
  replica.RunDry();
  std::vector<Trajectory> answers;
  for (const auto& sink : sinks) {
    for (auto& [sample, answer] : sink->finished) answers.push_back(answer);
  }
  return answers;
}

void ExpectSame(const std::vector<Trajectory>& ours, const std::vector<Trajectory>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].tokens, theirs[i].tokens) << "answer " << i;
    ASSERT_EQ(ours[i].logprobs.size(), theirs[i].logprobs.size());
    for (size_t t = 0; t < ours[i].logprobs.size(); ++t) {
      EXPECT_NEAR(ours[i].logprobs[t], theirs[i].logprobs[t], 1e-5) << "answer " << i << ", token " << t;
    }
  }
}

// Eight query heads over two key/value heads: with four ranks, two ranks have each key/value head.
model::ModelConfig WideModel() {
  model::ModelConfig config = testing::GroupedQueryModel();
  config.num_attention_heads = 8;
  config.hidden_size = 64;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  return config;
}

struct Case {
  model::ModelConfig config;
  int32_t ranks;
  bool deterministic = false;
};
class TensorParallelEngineTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Models, TensorParallelEngineTest,
                         ::testing::Values(Case{testing::SmallModel(), 2}, Case{testing::GroupedQueryModel(), 2},
                                           Case{WideModel(), 2}, Case{WideModel(), 4}, Case{WideModel(), 8},
                                           Case{WideModel(), 2, true}, Case{testing::RoutedModel(), 2}));

TEST_P(TensorParallelEngineTest, DrawsTheTokensOfOneRankWithTheSameLogProbs) {
  const auto& [config, ranks, deterministic] = GetParam();
  for (float temperature : {0.0f, 1.0f}) {
    const Engine::Options options{.max_prefill_tokens = 7, .deterministic = deterministic};
    Replica one(config, 1, options), several(config, ranks, options);
    ExpectSame(Answers(several, config, temperature), Answers(one, config, temperature));
  }
}

TEST(TensorParallelTest, AllRanksAnswerByTheirBaseIfAsked) {
  const model::ModelConfig config = WideModel();
  Replica adapted(testing::WithAdapters(config), 2, {}), plain(config, 2, {});
  GenerationRequest request = RandomRequest(config, 5, 1.0f);
  const auto expected = plain.Add(request);
  plain.RunDry();
  request.by_base = true;
  const auto answer = adapted.Add(request);
  adapted.Add(RandomRequest(config, 6, 1.0f));
  adapted.RunDry();
  EXPECT_EQ(answer->finished.at(0).tokens, expected->finished.at(0).tokens);
  EXPECT_EQ(answer->finished.at(0).logprobs, expected->finished.at(0).logprobs);
  EXPECT_TRUE(answer->finished.at(0).spans.at(0).version.IsNone());
}

TEST(TensorParallelTest, AllRanksAnswerByAPinnedVersionBesideNewerOnes) {
  const model::ModelConfig config = testing::WithAdapters(WideModel());
  Replica one(config, 1, {}), two(config, 2, {}), calm(config, 1, {});
  GenerationRequest pinned = RandomRequest(config, 5, 1.0f);
  const auto alone = calm.Add(pinned);
  calm.RunDry();
  pinned.holds_install = true;
  std::vector<std::vector<Trajectory>> answers;
  for (Replica* replica : {&one, &two}) {
    const auto evaluation = replica->Add(pinned);
    const auto policy = replica->Add(RandomRequest(config, 6, 1.0f));
    for (int64_t step = 1; step < 5; ++step) {
      replica->Step();
      replica->Install({1, step}, 7 + static_cast<uint64_t>(step));
      for (int32_t rank = 0; replica == &two && rank < 2; ++rank) {
        replica->followers().AwaitDone();
        EXPECT_EQ(replica->backend(rank).arenas().shadow_set(), replica->backend(0).arenas().shadow_set());
        EXPECT_EQ(replica->backend(rank).arenas().bytes(),
                  replica->slice().manifest.adapters_begin() +
                      3 * (replica->slice().manifest.arena_bytes() - replica->slice().manifest.adapters_begin()));
      }
    }
    replica->RunDry();
    EXPECT_EQ(evaluation->finished.at(0).spans.front().version, (PolicyVersion{1, 0}));
    EXPECT_EQ(evaluation->finished.at(0).tokens, alone->finished.at(0).tokens);
    EXPECT_EQ(policy->finished.at(0).spans.back().version, (PolicyVersion{1, 4}));
    answers.push_back({evaluation->finished.at(0), evaluation->finished.at(1), policy->finished.at(0)});
  }
  ExpectSame(answers[1], answers[0]);
}

TEST(RankSliceTest, EachRankLeavesRowsForTheAdaptersOfItsSliceAndThoseLieApart) {
  const model::ModelConfig config = testing::WithAdapters(testing::GroupedQueryModel(), /*rank=*/4);
  const Manifest whole = *model::MakeWireManifest(config, DType::kBFloat16);
  const RankSlice slice = *MakeRankSlice(config, whole, 2);
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < slice.manifest.tensors().size(); ++i) places[slice.manifest.tensors()[i].name] = i;
  const std::string layer = "model.layers.0.";
  const std::vector<std::pair<std::string, int64_t>> expected = {{"self_attn.qkv_proj.weight", 2 * 3 * 4},
                                                                 {"self_attn.o_proj.weight", 2 * 4},
                                                                 {"mlp.gate_up_proj.weight", 2 * 2 * 4},
                                                                 {"mlp.down_proj.weight", 2 * 4},
                                                                 {"input_layernorm.weight", 0}};
  for (const auto& [name, rows] : expected) {
    const size_t at = places.at(layer + name);
    const TensorSpec& spec = slice.manifest.tensors()[at];
    EXPECT_EQ(spec.spare_rows, rows) << name;
    EXPECT_GE(slice.manifest.ranges()[at + 1].begin - slice.manifest.ranges()[at].end, spec.SpareBytes()) << name;
  }
  EXPECT_EQ(slice.manifest.adapters_begin() % Manifest::kMappingBytes, 0);
  EXPECT_LT(slice.manifest.adapters_begin(), slice.manifest.arena_bytes());
  EXPECT_EQ(model::MakeWireManifest(config, DType::kFloat32)->tensors()[1].spare_rows, 0) << "for graphs on GPUs alone";
}

TEST(TensorParallelTest, EachRankHoldsItsPartOfWeightsAndKeysAlone) {
  const model::ModelConfig config = WideModel();
  Replica one(config, 1, {}), two(config, 2, {});
  const int64_t tables = config.vocab_size * config.hidden_size * 4;
  const int64_t whole = one.backend(0).arenas().bytes() / 2, half = two.backend(1).arenas().bytes() / 2;
  EXPECT_LT(half - tables, (whole - tables) * 0.6);
  EXPECT_EQ(two.slice().config.num_attention_heads, 4);
  EXPECT_EQ(two.slice().config.num_key_value_heads, 1);
  EXPECT_LT(two.engine().kv_bytes(), one.engine().kv_bytes() * 0.6 + (1 << 20));
}

TEST(TensorParallelTest, AllRanksInstallBetweenTheSameTwoPlans) {
  const model::ModelConfig config = WideModel();
  Replica one(config, 1, {}), two(config, 2, {});
  std::vector<Trajectory> answers[2];
  for (Replica* replica : {&one, &two}) {
    auto sink = replica->Add(RandomRequest(config, 5, /*temperature=*/1));
    for (int64_t step = 1; replica->engine().HasWork(); ++step) {
      replica->Step();
      if (step % 3 != 0 || step > 9) continue;
      // Rank 0 alone decides when to install; the weights of all ranks must be in their shadow arenas by then.
      replica->Install({1, step}, 7 + static_cast<uint64_t>(step));
    }
    for (auto& [sample, answer] : sink->finished) answers[replica == &two].push_back(answer);
  }
  ExpectSame(answers[1], answers[0]);
  ASSERT_FALSE(answers[1].empty());
  EXPECT_GT(answers[1][0].spans.size(), 2u);
  for (size_t i = 0; i < answers[1].size(); ++i) EXPECT_EQ(answers[1][i].spans, answers[0][i].spans);
  two.followers().Stop();
  const testing::FollowerThreads::Installs& installs = two.followers().installs()[0];
  ASSERT_EQ(installs.size(), 4u);
  EXPECT_EQ(installs.back().second, (PolicyVersion{1, 9}));
}

TEST(TensorParallelTest, AllRanksSleepAndWakeTogether) {
  const model::ModelConfig config = WideModel();
  Replica two(config, 2, {});
  const std::vector<Trajectory> before = Answers(two, config, 1);
  ASSERT_TRUE(two.engine().Sleep(/*keep_weights=*/true).ok());
  ASSERT_TRUE(two.engine().WakeUp().ok());
  ExpectSame(Answers(two, config, 1), before);
  ASSERT_TRUE(two.engine().Sleep(/*keep_weights=*/false).ok());
  two.followers().Stop();
  EXPECT_EQ(two.backend(1).arenas().bytes(), 0);
}

TEST(TensorParallelTest, ARankThatIsLostEndsTheNextStepWithAnErrorInsteadOfAnAnswer) {
  const model::ModelConfig config = WideModel();
  const Manifest whole = *model::MakeManifest(config, DType::kFloat32);
  const RankSlice slice = MakeRankSlice(config, whole, 2).value();
  auto ranks = MakeThreadRanks(2, absl::Seconds(20));
  auto backend = std::make_shared<HostBackend>(slice.config, slice.manifest, HostInstall::kSwap, ranks[0].get());
  auto engine = Engine::Create(config, backend, {}).value();
  ASSERT_TRUE(engine->policy().Install({1, 0}, 7).ok());
  engine->Add(RandomRequest(config, 5, 1), std::make_shared<RecordingSink>());
  ranks[1].reset();
  EXPECT_EQ(ErrorReason(engine->Step()), "RANK_LOST");
}

TEST(RankSliceTest, SizesThatDoNotDivideHeadsAreRefusedWithThoseThatDo) {
  model::ModelConfig config = testing::GroupedQueryModel();  // 6 query heads over 2 key/value heads
  EXPECT_TRUE(CheckTensorParallel(config, 1).ok());
  EXPECT_TRUE(CheckTensorParallel(config, 2).ok());
  const absl::Status four = CheckTensorParallel(config, 4);
  EXPECT_EQ(ErrorReason(four), "BAD_CONFIG");
  EXPECT_THAT(std::string(four.message()), HasSubstr("6 query heads, 2 key/value heads"));
  EXPECT_THAT(std::string(four.message()), HasSubstr("it may be 1, 2"));
  EXPECT_FALSE(CheckTensorParallel(config, 3).ok());
  config.num_attention_heads = config.num_key_value_heads = 8;
  config.intermediate_size = 60;
  EXPECT_FALSE(CheckTensorParallel(config, 8).ok());
  EXPECT_TRUE(CheckTensorParallel(config, 4).ok());
}

}  // namespace
}  // namespace syncopate::rollouter
