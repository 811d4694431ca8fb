#include "rollouter/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "base/philox.h"
#include "tests/support/small_model.h"
#include "trainer/actor/actor.h"
#include "trainer/actor/rank_group.h"
#include "trainer/step/train_step.h"

namespace syncopate::rollouter {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class RecordingSink final : public GenerationSink {
 public:
  void OnFinished(int32_t sample, Trajectory trajectory) override { finished[sample] = std::move(trajectory); }
  std::map<int32_t, Trajectory> finished;
};

struct Rig {
  explicit Rig(const model::ModelConfig& config, int64_t max_sequences = 64, int64_t max_prefill_tokens = 4096)
      : config(config),
        manifest(*model::MakeManifest(config, DType::kFloat32)),
        engine(config, std::make_shared<HostBackend>(config, manifest), {max_sequences, max_prefill_tokens}) {
    at::set_num_threads(1);
    Install({1, 0}, 7);
  }
  void Install(const PolicyVersion& version, uint64_t seed) {
    model::InitialiseWeights(config, manifest, seed, reinterpret_cast<float*>(engine.policy().shadow()));
    EXPECT_TRUE(engine.policy().Install(version, seed).ok());
  }
  std::shared_ptr<RecordingSink> Add(GenerationRequest request) {
    auto sink = std::make_shared<RecordingSink>();
    EXPECT_TRUE(engine.CheckShape(request).ok());
    engine.Add(std::move(request), sink);
    return sink;
  }
  void RunDry() {
    while (engine.HasWork()) engine.Step();
  }

  model::ModelConfig config;
  Manifest manifest;
  Engine engine;
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
    for (int i = 0; i < neighbours % 4 && rig.engine.HasWork(); ++i) rig.engine.Step();  // others are ahead
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
  rig.engine.Step();
  rig.engine.Step();
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
  trainer::SingleRank ranks;
  trainer::TrainStepOptions options;
  options.temperature = 0.8f;
  trainer::TrainStep step(actor, ranks, options);
  std::vector<trainer::TrainingSequence> sequences;
  for (int i = 0; i < 20; ++i) sequences.push_back({&requests[i].prompt_ids, &sinks[i]->finished.at(0), 0.0});
  const trainer::PackedBatch batch = trainer::Pack(sequences);
  EXPECT_LE((step.LogProbs(batch) - batch.behaviour).abs().max().item<double>(), 1e-5);
}

TEST(EngineTest, StampsEveryTokenWithTheVersionThatMadeIt) {
  Rig rig(testing::GroupedQueryModel());
  GenerationRequest request = RandomRequest(rig.config, 5);
  request.sampling.max_new_tokens = 6;
  auto sink = rig.Add(request);
  rig.engine.Step();
  rig.engine.Step();
  rig.Install({1, 1}, 8);
  rig.engine.Step();
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
  rig.engine.Step();
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
  rig.engine.Step();
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
  std::vector<GenerationRequest> bad(7, good);
  bad[0].prompt_ids.clear();
  bad[1].prompt_ids = {11};
  bad[2].prompt_ids.assign(static_cast<size_t>(rig.config.max_position_embeddings), 1);  // no room for an answer
  bad[3].seeds.assign(5, 1);
  bad[4].sampling.max_new_tokens = 0;
  bad[5].sampling.temperature = std::nanf("");
  bad[6].sampling.top_p = 1.5f;
  EXPECT_TRUE(rig.engine.CheckShape(good).ok());
  GenerationRequest longest = bad[2];
  longest.prompt_ids.pop_back();
  EXPECT_TRUE(rig.engine.CheckShape(longest).ok());
  for (const GenerationRequest& request : bad) {
    EXPECT_EQ(ErrorReason(rig.engine.CheckShape(request)), "BAD_REQUEST");
  }
}

TEST(EngineTest, ARequestThatHoldsInstallsGoesFirstAndHoldsThemUntilItEnds) {
  Rig rig(testing::SmallModel(), /*max_sequences=*/1);
  auto running = rig.Add(RandomRequest(rig.config, 1));
  rig.engine.Step();
  auto waiting = rig.Add(RandomRequest(rig.config, 2));
  GenerationRequest evaluation = RandomRequest(rig.config, 3);
  evaluation.holds_install = true;
  auto held = rig.Add(evaluation);
  EXPECT_TRUE(rig.engine.InstallHeld());
  while (held->finished.empty()) {
    EXPECT_TRUE(waiting->finished.empty());
    rig.engine.Step();
  }
  EXPECT_FALSE(rig.engine.InstallHeld());
  EXPECT_TRUE(rig.engine.HasWork());
}

}  // namespace
}  // namespace syncopate::rollouter
