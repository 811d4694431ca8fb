// An engine whose second weight set is lent by its keys and values while a version arrives (sync.install: borrowed).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "rollouter/engine/engine_backend.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/engine/step_plan.h"
#include "tests/support/notification.h"
#include "tests/support/small_model.h"

namespace syncopate::rollouter {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLongest = absl::Seconds(20);
constexpr int64_t kBlocks = 192;

model::ModelConfig Config() {
  model::ModelConfig config = testing::SmallModel();
  config.max_position_embeddings = 160;
  config.learned_positions = false;
  return config;
}

// Collects the answer of a request with one sample.
class AnswerSink final : public GenerationSink {
 public:
  bool OnToken(int32_t, int32_t, float, const PolicyVersion&, const std::vector<TokenLogProb>&) override {
    if (on_token) on_token();
    MutexLock lock(&mutex_);
    ++tokens_;
    return true;
  }
  void OnFinished(int32_t, Trajectory trajectory) override {
    MutexLock lock(&mutex_);
    answer_ = std::move(trajectory);
  }
  bool WaitForTokens(int count) {
    MutexLock lock(&mutex_);
    auto reached = [&] { return tokens_ >= count; };
    return mutex_.AwaitWithTimeout(Condition(&reached), kLongest);
  }
  Trajectory WaitForAnswer() {
    MutexLock lock(&mutex_);
    auto ended = [&] { return answer_.has_value(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(Condition(&ended), kLongest));
    return answer_.value_or(Trajectory());
  }

  std::function<void()> on_token;  // set it before the request is submitted

 private:
  Mutex mutex_;
  int tokens_ = 0;
  std::optional<Trajectory> answer_;
};

// The most bytes of weights, keys and values together that were allocated after any call that may change them.
struct Peak {
  std::atomic<int64_t> kv = 0, weights = 0, most = 0;
  void Note() { most = std::max<int64_t>(most, kv + weights); }
};

// Forwards to the host's arenas, and may fail to take the shadow.
class MeasuredArenas final : public WeightArenas {
 public:
  MeasuredArenas(WeightArenas* host, Peak* peak) : host_(host), peak_(peak) { Note(); }
  char* shadow() override { return host_->shadow(); }
  const char* live() const override { return host_->live(); }
  int64_t bytes() const override { return host_->bytes(); }
  int64_t borrowed_bytes() const override { return host_->borrowed_bytes(); }
  absl::Status TakeShadow() override {
    SYNCOPATE_RETURN_IF_ERROR(take_error);
    return Noting(host_->TakeShadow());
  }
  absl::Status DropShadow() override { return Noting(host_->DropShadow()); }
  const model::TransformerWeights& weights() const override { return host_->weights(); }
  absl::Status Exchange(const PolicyVersion& version, uint64_t digest, absl::Duration deadline) override {
    return Noting(host_->Exchange(version, digest, deadline));
  }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override { return host_->CopyLive(ranges); }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return host_->BeginCheck(std::move(contents));
  }
  absl::Status Release(bool keep_live) override { return Noting(host_->Release(keep_live)); }
  absl::Status Restore() override { return Noting(host_->Restore()); }

  absl::Status take_error;  // set it while no shadow is taken

 private:
  absl::Status Noting(const absl::Status& status) {
    Note();
    return status;
  }
  void Note() {
    peak_->weights = host_->bytes();
    peak_->Note();
  }

  WeightArenas* const host_;
  Peak* const peak_;
};

class MeasuredRunner final : public ModelRunner {
 public:
  MeasuredRunner(std::unique_ptr<ModelRunner> host, Peak* peak) : host_(std::move(host)), peak_(peak) { Note(); }
  Capacity capacity() const override { return host_->capacity(); }
  int64_t kv_bytes() const override { return host_->kv_bytes(); }
  int64_t host_kv_bytes() const override { return host_->host_kv_bytes(); }
  absl::Status ReleaseBlocks() override { return Noting(host_->ReleaseBlocks()); }
  absl::Status RestoreBlocks() override { return Noting(host_->RestoreBlocks()); }
  absl::Status LendBlocks() override { return Noting(host_->LendBlocks()); }
  absl::Status ReturnBlocks() override { return Noting(host_->ReturnBlocks()); }
  absl::StatusOr<Ticket> Launch(const StepPlan& plan) override { return Noting(host_->Launch(plan)); }
  absl::StatusOr<StepResult> Await(const Ticket& ticket) override { return host_->Await(ticket); }
  absl::Status Synchronize() override { return host_->Synchronize(); }

 private:
  template <typename Result>
  Result Noting(Result result) {
    Note();
    return result;
  }
  void Note() {
    peak_->kv = host_->kv_bytes();
    peak_->Note();
  }

  const std::unique_ptr<ModelRunner> host_;
  Peak* const peak_;
};

class MeasuredBackend final : public EngineBackend {
 public:
  MeasuredBackend(std::shared_ptr<EngineBackend> host) : host_(std::move(host)), arenas_(&host_->arenas(), &peak) {}
  at::Device device() const override { return host_->device(); }
  DType dtype() const override { return host_->dtype(); }
  MeasuredArenas& arenas() override { return arenas_; }
  int64_t kv_block_bytes() const override { return host_->kv_block_bytes(); }
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) override {
    SYNCOPATE_ASSIGN_OR_RETURN(auto runner, host_->MakeRunner(options));
    return std::make_unique<MeasuredRunner>(std::move(runner), &peak);
  }

  Peak peak;

 private:
  const std::shared_ptr<EngineBackend> host_;
  MeasuredArenas arenas_;
};

class BorrowedShadowTest : public ::testing::Test {
 protected:
  static constexpr int kRequests = 24, kTokens = 140;

  std::unique_ptr<EngineLoop> Start(HostInstall install, int64_t host_blocks = 0, int64_t kv_blocks = kBlocks) {
    const Manifest manifest = *model::MakeManifest(config_, DType::kFloat32);
    backend_ = std::make_shared<MeasuredBackend>(std::make_shared<HostBackend>(config_, manifest, install));
    EngineLoop::Options options;
    options.model = config_;
    options.max_sequences = kRequests;
    options.kv_tokens = kv_blocks * kBlockTokens;
    options.host_kv_bytes = host_blocks * backend_->kv_block_bytes();
    options.backend = backend_;
    auto loop = EngineLoop::Start(options);
    EXPECT_TRUE(loop.ok()) << loop.status();
    return *std::move(loop);
  }
  // One whole attempt; the weights are the same under every version.
  absl::StatusOr<synchronizer::InstallResult> Sync(EngineLoop& loop, const PolicyVersion& version) {
    SYNCOPATE_RETURN_IF_ERROR(loop.BeginAttempt());
    const auto installed = [&]() -> absl::StatusOr<synchronizer::InstallResult> {
      SYNCOPATE_RETURN_IF_ERROR(loop.TakeShadow(kLongest).status());
      model::InitialiseWeights(config_, loop.manifest(), 7, reinterpret_cast<float*>(loop.shadow()));
      return loop.Install(version, /*digest=*/version.step + 100, kLongest);
    }();
    loop.EndAttempt();
    return installed;
  }
  static std::vector<std::shared_ptr<AnswerSink>> SubmitAll(EngineLoop& loop) {
    std::vector<std::shared_ptr<AnswerSink>> sinks;
    loop.Pause();  // all requests are added before the first step
    for (int i = 0; i < kRequests; ++i) {
      GenerationRequest request;
      request.id = absl::StrCat(i);
      request.prompt_ids = {8, 1, 2, 3, 4, 9};
      request.sampling.max_new_tokens = kTokens;
      request.seeds = {static_cast<uint64_t>(i)};
      sinks.push_back(std::make_shared<AnswerSink>());
      EXPECT_TRUE(loop.Submit(std::move(request), sinks.back()).ok());
    }
    loop.Resume();
    return sinks;
  }
  std::vector<Trajectory> Undisturbed() {
    auto loop = Start(HostInstall::kSwap);
    EXPECT_TRUE(Sync(*loop, {1, 1}).ok());
    std::vector<Trajectory> answers;
    for (const auto& sink : SubmitAll(*loop)) answers.push_back(sink->WaitForAnswer());
    return answers;
  }
  static void ExpectSameAnswers(const std::vector<std::shared_ptr<AnswerSink>>& sinks,
                                const std::vector<Trajectory>& expected) {
    for (size_t i = 0; i < sinks.size(); ++i) {
      const Trajectory answer = sinks[i]->WaitForAnswer();
      EXPECT_EQ(answer.tokens, expected[i].tokens) << i;
      EXPECT_EQ(answer.logprobs, expected[i].logprobs) << i;
    }
  }
  // The engine's status when its thread has carried out all that was asked for so far.
  static EngineStatus Settled(EngineLoop& loop) {
    loop.Pause();
    loop.Resume();
    return loop.GetStatus();
  }
  int64_t set_bytes() const { return model::MakeManifest(config_, DType::kFloat32)->arena_bytes(); }

  const model::ModelConfig config_ = Config();
  std::shared_ptr<MeasuredBackend> backend_;
};

// All blocks are in use, so each sync has to move answers out of its way.
class BorrowedShadowSyncTest : public BorrowedShadowTest, public ::testing::WithParamInterface<int> {};

TEST_P(BorrowedShadowSyncTest, AnswersGoOnThroughSyncsWithTheSameTokensAndLogProbsInTheMemoryOfOneWeightSet) {
  const std::vector<Trajectory> expected = Undisturbed();
  auto loop = Start(HostInstall::kBorrowed, GetParam());
  ASSERT_TRUE(Sync(*loop, {1, 1}).ok());
  EXPECT_EQ(Settled(*loop).weight_bytes, set_bytes());
  const auto sinks = SubmitAll(*loop);
  constexpr int kSyncs = 6;
  for (int sync = 1; sync <= kSyncs; ++sync) {
    ASSERT_TRUE(sinks[0]->WaitForTokens(sync * 18));
    const auto installed = Sync(*loop, {1, 1 + sync});
    ASSERT_TRUE(installed.ok()) << installed.status();
    const EngineStatus between = Settled(*loop);
    EXPECT_EQ(between.weight_bytes, set_bytes()) << "one weight set between syncs";
    EXPECT_EQ(between.lent_bytes, 0);
    EXPECT_EQ(between.lendings, 1 + sync);
  }
  ExpectSameAnswers(sinks, expected);
  const EngineStatus end = Settled(*loop);
  EXPECT_GT(end.preemptions, 0);
  EXPECT_EQ(end.swaps > 0, GetParam() > 0);
  EXPECT_GT(end.lent_seconds, 0);
  // The pool was full, so that a second set beside it would show.
  const int64_t padding = backend_->kv_block_bytes();
  EXPECT_LE(backend_->peak.most, kBlocks * backend_->kv_block_bytes() + padding + set_bytes());
  EXPECT_GT(backend_->peak.most, kBlocks * backend_->kv_block_bytes());
}

INSTANTIATE_TEST_SUITE_P(HostBlocks, BorrowedShadowSyncTest, ::testing::Values(0, 1000));

TEST_F(BorrowedShadowTest, AnAttemptThatFailsGivesTheMemoryBackAndTheOldWeightsServe) {
  const std::vector<Trajectory> expected = Undisturbed();
  auto loop = Start(HostInstall::kBorrowed);
  ASSERT_TRUE(Sync(*loop, {1, 1}).ok());
  const auto sinks = SubmitAll(*loop);
  for (int attempt = 1; attempt <= 5; ++attempt) {
    ASSERT_TRUE(sinks[0]->WaitForTokens(attempt * 20));
    ASSERT_TRUE(loop->BeginAttempt().ok());
    EXPECT_TRUE(loop->TakeShadow(kLongest).value()) << "what the shadow had is lost";
    EXPECT_FALSE(loop->TakeShadow(kLongest).value()) << "it is there";
    EXPECT_EQ(loop->GetStatus().lent_bytes, set_bytes());
    EXPECT_EQ(loop->GetStatus().weight_bytes, 2 * set_bytes());
    std::memset(loop->shadow(), 0xff, static_cast<size_t>(set_bytes()));
    loop->EndAttempt();
    const EngineStatus back = Settled(*loop);
    EXPECT_EQ(back.lent_bytes, 0);
    EXPECT_EQ(back.weight_bytes, set_bytes());
  }
  ExpectSameAnswers(sinks, expected);
  EXPECT_EQ(loop->GetStatus().serving, (PolicyVersion{1, 1}));
}

TEST_F(BorrowedShadowTest, ARelabelLendsNothing) {
  auto loop = Start(HostInstall::kBorrowed);
  ASSERT_TRUE(Sync(*loop, {1, 1}).ok());
  ASSERT_TRUE(loop->BeginAttempt().ok());
  ASSERT_TRUE(loop->Relabel({2, 1}, kLongest).ok());
  loop->EndAttempt();
  EXPECT_EQ(Settled(*loop).lendings, 1) << "that of the first version";
}

// A pause stops every step, and weights may be changed in it: the blocks are closed without one.
TEST_F(BorrowedShadowTest, APausedEngineLendsAndGoesOnWithTheSameAnswers) {
  const std::vector<Trajectory> expected = Undisturbed();
  auto loop = Start(HostInstall::kBorrowed);
  ASSERT_TRUE(Sync(*loop, {1, 1}).ok());
  const auto sinks = SubmitAll(*loop);
  ASSERT_TRUE(sinks[0]->WaitForTokens(100));
  loop->Pause();
  const int64_t tokens = loop->GetStatus().generated_tokens;
  ASSERT_TRUE(Sync(*loop, {1, 2}).ok());
  EXPECT_EQ(loop->GetStatus().generated_tokens, tokens);
  EXPECT_EQ(loop->GetStatus().serving, (PolicyVersion{1, 2}));
  loop->Resume();
  ExpectSameAnswers(sinks, expected);
}

TEST_F(BorrowedShadowTest, AnEngineThatEndsNoStepInTimeLendsNothingAndLendsLater) {
  auto loop = Start(HostInstall::kBorrowed);
  ASSERT_TRUE(Sync(*loop, {1, 1}).ok());
  Mailbox<bool> stands, goes_on;
  auto sink = std::make_shared<AnswerSink>();
  std::atomic<bool> first = true;
  sink->on_token = [&] {
    if (!first.exchange(false)) return;
    stands.Put(true);
    EXPECT_TRUE(goes_on.WaitFor(1));
  };
  GenerationRequest request;
  request.id = "a";
  request.prompt_ids = {8, 1, 9};
  request.sampling.max_new_tokens = 100;
  request.seeds = {1};
  ASSERT_TRUE(loop->Submit(std::move(request), sink).ok());
  ASSERT_TRUE(stands.WaitFor(1));
  ASSERT_TRUE(loop->BeginAttempt().ok());
  const absl::Status late = loop->TakeShadow(absl::Milliseconds(5)).status();
  EXPECT_EQ(ErrorReason(late), "NO_SHADOW");
  EXPECT_THAT(std::string(late.message()), HasSubstr("sync.install: borrowed"));
  loop->EndAttempt();
  goes_on.Put(true);
  ASSERT_TRUE(Sync(*loop, {1, 2}).ok());
  EXPECT_EQ(sink->WaitForAnswer().tokens.size(), 100u);
  EXPECT_EQ(Settled(*loop).lent_bytes, 0);
}

TEST_F(BorrowedShadowTest, MemoryThatCannotBeHadForTheShadowFailsTheAttemptAlone) {
  const std::vector<Trajectory> expected = Undisturbed();
  auto loop = Start(HostInstall::kBorrowed);
  ASSERT_TRUE(Sync(*loop, {1, 1}).ok());
  const auto sinks = SubmitAll(*loop);
  ASSERT_TRUE(sinks[0]->WaitForTokens(20));
  loop->Pause();
  backend_->arenas().take_error = Error(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY", "another took it");
  EXPECT_EQ(ErrorReason(Sync(*loop, {1, 2}).status()), "OUT_OF_MEMORY");
  backend_->arenas().take_error = absl::OkStatus();
  EXPECT_EQ(loop->GetStatus().lent_bytes, 0);
  ASSERT_TRUE(Sync(*loop, {1, 3}).ok());
  loop->Resume();
  ExpectSameAnswers(sinks, expected);
}

TEST_F(BorrowedShadowTest, ASleepWaitsUntilTheMemoryIsBackAndWakesWithOneWeightSet) {
  auto loop = Start(HostInstall::kBorrowed);
  ASSERT_TRUE(Sync(*loop, {1, 1}).ok());
  ASSERT_TRUE(loop->BeginAttempt().ok());
  ASSERT_TRUE(loop->TakeShadow(kLongest).ok());
  std::thread ends([&] { loop->EndAttempt(); });
  EXPECT_TRUE(loop->Sleep(1, kLongest).ok());
  ends.join();
  EXPECT_EQ(loop->GetStatus().kv_bytes, 0);
  EXPECT_EQ(loop->GetStatus().weight_bytes, set_bytes()) << "on a CPU they stay in host memory";
  ASSERT_TRUE(loop->WakeUp().ok());
  EXPECT_EQ(loop->GetStatus().weight_bytes, set_bytes());
  ASSERT_TRUE(Sync(*loop, {1, 2}).ok());
  EXPECT_EQ(loop->GetStatus().serving, (PolicyVersion{1, 2}));
}

TEST_F(BorrowedShadowTest, TooFewTokensForBothAreRefusedWithTheSum) {
  EngineLoop::Options options;
  options.model = config_;
  options.max_sequences = 4;
  options.kv_tokens = 320;
  options.backend =
      std::make_shared<HostBackend>(config_, *model::MakeManifest(config_, DType::kFloat32), HostInstall::kBorrowed);
  const absl::Status refused = EngineLoop::Start(options).status();
  EXPECT_EQ(ErrorReason(refused), "BAD_OPTIONS");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("sync.install: borrowed"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rollout.kv_tokens 320 is not enough"));
  options.kv_tokens = 0;
  EXPECT_TRUE(EngineLoop::Start(options).ok()) << "a number of its own has room for both";
}

}  // namespace
}  // namespace syncopate::rollouter
