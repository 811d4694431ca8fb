// An engine on a GPU whose second weight set is memory of its keys and values between syncs (sync.install: borrowed).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "rollouter/cuda/cuda_backend.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/engine/step_plan.h"
#include "tests/gpu/engine/gpu_engine.h"
#include "tests/support/status_matchers.h"

namespace syncopate::rollouter {
namespace {

using synchronizer::ToDevice;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using testing::RandomWeights;

constexpr absl::Duration kDeadline = absl::Seconds(60);
constexpr int kRequests = 24, kTokens = 600;
constexpr int64_t kBlocks = 700;  // fewer than all answers need

model::ModelConfig Config(int64_t head_dim, int64_t heads, int64_t kv_heads) {
  return {.vocab_size = 1003,
          .hidden_size = 256,
          .intermediate_size = 512,
          .num_hidden_layers = 4,
          .num_attention_heads = heads,
          .num_key_value_heads = kv_heads,
          .head_dim = head_dim,
          .max_position_embeddings = 1024,
          .rope_scaling = {},
          .qk_norm = head_dim == 128,
          .head_init_std = 0.15};
}

// Collects the answers of requests with one sample, by request.
class AnswerSinks {
 public:
  std::shared_ptr<GenerationSink> Make(int request) { return std::make_shared<Sink>(this, request); }
  bool AwaitTokens(int64_t count) {
    MutexLock lock(&mutex_);
    auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return tokens_ >= count; };
    return mutex_.AwaitWithTimeout(Condition(&there), kDeadline);
  }
  std::map<int, Trajectory> AwaitAll() {
    MutexLock lock(&mutex_);
    auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answers_.size() == kRequests; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(Condition(&there), kDeadline));
    return answers_;
  }

 private:
  class Sink final : public GenerationSink {
   public:
    Sink(AnswerSinks* all, int request) : all_(all), request_(request) {}
    bool OnToken(int32_t, int32_t, float, const PolicyVersion&, const std::vector<TokenLogProb>&) override {
      MutexLock lock(&all_->mutex_);
      ++all_->tokens_;
      return true;
    }
    void OnFinished(int32_t, Trajectory trajectory) override {
      MutexLock lock(&all_->mutex_);
      all_->answers_[request_] = std::move(trajectory);
    }

   private:
    AnswerSinks* const all_;
    const int request_;
  };

  Mutex mutex_;
  int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int, Trajectory> answers_ ABSL_GUARDED_BY(mutex_);
};

struct Case {
  std::string name;
  int64_t head_dim = 64, heads = 14, kv_heads = 2;
  int64_t host_blocks = 0;
};
std::ostream& operator<<(std::ostream& out, const Case& tried) { return out << tried.name; }

class BorrowedGpuTest : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<EngineLoop> Start(CudaInstall install) {
    backend_ = CudaBackend::Create(config_, manifest_, /*device=*/0, install, {.share = 0.4}).value();
    EngineLoop::Options options;
    options.model = config_;
    options.dtype = DType::kBFloat16;
    options.max_sequences = kRequests;
    options.kv_tokens = kBlocks * kBlockTokens;
    options.host_kv_bytes = GetParam().host_blocks * backend_->kv_block_bytes();
    options.deterministic = true;  // an answer that is computed again has the same bits
    options.backend = backend_;
    return EngineLoop::Start(options).value();
  }
  // One attempt; every version has the same weights.
  absl::Status Sync(EngineLoop& loop, const PolicyVersion& version, bool fails = false) {
    SYNCOPATE_RETURN_IF_ERROR(loop.BeginAttempt());
    const absl::Status done = [&]() -> absl::Status {
      SYNCOPATE_RETURN_IF_ERROR(loop.TakeShadow(kDeadline).status());
      ToDevice(0, loop.shadow(), weights_.data(), static_cast<int64_t>(weights_.size()));
      return fails ? absl::OkStatus() : loop.Install(version, /*digest=*/7, kDeadline).status();
    }();
    if (fails) {  // what has arrived is no number
      const std::vector<char> garbage(weights_.size(), static_cast<char>(0xff));
      ToDevice(0, loop.shadow(), garbage.data(), static_cast<int64_t>(garbage.size()));
    }
    loop.EndAttempt();
    return done;
  }
  static void SubmitAll(EngineLoop& loop, AnswerSinks& sinks) {
    loop.Pause();
    for (int i = 0; i < kRequests; ++i) {
      GenerationRequest request;
      request.id = absl::StrCat(i);
      for (int token = 0; token < 20 + i; ++token) request.prompt_ids.push_back((31 * i + 7 * token) % 1003);
      request.sampling.max_new_tokens = kTokens;
      request.seeds = {static_cast<uint64_t>(i)};
      ASSERT_THAT(loop.Submit(std::move(request), sinks.Make(i)), IsOk());
    }
    loop.Resume();
  }

  const model::ModelConfig config_ = Config(GetParam().head_dim, GetParam().heads, GetParam().kv_heads);
  const Manifest manifest_ = model::MakeManifest(config_, DType::kBFloat16).value();
  const std::vector<char> weights_ = RandomWeights(config_, manifest_, 7);
  std::shared_ptr<CudaBackend> backend_;
};

INSTANTIATE_TEST_SUITE_P(Cases, BorrowedGpuTest,
                         ::testing::Values(Case{"Recompute"}, Case{"Swap", 64, 14, 2, 2000},
                                           Case{"LargeHeads", 128, 16, 4, 0}, Case{"ThreeHeads", 64, 12, 3, 0}),
                         [](const auto& param) { return param.param.name; });

TEST_P(BorrowedGpuTest, AnswersHaveTheSameBitsThroughSyncsAndFailedOnesInTheMemoryOfOneWeightSet) {
  SYNCOPATE_NEED_GPUS(1);
  AnswerSinks calm;
  {
    auto loop = Start(CudaInstall::kRemap);
    ASSERT_THAT(Sync(*loop, {1, 1}), IsOk());
    SubmitAll(*loop, calm);
    calm.AwaitAll();
  }
  auto loop = Start(CudaInstall::kBorrowed);
  const EngineStatus before = loop->GetStatus();
  EXPECT_EQ(before.weight_bytes, manifest_.arena_bytes());
  ASSERT_THAT(Sync(*loop, {1, 1}), IsOk());
  AnswerSinks disturbed;
  SubmitAll(*loop, disturbed);
  for (int64_t sync = 1; sync <= 12; ++sync) {
    ASSERT_TRUE(disturbed.AwaitTokens(sync * kRequests * kTokens / 16));
    const bool fails = sync % 3 == 0;
    ASSERT_THAT(Sync(*loop, {1, 1 + sync}, fails), IsOk());
    loop->Pause();
    loop->Resume();
    const EngineStatus between = loop->GetStatus();
    EXPECT_EQ(between.weight_bytes, manifest_.arena_bytes()) << "one set between syncs";
    EXPECT_EQ(between.kv_bytes, before.kv_bytes);
    EXPECT_EQ(between.lent_bytes, 0);
  }
  const std::map<int, Trajectory> expected = calm.AwaitAll(), answers = disturbed.AwaitAll();
  for (int i = 0; i < kRequests; ++i) {
    EXPECT_EQ(answers.at(i).tokens, expected.at(i).tokens) << i;
    EXPECT_EQ(answers.at(i).logprobs, expected.at(i).logprobs) << i;
  }
  loop->Pause();
  const EngineStatus end = loop->GetStatus();
  EXPECT_EQ(end.lendings, 13);
  EXPECT_GT(end.preemptions, 0);
  EXPECT_EQ(end.swaps > 0, GetParam().host_blocks > 0);
}

TEST_P(BorrowedGpuTest, SleepsAndWakesWithTheSameAnswers) {
  SYNCOPATE_NEED_GPUS(1);
  auto loop = Start(CudaInstall::kBorrowed);
  ASSERT_THAT(Sync(*loop, {1, 1}), IsOk());
  AnswerSinks before, after;
  SubmitAll(*loop, before);
  const std::map<int, Trajectory> expected = before.AwaitAll();
  loop->Pause();
  loop->Resume();
  ASSERT_THAT(loop->Sleep(1, kDeadline), IsOk());
  EXPECT_EQ(loop->GetStatus().kv_bytes + loop->GetStatus().weight_bytes, 0);
  ASSERT_THAT(loop->WakeUp(), IsOk());
  SubmitAll(*loop, after);
  const std::map<int, Trajectory> answers = after.AwaitAll();
  for (int i = 0; i < kRequests; ++i) EXPECT_EQ(answers.at(i).tokens, expected.at(i).tokens) << i;
  ASSERT_THAT(Sync(*loop, {1, 2}), IsOk());
}

TEST(BorrowedGpuRefusalTest, AModelThatDoesNotDecodeByGraphsIsRefusedByName) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = Config(/*head_dim=*/32, 8, 8);
  const Manifest manifest = model::MakeManifest(config, DType::kBFloat16).value();
  EngineLoop::Options options;
  options.model = config;
  options.dtype = DType::kBFloat16;
  options.backend = CudaBackend::Create(config, manifest, /*device=*/0, CudaInstall::kBorrowed, {.share = 0.4}).value();
  EXPECT_THAT(EngineLoop::Start(options), HasReason("BAD_CONFIG"));
  options.backend = CudaBackend::Create(config, manifest, /*device=*/0, CudaInstall::kAuto, {.share = 0.4}).value();
  EXPECT_THAT(EngineLoop::Start(options), IsOk()) << "auto: two weight sets";
}

}  // namespace
}  // namespace syncopate::rollouter
