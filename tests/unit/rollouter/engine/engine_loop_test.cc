// The engine on its thread: one rig and what each of its operations does to requests that run.
// Over 700 lines: all that a caller of one EngineLoop sees, over the same small model and the same waiting sink.

#include "rollouter/engine/engine_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "rollouter/engine/engine_backend.h"
#include "rollouter/engine/step_plan.h"
#include "tests/support/notification.h"
#include "tests/support/small_model.h"

namespace syncopate::rollouter {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(20);

// Collects the samples of one request and lets the test wait for them, or for a number of tokens.
class WaitingSink final : public GenerationSink {
 public:
  bool OnToken(int32_t, int32_t, float, const PolicyVersion&, const std::vector<TokenLogProb>&) override {
    MutexLock lock(&mutex_);
    ++tokens_;
    return true;
  }
  void OnFinished(int32_t sample, Trajectory trajectory) override {
    MutexLock lock(&mutex_);
    finished_[sample] = std::move(trajectory);
  }
  bool WaitForTokens(int count) {
    MutexLock lock(&mutex_);
    auto reached = [&] { return tokens_ >= count; };
    return mutex_.AwaitWithTimeout(Condition(&reached), kDeadline);
  }
  std::map<int32_t, Trajectory> WaitForSamples(size_t count) {
    MutexLock lock(&mutex_);
    auto reached = [&] { return finished_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(Condition(&reached), kDeadline));
    return finished_;
  }
  size_t finished() {
    MutexLock lock(&mutex_);
    return finished_.size();
  }
  int tokens() {
    MutexLock lock(&mutex_);
    return tokens_;
  }

 private:
  Mutex mutex_;
  int tokens_ = 0;
  std::map<int32_t, Trajectory> finished_;
};

model::ModelConfig LongContext() {
  model::ModelConfig config = testing::SmallModel();
  config.max_position_embeddings = 20000;
  config.learned_positions = false;
  return config;
}

std::unique_ptr<EngineLoop> StartLoop(const model::ModelConfig& config = testing::SmallModel()) {
  EngineLoop::Options options;
  options.model = config;
  options.max_sequences = 16;
  return EngineLoop::Start(options).value();
}

absl::StatusOr<synchronizer::InstallResult> InstallWeights(EngineLoop& loop, const PolicyVersion& version,
                                                           const model::ModelConfig& config = testing::SmallModel(),
                                                           absl::Duration deadline = kDeadline) {
  model::InitialiseWeights(config, loop.manifest(), 7, reinterpret_cast<float*>(loop.shadow()));
  return loop.Install(version, /*digest=*/version.step + 100, deadline);
}

GenerationRequest Request(const std::string& id, int samples = 1, int max_new_tokens = 5) {
  GenerationRequest request;
  request.id = id;
  request.prompt_ids = {8, 1, 2, 3, 4, 9};
  request.sampling.max_new_tokens = max_new_tokens;
  for (int i = 0; i < samples; ++i) request.seeds.push_back(i + 1);
  return request;
}

TEST(EngineLoopTest, RefusesToGenerateBeforeTheFirstInstall) {
  auto loop = StartLoop();
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kWaitingForWeights);
  absl::Status refused = loop->Submit(Request("a"), std::make_shared<WaitingSink>());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(refused), "NO_WEIGHTS");
  EXPECT_EQ(ErrorReason(loop->Relabel({1, 1}, kDeadline).status()), "NO_WEIGHTS");
}

TEST(EngineLoopTest, GeneratesAfterAnInstallAndSaysWhatServes) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 3}).ok());
  EXPECT_EQ(loop->GetStatus().serving, (PolicyVersion{1, 3}));
  EXPECT_EQ(loop->GetStatus().serving_digest, 103u);
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(Request("a", 3), sink).ok());
  auto samples = sink->WaitForSamples(3);
  EXPECT_EQ(samples[2].spans[0].version, (PolicyVersion{1, 3}));
  EXPECT_EQ(loop->GetStatus().installs, 1);
}

// Preempted answers are moved to host memory as far as it has room, and computed again beyond that. In both cases they
// equal the answers of an engine with memory for all.
TEST(EngineLoopTest, PreemptedAnswersAreSwappedAsFarAsHostMemoryReaches) {
  model::ModelConfig config = LongContext();
  config.max_position_embeddings = 160;
  auto run = [&](int64_t kv_tokens, int64_t host_kv_bytes, EngineStatus* status) {
    EngineLoop::Options options;
    options.model = config;
    options.max_sequences = 12;
    options.kv_tokens = kv_tokens;
    options.host_kv_bytes = host_kv_bytes;
    auto loop = EngineLoop::Start(options).value();
    EXPECT_TRUE(InstallWeights(*loop, {1, 1}, config).ok());
    std::vector<std::shared_ptr<WaitingSink>> sinks;
    loop->Pause();  // all requests are added before the first step
    for (int i = 0; i < 12; ++i) {
      GenerationRequest request = Request(absl::StrCat(i), 1, 120);
      request.seeds = {static_cast<uint64_t>(i)};
      sinks.push_back(std::make_shared<WaitingSink>());
      EXPECT_TRUE(loop->Submit(std::move(request), sinks.back()).ok());
    }
    loop->Resume();
    std::vector<Trajectory> answers;
    for (const auto& sink : sinks) answers.push_back(sink->WaitForSamples(1)[0]);
    loop->Pause();
    *status = loop->GetStatus();
    EXPECT_EQ(status->host_kv_usage, 0) << "no sequence needs the memory any more";
    return answers;
  };
  EngineStatus calm, computed, swapped, both;
  const std::vector<Trajectory> answers = run(0, 0, &calm);
  EXPECT_EQ(calm.preemptions, 0);
  const int64_t block = HostBackend(config, *model::MakeManifest(config, DType::kFloat32)).kv_block_bytes();
  const std::vector<Trajectory> tight[] = {run(24 * kBlockTokens, 0, &computed),
                                           run(24 * kBlockTokens, 200 * block, &swapped),
                                           run(24 * kBlockTokens, 6 * block + block / 2, &both)};
  for (const std::vector<Trajectory>& other : tight) {
    ASSERT_EQ(other.size(), answers.size());
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(other[i].tokens, answers[i].tokens) << i;
      EXPECT_EQ(other[i].logprobs, answers[i].logprobs) << i;
    }
  }
  EXPECT_GT(computed.preemptions, 0);
  EXPECT_EQ(computed.swaps, 0);
  EXPECT_EQ(computed.host_kv_bytes, 0);
  EXPECT_GT(swapped.swaps, 0);
  EXPECT_EQ(swapped.swaps, swapped.preemptions) << "all fit in host memory";
  EXPECT_GT(swapped.host_kv_bytes, 0);
  EXPECT_LE(swapped.host_kv_bytes, 200 * block);
  EXPECT_GT(both.swaps, 0);
  EXPECT_LT(both.swaps, both.preemptions) << "six blocks are not enough for all";
  EXPECT_LE(both.host_kv_bytes, 6 * block);
}

TEST(EngineLoopTest, HostMemoryThatCannotBeHadIsRefusedAtTheStart) {
  EngineLoop::Options options;
  options.model = testing::SmallModel();
  options.host_kv_bytes = int64_t{1} << 48;  // more than a process can address
  const absl::Status refused = EngineLoop::Start(options).status();
  EXPECT_EQ(ErrorReason(refused), "OUT_OF_MEMORY") << refused;
  EXPECT_NE(refused.message().find("lower rollout.host_kv_memory"), std::string::npos) << refused;
}

// A sleep leaves the memory for swapped blocks to the engine, which would otherwise not be sure to get it again.
TEST(EngineLoopTest, HostMemoryIsThereFromTheStartAndStaysInASleep) {
  EngineLoop::Options options;
  options.model = testing::SmallModel();
  const int64_t block =
      HostBackend(options.model, *model::MakeManifest(options.model, DType::kFloat32)).kv_block_bytes();
  options.host_kv_bytes = 10 * block + 5;
  auto loop = EngineLoop::Start(options).value();
  EXPECT_EQ(loop->GetStatus().host_kv_bytes, 10 * block);
  ASSERT_TRUE(InstallWeights(*loop, {1, 1}).ok());
  const EngineStatus before = loop->GetStatus();
  EXPECT_EQ(loop->Sleep(2, kDeadline).value(), before.kv_bytes + before.weight_bytes);
  EXPECT_EQ(loop->GetStatus().host_kv_bytes, 10 * block);
}

TEST(EngineLoopTest, HostMemoryThatHoldsNoBlockIsRefused) {
  EngineLoop::Options options;
  options.model = testing::SmallModel();
  options.host_kv_bytes = 10;
  const absl::Status refused = EngineLoop::Start(options).status();
  EXPECT_EQ(ErrorReason(refused), "BAD_OPTIONS");
  EXPECT_NE(refused.message().find("rollout.host_kv_memory of 10 bytes is less than one block"), std::string::npos);
}

TEST(EngineLoopTest, ItsIdleTimeGrowsWhileItWaits) {
  auto loop = StartLoop();
  const double before = loop->GetStatus().idle_seconds;
  const absl::Time limit = Clock::Real()->Now() + kDeadline;
  while (loop->GetStatus().idle_seconds <= before + 0.01) ASSERT_LT(Clock::Real()->Now(), limit);
  EXPECT_EQ(loop->GetStatus().busy_seconds, 0);
  loop->Stop();
  const double at_the_end = loop->GetStatus().idle_seconds;
  EXPECT_GT(at_the_end, before);
  EXPECT_EQ(loop->GetStatus().idle_seconds, at_the_end);
}

TEST(EngineLoopTest, TheServingVersionNeverGoesBack) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 3}).ok());
  EXPECT_EQ(ErrorReason(InstallWeights(*loop, {1, 3}).status()), "OLD_VERSION");
  EXPECT_EQ(ErrorReason(InstallWeights(*loop, {1, 2}).status()), "OLD_VERSION");
  EXPECT_TRUE(InstallWeights(*loop, {2, 0}).ok());  // a newer epoch is newer for every step
}

TEST(EngineLoopTest, ARelabelChangesTheStampAndMovesNoWeights) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 3}).ok());
  const char* live = loop->live();
  ASSERT_TRUE(loop->Relabel({2, 3}, kDeadline).ok());
  EXPECT_EQ(static_cast<const void*>(loop->live()), live);
  EXPECT_EQ(loop->GetStatus().serving, (PolicyVersion{2, 3}));
  EXPECT_EQ(loop->GetStatus().serving_digest, 103u);
}

TEST(EngineLoopTest, InstallsBetweenDecodeStepsWhileSequencesRun) {
  const model::ModelConfig config = LongContext();
  auto loop = StartLoop(config);
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}, config).ok());
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(Request("a", 1, 10000), sink).ok());
  ASSERT_TRUE(sink->WaitForTokens(5));
  ASSERT_TRUE(InstallWeights(*loop, {1, 1}, config).ok());
  EXPECT_EQ(loop->Abort("a"), 1);
  const Trajectory trajectory = sink->WaitForSamples(1)[0];
  ASSERT_EQ(trajectory.spans.size(), 2u);
  EXPECT_EQ(trajectory.spans[0].version, (PolicyVersion{1, 0}));
  EXPECT_EQ(trajectory.spans[1].version, (PolicyVersion{1, 1}));
  EXPECT_EQ(trajectory.spans[1].end, static_cast<int32_t>(trajectory.tokens.size()));
  EXPECT_EQ(trajectory.finish, FinishReason::kAborted);
}

TEST(EngineLoopTest, TheListenerHasHeardOfAnInstallWhenItReturns) {
  auto loop = StartLoop();
  Mailbox<bool> returned;
  bool too_late = true;
  loop->SetInstallListener([&](const PolicyVersion&) { too_late = returned.WaitFor(1, absl::Milliseconds(50)); });
  ASSERT_TRUE(InstallWeights(*loop, {1, 3}).ok());
  returned.Put(true);
  loop->Stop();
  EXPECT_FALSE(too_late);
}

TEST(EngineLoopTest, AnInstallWaitsForARequestThatHoldsIt) {
  const model::ModelConfig config = LongContext();
  auto loop = StartLoop(config);
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}, config).ok());
  GenerationRequest holder = Request("a", 1, 10000);
  holder.holds_install = true;
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(holder, sink).ok());
  ASSERT_TRUE(sink->WaitForTokens(1));
  absl::Status late = InstallWeights(*loop, {1, 1}, config, absl::Milliseconds(50)).status();
  EXPECT_EQ(ErrorReason(late), "INSTALL_DEADLINE");
  EXPECT_EQ(loop->GetStatus().serving, (PolicyVersion{1, 0}));
  loop->Abort("a");
  EXPECT_TRUE(InstallWeights(*loop, {1, 2}, config).ok());
}

TEST(EngineLoopTest, WithAdapterSetsAnEvaluationHoldsNoInstallBackAndNoInstallPauses) {
  model::ModelConfig config = LongContext();
  config.lora.rank = 4;
  config.lora.alpha = 8;
  config.lora.projections = model::LoraConfig::AllProjections();
  auto loop = StartLoop(config);
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}, config).ok());
  GenerationRequest evaluation = Request("evaluation", 1, 10000);
  evaluation.holds_install = true;
  auto sink = std::make_shared<WaitingSink>(), policy = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(evaluation, sink).ok());
  ASSERT_TRUE(loop->Submit(Request("training", 1, 10000), policy).ok());
  ASSERT_TRUE(sink->WaitForTokens(1));
  ASSERT_TRUE(policy->WaitForTokens(1));
  for (int64_t step = 1; step < 4; ++step) {
    ASSERT_TRUE(loop->BeginAttempt().ok());
    const int64_t base = loop->manifest().adapters_begin();
    std::memset(loop->shadow() + base, 0, static_cast<size_t>(loop->manifest().arena_bytes() - base));
    const auto installed = loop->Install({1, step}, /*digest=*/static_cast<uint64_t>(step), kDeadline);
    ASSERT_TRUE(installed.ok()) << installed.status();
    EXPECT_EQ(installed->pause_seconds, 0.0);
    loop->EndAttempt();
    EXPECT_EQ(loop->GetStatus().serving, (PolicyVersion{1, step}));
    ASSERT_TRUE(sink->WaitForTokens(sink->tokens() + 3)) << "the set before is free when its plans have ended";
  }
  EXPECT_EQ(loop->GetStatus().pinned, (PolicyVersion{1, 0}));
  EXPECT_TRUE(loop->shares_base());
  // The base is what all sets compute with: it waits for the evaluation.
  EXPECT_EQ(ErrorReason(loop->BeginInPlace({1, 4}, absl::Milliseconds(50))), "INSTALL_DEADLINE");
  loop->Abort("evaluation");
  ASSERT_TRUE(loop->BeginInPlace({1, 4}, kDeadline).ok());
  const auto installed = InstallWeights(*loop, {1, 4}, config);
  ASSERT_TRUE(installed.ok()) << installed.status();
  EXPECT_GT(installed->pause_seconds, 0.0) << "generation stood still for the base";
  loop->Abort("training");
  const auto answer = policy->WaitForSamples(1)[0];
  EXPECT_EQ(answer.spans.front().version, (PolicyVersion{1, 0}));
  loop->Stop();
}

TEST(EngineLoopTest, ASyncThatBeginsWhileARequestPinsTheVersionIsHeldBackUntilThatHasEnded) {
  const model::ModelConfig config = LongContext();
  auto loop = StartLoop(config);
  Mailbox<bool> changes;
  loop->SetPinListener([&] { changes.Put(loop->GetStatus().pins_version); });
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}, config).ok());
  ASSERT_TRUE(loop->Submit(Request("training", 1, 10000), std::make_shared<WaitingSink>()).ok());
  EXPECT_TRUE(loop->BeginAttempt().ok()) << "a request that does not hold installs delays none";
  loop->EndAttempt();
  GenerationRequest evaluation = Request("evaluation", 1, 10000);
  evaluation.holds_install = true;
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(evaluation, sink).ok());
  ASSERT_TRUE(changes.WaitFor(1));
  EXPECT_EQ(ErrorReason(loop->BeginAttempt()), "HELD");
  loop->Abort("evaluation");
  ASSERT_TRUE(changes.WaitFor(2));
  EXPECT_EQ(changes.All(), (std::vector<bool>{true, false}));
  EXPECT_TRUE(loop->BeginAttempt().ok());
  loop->EndAttempt();
  loop->Stop();
}

TEST(EngineLoopTest, PauseStopsTokensAndResumeGoesOnWithTheSameOnes) {
  const model::ModelConfig config = LongContext();
  auto calm = StartLoop(config);
  ASSERT_TRUE(InstallWeights(*calm, {1, 0}, config).ok());
  auto calm_sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(calm->Submit(Request("a", 1, 200), calm_sink).ok());
  auto loop = StartLoop(config);
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}, config).ok());
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(Request("a", 1, 200), sink).ok());
  ASSERT_TRUE(sink->WaitForTokens(3));
  loop->Pause();
  loop->Pause();
  const int64_t tokens = loop->GetStatus().generated_tokens;
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kPaused);
  ASSERT_TRUE(InstallWeights(*loop, {1, 1}, config).ok());  // an install needs no decode step
  EXPECT_EQ(loop->GetStatus().generated_tokens, tokens);
  loop->Resume();
  EXPECT_EQ(sink->WaitForSamples(1)[0].tokens, calm_sink->WaitForSamples(1)[0].tokens);
}

TEST(EngineLoopTest, DrainFinishesWhatRunsAndTakesNothingNew) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}).ok());
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(Request("a", 8), sink).ok());
  ASSERT_TRUE(loop->Drain(kDeadline).ok());
  EXPECT_EQ(sink->finished(), 8u);
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kDrained);
  EXPECT_EQ(ErrorReason(loop->Submit(Request("b"), sink)), "DRAINING");
  loop->Resume();
  EXPECT_TRUE(loop->Submit(Request("c"), std::make_shared<WaitingSink>()).ok());
}

TEST(EngineLoopTest, DrainSaysSoWhenItsDeadlinePasses) {
  const model::ModelConfig config = LongContext();
  auto loop = StartLoop(config);
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}, config).ok());
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(Request("a", 1, 15000), sink).ok());
  EXPECT_EQ(ErrorReason(loop->Drain(absl::Milliseconds(10))), "DRAIN_DEADLINE");
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kDraining);
}

TEST(EngineLoopTest, StopAnswersEveryRequest) {
  const model::ModelConfig config = LongContext();
  auto loop = StartLoop(config);
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}, config).ok());
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (int i = 0; i < 10; ++i) {
    sinks.push_back(std::make_shared<WaitingSink>());
    ASSERT_TRUE(loop->Submit(Request(absl::StrCat("r", i), 4, 15000), sinks.back()).ok());
  }
  loop->Stop();
  loop->Stop();
  for (auto& sink : sinks) EXPECT_EQ(sink->finished(), 4u);
  EXPECT_EQ(ErrorReason(loop->Submit(Request("late"), sinks[0])), "DRAINING");
}

template <typename Counts>
int64_t GetCount(const Counts& times) {
  int64_t count = 0;
  for (int64_t between : times.counts) count += between;
  return count;
}

TEST(EngineLoopTest, CountsTimesToTokensAndHowSamplesEnded) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}).ok());
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(Request("a", 3, /*max_new_tokens=*/5), sink).ok());
  sink->WaitForSamples(3);
  loop->Pause();  // after Pause the status counts all tokens
  GenerationRequest stops = Request("b", 1, 5);
  // Any first token stops the answer.
  for (int32_t token = 0; token < 11; ++token) stops.sampling.stop_token_ids.push_back(token);
  auto stopped = std::make_shared<WaitingSink>(), aborted = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(Request("c"), aborted).ok());
  EXPECT_EQ(loop->Abort("c"), 1);
  loop->Resume();
  ASSERT_TRUE(loop->Submit(stops, stopped).ok());
  stopped->WaitForSamples(1);
  loop->Pause();
  const EngineStatus status = loop->GetStatus();
  EXPECT_EQ(GetCount(status.requests.time_to_first_token), 4) << "one for each sample that drew a token";
  EXPECT_EQ(GetCount(status.requests.time_per_output_token), 3 * 4);
  EXPECT_GT(status.requests.time_to_first_token.sum, 0);
  EXPECT_EQ(status.requests.at_length, 3);
  EXPECT_EQ(status.requests.stopped, 1);
  EXPECT_EQ(status.requests.aborted, 1);
  EXPECT_EQ(status.prompt_tokens, 2 * 6) << "the request that was ended had not started";
}

std::vector<int32_t> GetTokens(EngineLoop& loop, const std::string& id) {
  auto sink = std::make_shared<WaitingSink>();
  EXPECT_TRUE(loop.Submit(Request(id, 2), sink).ok());
  return sink->WaitForSamples(2)[1].tokens;
}

TEST(EngineLoopSleepTest, GivesBackWhatItSaysAndWakesWithTheSameVersionAndTokens) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 3}).ok());
  const std::vector<int32_t> expected = GetTokens(*loop, "a");
  const EngineStatus before = loop->GetStatus();
  const absl::StatusOr<int64_t> freed = loop->Sleep(/*level=*/1, kDeadline);
  ASSERT_TRUE(freed.ok()) << freed.status();
  const EngineStatus asleep = loop->GetStatus();
  EXPECT_EQ(asleep.state, EngineStatus::State::kAsleep);
  EXPECT_EQ(asleep.serving, (PolicyVersion{1, 3}));
  EXPECT_EQ(asleep.kv_bytes, 0);
  EXPECT_EQ(asleep.weight_bytes, before.weight_bytes / 2);  // the live set, which is in host memory in any case
  EXPECT_EQ(*freed, before.kv_bytes + before.weight_bytes / 2);
  ASSERT_TRUE(loop->WakeUp().ok());
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kRunning);
  EXPECT_EQ(loop->GetStatus().serving_digest, 103u);
  EXPECT_EQ(GetTokens(*loop, "b"), expected);
  EXPECT_EQ(loop->GetStatus().weight_bytes, before.weight_bytes);
  ASSERT_TRUE(InstallWeights(*loop, {1, 4}).ok());
  EXPECT_EQ(GetTokens(*loop, "c"), expected);  // the bits are the same under another name
}

TEST(EngineLoopSleepTest, AfterLevelTwoNothingServesUntilTheNextInstall) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 3}).ok());
  const std::vector<int32_t> expected = GetTokens(*loop, "a");
  const EngineStatus before = loop->GetStatus();
  EXPECT_EQ(loop->Sleep(2, kDeadline).value(), before.kv_bytes + before.weight_bytes);
  EXPECT_EQ(loop->GetStatus().weight_bytes, 0);
  EXPECT_TRUE(loop->GetStatus().serving.IsNone());
  const synchronizer::ReceiverWeights lost = loop->LastSleep();
  EXPECT_TRUE(lost.slept && lost.free_cache_engine && lost.sleep_level == 2);
  ASSERT_TRUE(loop->WakeUp().ok());
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kWaitingForWeights);
  EXPECT_EQ(ErrorReason(loop->Submit(Request("b"), std::make_shared<WaitingSink>())), "NO_WEIGHTS");
  // A lighter sleep before the next install brings nothing back.
  EXPECT_GT(loop->Sleep(1, kDeadline).value(), 0);
  EXPECT_EQ(loop->LastSleep().sleep_level, 2);
  ASSERT_TRUE(loop->WakeUp().ok());
  // The same version may be installed again: nothing has been served since.
  ASSERT_TRUE(InstallWeights(*loop, {1, 3}).ok());
  EXPECT_FALSE(loop->LastSleep().slept);
  EXPECT_EQ(GetTokens(*loop, "c"), expected);
}

// An engine that yields in the middle of its answers. The parameter: how many of its blocks fit into host memory.
class EngineLoopYieldTest : public ::testing::TestWithParam<int> {
 protected:
  static constexpr int kRequests = 4, kTokens = 800;
  std::unique_ptr<EngineLoop> Start() {
    EngineLoop::Options options;
    options.model = config_;
    options.max_sequences = 16;
    const int64_t block = HostBackend(config_, *model::MakeManifest(config_, DType::kFloat32)).kv_block_bytes();
    options.host_kv_bytes = GetParam() * block;
    return EngineLoop::Start(options).value();
  }
  static std::vector<std::shared_ptr<WaitingSink>> SubmitAll(EngineLoop& loop) {
    std::vector<std::shared_ptr<WaitingSink>> sinks;
    for (int i = 0; i < kRequests; ++i) {
      GenerationRequest request = Request(absl::StrCat(i), 2, kTokens);
      request.seeds = {static_cast<uint64_t>(i), static_cast<uint64_t>(i) + 100};
      sinks.push_back(std::make_shared<WaitingSink>());
      EXPECT_TRUE(loop.Submit(std::move(request), sinks.back()).ok());
    }
    return sinks;
  }
  absl::Status Install(EngineLoop& loop, const PolicyVersion& version) {
    return InstallWeights(loop, version, config_).status();
  }

  const model::ModelConfig config_ = LongContext();
};

TEST_P(EngineLoopYieldTest, AnswersGoOnBehindItWithTheSameTokensAndLogProbs) {
  std::vector<std::map<int32_t, Trajectory>> expected;
  {
    auto calm = Start();
    ASSERT_TRUE(Install(*calm, {1, 1}).ok());
    for (const auto& sink : SubmitAll(*calm)) expected.push_back(sink->WaitForSamples(2));
  }
  auto loop = Start();
  ASSERT_TRUE(Install(*loop, {1, 1}).ok());
  const auto sinks = SubmitAll(*loop);
  constexpr int kYields = 3;
  for (int yield = 1; yield <= kYields; ++yield) {
    ASSERT_TRUE(sinks.back()->WaitForTokens(yield * 40));
    const absl::StatusOr<int64_t> moved = loop->Yield(kDeadline);
    ASSERT_TRUE(moved.ok()) << moved.status();
    EXPECT_EQ(*moved > 0, GetParam() > 0);
    const EngineStatus yielded = loop->GetStatus();
    EXPECT_TRUE(yielded.yielded);
    EXPECT_EQ(yielded.weight_bytes + yielded.kv_bytes, 0);
    EXPECT_TRUE(yielded.serving.IsNone());
    EXPECT_EQ(yielded.running_sequences, 0);
    EXPECT_GT(yielded.waiting_sequences, 0);
    ASSERT_TRUE(loop->EndYield().ok());
    EXPECT_TRUE(loop->GetStatus().yielded) << "nothing is computed before there are weights";
    // The same bits under another name.
    ASSERT_TRUE(Install(*loop, {1, 1 + yield}).ok());
    EXPECT_FALSE(loop->GetStatus().yielded);
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    const std::map<int32_t, Trajectory> samples = sinks[i]->WaitForSamples(2);
    for (int32_t sample : {0, 1}) {
      EXPECT_EQ(samples.at(sample).tokens, expected[i].at(sample).tokens);
      EXPECT_EQ(samples.at(sample).logprobs, expected[i].at(sample).logprobs);
    }
    EXPECT_EQ(samples.at(0).spans.back().version, (PolicyVersion{1, 1 + kYields}));
  }
  loop->Pause();
  const EngineStatus end = loop->GetStatus();
  EXPECT_GT(end.yielded_sequences, kYields);
  EXPECT_EQ(end.yielded_swaps > 0, GetParam() > 0);
  if (GetParam() == 6) {
    EXPECT_LT(end.yielded_swaps, end.yielded_sequences) << "six blocks are not enough for all";
  }
  EXPECT_EQ(end.preemptions, 0);
  EXPECT_EQ(end.host_kv_usage, 0);
}

INSTANTIATE_TEST_SUITE_P(HostBlocks, EngineLoopYieldTest, ::testing::Values(0, 6, 1000));

TEST(EngineLoopYieldedTest, TakesRequestsThatWaitForTheNextInstall) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 3}).ok());
  const std::vector<int32_t> expected = GetTokens(*loop, "a");
  // What the synchronizer hears: an attempt that it begins with a rollouter that has yielded would delay the next one.
  std::vector<EngineStatus::State> announced;
  loop->SetPinListener([&] { announced.push_back(loop->GetStatus().state); });
  ASSERT_TRUE(loop->Yield(kDeadline).ok());
  EXPECT_EQ(announced, std::vector<EngineStatus::State>{EngineStatus::State::kAsleep});
  EXPECT_EQ(loop->Yield(kDeadline).value(), 0);
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kAsleep);
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(Request("b", 2), sink).ok());
  // The device is another's: neither a wake-up nor weights.
  EXPECT_EQ(ErrorReason(loop->WakeUp()), "YIELDED");
  EXPECT_EQ(ErrorReason(loop->Sleep(2, kDeadline).status()), "YIELDED");
  EXPECT_EQ(ErrorReason(loop->BeginAttempt()), "HELD");
  EXPECT_EQ(loop->GetStatus().weight_bytes, 0);
  ASSERT_TRUE(loop->EndYield().ok());
  EXPECT_EQ(announced.back(), EngineStatus::State::kWaitingForWeights);
  ASSERT_TRUE(loop->EndYield().ok());
  EXPECT_EQ(sink->finished(), 0u);
  EXPECT_TRUE(loop->LastSleep().slept);
  ASSERT_TRUE(InstallWeights(*loop, {1, 4}).ok());
  EXPECT_EQ(sink->WaitForSamples(2)[1].tokens, expected);
}

TEST(EngineLoopYieldedTest, WhatHoldsInstallsAndComesWithoutWeightsPinsTheNextVersion) {
  auto loop = StartLoop(LongContext());
  ASSERT_TRUE(InstallWeights(*loop, {1, 1}, LongContext()).ok());
  ASSERT_TRUE(loop->Yield(kDeadline).ok());
  auto evaluation = std::make_shared<WaitingSink>();
  GenerationRequest request = Request("evaluation", 1, 20);
  request.holds_install = true;
  ASSERT_TRUE(loop->Submit(std::move(request), evaluation).ok());
  ASSERT_TRUE(loop->EndYield().ok());
  EXPECT_FALSE(loop->GetStatus().pins_version) << "nothing could be installed that it waits for";
  ASSERT_TRUE(InstallWeights(*loop, {1, 2}, LongContext()).ok());
  EXPECT_EQ(evaluation->WaitForSamples(1)[0].spans.front().version, (PolicyVersion{1, 2}));
}

TEST(EngineLoopYieldedTest, WhatHoldsInstallsEndsAsNoOtherVersionMayAnswerIt) {
  auto loop = StartLoop(LongContext());
  ASSERT_TRUE(InstallWeights(*loop, {1, 1}, LongContext()).ok());
  auto evaluation = std::make_shared<WaitingSink>(), training = std::make_shared<WaitingSink>();
  GenerationRequest request = Request("evaluation", 1, 15000);
  request.holds_install = true;
  ASSERT_TRUE(loop->Submit(std::move(request), evaluation).ok());
  ASSERT_TRUE(loop->Submit(Request("training", 1, 500), training).ok());
  ASSERT_TRUE(evaluation->WaitForTokens(3));
  ASSERT_TRUE(loop->Yield(kDeadline).ok());
  EXPECT_EQ(evaluation->WaitForSamples(1)[0].finish, FinishReason::kAborted);
  ASSERT_TRUE(loop->EndYield().ok());
  ASSERT_TRUE(InstallWeights(*loop, {1, 2}, LongContext()).ok());
  EXPECT_EQ(training->WaitForSamples(1)[0].tokens.size(), 500u);
}

class EngineLoopAsleepYieldTest : public ::testing::TestWithParam<int32_t> {};

TEST_P(EngineLoopAsleepYieldTest, OneThatSleepsDropsItsWeightsAndSleepsOnAndCannotBeWokenMeanwhile) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 3}).ok());
  ASSERT_TRUE(loop->Sleep(GetParam(), kDeadline).ok());
  ASSERT_TRUE(loop->Yield(kDeadline).ok());
  EXPECT_EQ(ErrorReason(loop->WakeUp()), "YIELDED");
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kAsleep);
  EXPECT_EQ(loop->GetStatus().weight_bytes, 0);
  EXPECT_FALSE(loop->GetStatus().yielded);
  ASSERT_TRUE(loop->EndYield().ok());
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kAsleep) << "who laid it to sleep wakes it";
  ASSERT_TRUE(loop->WakeUp().ok());
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kWaitingForWeights);
}

INSTANTIATE_TEST_SUITE_P(Levels, EngineLoopAsleepYieldTest, ::testing::Values(1, 2));

// Has the engine's thread wait in the answer to a request until Release().
class HeldEngine {
 public:
  explicit HeldEngine(EngineLoop& loop) {
    EXPECT_TRUE(loop.Submit(Request("held", 1, 1), sink_).ok());
    EXPECT_TRUE(sink_->holding.WaitFor(1));
  }
  ~HeldEngine() { Release(); }
  void Release() { sink_->go_on.Put(true); }
  // Runs `call`, which waits for the engine's thread, and gives it time to begin.
  static std::thread Begin(std::function<void()> call) {
    std::atomic<bool> begun = false;
    std::thread thread([&begun, call = std::move(call)] {
      begun = true;
      call();
    });
    while (!begun) std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    return thread;
  }

 private:
  struct Sink final : GenerationSink {
    bool OnToken(int32_t, int32_t, float, const PolicyVersion&, const std::vector<TokenLogProb>&) override {
      return true;
    }
    void OnFinished(int32_t, Trajectory) override {
      holding.Put(true);
      go_on.WaitFor(1);
    }
    Mailbox<bool> holding, go_on;
  };
  const std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
};

// Who asks while the engine's thread is busy is answered by what is true when its turn comes.
TEST(EngineLoopYieldedTest, AWakeUpThatWaitsBehindAYieldIsRefused) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 1}).ok());
  HeldEngine held(*loop);
  std::thread yield = HeldEngine::Begin([&] { EXPECT_TRUE(loop->Yield(kDeadline).ok()); });
  absl::Status woken;
  std::thread wake = HeldEngine::Begin([&] { woken = loop->WakeUp(); });
  held.Release();
  yield.join();
  wake.join();
  EXPECT_EQ(ErrorReason(woken), "YIELDED");
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kAsleep);
}

TEST(EngineLoopYieldedTest, ADrainWaitsForRequestsThatWereAcceptedBehindAYield) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 1}).ok());
  HeldEngine held(*loop);
  std::thread yield = HeldEngine::Begin([&] { EXPECT_TRUE(loop->Yield(kDeadline).ok()); });
  std::vector<std::shared_ptr<WaitingSink>> sinks(1000);
  for (size_t i = 0; i < sinks.size(); ++i) {
    sinks[i] = std::make_shared<WaitingSink>();
    ASSERT_TRUE(loop->Submit(Request(absl::StrCat("r", i)), sinks[i]).ok());
  }
  absl::Status drained;
  std::thread drain = HeldEngine::Begin([&] { drained = loop->Drain(kDeadline); });
  held.Release();
  yield.join();
  EXPECT_TRUE(loop->EndYield().ok());
  EXPECT_EQ(sinks.front()->finished(), 0u);
  EXPECT_TRUE(InstallWeights(*loop, {1, 2}).ok());
  drain.join();
  EXPECT_TRUE(drained.ok()) << drained;
  for (const auto& sink : sinks) EXPECT_EQ(sink->finished(), 1u);
}

TEST(EngineLoopSleepTest, RefusesWhileRequestsRunOrWaitAndChangesNothing) {
  const model::ModelConfig config = LongContext();
  auto loop = StartLoop(config);
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}, config).ok());
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(Request("a", 1, 15000), sink).ok());
  const absl::Status running = loop->Sleep(1, kDeadline).status();
  EXPECT_EQ(running.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(running), "BUSY");
  loop->Pause();
  EXPECT_EQ(ErrorReason(loop->Sleep(2, kDeadline).status()), "BUSY");
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kPaused);
  loop->Resume();
  ASSERT_TRUE(sink->WaitForTokens(3));
  EXPECT_EQ(loop->Abort("a"), 1);
  EXPECT_TRUE(loop->Sleep(1, kDeadline).ok());
}

TEST(EngineLoopSleepTest, AsleepItTakesNeitherRequestsNorWeights) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}).ok());
  ASSERT_TRUE(loop->Sleep(1, kDeadline).ok());
  const absl::Status refused = loop->Submit(Request("a"), std::make_shared<WaitingSink>());
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(refused), "ASLEEP");
  EXPECT_EQ(ErrorReason(loop->BeginAttempt()), "HELD");
  EXPECT_EQ(ErrorReason(loop->Install({1, 1}, 1, kDeadline).status()), "HELD");
  EXPECT_EQ(ErrorReason(loop->Relabel({1, 1}, kDeadline).status()), "HELD");
  EXPECT_EQ(loop->shadow(), nullptr);
  ASSERT_TRUE(loop->WakeUp().ok());
  EXPECT_TRUE(loop->BeginAttempt().ok());
  loop->EndAttempt();
}

TEST(EngineLoopSleepTest, TwiceIsOnceAndADeeperSleepDropsWhatWasKept) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}).ok());
  EXPECT_TRUE(loop->WakeUp().ok());  // the engine is awake already
  ASSERT_TRUE(loop->Sleep(1, kDeadline).ok());
  EXPECT_EQ(loop->Sleep(1, kDeadline).value(), 0);
  const int64_t kept = loop->GetStatus().weight_bytes;
  EXPECT_EQ(loop->Sleep(2, kDeadline).value(), kept);
  EXPECT_EQ(loop->Sleep(1, kDeadline).value(), 0);
  EXPECT_TRUE(loop->GetStatus().serving.IsNone());
  ASSERT_TRUE(loop->WakeUp().ok());
  ASSERT_TRUE(loop->WakeUp().ok());
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kWaitingForWeights);
  EXPECT_EQ(ErrorReason(loop->Sleep(3, kDeadline).status()), "BAD_REQUEST");
}

TEST(EngineLoopSleepTest, PauseResumeAndDrainMeanTheSameAsleepAndAfterwards) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}).ok());
  const std::vector<int32_t> expected = GetTokens(*loop, "a");
  ASSERT_TRUE(loop->Drain(kDeadline).ok());
  ASSERT_TRUE(loop->Sleep(1, kDeadline).ok());
  loop->Pause();
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kAsleep);
  EXPECT_EQ(loop->Abort(""), 0);
  EXPECT_TRUE(loop->Drain(kDeadline).ok());
  ASSERT_TRUE(loop->WakeUp().ok());
  EXPECT_TRUE(loop->Drain(kDeadline).ok());  // returns when the engine's thread has seen that no work is left
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kDrained);
  EXPECT_EQ(ErrorReason(loop->Submit(Request("b"), std::make_shared<WaitingSink>())), "DRAINING");
  ASSERT_TRUE(loop->Sleep(1, kDeadline).ok());
  loop->Resume();
  // Neither a pause nor a drain: a sleep has its own state.
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kAsleep);
  ASSERT_TRUE(loop->WakeUp().ok());
  EXPECT_EQ(GetTokens(*loop, "c"), expected);
}

TEST(EngineLoopSleepTest, WaitsForAWeightSyncUnderWayAndHoldsTheNextOneBack) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}).ok());
  ASSERT_TRUE(loop->BeginAttempt().ok());
  EXPECT_EQ(ErrorReason(loop->Sleep(1, absl::Milliseconds(10)).status()), "BUSY");
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kRunning);
  absl::StatusOr<int64_t> freed = 0;
  std::thread sleeper([&] { freed = loop->Sleep(1, kDeadline); });
  const absl::Time limit = Clock::Real()->Now() + kDeadline;
  // BeginAttempt is refused as soon as the sleep waits. Until then an attempt may begin, within the one in progress.
  while (loop->BeginAttempt().ok()) {
    loop->EndAttempt();
    ASSERT_LT(Clock::Real()->Now(), limit);
  }
  ASSERT_TRUE(InstallWeights(*loop, {1, 1}).ok());  // the attempt in progress continues to its end
  loop->EndAttempt();
  sleeper.join();
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(loop->GetStatus().serving, (PolicyVersion{1, 1}));
  EXPECT_EQ(loop->GetStatus().state, EngineStatus::State::kAsleep);
}

TEST(EngineLoopSleepTest, AStoppedEngineSleepsNoMore) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}).ok());
  loop->Stop();
  EXPECT_EQ(ErrorReason(loop->Sleep(1, kDeadline).status()), "STOPPING");
  EXPECT_EQ(ErrorReason(loop->WakeUp()), "STOPPING");
}

TEST(EngineLoopTest, ManyCallersAtOnceGetTheirOwnTokens) {
  auto loop = StartLoop();
  ASSERT_TRUE(InstallWeights(*loop, {1, 0}).ok());
  auto reference = std::make_shared<WaitingSink>();
  ASSERT_TRUE(loop->Submit(Request("reference", 2), reference).ok());
  const auto expected = reference->WaitForSamples(2);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 10; ++i) {
        auto sink = std::make_shared<WaitingSink>();
        ASSERT_TRUE(loop->Submit(Request(absl::StrCat(caller, "-", i), 2), sink).ok());
        auto samples = sink->WaitForSamples(2);
        EXPECT_EQ(samples[0].tokens, expected.at(0).tokens);
        EXPECT_EQ(samples[1].tokens, expected.at(1).tokens);
      }
    });
  }
  for (int version = 1; version < 10; ++version) EXPECT_TRUE(InstallWeights(*loop, {1, version}).ok());
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace syncopate::rollouter
