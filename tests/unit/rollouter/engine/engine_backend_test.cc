#include "rollouter/engine/engine_backend.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include "base/clock.h"
#include "rollouter/engine/engine_commands.h"
#include "rollouter/engine/engine_loop.h"
#include "synchronizer/transport/shared_base_memory.h"
#include "tests/support/notification.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"

// The engine's thread on a device other than the CPU: errors, weights in place, bfloat16.
namespace syncopate::rollouter {
namespace {

using ::testing::HasSubstr;

// The host's arenas, as one weight set, or with an Exchange that fails.
class TestArenas final : public WeightArenas {
 public:
  explicit TestArenas(WeightArenas* host) : host_(host) {}
  char* shadow() override { return in_place_ ? const_cast<char*>(host_->live()) : host_->shadow(); }
  const char* live() const override { return host_->live(); }
  int64_t bytes() const override { return host_->bytes(); }
  bool in_place() const override { return in_place_; }
  const model::TransformerWeights& weights() const override { return host_->weights(); }
  absl::Status Exchange(const PolicyVersion& version, uint64_t digest, absl::Duration deadline) override {
    SYNCOPATE_RETURN_IF_ERROR(exchange_error_);
    return in_place_ ? absl::OkStatus() : host_->Exchange(version, digest, deadline);
  }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override { return host_->CopyLive(ranges); }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return host_->BeginCheck(std::move(contents));
  }
  absl::Status Release(bool keep_live) override {
    SYNCOPATE_RETURN_IF_ERROR(release_error_);
    return host_->Release(keep_live);
  }
  absl::Status Restore() override {
    SYNCOPATE_RETURN_IF_ERROR(restore_error_);
    return host_->Restore();
  }

  bool in_place_ = false;
  absl::Status exchange_error_;  // set it while no install runs
  absl::Status release_error_;   // set both while no sleep begins or ends
  absl::Status restore_error_;

 private:
  WeightArenas* const host_;
};

// A runner that fails like a GPU when the test says so.
class TestRunner final : public ModelRunner {
 public:
  TestRunner(std::unique_ptr<ModelRunner> host, const std::atomic<bool>* broken, std::atomic<absl::Time>* drained)
      : host_(std::move(host)), broken_(broken), drained_(drained) {}
  Capacity capacity() const override { return host_->capacity(); }
  int64_t kv_bytes() const override { return host_->kv_bytes(); }
  int64_t host_kv_bytes() const override { return host_->host_kv_bytes(); }
  absl::Status ReleaseBlocks() override { return host_->ReleaseBlocks(); }
  absl::Status RestoreBlocks() override { return host_->RestoreBlocks(); }
  absl::StatusOr<Ticket> Launch(const StepPlan& plan) override {
    TORCH_CHECK(!*broken_, "an illegal memory access was encountered");
    launched_ = true;
    return host_->Launch(plan);
  }
  absl::StatusOr<StepResult> Await(const Ticket& ticket) override {
    if (!std::exchange(launched_, false)) {
      // Nothing was launched since the last step was awaited: the engine drains before a change of weights. On a GPU
      // the awaited step may have just begun, so here it takes a while too.
      const absl::Time until = Clock::Real()->Now() + absl::Milliseconds(20);
      while (Clock::Real()->Now() < until) {
      }
      *drained_ = Clock::Real()->Now();
    }
    return host_->Await(ticket);
  }

 private:
  const std::unique_ptr<ModelRunner> host_;
  const std::atomic<bool>* const broken_;
  std::atomic<absl::Time>* const drained_;
  bool launched_ = false;
};

class TestBackend final : public EngineBackend {
 public:
  TestBackend(const model::ModelConfig& config, const Manifest& manifest) : host_(config, manifest) {}
  at::Device device() const override { return host_.device(); }
  DType dtype() const override { return host_.dtype(); }
  WeightArenas& arenas() override { return arenas_; }
  int64_t kv_block_bytes() const override { return host_.kv_block_bytes(); }
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) override {
    RunnerOptions own = options;
    own.plans_under_way = plans_under_way_;
    SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> host, host_.MakeRunner(own));
    return std::make_unique<TestRunner>(std::move(host), &broken_, &drained_);
  }

  std::atomic<bool> broken_ = false;
  std::atomic<absl::Time> drained_ = absl::InfinitePast();  // when the latest wait for a launched plan ended
  int32_t plans_under_way_ = 1;

 private:
  HostBackend host_;

 public:
  TestArenas arenas_{&host_.arenas()};
};

class KeepingSink final : public GenerationSink {
 public:
  void OnFinished(int32_t sample, Trajectory trajectory) override { finished.Put(std::move(trajectory)); }
  Mailbox<Trajectory> finished;
};

class EngineLoopOnATestBackend : public ::testing::Test {
 protected:
  EngineLoopOnATestBackend() {
    config_.max_position_embeddings = 20000;
    config_.learned_positions = false;
    manifest_ = model::MakeManifest(config_, DType::kFloat32).value();
    backend_ = std::make_shared<TestBackend>(config_, manifest_);
  }
  void Start() {
    EngineLoop::Options options;
    options.model = config_;
    options.max_sequences = 4;
    options.backend = backend_;
    loop_ = EngineLoop::Start(options).value();
  }
  absl::Status Install(const PolicyVersion& version) {
    model::InitialiseWeights(config_, manifest_, 7, reinterpret_cast<float*>(loop_->shadow()));
    return loop_->Install(version, /*digest=*/1, kTestDeadline).status();
  }
  std::shared_ptr<KeepingSink> Submit(bool holds_install = false, int tokens = 15000) {
    GenerationRequest request;
    request.id = "a";
    request.prompt_ids = {1, 2};
    request.seeds = {1};
    request.sampling.max_new_tokens = tokens;
    request.holds_install = holds_install;
    auto sink = std::make_shared<KeepingSink>();
    submitted_ = loop_->Submit(request, sink);
    return sink;
  }
  bool MakesTokens() {
    const int64_t before = loop_->GetStatus().generated_tokens;
    const absl::Time limit = Clock::Real()->Now() + kTestDeadline;
    while (loop_->GetStatus().generated_tokens == before) {
      if (Clock::Real()->Now() > limit) return false;
    }
    return true;
  }

  model::ModelConfig config_ = testing::SmallModel();
  Manifest manifest_;
  std::shared_ptr<TestBackend> backend_;
  std::unique_ptr<EngineLoop> loop_;
  absl::Status submitted_;
};

TEST_F(EngineLoopOnATestBackend, AnErrorOfLibtorchEndsTheEngineWithItsReasonAndAnswersEveryRequest) {
  Start();
  ASSERT_TRUE(Install({1, 0}).ok());
  auto sink = Submit();
  ASSERT_TRUE(MakesTokens());
  backend_->broken_ = true;
  ASSERT_TRUE(sink->finished.WaitFor(1));
  EXPECT_EQ(sink->finished.All()[0].finish, FinishReason::kAborted);
  EXPECT_EQ(loop_->Abort(""), 0);  // returns without hanging
  const absl::Status pending = Install({1, 1});
  EXPECT_EQ(ErrorReason(pending), "INSTALL_BUSY");
  const EngineStatus status = loop_->GetStatus();
  EXPECT_EQ(status.state, EngineStatus::State::kFailed);
  EXPECT_EQ(ErrorReason(status.failure), "TORCH");
  EXPECT_THAT(std::string(status.failure.message()), HasSubstr("illegal memory access"));
  Submit();
  EXPECT_EQ(ErrorReason(submitted_), "DRAINING");
}

TEST_F(EngineLoopOnATestBackend, OneStepBehindInstallsAndPausesFindNothingUnderWay) {
  backend_->plans_under_way_ = 2;
  Start();
  ASSERT_TRUE(Install({1, 0}).ok());
  auto sink = Submit(/*holds_install=*/false, /*tokens=*/1500);
  ASSERT_TRUE(MakesTokens());
  ASSERT_TRUE(Install({1, 1}).ok());
  ASSERT_TRUE(MakesTokens());
  loop_->Pause();
  const int64_t tokens = loop_->GetStatus().generated_tokens;
  EXPECT_EQ(loop_->Abort("nobody"), 0);  // returns after a round of the loop
  EXPECT_EQ(loop_->GetStatus().generated_tokens, tokens);
  loop_->Resume();
  ASSERT_TRUE(sink->finished.WaitFor(1));
  const Trajectory made = sink->finished.All()[0];
  ASSERT_EQ(made.tokens.size(), 1500u);
  ASSERT_EQ(made.spans.size(), 2u);
  EXPECT_EQ(made.spans[0].version, (PolicyVersion{1, 0}));
  EXPECT_EQ(made.spans[1], (VersionSpan{{1, 1}, made.spans[0].end, 1500}));
  EXPECT_EQ(loop_->Abort("nobody"), 0);  // returns after a round of the loop
  EXPECT_EQ(loop_->GetStatus().generated_tokens, 1500) << "discarded tokens are not counted";
}

TEST_F(EngineLoopOnATestBackend, APauseBeginsWhenThePlanThatWasLaunchedBeforeItHasEnded) {
  backend_->plans_under_way_ = 2;
  Start();
  ASSERT_TRUE(Install({1, 0}).ok());
  auto sink = Submit();
  ASSERT_TRUE(MakesTokens());
  const absl::Time begun = Clock::Real()->Now();
  const auto installed = loop_->Install({1, 1}, /*digest=*/1, kTestDeadline);
  const absl::Time ended = Clock::Real()->Now();
  ASSERT_TRUE(installed.ok()) << installed.status();
  ASSERT_GT(backend_->drained_.load(), begun) << "a plan was in progress";
  EXPECT_GT(installed->pause_seconds, 0);
  EXPECT_LE(installed->pause_seconds, absl::ToDoubleSeconds(ended - backend_->drained_.load()));
  loop_->Abort("");
  EXPECT_TRUE(sink->finished.WaitFor(1));
}

TEST_F(EngineLoopOnATestBackend, AnExchangeThatFailsLeavesWhatServesServing) {
  Start();
  ASSERT_TRUE(Install({1, 0}).ok());
  Submit();
  backend_->arenas_.exchange_error_ = Error(absl::StatusCode::kInternal, "CUDA_ERROR", "no");
  EXPECT_EQ(ErrorReason(Install({1, 1})), "CUDA_ERROR");
  EXPECT_EQ(loop_->GetStatus().serving, (PolicyVersion{1, 0}));
  EXPECT_EQ(loop_->GetStatus().installs, 1);
  EXPECT_TRUE(MakesTokens());
}

TEST_F(EngineLoopOnATestBackend, WeightsThatAreGoneEndTheEngine) {
  Start();
  ASSERT_TRUE(Install({1, 0}).ok());
  auto sink = Submit();
  backend_->arenas_.exchange_error_ = Error(absl::StatusCode::kInternal, "WEIGHTS_UNMAPPED", "no");
  EXPECT_EQ(ErrorReason(Install({1, 1})), "WEIGHTS_UNMAPPED");
  ASSERT_TRUE(sink->finished.WaitFor(1));
  loop_->Stop();
  EXPECT_EQ(ErrorReason(loop_->GetStatus().failure), "WEIGHTS_UNMAPPED");
}

TEST_F(EngineLoopOnATestBackend, ATransferInPlaceStopsGenerationUntilItIsInstalled) {
  backend_->arenas_.in_place_ = true;
  Start();
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kTestDeadline).ok());
  ASSERT_TRUE(Install({1, 0}).ok());
  Submit();
  ASSERT_TRUE(MakesTokens());
  const absl::Time begun = Clock::Real()->Now();
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kTestDeadline).ok());
  const int64_t tokens = loop_->GetStatus().generated_tokens;
  EXPECT_EQ(loop_->Abort("nobody"), 0);  // returns after a round of the loop
  EXPECT_EQ(loop_->GetStatus().generated_tokens, tokens);
  auto held = Submit(/*holds_install=*/true, /*tokens=*/1);  // the request has no token yet, so it delays no install
  model::InitialiseWeights(config_, manifest_, 8, reinterpret_cast<float*>(loop_->shadow()));
  auto installed = loop_->Install({1, 1}, 2, kTestDeadline);
  ASSERT_TRUE(installed.ok()) << installed.status();
  EXPECT_GT(installed->pause_seconds, 0);
  EXPECT_LE(installed->pause_seconds, absl::ToDoubleSeconds(Clock::Real()->Now() - begun));
  EXPECT_TRUE(held->finished.WaitFor(1));
  EXPECT_TRUE(MakesTokens());
}

TEST_F(EngineLoopOnATestBackend, ATransferInPlaceThatIsCalledOffLetsGenerationGoOnUnlessThereAreNoWeights) {
  backend_->arenas_.in_place_ = true;
  Start();
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kTestDeadline).ok());
  ASSERT_TRUE(Install({1, 0}).ok());
  Submit();
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kTestDeadline).ok());
  loop_->CancelInPlace();
  EXPECT_TRUE(MakesTokens());
  EXPECT_EQ(loop_->GetStatus().serving, (PolicyVersion{1, 0}));
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kTestDeadline).ok());
  loop_->Invalidate();
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kTestDeadline).ok());
  const int64_t tokens = loop_->GetStatus().generated_tokens;
  loop_->CancelInPlace();
  EXPECT_EQ(loop_->Abort("nobody"), 0);  // returns after a round of the loop
  EXPECT_EQ(loop_->GetStatus().generated_tokens, tokens) << "partly overwritten weights stay unusable";
  ASSERT_TRUE(Install({1, 1}).ok());
  EXPECT_TRUE(MakesTokens());
}

TEST_F(EngineLoopOnATestBackend, ATransferInPlaceThatFailsLeavesNothingServingUntilTheNextInstall) {
  backend_->arenas_.in_place_ = true;
  Start();
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kTestDeadline).ok());
  ASSERT_TRUE(Install({1, 3}).ok());
  Submit();
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kTestDeadline).ok());
  loop_->Invalidate();
  const int64_t tokens = loop_->GetStatus().generated_tokens;
  EXPECT_TRUE(loop_->GetStatus().serving.IsNone());
  EXPECT_EQ(loop_->GetStatus().state, EngineStatus::State::kWaitingForWeights);
  Submit();
  EXPECT_EQ(ErrorReason(submitted_), "NO_WEIGHTS");
  EXPECT_EQ(loop_->GetStatus().generated_tokens, tokens);
  ASSERT_TRUE(loop_->BeginInPlace(PolicyVersion{1, 1}, kTestDeadline).ok());
  ASSERT_TRUE(Install({1, 3}).ok());  // the lost version again
  EXPECT_TRUE(MakesTokens());
}

TEST_F(EngineLoopOnATestBackend, BytesOfWhatServesCanBeCopiedToTheShadow) {
  Start();
  ASSERT_TRUE(Install({1, 0}).ok());
  ASSERT_TRUE(loop_->can_copy_live());
  const int64_t half = manifest_.arena_bytes() / 2;
  ASSERT_TRUE(loop_->CopyLive({{0, 64}, {half, half + 128}}).ok());
  EXPECT_EQ(std::memcmp(loop_->shadow(), loop_->live(), 64), 0);
  EXPECT_EQ(std::memcmp(loop_->shadow() + half, loop_->live() + half, 128), 0);
  EXPECT_NE(std::memcmp(loop_->shadow(), loop_->live(), static_cast<size_t>(half)), 0);
}

TEST_F(EngineLoopOnATestBackend, TwoWeightSetsRefuseATransferInPlace) {
  Start();
  EXPECT_EQ(ErrorReason(loop_->BeginInPlace(PolicyVersion{1, 1}, kTestDeadline)), "NOT_IN_PLACE");
}

TEST(EngineLoopTest, BFloat16WeightsTakeHalfTheMemoryAndGiveNearlyTheSameLogProbs) {
  std::map<DType, Trajectory> made;
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    EngineLoop::Options options;
    options.model = testing::SmallModel();
    options.max_sequences = 4;
    options.dtype = dtype;
    auto loop = EngineLoop::Start(options).value();
    EXPECT_EQ(loop->manifest().tensors()[0].dtype, dtype);
    EXPECT_EQ(loop->GetStatus().weight_bytes, 2 * loop->manifest().arena_bytes());
    const Manifest wide = model::MakeManifest(options.model, DType::kFloat32).value();
    std::vector<float> weights(static_cast<size_t>(wide.arena_bytes()) / sizeof(float));
    model::InitialiseWeights(options.model, wide, 7, weights.data());
    for (size_t i = 0; i < wide.tensors().size(); ++i) {
      const auto& shape = wide.tensors()[i].shape;
      at::from_blob(loop->shadow() + loop->manifest().ranges()[i].begin, shape, model::ToScalarType(dtype))
          .copy_(at::from_blob(weights.data() + wide.ranges()[i].begin / sizeof(float), shape, at::kFloat));
    }
    ASSERT_TRUE(loop->Install({1, 0}, 1, kTestDeadline).ok());
    GenerationRequest request;
    request.prompt_ids = {8, 1, 2, 3};
    request.seeds = {1};
    request.sampling.max_new_tokens = 1;
    auto sink = std::make_shared<KeepingSink>();
    ASSERT_TRUE(loop->Submit(request, sink).ok());
    ASSERT_TRUE(sink->finished.WaitFor(1));
    made[dtype] = sink->finished.All()[0];
  }
  EXPECT_NE(made[DType::kFloat32].logprobs, made[DType::kBFloat16].logprobs);
  if (made[DType::kFloat32].tokens == made[DType::kBFloat16].tokens) {
    EXPECT_NEAR(made[DType::kFloat32].logprobs[0], made[DType::kBFloat16].logprobs[0], 0.02);
  }
}

TEST_F(EngineLoopOnATestBackend, ASleepThatTheHostHasNoRoomForChangesNothing) {
  Start();
  ASSERT_TRUE(Install({1, 0}).ok());
  backend_->arenas_.release_error_ = Error(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY", "no pinned memory");
  EXPECT_EQ(ErrorReason(loop_->Sleep(1, kTestDeadline).status()), "OUT_OF_MEMORY");
  EXPECT_EQ(loop_->GetStatus().state, EngineStatus::State::kRunning);
  auto sink = Submit(/*holds_install=*/false, /*tokens=*/3);
  EXPECT_TRUE(sink->finished.WaitFor(1));
}

TEST_F(EngineLoopOnATestBackend, WakingUpCanBeTriedAgainWhenOthersHaveTakenTheMemory) {
  Start();
  ASSERT_TRUE(Install({1, 0}).ok());
  ASSERT_TRUE(loop_->Sleep(1, kTestDeadline).ok());
  backend_->arenas_.restore_error_ = Error(absl::StatusCode::kResourceExhausted, "OUT_OF_GPU_MEMORY", "taken");
  EXPECT_EQ(ErrorReason(loop_->WakeUp()), "OUT_OF_GPU_MEMORY");
  EXPECT_EQ(loop_->GetStatus().state, EngineStatus::State::kAsleep);
  EXPECT_EQ(loop_->GetStatus().kv_bytes, 0) << "nothing was taken";
  backend_->arenas_.restore_error_ = absl::OkStatus();
  ASSERT_TRUE(loop_->WakeUp().ok());
  auto sink = Submit(/*holds_install=*/false, /*tokens=*/3);
  EXPECT_TRUE(sink->finished.WaitFor(1));
}

TEST_F(EngineLoopOnATestBackend, ADeviceThatFailsToWakeUpEndsTheEngine) {
  Start();
  ASSERT_TRUE(Install({1, 0}).ok());
  ASSERT_TRUE(loop_->Sleep(2, kTestDeadline).ok());
  backend_->arenas_.restore_error_ = Error(absl::StatusCode::kInternal, "CUDA_ERROR", "unmapped");
  EXPECT_EQ(ErrorReason(loop_->WakeUp()), "CUDA_ERROR");
  loop_->Stop();
  EXPECT_EQ(ErrorReason(loop_->GetStatus().failure), "CUDA_ERROR");
}

TEST(HostBackendTest, ABaseThatIsMappedIsTheBaseOfAllAdapterSetsAndTakesNoMemoryHere) {
  const model::ModelConfig adapted = testing::WithAdapters(testing::SmallModel());
  const Manifest manifest = *model::MakeWireManifest(adapted, DType::kFloat32);
  HostBackend backend(adapted, manifest, HostInstall::kMappedBase);
  WeightArenas& arenas = backend.arenas();
  const int64_t base = manifest.adapters_begin(), adapters = manifest.arena_bytes() - base;
  EXPECT_TRUE(arenas.maps_base());
  EXPECT_EQ(arenas.bytes(), 3 * adapters) << "whether a base of its own is needed is not known yet";
  synchronizer::SharedBaseMemory lender(1, {.base = base, .range = manifest.arena_bytes()});
  const model::TransformerWeights& weights = arenas.weights();
  auto* const lent_embedding = reinterpret_cast<float*>(lender.range(0));  // the manifest's first tensor
  *lent_embedding = 2.5F;
  for (int turn = 0; turn < 2; ++turn) {
    const synchronizer::SharedMemory lent = *lender.Lend();
    synchronizer::LentMemory received{lent->info, {}};
    received.handles.emplace_back(dup(lent->handles.front().get()));
    ASSERT_TRUE(arenas.MapBase(std::move(received)).ok());
    EXPECT_EQ(weights.tokens.flatten()[0].item<float>(), 2.5F) << "views stay where they are";
    EXPECT_EQ(arenas.bytes(), 3 * adapters);
    arenas.shadow()[base] = 6;
    EXPECT_EQ(arenas.live()[base], 0);
    ASSERT_TRUE(arenas.Release(/*keep_live=*/false).ok());
    EXPECT_EQ(arenas.bytes(), 0);
    ASSERT_TRUE(arenas.Restore().ok());
    EXPECT_EQ(*reinterpret_cast<const float*>(arenas.live()), 0.0F) << "turn " << turn;
  }
  ASSERT_TRUE(arenas.OwnBase().ok());
  EXPECT_EQ(arenas.bytes(), base + 3 * adapters);
  arenas.shadow()[0] = 9;
  EXPECT_EQ(arenas.live()[0], 9);
}

TEST(FollowingEngineTest, TooLittleMemoryIsNoErrorAndIsKnownUntilTheMemoryIsReleasedAgain) {
  const model::ModelConfig config = testing::GroupedQueryModel();
  auto backend = std::make_shared<TestBackend>(config, *model::MakeManifest(config, DType::kFloat32));
  FollowingEngine engine(backend);
  const auto obey = [&engine](std::vector<EngineCommand::Kind> kinds) {
    for (const EngineCommand::Kind kind : kinds) {
      const absl::Status obeyed = engine.Obey(
          {.kind = kind, .runner = {.max_sequences = 2, .max_prefill_tokens = 16, .max_context = 64, .blocks = 8}});
      if (!obeyed.ok()) return obeyed;
    }
    return absl::OkStatus();
  };
  using Kind = EngineCommand::Kind;
  ASSERT_THAT(obey({Kind::kMakeRunner, Kind::kReleaseWeights, Kind::kReleaseBlocks}), testing::IsOk());
  EXPECT_EQ(engine.device_bytes(), 0);
  backend->arenas_.restore_error_ = absl::ResourceExhaustedError("3 MiB are free");
  EXPECT_THAT(obey({Kind::kRestoreBlocks, Kind::kRestoreWeights}), testing::IsOk());
  EXPECT_THAT(engine.room(), testing::HasReason("NO_ROOM"));
  EXPECT_THAT(engine.room().message(), HasSubstr("3 MiB are free"));
  EXPECT_THAT(obey({Kind::kReleaseWeights, Kind::kReleaseBlocks}), testing::IsOk());
  EXPECT_EQ(engine.device_bytes(), 0);
  EXPECT_THAT(engine.room(), testing::IsOk());
  backend->arenas_.restore_error_ = absl::OkStatus();
  EXPECT_THAT(obey({Kind::kRestoreBlocks, Kind::kRestoreWeights}), testing::IsOk());
  EXPECT_THAT(engine.room(), testing::IsOk());
  EXPECT_GT(backend->arenas().bytes(), 0);
  EXPECT_GT(engine.kv_bytes(), 0);
  EXPECT_EQ(engine.device_bytes(), backend->arenas().bytes() + engine.kv_bytes());
  backend->arenas_.restore_error_ = absl::InternalError("the device is gone");
  EXPECT_THAT(obey({Kind::kReleaseWeights, Kind::kRestoreWeights}), testing::HasReason("")) << "any other error is one";
}

}  // namespace
}  // namespace syncopate::rollouter
