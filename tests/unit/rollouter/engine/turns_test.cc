// Samples with turns in the engine: the end of a turn parks a sample, and given tokens continue it.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/philox.h"
#include "rollouter/engine/engine.h"
#include "rollouter/engine/engine_loop.h"
#include "tests/support/recording_sink.h"
#include "tests/support/small_model.h"

namespace syncopate::rollouter {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kDeadline = absl::Seconds(20);

// Parks its samples at the end of each turn.
class ParkingSink final : public GenerationSink {
 public:
  bool OnTurnEnded(int32_t sample, FinishReason, const Trajectory& so_far) override {
    MutexLock lock(&mutex_);
    parked_[sample] = static_cast<int64_t>(so_far.tokens.size());
    ++turns_[sample];
    return true;
  }
  void OnFinished(int32_t sample, Trajectory trajectory) override {
    MutexLock lock(&mutex_);
    finished_[sample] = std::move(trajectory);
    parked_.erase(sample);
  }
  // Returns the parked samples with their numbers of tokens, and forgets the samples.
  std::map<int32_t, int64_t> TakeParked() {
    MutexLock lock(&mutex_);
    return std::exchange(parked_, {});
  }
  void WaitForParked(size_t count) {
    MutexLock lock(&mutex_);
    auto reached = [&] { return parked_.size() >= count; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(Condition(&reached), kDeadline));
  }
  std::map<int32_t, Trajectory> WaitForFinished(size_t count) {
    MutexLock lock(&mutex_);
    auto reached = [&] { return finished_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(Condition(&reached), kDeadline));
    return finished_;
  }
  int turns(int32_t sample) {
    MutexLock lock(&mutex_);
    return turns_[sample];
  }

 private:
  Mutex mutex_;
  std::map<int32_t, int64_t> parked_;
  std::map<int32_t, int> turns_;
  std::map<int32_t, Trajectory> finished_;
};

model::ModelConfig Config() {
  model::ModelConfig config = testing::GroupedQueryModel();
  config.max_position_embeddings = 96;
  return config;
}

struct Rig {
  explicit Rig(const Engine::Options& options)
      : manifest(*model::MakeManifest(Config(), DType::kFloat32)),
        made(Engine::Create(Config(), std::make_shared<HostBackend>(Config(), manifest), options).value()),
        engine(*made) {
    at::set_num_threads(1);
    Install({1, 0}, 7);
  }
  void Install(const PolicyVersion& version, uint64_t seed) {
    model::InitialiseWeights(Config(), manifest, seed, reinterpret_cast<float*>(engine.policy().shadow()));
    EXPECT_TRUE(engine.Synchronize().ok());
    EXPECT_TRUE(engine.policy().Install(version, seed).ok());
  }
  template <typename Sink = ParkingSink>
  std::shared_ptr<Sink> Add(GenerationRequest request) {
    auto sink = std::make_shared<Sink>();
    EXPECT_TRUE(engine.CheckShape(request).ok());
    engine.Add(std::move(request), sink);
    return sink;
  }
  void Step() { ASSERT_TRUE(engine.Step().ok()); }
  void RunDry() {
    while (engine.HasWork()) Step();
  }

  Manifest manifest;
  std::unique_ptr<Engine> made;
  Engine& engine;
};

std::vector<int32_t> RandomTokens(uint64_t seed, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(Philox4x32(seed, i)[0] % Config().vocab_size));
  return tokens;
}

GenerationRequest Turns(uint64_t seed, int samples = 1) {
  GenerationRequest request;
  request.id = absl::StrCat("request-", seed);
  request.prompt_ids = RandomTokens(seed, 5 + static_cast<int64_t>(seed % 23));
  request.sampling.max_new_tokens = 3 + static_cast<int32_t>(seed % 5);
  request.max_total_tokens = 60;
  for (int i = 0; i < samples; ++i) request.seeds.push_back(SampleSeed(seed, i));
  return request;
}

// The environment's message: a function of the place alone.
std::vector<int32_t> Given(const GenerationRequest& request, int32_t sample, int64_t tokens) {
  const uint64_t seed = request.seeds[static_cast<size_t>(sample)] + static_cast<uint64_t>(tokens);
  return RandomTokens(seed, 1 + static_cast<int64_t>(seed % 11));
}

struct Played {
  std::vector<std::map<int32_t, Trajectory>> samples;  // index: request
  Scheduler::Counters counters;
};

// Plays `requests` to their ends. Each parked sample is extended `delay(sample)` steps later.
Played Play(const Engine::Options& options, const std::vector<GenerationRequest>& requests,
            const std::function<int64_t(int64_t)>& delay) {
  Rig rig(options);
  std::vector<std::shared_ptr<ParkingSink>> sinks;
  for (const GenerationRequest& request : requests) sinks.push_back(rig.Add(request));
  struct Answer {
    size_t request = 0;
    int32_t sample = 0;
    int64_t tokens = 0;
  };
  std::multimap<int64_t, Answer> answers;  // key: step
  int64_t step = 0, parks = 0;
  for (; rig.engine.HasRequests() && step < 10000; ++step) {
    if (rig.engine.HasWork()) rig.Step();
    for (size_t i = 0; i < requests.size(); ++i) {
      for (const auto& [sample, tokens] : sinks[i]->TakeParked()) {
        answers.insert({step + delay(++parks), Answer{i, sample, tokens}});
      }
    }
    while (!answers.empty() && answers.begin()->first <= step) {
      const Answer answer = answers.begin()->second;
      answers.erase(answers.begin());
      const GenerationRequest& request = requests[answer.request];
      rig.engine.Extend(request.id, answer.sample, Given(request, answer.sample, answer.tokens));
    }
  }
  Played played;
  played.counters = rig.engine.counters();
  for (const auto& sink : sinks) played.samples.push_back(sink->WaitForFinished(0));
  EXPECT_EQ(rig.engine.running_sequences() + rig.engine.parked_sequences(), 0);
  return played;
}

// Expects that spans and given ranges cover every token once, and that given tokens have no log-probability.
void ExpectWellFormed(const Trajectory& trajectory) {
  std::vector<int> covered(trajectory.tokens.size());
  for (const VersionSpan& span : trajectory.spans) {
    for (int32_t i = span.begin; i < span.end; ++i) ++covered.at(static_cast<size_t>(i));
  }
  for (const TokenRange& range : trajectory.given) {
    EXPECT_LT(range.begin, range.end);
    EXPECT_LT(static_cast<size_t>(range.end), trajectory.tokens.size()) << "the last token is written";
    for (int32_t i = range.begin; i < range.end; ++i) {
      ++covered.at(static_cast<size_t>(i));
      EXPECT_EQ(trajectory.logprobs[static_cast<size_t>(i)], 0);
    }
  }
  EXPECT_EQ(std::set<int>(covered.begin(), covered.end()), std::set<int>{1});
  EXPECT_EQ(trajectory.logprobs.size(), trajectory.tokens.size());
}

TEST(TurnsTest, TokensAndLogProbsAreBitIdenticalWhateverBecameOfAParkedSamplesBlocks) {
  std::vector<GenerationRequest> requests;
  for (uint64_t i = 0; i < 12; ++i) requests.push_back(Turns(50 + i, 1 + static_cast<int>(i % 3)));
  const Played calm = Play({.max_sequences = 32}, requests, [](int64_t) { return 0; });
  EXPECT_EQ(calm.counters.preemptions, 0);
  EXPECT_EQ(calm.counters.given_up, 0);
  size_t given = 0;
  for (const auto& samples : calm.samples) {
    for (const auto& [sample, trajectory] : samples) {
      ExpectWellFormed(trajectory);
      EXPECT_EQ(trajectory.finish, FinishReason::kLength);
      given += trajectory.given.size();
    }
  }
  EXPECT_GT(given, 80u);
  const auto late = [](int64_t park) { return park * 7 % 31; };
  using Preemption = Scheduler::Preemption;
  for (const Engine::Options& options :
       {Engine::Options{.max_sequences = 32, .plans_under_way = 2},
        {.max_sequences = 3, .kv_blocks = 8},
        {.max_sequences = 32, .kv_blocks = 14, .max_kept_blocks = 0},
        {.max_sequences = 32, .max_prefill_tokens = 7, .kv_blocks = 14, .plans_under_way = 2},
        {.max_sequences = 32,
        .kv_blocks = 10,
        .host_kv_blocks = 40,
        .plans_under_way = 2,
        .preemption = Preemption::kSwap}}) {
    const Played played = Play(options, requests, late);
    EXPECT_EQ(played.counters.given_up > 0, options.kv_blocks > 0);
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(played.samples[i].size(), requests[i].seeds.size());
      for (const auto& [sample, trajectory] : calm.samples[i]) {
        EXPECT_EQ(played.samples[i].at(sample).tokens, trajectory.tokens) << "request " << i;
        EXPECT_EQ(played.samples[i].at(sample).logprobs, trajectory.logprobs) << "request " << i;
        EXPECT_EQ(played.samples[i].at(sample).given, trajectory.given) << "request " << i;
        EXPECT_EQ(played.samples[i].at(sample).spans, trajectory.spans) << "request " << i;
      }
    }
  }
}

// Greedy draws use no random number, so a turn equals the answer to a prompt of all tokens before it.
TEST(TurnsTest, ATurnEqualsTheAnswerToAPromptOfAllTokensBeforeIt) {
  GenerationRequest request = Turns(77);
  request.sampling.temperature = 0;
  const Trajectory played = Play({.max_sequences = 4}, {request}, [](int64_t) { return 3; }).samples[0].at(0);
  ASSERT_GE(played.given.size(), 2u);
  int32_t begin = 0;
  for (size_t turn = 0; turn <= played.given.size(); ++turn) {
    const int32_t end =
        turn < played.given.size() ? played.given[turn].begin : static_cast<int32_t>(played.tokens.size());
    GenerationRequest alone = request;
    alone.max_total_tokens = 0;
    alone.prompt_ids.insert(alone.prompt_ids.end(), played.tokens.begin(), played.tokens.begin() + begin);
    alone.sampling.max_new_tokens = end - begin;
    Rig rig({.max_sequences = 4});
    auto sink = rig.Add<testing::RecordingSink>(alone);
    rig.RunDry();
    const Trajectory& answer = sink->finished.at(0);
    EXPECT_EQ(answer.tokens, std::vector<int32_t>(played.tokens.begin() + begin, played.tokens.begin() + end));
    EXPECT_EQ(answer.logprobs, std::vector<float>(played.logprobs.begin() + begin, played.logprobs.begin() + end));
    if (turn < played.given.size()) begin = played.given[turn].end;
  }
}

TEST(TurnsTest, VersionsChangeWhileASampleIsParkedAndEveryTokenHasItsOwn) {
  Rig rig({.max_sequences = 4});
  GenerationRequest request = Turns(50);
  request.sampling.max_new_tokens = 3;
  auto sink = rig.Add(request);
  rig.RunDry();
  EXPECT_FALSE(rig.engine.HasWork()) << "a parked sample is no work";
  EXPECT_TRUE(rig.engine.HasRequests());
  EXPECT_EQ(rig.engine.parked_sequences(), 1);
  rig.Install({1, 1}, 8);
  rig.engine.Extend(request.id, 0, {4, 5});
  rig.RunDry();
  rig.engine.Extend(request.id, 0, {6});
  rig.RunDry();
  rig.engine.EndParked(request.id, 0);
  const Trajectory made = sink->WaitForFinished(1).at(0);
  ExpectWellFormed(made);
  EXPECT_THAT(made.given, ElementsAre(TokenRange{3, 5}, TokenRange{8, 9}));
  EXPECT_THAT(made.spans,
              ElementsAre(VersionSpan{{1, 0}, 0, 3}, VersionSpan{{1, 1}, 5, 8}, VersionSpan{{1, 1}, 9, 12}));
  EXPECT_EQ(made.finish, FinishReason::kLength);
}

TEST(TurnsTest, ASampleWithoutRoomForGivenTokensAndOneMoreEndsBeforeThem) {
  Rig rig({.max_sequences = 4});
  GenerationRequest request = Turns(50);
  request.sampling.max_new_tokens = 4;
  request.max_total_tokens = 9;
  auto sink = rig.Add(request);
  rig.RunDry();
  rig.engine.Extend(request.id, 0, RandomTokens(1, 5));
  const Trajectory made = sink->WaitForFinished(1).at(0);
  EXPECT_THAT(made.tokens, SizeIs(4));
  EXPECT_THAT(made.given, IsEmpty());
  EXPECT_EQ(made.finish, FinishReason::kLength);
  rig.engine.Extend(request.id, 0, {1});  // too late to have an effect
  rig.engine.EndParked(request.id, 0);
  EXPECT_FALSE(rig.engine.HasRequests());
}

TEST(TurnsTest, ASampleThatIsAbortedBehindGivenTokensLosesThem) {
  Rig rig({.max_sequences = 1});
  const GenerationRequest request = Turns(50), other = Turns(51);
  auto sink = rig.Add(request);
  auto other_sink = rig.Add(other);
  while (rig.engine.parked_sequences() < 2) rig.Step();
  rig.engine.Extend(request.id, 0, {1, 2, 3});
  EXPECT_EQ(rig.engine.waiting_sequences(), 1);
  EXPECT_EQ(rig.engine.Abort(""), 2);
  const Trajectory made = sink->WaitForFinished(1).at(0);
  ExpectWellFormed(made);
  EXPECT_THAT(made.given, IsEmpty());
  EXPECT_EQ(made.finish, FinishReason::kAborted);
  EXPECT_EQ(other_sink->WaitForFinished(1).at(0).finish, FinishReason::kAborted);
}

// A restarted play draws what it would have drawn at first.
TEST(TurnsTest, ARewoundSampleHasTheBitsOfOneThatWasNeverPlayed) {
  GenerationRequest request = Turns(53, 2);
  request.starts_parked = true;
  const auto play = [&](bool twice) {
    Rig rig({.max_sequences = 4});
    auto sink = rig.Add(request);
    EXPECT_FALSE(rig.engine.HasWork());
    if (twice) {
      rig.engine.Extend(request.id, 0, {9, 9});
      rig.RunDry();
      rig.engine.Extend(request.id, 0, {8});
      rig.RunDry();
      rig.engine.Rewind(request.id, 0);
    }
    rig.engine.Extend(request.id, 0, {1, 2, 3});
    rig.engine.Extend(request.id, 1, {});
    rig.RunDry();
    for (int32_t sample : {0, 1}) rig.engine.EndParked(request.id, sample);
    return sink->WaitForFinished(2);
  };
  const auto once = play(false), again = play(true);
  for (int32_t sample : {0, 1}) {
    ExpectWellFormed(again.at(sample));
    EXPECT_EQ(again.at(sample).tokens, once.at(sample).tokens);
    EXPECT_EQ(again.at(sample).logprobs, once.at(sample).logprobs);
    EXPECT_EQ(again.at(sample).given, once.at(sample).given);
  }
  EXPECT_THAT(again.at(0).given, ElementsAre(TokenRange{0, 3}));
  EXPECT_THAT(again.at(1).given, IsEmpty());
}

TEST(TurnsTest, AParkedSampleWithoutTokensIsAbortedWhenItEnds) {
  Rig rig({.max_sequences = 4});
  GenerationRequest request = Turns(53);
  request.starts_parked = true;
  auto sink = rig.Add(request);
  rig.engine.EndParked(request.id, 0);
  EXPECT_EQ(sink->WaitForFinished(1).at(0).finish, FinishReason::kAborted);
  EXPECT_FALSE(rig.engine.HasRequests());
}

TEST(TurnsTest, GivenTokensMustBeOfTheVocabulary) {
  Rig rig({.max_sequences = 1});
  EXPECT_TRUE(rig.engine.CheckGiven({0, static_cast<int32_t>(Config().vocab_size) - 1}, true).ok());
  EXPECT_EQ(ErrorReason(rig.engine.CheckGiven({static_cast<int32_t>(Config().vocab_size)}, true)), "BAD_REQUEST");
  EXPECT_EQ(ErrorReason(rig.engine.CheckGiven({-1}, false)), "BAD_REQUEST");
  EXPECT_EQ(ErrorReason(rig.engine.CheckGiven({}, true)), "BAD_REQUEST");
  EXPECT_TRUE(rig.engine.CheckGiven({}, false).ok());
}

class TurnsInALoop : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineLoop::Options options;
    options.model = Config();
    options.max_sequences = 4;
    loop_ = EngineLoop::Start(options).value();
    model::InitialiseWeights(Config(), loop_->manifest(), 7, reinterpret_cast<float*>(loop_->shadow()));
    ASSERT_TRUE(loop_->Install({1, 0}, 7, kDeadline).ok());
  }
  // Waits until the status has this many parked samples. The status is published after the sink was called.
  void Park(const GenerationRequest& request, const std::shared_ptr<ParkingSink>& sink) {
    ASSERT_TRUE(loop_->Submit(request, sink).ok());
    sink->WaitForParked(request.seeds.size());
    loop_->Pause();  // returns after the step that parked the sample
    loop_->Resume();
  }
  std::unique_ptr<EngineLoop> loop_;
};

TEST_F(TurnsInALoop, AParkedSampleKeepsTheEngineFromSleepAndDrainAndLetsItInstall) {
  const GenerationRequest request = Turns(50, 2);
  auto sink = std::make_shared<ParkingSink>();
  Park(request, sink);
  EXPECT_EQ(loop_->GetStatus().parked_sequences, 2);
  EXPECT_EQ(loop_->GetStatus().running_sequences, 0);
  EXPECT_EQ(ErrorReason(loop_->Sleep(1, kDeadline).status()), "BUSY");
  model::InitialiseWeights(Config(), loop_->manifest(), 8, reinterpret_cast<float*>(loop_->shadow()));
  EXPECT_TRUE(loop_->Install({1, 1}, 8, kDeadline).ok());
  EXPECT_EQ(ErrorReason(loop_->Drain(absl::Milliseconds(1))), "DRAIN_DEADLINE");
  EXPECT_EQ(loop_->GetStatus().state, EngineStatus::State::kDraining);
  for (int32_t sample : {0, 1}) loop_->EndParked(request.id, sample);
  EXPECT_TRUE(loop_->Drain(kDeadline).ok());
  EXPECT_THAT(sink->WaitForFinished(2), SizeIs(2));
  EXPECT_TRUE(loop_->Sleep(1, kDeadline).ok());
}

TEST_F(TurnsInALoop, SamplesThatStartParkedBeginWithTheirOwnGivenTokens) {
  GenerationRequest request = Turns(50, 2);
  request.starts_parked = true;
  auto sink = std::make_shared<ParkingSink>();
  ASSERT_TRUE(loop_->Submit(request, sink).ok());
  ASSERT_TRUE(loop_->Begin(request.id, 0, {1, 2}).ok());
  ASSERT_TRUE(loop_->Begin(request.id, 1, {}).ok());
  EXPECT_EQ(ErrorReason(loop_->Begin(request.id, 1, {-1})), "BAD_REQUEST");
  sink->WaitForParked(2);
  loop_->Rewind(request.id, 0);
  ASSERT_TRUE(loop_->Begin(request.id, 0, {3}).ok());
  loop_->EndParked(request.id, 1);
  EXPECT_THAT(sink->WaitForFinished(1).at(1).given, IsEmpty());
  EXPECT_EQ(loop_->Abort(request.id), 1);
}

TEST_F(TurnsInALoop, ExtendGoesOnFromAnyThreadAndAbortEndsParkedSamples) {
  const GenerationRequest request = Turns(50);
  auto sink = std::make_shared<ParkingSink>();
  Park(request, sink);
  EXPECT_EQ(ErrorReason(loop_->Extend(request.id, 0, {-1})), "BAD_REQUEST");
  sink->TakeParked();
  ASSERT_TRUE(loop_->Extend(request.id, 0, {1, 2}).ok());
  sink->WaitForParked(1);
  EXPECT_EQ(sink->turns(0), 2);
  EXPECT_EQ(loop_->Abort(request.id), 1);
  EXPECT_EQ(sink->WaitForFinished(1).at(0).finish, FinishReason::kAborted);
  EXPECT_TRUE(loop_->Extend(request.id, 0, {1}).ok()) << "too late: no effect";
}

// Answers each turn at once, on the engine's thread.
class AnsweringSink final : public GenerationSink {
 public:
  AnsweringSink(EngineLoop* loop, std::string id) : loop_(loop), id_(std::move(id)) {}
  bool OnTurnEnded(int32_t sample, FinishReason, const Trajectory& so_far) override {
    if (so_far.given.size() == 3) return false;
    EXPECT_TRUE(loop_->Extend(id_, sample, {7, 8}).ok());
    return true;
  }
  void OnFinished(int32_t, Trajectory trajectory) override {
    MutexLock lock(&mutex_);
    finished_ = std::move(trajectory);
  }
  Trajectory Wait() {
    MutexLock lock(&mutex_);
    auto there = [&] { return finished_.has_value(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(Condition(&there), kDeadline));
    return *finished_;
  }

 private:
  EngineLoop* const loop_;
  const std::string id_;
  Mutex mutex_;
  std::optional<Trajectory> finished_;
};

TEST_F(TurnsInALoop, ASinkMayExtendWhileItParks) {
  const GenerationRequest request = Turns(50);
  auto sink = std::make_shared<AnsweringSink>(loop_.get(), request.id);
  ASSERT_TRUE(loop_->Submit(request, sink).ok());
  const Trajectory made = sink->Wait();
  EXPECT_THAT(made.given, SizeIs(3));
  ExpectWellFormed(made);
}

}  // namespace
}  // namespace syncopate::rollouter
