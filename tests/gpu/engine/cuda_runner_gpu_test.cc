#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/mutex.h"
#include "cuda/device.h"
#include "rollouter/cuda/cuda_backend.h"
#include "rollouter/cuda/cuda_kv_store.h"
#include "rollouter/engine/engine.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/engine/host_model_runner.h"
#include "rollouter/engine/sampler.h"
#include "tests/gpu/engine/gpu_engine.h"
#include "tests/gpu/engine/reference_forward.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"

namespace syncopate::rollouter {
namespace {

using synchronizer::ToDevice;
using ::syncopate::testing::HasReason;
using testing::AnswerLogits;
using testing::RandomWeights;

// A model whose shape the decode kernels accept, small enough for plain arithmetic.
model::ModelConfig GraphModel(int64_t head_dim, int64_t heads, int64_t kv_heads) {
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
          .qkv_bias = head_dim != 128,
          .head_init_std = 0.15};  // gives logits with a deviation of about 2
}

// A model of the kind that is made here rather than published: a vocabulary of a few letters, and a table of positions.
model::ModelConfig LetterModel() {
  model::ModelConfig config = GraphModel(64, 8, 8);
  config.vocab_size = 29;
  config.learned_positions = true;
  return config;
}

// Runs the same weights and blocks by operators of libtorch, as a backend does for a model that the kernels do not
// accept.
class ByOperators final : public EngineBackend {
 public:
  ByOperators(const model::ModelConfig& config, std::shared_ptr<EngineBackend> backend)
      : config_(config), backend_(std::move(backend)) {}
  at::Device device() const override { return backend_->device(); }
  DType dtype() const override { return backend_->dtype(); }
  WeightArenas& arenas() override { return backend_->arenas(); }
  int64_t kv_block_bytes() const override { return backend_->kv_block_bytes(); }
  absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(const RunnerOptions& options) override {
    const ModelRunner::Capacity capacity{.blocks = options.BlocksForAll(), .plans_under_way = 1};
    auto store = std::make_unique<CudaKvStore>(config_, capacity.blocks, /*host_blocks=*/0,
                                               at::TensorOptions(model::ToScalarType(dtype())).device(device()));
    return std::make_unique<HostModelRunner>(config_, &arenas(), std::move(store), device(), options, capacity,
                                             /*ranks=*/nullptr);
  }

 private:
  const model::ModelConfig config_;
  const std::shared_ptr<EngineBackend> backend_;
};

// Records the tokens, and checks that each comes once and with the version that serves.
class CheckingSink final : public GenerationSink {
 public:
  explicit CheckingSink(const Engine* engine) : engine_(engine) {}
  bool OnToken(int32_t sample, int32_t token, float logprob, const PolicyVersion& version,
               const std::vector<TokenLogProb>& top) override {
    EXPECT_EQ(version, engine_->policy().version());
    return true;
  }
  void OnFinished(int32_t sample, Trajectory trajectory) override {
    EXPECT_TRUE(finished.emplace(sample, std::move(trajectory)).second);
  }
  std::map<int32_t, Trajectory> finished;

 private:
  const Engine* const engine_;
};

struct Asked {
  GenerationRequest request;
  std::shared_ptr<CheckingSink> sink;
};

class Rig {
 public:
  explicit Rig(const model::ModelConfig& config, Engine::Options options = {.max_sequences = 64},
               bool by_operators = false)
      : config_(config), manifest_(model::MakeWireManifest(config, DType::kBFloat16).value()) {
    backend_ = CudaBackend::Create(config, manifest_, /*device=*/0, CudaInstall::kRemap, {.share = 0.4}).value();
    std::shared_ptr<EngineBackend> backend = backend_;
    if (by_operators) backend = std::make_shared<ByOperators>(config, backend_);
    engine = Engine::Create(config, backend, options).value();
    engine->BindThread();
    Install({1, 0});
  }
  // Installs the same weights as another version.
  void Install(const PolicyVersion& version) {
    const std::vector<char> weights = RandomWeights(config_, manifest_, 7);
    ToDevice(0, engine->policy().shadow(), weights.data(), static_cast<int64_t>(weights.size()));
    ASSERT_TRUE(engine->Synchronize().ok());
    ASSERT_TRUE(engine->policy().Install(version, 7).ok());
  }
  Asked Add(GenerationRequest request) {
    for (int32_t& token : request.prompt_ids) token %= static_cast<int32_t>(config_.vocab_size);
    auto sink = std::make_shared<CheckingSink>(engine.get());
    EXPECT_TRUE(engine->CheckShape(request).ok());
    engine->Add(request, sink);
    return {request, sink};
  }
  void RunDry() {
    while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
  }
  // The logits of float32 weights with the values of those that serve.
  at::Tensor WideLogits(const Asked& asked, int32_t sample) {
    if (!wide_.has_value()) {
      const Manifest wide = model::MakeManifest(config_, DType::kFloat32).value();
      at::Tensor arena = at::zeros({wide.arena_bytes() / 4}, at::TensorOptions(at::kFloat).device(at::kCUDA, 0));
      wide_ = model::ViewWeights(config_, wide, arena);
      const std::vector<at::Tensor> to = wide_->Distinct(), from = backend_->arenas().weights().Distinct();
      for (size_t i = 0; i < to.size(); ++i) at::Tensor(to[i]).copy_(from[i]);
    }
    return AnswerLogits(config_, *wide_, asked.request.prompt_ids, asked.sink->finished.at(sample).tokens);
  }
  // The mean over tokens of exp(r) - 1 - r, where r is the log-probability of a bf16 forward minus the reported one.
  double K3(const std::vector<Asked>& all) {
    double sum = 0, count = 0;
    for (const Asked& asked : all) {
      for (const auto& [sample, trajectory] : asked.sink->finished) {
        if (trajectory.tokens.empty()) continue;
        const at::Tensor logits =
            AnswerLogits(config_, backend_->arenas().weights(), asked.request.prompt_ids, trajectory.tokens);
        const float temperature = asked.request.sampling.temperature;
        const at::Tensor logprobs = at::log_softmax(logits.to(at::kDouble) / (temperature > 0 ? temperature : 1), -1);
        for (size_t i = 0; i < trajectory.tokens.size(); ++i) {
          const double r =
              logprobs[static_cast<int64_t>(i)][trajectory.tokens[i]].item<double>() - trajectory.logprobs[i];
          sum += std::exp(r) - 1 - r;
          ++count;
        }
      }
    }
    EXPECT_GT(count, 0);
    return sum / count;
  }

  std::unique_ptr<Engine> engine;

 private:
  const model::ModelConfig config_;
  const Manifest manifest_;
  std::shared_ptr<CudaBackend> backend_;
  std::optional<model::TransformerWeights> wide_;
};

GenerationRequest RandomRequest(uint64_t seed, int64_t prompt, float temperature, int samples, int32_t answer) {
  GenerationRequest request;
  request.id = absl::StrCat("request-", seed);
  for (uint64_t i = 0; i < static_cast<uint64_t>(prompt); ++i) {
    request.prompt_ids.push_back(static_cast<int32_t>(Philox4x32(seed, i)[0] % 1003));
  }
  request.sampling.temperature = temperature;
  request.sampling.max_new_tokens = answer;
  for (int i = 0; i < samples; ++i) request.seeds.push_back(SampleSeed(seed, i));
  return request;
}

class CudaRunnerOverModels : public ::testing::TestWithParam<model::ModelConfig> {};
INSTANTIATE_TEST_SUITE_P(Models, CudaRunnerOverModels,
                         ::testing::Values(GraphModel(64, 14, 2), GraphModel(128, 8, 2), GraphModel(64, 4, 4),
                                           LetterModel(), testing::WithAdapters(GraphModel(64, 14, 2), 16),
                                           testing::WithAdapters(LetterModel(), 8)));

int64_t FreeGpuMemory() { return cuda::ReadGpuMemory(0).value().free; }

TEST_P(CudaRunnerOverModels, ASleepGivesItsMemoryBackAndItsGraphsGenerateTheSameTokensAfterwards) {
  SYNCOPATE_NEED_GPUS(1);
  constexpr int64_t kSlack = int64_t{64} << 20;
  Rig rig(GetParam());
  const GenerationRequest request = RandomRequest(5, /*prompt=*/40, /*temperature=*/0, /*samples=*/3, /*answer=*/24);
  const Asked before = rig.Add(request);
  rig.RunDry();
  const char* const live = rig.engine->policy().live();
  int64_t step = 1;
  for (bool keep_weights : {true, false}) {
    const int64_t awake = FreeGpuMemory();
    const absl::StatusOr<int64_t> freed = rig.engine->Sleep(keep_weights);
    ASSERT_TRUE(freed.ok()) << freed.status();
    EXPECT_GE(FreeGpuMemory() - awake, *freed - kSlack);
    EXPECT_EQ(rig.engine->weight_bytes(), 0);
    EXPECT_EQ(rig.engine->kv_bytes(), 0);
    ASSERT_TRUE(rig.engine->WakeUp().ok());
    EXPECT_LE(std::abs(FreeGpuMemory() - awake), kSlack);
    EXPECT_EQ(rig.engine->policy().live(), live) << "graphs contain the address";
    EXPECT_EQ(rig.engine->policy().has_weights(), keep_weights);
    if (!keep_weights) rig.Install({1, ++step});
    const Asked after = rig.Add(request);
    rig.RunDry();
    for (int32_t sample = 0; sample < 3; ++sample) {
      EXPECT_EQ(after.sink->finished.at(sample).tokens, before.sink->finished.at(sample).tokens);
    }
  }
}

// Prompts from one token to several chunks, some with a prefix that another prompt has put into the cache.
TEST_P(CudaRunnerOverModels, GreedyTokensAreThoseOfAFloat32ForwardExceptNearTies) {
  SYNCOPATE_NEED_GPUS(1);
  Rig rig(GetParam(), {.max_sequences = 24, .max_prefill_tokens = 600});
  std::vector<Asked> all;
  for (uint64_t i = 0; i < 20; ++i) {
    const int64_t lengths[] = {1, 5, 16, 33, 190, 260, 401, 900};
    all.push_back(rig.Add(RandomRequest(/*seed=*/i / 2, lengths[i / 2 % 8], /*temperature=*/0, /*samples=*/1, 40)));
  }
  rig.RunDry();
  int64_t decided = 0, positions = 0;
  for (const Asked& asked : all) {
    const std::vector<int32_t>& tokens = asked.sink->finished.at(0).tokens;
    ASSERT_EQ(tokens.size(), 40u);
    const at::Tensor logits = rig.WideLogits(asked, 0);
    const auto [top, indices] = logits.topk(2, -1);
    const at::Tensor deviation = logits.std(-1);
    for (int64_t i = 0; i < logits.size(0); ++i, ++positions) {
      if ((top[i][0] - top[i][1]).item<float>() <= 0.1f * deviation[i].item<float>()) continue;
      ++decided;
      EXPECT_EQ(tokens[static_cast<size_t>(i)], indices[i][0].item<int64_t>())
          << "prompt of " << asked.request.prompt_ids.size() << ", token " << i;
    }
  }
  EXPECT_GT(decided, positions / 2);
}

TEST_P(CudaRunnerOverModels, LogProbsAreThoseOfTheTrainersForward) {
  SYNCOPATE_NEED_GPUS(1);
  Rig rig(GetParam());
  std::vector<Asked> all;
  for (uint64_t i = 0; i < 12; ++i) {
    all.push_back(rig.Add(RandomRequest(i, 1 + 37 * static_cast<int64_t>(i), i % 2 == 0 ? 1.0f : 0.7f, 4, 60)));
  }
  rig.RunDry();
  EXPECT_LT(rig.K3(all), 1e-3);
}

// The comparison ends where an answer takes the other one of two tokens that are nearly as likely.
TEST_P(CudaRunnerOverModels, TokensAndLogProbsAreThoseOfTheEngineThatGoesByOperators) {
  SYNCOPATE_NEED_GPUS(1);
  constexpr float kNearTie = 0.2f;
  constexpr int32_t kAnswer = 40;
  Rig graphs(GetParam()), operators(GetParam(), {.max_sequences = 64}, /*by_operators=*/true);
  std::vector<Asked> by_graphs, by_operators;
  for (const int64_t prompt : {1, 5, 16, 33, 190, 401, 700, 900}) {
    GenerationRequest request =
        RandomRequest(static_cast<uint64_t>(prompt), prompt, /*temperature=*/0, /*samples=*/1, kAnswer);
    request.sampling.top_logprobs = 2;
    by_graphs.push_back(graphs.Add(request));
    by_operators.push_back(operators.Add(request));
  }
  graphs.RunDry();
  operators.RunDry();
  double squares = 0;
  int compared = 0;
  for (size_t i = 0; i < by_graphs.size(); ++i) {
    const Trajectory& got = by_graphs[i].sink->finished.at(0);
    const Trajectory& expected = by_operators[i].sink->finished.at(0);
    ASSERT_EQ(got.tokens.size(), static_cast<size_t>(kAnswer));
    for (size_t at = 0; at < got.tokens.size(); ++at) {
      const std::vector<TokenLogProb>& top = expected.top_logprobs[at];
      if (got.tokens[at] != expected.tokens[at]) {
        EXPECT_LT(top[0].logprob - top[1].logprob, kNearTie) << by_graphs[i].request.id << ", token " << at;
        break;
      }
      const double difference = got.logprobs[at] - expected.logprobs[at];
      EXPECT_LT(std::abs(difference), 0.25) << by_graphs[i].request.id << ", token " << at;
      squares += difference * difference;
      ++compared;
    }
  }
  EXPECT_GT(compared, static_cast<int>(by_graphs.size()) * 2);
  EXPECT_LT(squares / compared, 2e-3);
}

// For each size of pass, the first runs kernel by kernel, the second is captured as a graph, and the others, also those
// of other lengths, run as that graph.
TEST_P(CudaRunnerOverModels, PromptsThatGoAsAGraphGiveTheBitsThatTheyGiveKernelByKernel) {
  SYNCOPATE_NEED_GPUS(1);
  Rig rig(GetParam(), {.max_sequences = 24, .max_prefill_tokens = 4096, .max_kept_blocks = 0});
  const auto run = [&](const std::vector<int64_t>& lengths) {
    std::vector<Asked> round;
    for (size_t i = 0; i < lengths.size(); ++i) {
      round.push_back(rig.Add(RandomRequest(/*seed=*/50 + i, lengths[i], /*temperature=*/0, /*samples=*/1, 8)));
    }
    rig.RunDry();
    return round;
  };
  const auto compare = [&](const std::vector<int64_t>& lengths, const std::vector<std::vector<int64_t>>& others) {
    const std::vector<Asked> first = run(lengths);
    EXPECT_LT(rig.K3(first), 1e-3);
    for (const std::vector<int64_t>& other : others) {
      EXPECT_LT(rig.K3(run(other)), 1e-3);
      const std::vector<Asked> again = run(lengths);
      for (size_t i = 0; i < lengths.size(); ++i) {
        const Trajectory& expected = first[i].sink->finished.at(0);
        EXPECT_EQ(again[i].sink->finished.at(0).tokens, expected.tokens) << i;
        EXPECT_EQ(again[i].sink->finished.at(0).logprobs, expected.logprobs) << i;
      }
    }
  };
  compare({80, 120, 33, 190, 64, 101}, {{17, 600, 1, 41, 300, 9, 30, 2}, {513, 3}});
  // So many rows that one kernel adds what adapters add and norms.
  compare({700, 650, 190}, {{900, 9, 800}});
}

// The log-probabilities of the whole vocabulary give the logits, except for a constant.
TEST(CudaRunnerTest, DrawsByEveryOptionAsTheHostsSampler) {
  SYNCOPATE_NEED_GPUS(1);
  std::vector<SamplingParams> options(8);
  options[0].top_k = 5;
  options[1].top_p = 0.5f;
  options[2].min_p = 0.1f;
  options[3].allowed_token_ids = {3, 50, 700};
  options[4].logit_bias = {{17, 5.0f}, {18, -50.0f}};
  options[5].presence_penalty = 3;
  options[6].frequency_penalty = 1.5f;
  options[7].temperature = 0;
  Rig rig(GraphModel(64, 14, 2));
  std::vector<Asked> all, plain;
  for (size_t i = 0; i < options.size(); ++i) {
    GenerationRequest request = RandomRequest(i, 30, /*temperature=*/0.7f, /*samples=*/3, 25);
    if (i != 7) options[i].temperature = 0.7f;
    options[i].max_new_tokens = 25;
    options[i].top_logprobs = 1003;
    request.sampling = options[i];
    all.push_back(rig.Add(request));
    plain.push_back(rig.Add(RandomRequest(100 + i, 20, 1, 2, 40)));
  }
  rig.RunDry();
  for (const Asked& asked : all) {
    SamplingParams params = asked.request.sampling;
    params.top_logprobs = 0;
    const float temperature = params.temperature > 0 ? params.temperature : 1;
    for (const auto& [sample, trajectory] : asked.sink->finished) {
      ASSERT_EQ(trajectory.top_logprobs.size(), trajectory.tokens.size());
      TokenCounts counts(asked.request.prompt_ids);
      for (size_t i = 0; i < trajectory.tokens.size(); ++i) {
        std::vector<float> logits(1003);
        for (const TokenLogProb& one : trajectory.top_logprobs[i]) logits[one.token] = one.logprob * temperature;
        const SampledToken expected =
            SampleToken(logits.data(), 1003, params, asked.request.seeds[sample], static_cast<int64_t>(i), &counts);
        EXPECT_EQ(trajectory.tokens[i], expected.token) << asked.request.id << ", token " << i;
        EXPECT_NEAR(trajectory.logprobs[i], expected.logprob, 1e-4);
        counts.AddDrawn(trajectory.tokens[i]);
      }
    }
  }
  EXPECT_LT(rig.K3(plain), 1e-3) << "of the sequences beside them";
}

struct Load {
  Scheduler::Preemption preemption;
  int64_t host_blocks;
};
class CudaRunnerUnderLoad : public ::testing::TestWithParam<Load> {};
INSTANTIATE_TEST_SUITE_P(Preemptions, CudaRunnerUnderLoad,
                         ::testing::Values(Load{Scheduler::Preemption::kRecompute, 0},
                                           Load{Scheduler::Preemption::kSwap, 100}));

TEST_P(CudaRunnerUnderLoad, KeepsEveryBlockVersionAndLogProbThroughInstallsAbortsAndPreemptions) {
  SYNCOPATE_NEED_GPUS(1);
  Rig rig(GraphModel(64, 14, 2), {.max_sequences = 48,
                                  .max_prefill_tokens = 700,
                                  .max_context = 640,
                                  .kv_blocks = 140,
                                  .host_kv_blocks = GetParam().host_blocks,
                                  .preemption = GetParam().preemption,
                                  .follow_usage = false});
  std::vector<Asked> all;
  std::set<std::string> aborted;
  int64_t step = 0, version = 0;
  auto number = [&step](uint64_t what, uint64_t below) {
    return Philox4x32(1000 + what, static_cast<uint64_t>(step))[0] % below;
  };
  for (; all.size() < 160 || rig.engine->HasWork(); ++step) {
    if (all.size() < 160 && number(0, 3) == 0) {
      GenerationRequest request =
          RandomRequest(all.size(), static_cast<int64_t>(1 + number(1, number(2, 4) == 0 ? 500 : 60)), 1,
                        static_cast<int>(1 + number(3, 5)), static_cast<int32_t>(1 + number(4, 100)));
      if (number(5, 8) == 0) request.sampling.presence_penalty = 0.5f, request.sampling.top_p = 0.9f;
      all.push_back(rig.Add(request));
    }
    if (number(6, 20) == 0 && !all.empty()) {
      const std::string& id = all[number(7, all.size())].request.id;
      if (rig.engine->Abort(id) > 0) aborted.insert(id);
    }
    if (number(8, 20) == 0) rig.Install({1, ++version});
    if (rig.engine->HasWork()) {
      ASSERT_TRUE(rig.engine->Step().ok());
    }
  }
  const Scheduler::Counters& counters = rig.engine->counters();
  EXPECT_GT(counters.preemptions, 20);
  EXPECT_GE(counters.swaps, GetParam().host_blocks > 0 ? 3 : 0);
  EXPECT_GT(counters.thrown_away, 0);
  EXPECT_GT(aborted.size(), 5u);
  EXPECT_EQ(rig.engine->running_sequences() + rig.engine->waiting_sequences(), 0);
  EXPECT_EQ(rig.engine->kv_usage(), 0);
  for (const Asked& asked : all) {
    ASSERT_EQ(asked.sink->finished.size(), asked.request.seeds.size()) << asked.request.id;
    if (aborted.count(asked.request.id) > 0) continue;
    for (const auto& [sample, trajectory] : asked.sink->finished) {
      EXPECT_EQ(static_cast<int32_t>(trajectory.tokens.size()), asked.request.sampling.max_new_tokens);
    }
  }
  EXPECT_LT(rig.K3(all), 1e-3) << "some keys and values belonged to other sequences";
}

// Counts the requests that end, from any thread.
class CountingSink final : public GenerationSink {
 public:
  void OnFinished(int32_t sample, Trajectory trajectory) override {
    MutexLock lock(&mutex_);
    finished_.push_back(std::move(trajectory));
  }
  // Waits for `count` answers; empty if there are fewer at the deadline.
  std::vector<Trajectory> Await(size_t count, absl::Duration deadline) {
    MutexLock lock(&mutex_);
    auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finished_.size() >= count; };
    return mutex_.AwaitWithTimeout(Condition(&there), deadline) ? finished_ : std::vector<Trajectory>();
  }

 private:
  Mutex mutex_;
  std::vector<Trajectory> finished_ ABSL_GUARDED_BY(mutex_);
};

class CudaRunnerLoopTest : public ::testing::TestWithParam<CudaInstall> {};
INSTANTIATE_TEST_SUITE_P(Installs, CudaRunnerLoopTest,
                         ::testing::Values(CudaInstall::kRemap, CudaInstall::kInPlace, CudaInstall::kBorrowed,
                                           CudaInstall::kAuto));

TEST_P(CudaRunnerLoopTest, InstallsBetweenGraphsStampEveryTokenAndStopNobody) {
  SYNCOPATE_NEED_GPUS(1);
  constexpr absl::Duration kDeadline = absl::Seconds(30);
  const model::ModelConfig config = GraphModel(64, 14, 2);
  const Manifest manifest = model::MakeWireManifest(config, DType::kBFloat16).value();
  EngineLoop::Options options;
  options.model = config;
  options.dtype = DType::kBFloat16;
  options.max_sequences = 64;
  options.backend = CudaBackend::Create(config, manifest, /*device=*/0, GetParam(), {.share = 0.5}).value();
  const std::unique_ptr<EngineLoop> loop = EngineLoop::Start(options).value();
  const std::vector<char> weights = RandomWeights(config, manifest, 7);
  auto install = [&](int64_t step) {
    if (loop->in_place()) {
      EXPECT_TRUE(loop->BeginInPlace(PolicyVersion{1, 1}, kDeadline).ok());
    }
    EXPECT_TRUE(loop->BeginAttempt().ok());
    EXPECT_TRUE(loop->TakeShadow(kDeadline).ok());
    ToDevice(0, loop->shadow(), weights.data(), static_cast<int64_t>(weights.size()));
    auto installed = loop->Install({1, step}, 7, kDeadline);
    loop->EndAttempt();
    return installed;
  };
  ASSERT_TRUE(install(0).ok());
  auto sink = std::make_shared<CountingSink>();
  constexpr size_t kRequests = 60, kTokens = 700;
  for (uint64_t i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(loop->Submit(RandomRequest(i, 20 + 4 * static_cast<int64_t>(i), 1, 1, kTokens), sink).ok());
  }
  int64_t installed = 0;
  while (sink->Await(kRequests, absl::ZeroDuration()).empty()) {
    const absl::StatusOr<synchronizer::InstallResult> result = install(++installed);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_LT(installed, 100000);
  }
  EXPECT_GT(installed, 10);
  std::set<PolicyVersion> seen;
  const std::vector<Trajectory> finished = sink->Await(kRequests, kDeadline);
  for (const Trajectory& trajectory : finished) {
    ASSERT_EQ(trajectory.tokens.size(), kTokens);
    int32_t end = 0;
    PolicyVersion last;
    for (const VersionSpan& span : trajectory.spans) {
      EXPECT_EQ(span.begin, end);
      EXPECT_GT(span.version, last);
      seen.insert(last = span.version);
      end = span.end;
    }
    EXPECT_EQ(end, static_cast<int32_t>(kTokens));
  }
  EXPECT_GT(seen.size(), 10u);
  loop->Pause();  // after Pause the status counts all tokens
  EXPECT_EQ(loop->GetStatus().generated_tokens, static_cast<int64_t>(kRequests * kTokens));
}

TEST(CudaRunnerTest, RefusesWhatDoesNotFitAndSaysWhatWould) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = GraphModel(64, 14, 2);
  const Manifest manifest = model::MakeWireManifest(config, DType::kBFloat16).value();
  auto create = [&](const Engine::Options& options) {
    return Engine::Create(config, CudaBackend::Create(config, manifest, 0, CudaInstall::kInPlace).value(), options)
        .status();
  };
  EXPECT_THAT(create({.max_sequences = 1025}), HasReason("BAD_OPTIONS"));
  EXPECT_THAT(create({.max_sequences = 8, .kv_blocks = int64_t{1} << 30}), HasReason("OUT_OF_GPU_MEMORY"));
}

// A remap changes the memory that graphs read: other weights give other tokens, and the former weights give the former
// tokens.
TEST(CudaRunnerTest, GraphsReadTheWeightsThatWereInstalledLast) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = GraphModel(64, 14, 2);
  const Manifest manifest = model::MakeWireManifest(config, DType::kBFloat16).value();
  auto engine = Engine::Create(config, CudaBackend::Create(config, manifest, 0, CudaInstall::kRemap).value(),
                               {.max_sequences = 8})
                    .value();
  engine->BindThread();
  std::vector<std::vector<int32_t>> answers;
  for (int64_t step = 0; step < 3; ++step) {
    const std::vector<char> weights = RandomWeights(config, manifest, step == 1 ? 8 : 7);
    ToDevice(0, engine->policy().shadow(), weights.data(), static_cast<int64_t>(weights.size()));
    ASSERT_TRUE(engine->Synchronize().ok());
    ASSERT_TRUE(engine->policy().Install({1, step}, 1).ok());
    auto sink = std::make_shared<CheckingSink>(engine.get());
    engine->Add(RandomRequest(3, 20, /*temperature=*/0, /*samples=*/1, 20), sink);
    while (engine->HasWork()) ASSERT_TRUE(engine->Step().ok());
    answers.push_back(sink->finished.at(0).tokens);
  }
  EXPECT_EQ(answers[0], answers[2]);
  EXPECT_NE(answers[0], answers[1]);
}

}  // namespace
}  // namespace syncopate::rollouter
