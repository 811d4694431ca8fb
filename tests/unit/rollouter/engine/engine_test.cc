#include "rollouter/engine/engine.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "base/philox.h"
#include "model/decoder_spec.h"
#include "ranks/communicator.h"
#include "tests/support/recording_sink.h"
#include "tests/support/small_model.h"
#include "trainer/actor/actor.h"
#include "trainer/step/train_step.h"

namespace syncopate::rollouter {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::RecordingSink;
using ::testing::SizeIs;

struct Rig {
  explicit Rig(const model::ModelConfig& config, int64_t max_sequences = 64, int64_t max_prefill_tokens = 4096)
      : Rig(config, Engine::Options{.max_sequences = max_sequences, .max_prefill_tokens = max_prefill_tokens}) {}
  Rig(const model::ModelConfig& config, const Engine::Options& options)
      : Rig(config, options, std::make_shared<HostBackend>(config, *model::MakeWireManifest(config, DType::kFloat32))) {
  }
  Rig(const model::ModelConfig& config, const Engine::Options& options, std::shared_ptr<EngineBackend> backend)
      : config(config),
        manifest(*model::MakeWireManifest(config, DType::kFloat32)),
        made(Engine::Create(config, std::move(backend), options).value()),
        engine(*made) {
    at::set_num_threads(1);
    Install({1, 0}, 7);
  }
  void Install(const PolicyVersion& version, uint64_t seed) {
    model::InitialiseWeights(config, manifest, seed, reinterpret_cast<float*>(engine.policy().shadow()));
    EXPECT_TRUE(engine.Synchronize().ok());
    EXPECT_TRUE(engine.policy().Install(version, seed).ok());
  }
  std::shared_ptr<RecordingSink> Add(GenerationRequest request) {
    auto sink = std::make_shared<RecordingSink>();
    EXPECT_TRUE(engine.CheckShape(request).ok());
    engine.Add(std::move(request), sink);
    return sink;
  }
  void RunDry() {
    while (engine.HasWork()) Step();
  }
  void Step() { ASSERT_TRUE(engine.Step().ok()); }

  model::ModelConfig config;
  Manifest manifest;
  std::unique_ptr<Engine> made;
  Engine& engine;
};

GenerationRequest RandomRequest(const model::ModelConfig& config, uint64_t seed, int samples = 1) {
  GenerationRequest request;
  request.id = absl::StrCat("request-", seed);
  const int64_t length = 1 + Philox4x32(seed, 0)[0] % (config.max_position_embeddings / 2);
  for (int64_t i = 0; i < length; ++i) request.prompt_ids.push_back(Philox4x32(seed, 1 + i)[0] % config.vocab_size);
  request.sampling.max_new_tokens = static_cast<int32_t>(config.max_position_embeddings / 2);
  for (int i = 0; i < samples; ++i) request.seeds.push_back(SampleSeed(seed, i));
  return request;
}

Trajectory Alone(const model::ModelConfig& config, const GenerationRequest& request) {
  Rig rig(config);
  auto sink = rig.Add(request);
  rig.RunDry();
  return sink->finished.at(0);
}

class EngineOverModels : public ::testing::TestWithParam<model::ModelConfig> {};
INSTANTIATE_TEST_SUITE_P(Models, EngineOverModels,
                         ::testing::Values(testing::SmallModel(), testing::GroupedQueryModel()));

TEST_P(EngineOverModels, GivesTheSameTokensAndLogProbsAloneAndInAnyBatch) {
  const GenerationRequest request = RandomRequest(GetParam(), 1000);
  const Trajectory alone = Alone(GetParam(), request);
  for (int neighbours : {1, 2, 3, 5, 12, 31, 63}) {
    Rig rig(GetParam());
    for (int i = 0; i < neighbours / 2; ++i) rig.Add(RandomRequest(GetParam(), 2000 + i));
    for (int i = 0; i < neighbours % 4 && rig.engine.HasWork(); ++i) rig.Step();  // other requests are ahead
    auto sink = rig.Add(request);
    for (int i = neighbours / 2; i < neighbours; ++i) rig.Add(RandomRequest(GetParam(), 2000 + i));
    rig.RunDry();
    EXPECT_EQ(sink->finished.at(0).tokens, alone.tokens) << neighbours << " neighbours";
    EXPECT_EQ(sink->finished.at(0).logprobs, alone.logprobs) << neighbours << " neighbours";
  }
}

TEST_P(EngineOverModels, GivesTheSameTokensWhenThePromptIsPrefilledInChunks) {
  const GenerationRequest request = RandomRequest(GetParam(), 1003);
  const Trajectory whole = Alone(GetParam(), request);
  Rig rig(GetParam(), 64, /*max_prefill_tokens=*/2);
  auto sink = rig.Add(request);
  rig.RunDry();
  EXPECT_EQ(sink->finished.at(0).tokens, whole.tokens);
  EXPECT_EQ(sink->finished.at(0).logprobs, whole.logprobs);
}

// A backend that prefers few prompt tokens at once, as the CPU does, and fewer with the deterministic option.
class PatientBackend final : public EngineBackend {
 public:
  explicit PatientBackend(const model::ModelConfig& config)
      : host_(config, *model::MakeWireManifest(config, DType::kFloat32)) {}
  at::Device device() const override { return host_.device(); }
  DType dtype() const override { return host_.dtype(); }
  WeightArenas& arenas() override { return host_.arenas(); }
  int64_t kv_block_bytes() const override { return host_.kv_block_bytes(); }
  int64_t prefill_tokens(bool deterministic) const override { return deterministic ? 2 : 3; }
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) override {
    return host_.MakeRunner(options);
  }

 private:
  HostBackend host_;
};

TEST(EngineTest, TheBackendChoosesHowManyPromptTokensAStepTakesUnlessANumberIsGiven) {
  const model::ModelConfig config = testing::SmallModel();
  auto of_a_step = [&](const Engine::Options& options) {
    Rig rig(config, options, std::make_shared<PatientBackend>(config));
    GenerationRequest request = RandomRequest(config, 1);
    request.prompt_ids.assign(6, 1);
    rig.Add(request);
    rig.Step();
    return rig.engine.prefilled_tokens();
  };
  EXPECT_EQ(of_a_step({}), 3);
  EXPECT_EQ(of_a_step({.deterministic = true}), 2);
  EXPECT_EQ(of_a_step({.max_prefill_tokens = 5}), 5);
}

TEST_P(EngineOverModels, SamplesOfOneGroupEqualRequestsOfTheirOwn) {
  const GenerationRequest group = RandomRequest(GetParam(), 1001, 8);
  Rig rig(GetParam());
  auto sink = rig.Add(group);
  rig.RunDry();
  for (int i = 0; i < 8; ++i) {
    GenerationRequest single = group;
    single.seeds = {group.seeds[i]};
    EXPECT_EQ(sink->finished.at(i).tokens, Alone(GetParam(), single).tokens) << i;
  }
}

TEST_P(EngineOverModels, AnInstallOfEqualWeightsInTheMiddleChangesNoToken) {
  const GenerationRequest request = RandomRequest(GetParam(), 1002);
  const Trajectory calm = Alone(GetParam(), request);
  ASSERT_GE(calm.tokens.size(), 4u);
  Rig rig(GetParam());
  auto sink = rig.Add(request);
  rig.Step();
  rig.Step();
  rig.Install({1, 1}, 7);
  rig.RunDry();
  EXPECT_EQ(sink->finished.at(0).tokens, calm.tokens);
  EXPECT_EQ(sink->finished.at(0).logprobs, calm.logprobs);
}

TEST_P(EngineOverModels, LogProbsEqualTheTrainersForward) {
  Rig rig(GetParam());
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 20; ++i) {
    requests.push_back(RandomRequest(GetParam(), 3000 + i));
    requests.back().sampling.temperature = 0.8f;
    sinks.push_back(rig.Add(requests.back()));
  }
  rig.RunDry();
  trainer::Actor actor(GetParam(), rig.manifest, {}, /*seed=*/7);
  SingleRank ranks;
  trainer::TrainStepOptions options;
  options.temperature = 0.8f;
  trainer::TrainStep step(actor, ranks, options);
  std::vector<trainer::TrainingSequence> sequences;
  for (int i = 0; i < 20; ++i) sequences.push_back({&requests[i].prompt_ids, &sinks[i]->finished.at(0), 0.0});
  const trainer::PackedBatch batch = trainer::Pack(sequences);
  EXPECT_LE((*step.LogProbs(batch) - batch.tokens.behaviour).abs().max().item<double>(), 1e-5);
}

// Two engines may differ in all these settings without a difference in a token.
TEST_P(EngineOverModels, GivesTheSameTokensOneStepBehindAndInMemoryThatIsTooSmall) {
  model::ModelConfig config = GetParam();
  config.max_position_embeddings = 64;
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 12; ++i) requests.push_back(RandomRequest(config, 4000 + i, 1 + static_cast<int>(i % 4)));
  requests[5].prompt_ids = requests[4].prompt_ids;
  requests[5].prompt_ids.resize(40, 3);  // the next prompt can share two blocks
  requests[6].prompt_ids = requests[5].prompt_ids;
  requests[6].prompt_ids.back() = 1;
  auto run = [&](Engine::Options options, Scheduler::Counters& counters) {
    Rig rig(config, options);
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (const GenerationRequest& request : requests) {
      sinks.push_back(rig.Add(request));
      if (rig.engine.HasWork()) rig.Step();
    }
    rig.RunDry();
    counters = rig.engine.counters();
    EXPECT_EQ(rig.engine.running_sequences(), 0);
    return sinks;
  };
  Scheduler::Counters counters;
  const auto calm = run({.max_sequences = 32}, counters);
  EXPECT_EQ(counters.preemptions, 0);
  EXPECT_GT(counters.shared_tokens, 0);
  using Preemption = Scheduler::Preemption;
  for (const Engine::Options& options :
       {Engine::Options{.max_sequences = 32, .plans_under_way = 2},
        {.max_sequences = 32, .kv_blocks = 12},
        {.max_sequences = 32, .max_kept_blocks = 0},
        {.max_sequences = 32, .max_prefill_tokens = 7, .kv_blocks = 12, .plans_under_way = 2},
        {.max_sequences = 32,
        .kv_blocks = 12,
        .host_kv_blocks = 40,
        .plans_under_way = 2,
        .preemption = Preemption::kSwap}}) {
    const auto sinks = run(options, counters);
    if (options.kv_blocks > 0) {
      EXPECT_GT(counters.preemptions, 0);
    }
    EXPECT_EQ(counters.swaps > 0, options.preemption == Preemption::kSwap);
    for (size_t i = 0; i < sinks.size(); ++i) {
      for (const auto& [sample, trajectory] : calm[i]->finished) {
        EXPECT_EQ(sinks[i]->finished.at(sample).tokens, trajectory.tokens) << "request " << i;
        EXPECT_EQ(sinks[i]->finished.at(sample).logprobs, trajectory.logprobs) << "request " << i;
      }
    }
  }
}

TEST_P(EngineOverModels, GoesOnBehindTokensOfAnEarlierLeaseAsIfNothingHadHappened) {
  const GenerationRequest request = RandomRequest(GetParam(), 1010, /*samples=*/3);
  Rig rig(GetParam());
  auto whole = rig.Add(request);
  rig.RunDry();
  GenerationRequest rest = request;
  rest.id = "rest";
  for (int sample = 0; sample < 3; ++sample) {
    const std::vector<int32_t>& tokens = whole->finished.at(sample).tokens;
    const int64_t begun = sample * (std::ssize(tokens) - 1) / 2;  // none, half of them, and all but the last
    rest.starts.emplace_back(tokens.begin(), tokens.begin() + begun);
  }
  auto sink = rig.Add(rest);
  rig.RunDry();
  for (int sample = 0; sample < 3; ++sample) {
    const Trajectory& before = whole->finished.at(sample);
    const Trajectory& after = sink->finished.at(sample);
    const auto begun = static_cast<int64_t>(rest.starts[static_cast<size_t>(sample)].size());
    EXPECT_EQ(after.tokens, before.tokens) << sample;
    EXPECT_EQ(after.finish, before.finish);
    EXPECT_TRUE(std::equal(before.logprobs.begin() + begun, before.logprobs.end(), after.logprobs.begin() + begun));
    EXPECT_EQ(WrittenTokens(after), std::ssize(before.tokens) - begun);
    EXPECT_EQ(after.spans.back().end, std::ssize(after.tokens));
    EXPECT_EQ(after.spans.front().begin, begun);
  }
}

TEST(EngineTest, RefusesStartsThatLeaveNoTokenToDraw) {
  Rig rig(testing::SmallModel());
  GenerationRequest request = RandomRequest(rig.config, 1011, /*samples=*/2);
  request.starts = {{1}};
  EXPECT_EQ(ErrorReason(rig.engine.CheckShape(request)), "BAD_REQUEST") << "one start for two samples";
  request.starts = {{1}, std::vector<int32_t>(static_cast<size_t>(request.sampling.max_new_tokens), 1)};
  EXPECT_EQ(ErrorReason(rig.engine.CheckShape(request)), "BAD_REQUEST");
  request.starts = {{1}, {static_cast<int32_t>(rig.config.vocab_size)}};
  EXPECT_EQ(ErrorReason(rig.engine.CheckShape(request)), "BAD_REQUEST");
  request.starts = {{1}, {}};
  EXPECT_TRUE(rig.engine.CheckShape(request).ok());
}

TEST(EngineTest, OneStepBehindVersionsAreThoseThatMadeTheTokensAcrossInstalls) {
  Rig rig(testing::GroupedQueryModel(), Engine::Options{.plans_under_way = 2});
  GenerationRequest request = RandomRequest(rig.config, 5);
  request.sampling.max_new_tokens = 6;
  auto sink = rig.Add(request);
  rig.Step();
  rig.Step();
  rig.Install({1, 1}, 8);  // two steps are in progress and belong to the old version
  rig.RunDry();
  EXPECT_THAT(sink->finished.at(0).spans, ElementsAre(VersionSpan{{1, 0}, 0, 2}, VersionSpan{{1, 1}, 2, 6}));
}

// Ends its samples after two tokens.
class EndingSink final : public GenerationSink {
 public:
  bool OnToken(int32_t, int32_t, float, const PolicyVersion&, const std::vector<TokenLogProb>&) override {
    return ++tokens < 2;
  }
  void OnFinished(int32_t, Trajectory trajectory) override { finished = std::move(trajectory); }
  int tokens = 0;
  Trajectory finished;
};

TEST(EngineTest, ASinkMayEndItsSampleAtATokenAndWhatWasLaunchedBeyondItIsNotCounted) {
  for (int32_t plans : {1, 2}) {
    Rig rig(testing::GroupedQueryModel(), Engine::Options{.plans_under_way = plans});
    GenerationRequest request = RandomRequest(rig.config, 1002);
    auto sink = std::make_shared<EndingSink>();
    rig.engine.Add(request, sink);
    rig.RunDry();
    EXPECT_EQ(sink->tokens, 2);
    EXPECT_THAT(sink->finished.tokens, SizeIs(2));
    EXPECT_EQ(sink->finished.finish, FinishReason::kStop);
    EXPECT_EQ(rig.engine.generated_tokens(), 2);
    EXPECT_EQ(rig.engine.counters().thrown_away, plans - 1);
    EXPECT_EQ(rig.engine.running_sequences(), 0);
  }
}

TEST(EngineTest, ReportsTheLikeliestTokensOfEachPlaceIfAsked) {
  Rig rig(testing::GroupedQueryModel());
  GenerationRequest request = RandomRequest(rig.config, 1002);
  request.sampling.top_logprobs = 3;
  request.sampling.temperature = 0;
  auto sink = rig.Add(request);
  auto without = rig.Add(RandomRequest(rig.config, 1003));
  rig.RunDry();
  const Trajectory& made = sink->finished.at(0);
  ASSERT_EQ(made.top_logprobs.size(), made.tokens.size());
  for (size_t i = 0; i < made.tokens.size(); ++i) {
    ASSERT_THAT(made.top_logprobs[i], SizeIs(3));
    EXPECT_EQ(made.top_logprobs[i][0], (TokenLogProb{made.tokens[i], made.logprobs[i]}));
    EXPECT_GE(made.top_logprobs[i][0].logprob, made.top_logprobs[i][1].logprob);
  }
  EXPECT_THAT(without->finished.at(0).top_logprobs, SizeIs(0));
}

TEST(EngineTest, PenaltiesKnowWhatWasDrawnBeforeAPreemption) {
  model::ModelConfig config = testing::GroupedQueryModel();
  config.max_position_embeddings = 64;
  auto run = [&](int64_t kv_blocks) {
    Rig rig(config, Engine::Options{.max_sequences = 4, .kv_blocks = kv_blocks});
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (uint64_t i = 0; i < 3; ++i) {
      GenerationRequest request = RandomRequest(config, 5000 + i);
      request.sampling.frequency_penalty = 0.7f;
      request.sampling.repetition_penalty = 1.3f;
      sinks.push_back(rig.Add(request));
    }
    rig.RunDry();
    EXPECT_EQ(rig.engine.counters().preemptions > 0, kv_blocks > 0);
    return sinks;
  };
  const auto calm = run(0), tight = run(5);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(tight[i]->finished.at(0).tokens, calm[i]->finished.at(0).tokens) << i;
}

TEST(EngineTest, TakesMemoryForTheTokensThereAre) {
  model::ModelConfig config = testing::SmallModel();
  config.max_position_embeddings = 20000;
  config.learned_positions = false;
  Rig rig(config, Engine::Options{.max_sequences = 256});
  auto sink = rig.Add(RandomRequest(testing::SmallModel(), 1));
  rig.RunDry();
  EXPECT_LE(rig.engine.kv_bytes(), 4 << 20);
}

TEST(EngineTest, StampsEveryTokenWithTheVersionThatMadeIt) {
  Rig rig(testing::GroupedQueryModel());
  GenerationRequest request = RandomRequest(rig.config, 5);
  request.sampling.max_new_tokens = 6;
  auto sink = rig.Add(request);
  rig.Step();
  rig.Step();
  rig.Install({1, 1}, 8);
  rig.Step();
  rig.Install({1, 3}, 9);
  rig.RunDry();
  EXPECT_THAT(sink->finished.at(0).spans,
              ElementsAre(VersionSpan{{1, 0}, 0, 2}, VersionSpan{{1, 1}, 2, 3}, VersionSpan{{1, 3}, 3, 6}));
}

TEST(EngineTest, ChangesTokensAfterAnInstallOfOtherWeights) {
  Rig rig(testing::GroupedQueryModel());
  const GenerationRequest request = RandomRequest(rig.config, 1002);
  const Trajectory calm = Alone(rig.config, request);
  auto sink = rig.Add(request);
  rig.Step();
  rig.Install({1, 1}, 99);
  rig.RunDry();
  EXPECT_EQ(sink->finished.at(0).tokens[0], calm.tokens[0]);
  EXPECT_NE(sink->finished.at(0).tokens, calm.tokens);
}

TEST(EngineTest, StopsAtAStopTokenAndKeepsIt) {
  Rig rig(testing::GroupedQueryModel());
  GenerationRequest request = RandomRequest(rig.config, 1002);
  const Trajectory free = Alone(rig.config, request);
  request.sampling.stop_token_ids = {free.tokens[1]};
  auto sink = rig.Add(request);
  rig.RunDry();
  EXPECT_EQ(sink->finished.at(0).finish, FinishReason::kStop);
  EXPECT_EQ(sink->finished.at(0).tokens.back(), free.tokens[1]);
  EXPECT_LE(sink->finished.at(0).tokens.size(), 2u);
}

TEST(EngineTest, EndsAtTheContextsEnd) {
  Rig rig(testing::SmallModel());
  GenerationRequest request;
  request.prompt_ids.assign(10, 1);
  request.seeds = {1};
  request.sampling.max_new_tokens = 1000;
  auto sink = rig.Add(request);
  rig.RunDry();
  EXPECT_EQ(sink->finished.at(0).finish, FinishReason::kLength);
  EXPECT_EQ(sink->finished.at(0).tokens.size(), 6u) << "prompt and answer fill the context of 16, and no more";
}

TEST(EngineTest, AbortEndsRunningAndWaitingRequestsAndFreesTheirSlots) {
  Rig rig(testing::SmallModel(), /*max_sequences=*/4);
  auto running = rig.Add(RandomRequest(rig.config, 1, 4));
  auto waiting = rig.Add(RandomRequest(rig.config, 2, 4));
  rig.Step();
  EXPECT_EQ(rig.engine.waiting_sequences(), 4);
  EXPECT_EQ(rig.engine.Abort("request-1"), 4);
  ASSERT_THAT(running->finished, SizeIs(4));
  EXPECT_EQ(running->finished.at(0).finish, FinishReason::kAborted);
  EXPECT_EQ(running->finished.at(0).tokens.size(), 1u);
  EXPECT_EQ(rig.engine.Abort(""), 4);
  EXPECT_THAT(waiting->finished, SizeIs(4));
  EXPECT_FALSE(rig.engine.HasWork());
  EXPECT_EQ(rig.engine.running_sequences(), 0);
}

TEST(EngineTest, RefusesRequestsThatCanNeverRun) {
  Rig rig(testing::SmallModel(), /*max_sequences=*/4);
  const GenerationRequest good = RandomRequest(rig.config, 1);
  std::vector<GenerationRequest> bad(13, good);
  bad[0].prompt_ids.clear();
  bad[1].prompt_ids = {11};
  bad[2].prompt_ids.assign(static_cast<size_t>(rig.config.max_position_embeddings), 1);  // leaves no room for an answer
  bad[3].seeds.assign(5, 1);
  bad[4].sampling.max_new_tokens = 0;
  bad[5].sampling.temperature = std::nanf("");
  bad[6].sampling.top_p = 1.5f;
  bad[7].sampling.min_p = -0.1f;
  bad[8].sampling.repetition_penalty = 0;
  bad[9].sampling.logit_bias = {{11, 1.0f}};
  bad[10].sampling.allowed_token_ids = {-1};
  bad[11].sampling.stop_sequences = {{}};
  bad[12].sampling.top_logprobs = 12;
  EXPECT_TRUE(rig.engine.CheckShape(good).ok());
  GenerationRequest longest = bad[2];
  longest.prompt_ids.pop_back();
  EXPECT_TRUE(rig.engine.CheckShape(longest).ok());
  for (const GenerationRequest& request : bad) {
    EXPECT_EQ(ErrorReason(rig.engine.CheckShape(request)), "BAD_REQUEST");
  }
}

// Installs a base of one seed, and adapters of another that change what it says.
void InstallAdapters(Rig& rig, const PolicyVersion& version, uint64_t base, uint64_t adapters) {
  auto* const arena = reinterpret_cast<float*>(rig.engine.policy().shadow());
  model::InitialiseWeights(rig.config, rig.manifest, base, arena);
  for (size_t i = 0; i < rig.manifest.tensors().size(); ++i) {
    const TensorSpec& spec = rig.manifest.tensors()[i];
    if (!model::IsAdapterName(spec.name)) continue;
    float* const values = arena + rig.manifest.ranges()[i].begin / sizeof(float);
    for (int64_t n = 0; n < spec.NumElements(); ++n) {
      values[n] = static_cast<float>(Philox4x32(adapters + i, static_cast<uint64_t>(n))[0] % 1000) * 1e-3f - 0.5f;
    }
  }
  ASSERT_TRUE(rig.engine.Synchronize().ok());
  ASSERT_TRUE(rig.engine.policy().Install(version, adapters).ok());
}

TEST_P(EngineOverModels, TheBaseAnswersBesideThePolicyAsAModelWithoutAdaptersDoesBitForBit) {
  constexpr uint64_t kBase = 7;  // the seed of Rig's own weights
  for (const bool deterministic : {false, true}) {
    const Engine::Options options{.max_sequences = 64, .max_prefill_tokens = 5, .deterministic = deterministic};
    GenerationRequest request = RandomRequest(GetParam(), 1004, /*samples=*/2);
    request.sampling.top_logprobs = 2;
    Rig alone(GetParam(), options);
    const auto expected = alone.Add(request);
    alone.RunDry();

    const model::ModelConfig adapted = testing::WithAdapters(GetParam());
    Rig rig(adapted, options);
    InstallAdapters(rig, {1, 1}, kBase, 50);
    for (int i = 0; i < 3; ++i) rig.Add(RandomRequest(adapted, 2000 + i));
    const auto policy = rig.Add(request);
    request.by_base = true;
    const auto base = rig.Add(request);
    for (int i = 3; i < 6; ++i) rig.Add(RandomRequest(adapted, 2000 + i));
    for (int i = 0; i < 4; ++i) rig.Step();
    InstallAdapters(rig, {1, 2}, kBase, 60);  // in the middle of all answers
    rig.RunDry();
    for (int32_t sample : {0, 1}) {
      const Trajectory &ours = base->finished.at(sample), &theirs = expected->finished.at(sample);
      EXPECT_EQ(ours.tokens, theirs.tokens);
      EXPECT_EQ(ours.logprobs, theirs.logprobs);
      EXPECT_EQ(ours.top_logprobs, theirs.top_logprobs);
      EXPECT_THAT(ours.spans, ElementsAre(VersionSpan{{}, 0, static_cast<int32_t>(ours.tokens.size())}));
      EXPECT_NE(policy->finished.at(sample).logprobs, theirs.logprobs);
      EXPECT_EQ(policy->finished.at(sample).spans.back().version, (PolicyVersion{1, 2}));
    }
    const int64_t shared = rig.engine.counters().shared_tokens;
    request.prompt_ids.resize(40 % (GetParam().max_position_embeddings - 2), 1);
    rig.Add(request);
    rig.RunDry();
    EXPECT_EQ(rig.engine.counters().shared_tokens, shared) << "another prompt";
    InstallAdapters(rig, {1, 3}, kBase, 70);
    rig.Add(request);
    rig.RunDry();
    const auto blocks = static_cast<int64_t>(request.prompt_ids.size() - 1) / kBlockTokens;
    EXPECT_EQ(rig.engine.counters().shared_tokens, shared + blocks * kBlockTokens) << "an install changes no base";
  }
}

// Answers of `request` by the adapters of one version alone.
std::vector<Trajectory> AnswersOf(const model::ModelConfig& config, const GenerationRequest& request, uint64_t adapters,
                                  const Engine::Options& options) {
  Rig rig(config, options);
  InstallAdapters(rig, {1, 1}, 7, adapters);
  const auto sink = rig.Add(request);
  rig.RunDry();
  std::vector<Trajectory> answers;
  for (const auto& [sample, answer] : sink->finished) answers.push_back(answer);
  return answers;
}

TEST_P(EngineOverModels, WhatPinsAVersionIsAnsweredByItBesideNewerOnesBitForBit) {
  constexpr uint64_t kBase = 7;
  for (const int32_t under_way : {1, 2}) {
    const Engine::Options options{.max_sequences = 64, .max_prefill_tokens = 5, .plans_under_way = under_way};
    const model::ModelConfig adapted = testing::WithAdapters(GetParam());
    GenerationRequest evaluation = RandomRequest(adapted, 1004, /*samples=*/2);
    const std::vector<Trajectory> expected = AnswersOf(adapted, evaluation, 50, options);
    GenerationRequest late = RandomRequest(adapted, 1005);
    const std::vector<Trajectory> expected_late = AnswersOf(adapted, late, 50, options);
    evaluation.holds_install = late.holds_install = true;

    Rig rig(adapted, options);
    InstallAdapters(rig, {1, 1}, kBase, 50);
    const auto policy = rig.Add(RandomRequest(adapted, 2000, /*samples=*/3));
    const auto pinned = rig.Add(evaluation);
    rig.Step();
    const auto joins = rig.Add(late);
    for (int step = 2; step < 5; ++step) {
      InstallAdapters(rig, {1, step}, kBase, 50 + 10 * static_cast<uint64_t>(step));
      rig.Step();
    }
    EXPECT_EQ(rig.engine.policy().pinned_version(), (PolicyVersion{1, 1}));
    rig.RunDry();
    for (const auto& [sample, answer] : pinned->finished) {
      EXPECT_EQ(answer.tokens, expected[static_cast<size_t>(sample)].tokens);
      EXPECT_EQ(answer.logprobs, expected[static_cast<size_t>(sample)].logprobs);
      EXPECT_THAT(answer.spans, ElementsAre(VersionSpan{{1, 1}, 0, static_cast<int32_t>(answer.tokens.size())}));
    }
    EXPECT_EQ(joins->finished.at(0).tokens, expected_late[0].tokens) << "an evaluation that begins meanwhile joins it";
    EXPECT_EQ(joins->finished.at(0).spans.front().version, (PolicyVersion{1, 1}));
    EXPECT_EQ(policy->finished.at(0).spans.back().version, (PolicyVersion{1, 4}));
    EXPECT_EQ(rig.engine.policy().pinned_version(), PolicyVersion());
    // The next one is answered by what is live now.
    const auto next = rig.Add(evaluation);
    rig.RunDry();
    EXPECT_EQ(next->finished.at(0).tokens, AnswersOf(adapted, evaluation, 90, options)[0].tokens);
    EXPECT_EQ(next->finished.at(0).spans.front().version, (PolicyVersion{1, 4}));
  }
}

TEST(EngineTest, AnInstallOfAdaptersDrainsNothing) {
  const model::ModelConfig adapted = testing::WithAdapters(testing::SmallModel());
  Rig rig(adapted, {.plans_under_way = 2});
  auto answer = rig.Add(RandomRequest(adapted, 1));
  rig.Step();
  ASSERT_TRUE(rig.engine.HasWork());
  const int64_t before = rig.engine.generated_tokens();
  ASSERT_TRUE(rig.engine.policy().Install({1, 1}, 1).ok());
  EXPECT_EQ(rig.engine.generated_tokens(), before) << "the plan that was launched is under way yet";
  rig.RunDry();
  EXPECT_EQ(answer->finished.at(0).spans.front().version, (PolicyVersion{1, 0}));
  EXPECT_EQ(answer->finished.at(0).spans.back().version, (PolicyVersion{1, 1}));
}

TEST(EngineTest, AdapterSetsShareOneBaseInMemory) {
  const model::ModelConfig adapted = testing::WithAdapters(testing::SmallModel());
  const Manifest manifest = *model::MakeWireManifest(adapted, DType::kFloat32);
  HostBackend backend(adapted, manifest);
  WeightArenas& arenas = backend.arenas();
  const int64_t base = manifest.adapters_begin(), adapters = manifest.arena_bytes() - base;
  EXPECT_EQ(base % Manifest::kMappingBytes, 0);
  EXPECT_EQ(base % manifest.bucket_bytes(), 0);
  EXPECT_EQ(arenas.bytes(), base + 3 * adapters);
  arenas.shadow()[base - 1] = 5;
  EXPECT_EQ(arenas.live()[base - 1], 5) << "the base is the same memory";
  arenas.shadow()[base] = 6;
  EXPECT_EQ(arenas.live()[base], 0) << "adapters are not";
  const char* const before = arenas.live();
  ASSERT_TRUE(arenas.Exchange({1, 1}, 1, absl::InfiniteDuration()).ok());
  EXPECT_NE(arenas.live(), before);
  EXPECT_EQ(arenas.live()[base], 6);
  EXPECT_EQ(arenas.shadow(), nullptr) << "none is chosen";
  arenas.ChooseShadow(0);
  ASSERT_TRUE(arenas.CopyLive({{0, manifest.arena_bytes()}}).ok());
  EXPECT_EQ(arenas.shadow()[base], 6);

  ASSERT_TRUE(arenas.Release(/*keep_live=*/true).ok());
  EXPECT_EQ(arenas.bytes(), base + adapters);
  ASSERT_TRUE(arenas.Restore().ok());
  EXPECT_EQ(arenas.bytes(), base + 3 * adapters);
  EXPECT_EQ(arenas.live()[base - 1], 5);
  EXPECT_EQ(arenas.live()[base], 6);
  EXPECT_EQ(arenas.shadow()[base], 0);
  ASSERT_TRUE(arenas.Release(/*keep_live=*/false).ok());
  EXPECT_EQ(arenas.bytes(), 0);
  ASSERT_TRUE(arenas.Restore().ok());
  EXPECT_EQ(arenas.live()[base - 1], 0);
  EXPECT_EQ(arenas.live()[base], 0);
}

// A backend whose runner knows nothing of the base, as those of GPUs.
class PolicyOnlyBackend final : public EngineBackend {
 public:
  explicit PolicyOnlyBackend(const model::ModelConfig& config)
      : host_(config, *model::MakeWireManifest(config, DType::kFloat32)), plain_(config.Base(), Plain(config)) {}
  at::Device device() const override { return host_.device(); }
  DType dtype() const override { return host_.dtype(); }
  WeightArenas& arenas() override { return host_.arenas(); }
  int64_t kv_block_bytes() const override { return host_.kv_block_bytes(); }
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) override {
    return plain_.MakeRunner(options);
  }

 private:
  static Manifest Plain(const model::ModelConfig& config) {
    return *model::MakeManifest(config.Base(), DType::kFloat32);
  }
  HostBackend host_, plain_;
};

TEST(EngineTest, RefusesToAnswerByABaseThatThereIsNotOrThatItsRunnerCannotRun) {
  const model::ModelConfig plain = testing::SmallModel(), adapted = testing::WithAdapters(plain);
  GenerationRequest request = RandomRequest(plain, 1);
  request.by_base = true;
  const Rig without(plain), with(adapted), policy_only(adapted, {}, std::make_shared<PolicyOnlyBackend>(adapted));
  EXPECT_EQ(ErrorReason(without.engine.CheckShape(request)), "NO_ADAPTERS");
  EXPECT_EQ(ErrorReason(policy_only.engine.CheckShape(request)), "BASE_NOT_SERVED");
  EXPECT_TRUE(with.engine.CheckShape(request).ok());
}

TEST(EngineTest, RefusesAContextLongerThanTheModelsAndSaysBoth) {
  const model::ModelConfig config = testing::SmallModel();
  const Manifest manifest = *model::MakeWireManifest(config, DType::kFloat32);
  const absl::Status refused = Engine::Create(config, std::make_shared<HostBackend>(config, manifest),
                                              {.max_context = config.max_position_embeddings + 1})
                                   .status();
  EXPECT_EQ(ErrorReason(refused), "BAD_REQUEST");
  EXPECT_EQ(refused.message(), absl::StrCat("max_context ", config.max_position_embeddings + 1,
                                            " is above the model's ", config.max_position_embeddings));
}

TEST(EngineTest, ARequestThatHoldsInstallsGoesFirstAndHoldsThemUntilItEnds) {
  Rig rig(testing::SmallModel(), /*max_sequences=*/1);
  auto running = rig.Add(RandomRequest(rig.config, 1));
  rig.Step();
  auto waiting = rig.Add(RandomRequest(rig.config, 2));
  GenerationRequest evaluation = RandomRequest(rig.config, 3);
  evaluation.holds_install = true;
  auto held = rig.Add(evaluation);
  EXPECT_TRUE(rig.engine.InstallHeld());
  while (held->finished.empty()) {
    EXPECT_TRUE(waiting->finished.empty());
    rig.Step();
  }
  EXPECT_FALSE(rig.engine.InstallHeld());
  EXPECT_TRUE(rig.engine.HasWork());
}

}  // namespace
}  // namespace syncopate::rollouter
