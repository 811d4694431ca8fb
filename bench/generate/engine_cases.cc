#include "bench/generate/engine_cases.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

#include "base/philox.h"
#include "base/status.h"
#include "bench/measure/device_profile.h"
#include "bench/measure/figures.h"
#include "cuda/device.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

constexpr int kWindow = 32;  // steps
constexpr int kMixRequests = 256;
constexpr int kShortPrompts = 128;
constexpr uint64_t kShortSamples = 8;
constexpr int64_t kShortPromptTokens = 18;
constexpr int32_t kShortAnswerTokens = 17;

class IgnoringSink final : public rollouter::GenerationSink {
 public:
  void OnFinished(int32_t sample, Trajectory trajectory) override {}
};

// The time and the results of a number of steps.
struct Stretch {
  double seconds = 0;
  double launch_s = 0;
  double await_s = 0;
  int64_t steps = 0;
  int64_t tokens = 0;

  double host_ms() const { return (seconds - await_s) / static_cast<double>(steps) * 1e3; }
};

class Watch {
 public:
  explicit Watch(EngineWorld& world)
      : world_(world), before_(world.times()), tokens_(world.engine().generated_tokens()) {}
  Stretch Read() const {
    const RunnerTimes& now = world_.times();
    return {SecondsSince(begin_), now.launch_s - before_.launch_s, now.await_s - before_.await_s,
            now.steps - before_.steps, world_.engine().generated_tokens() - tokens_};
  }

 private:
  EngineWorld& world_;
  const RunnerTimes before_;
  const int64_t tokens_;
  const SteadyClock::time_point begin_ = SteadyClock::now();
};

// A different prompt at each call, so that no prefix is found in the cache.
rollouter::GenerationRequest RandomRequest(const EngineWorld& world, int64_t prompt, int32_t answer) {
  static uint64_t requests = 0;
  rollouter::GenerationRequest request;
  const uint64_t seed = ++requests;
  for (uint64_t i = 0; i < static_cast<uint64_t>(prompt); ++i) {
    request.prompt_ids.push_back(static_cast<int32_t>(Philox4x32(seed, i)[0] % world.config().vocab_size));
  }
  request.sampling.max_new_tokens = answer;
  request.seeds = {seed};
  return request;
}

absl::Status Add(EngineWorld& world, rollouter::GenerationRequest request) {
  SYNCOPATE_RETURN_IF_ERROR(world.engine().CheckShape(request));
  world.engine().Add(std::move(request), std::make_shared<IgnoringSink>());
  return absl::OkStatus();
}

absl::Status RunDry(EngineWorld& world) {
  while (world.engine().HasWork()) SYNCOPATE_RETURN_IF_ERROR(world.engine().Step());
  return absl::OkStatus();
}

template <typename Less>
const Stretch& MedianBy(std::vector<Stretch>& all, Less less) {
  std::sort(all.begin(), all.end(), less);
  return all[all.size() / 2];
}

json ToJson(const char* name, const Stretch& stretch) {
  return {{"event", "generate"},
          {"case", name},
          {"steps", stretch.steps},
          {"seconds", Rounded(stretch.seconds, 1e-4)},
          {"host_ms_a_step", Rounded(stretch.host_ms(), 1e-3)},
          {"launch_ms_a_step", Rounded(stretch.launch_s / static_cast<double>(stretch.steps) * 1e3, 1e-3)}};
}

// Starts `fixed.batch` sequences that all decode for `steps` steps before the first of them ends; their contexts have
// fixed.context tokens on average over these steps.
absl::Status StartDecoding(EngineWorld& world, const FixedCase& fixed, int steps) {
  // Sequences that are prefilled first are ahead of the last ones by one token a plan.
  const int64_t plans = int64_t{fixed.batch} * fixed.context / world.prefill_tokens();
  const int64_t prompt = std::max<int64_t>(16, fixed.context - plans / 2 - steps / 2);
  const int32_t answer = static_cast<int32_t>(2 * plans + steps + 2 * kWindow);
  const int64_t prefilled = world.engine().prefilled_tokens() + fixed.batch * prompt;
  for (int32_t i = 0; i < fixed.batch; ++i) {
    rollouter::GenerationRequest request = RandomRequest(world, prompt, answer);
    request.sampling.top_p = fixed.top_p;
    request.sampling.top_k = fixed.top_k;
    SYNCOPATE_RETURN_IF_ERROR(Add(world, std::move(request)));
  }
  while (world.engine().prefilled_tokens() < prefilled) SYNCOPATE_RETURN_IF_ERROR(world.engine().Step());
  for (int i = 0; i < kWindow / 2; ++i) SYNCOPATE_RETURN_IF_ERROR(world.engine().Step());
  return absl::OkStatus();
}

// The kernels of `steps`, after all earlier work.
absl::StatusOr<json> Profile(EngineWorld& world, const std::function<absl::Status()>& steps) {
  SYNCOPATE_RETURN_IF_ERROR(world.engine().Synchronize());
  absl::Status ran;
  json kernels = ProfileOnce(at::Device(at::kCUDA, 0), [&] { ran = steps(); });
  SYNCOPATE_RETURN_IF_ERROR(ran);
  return kernels;
}

double MedianMs(std::vector<double> seconds) { return Rounded(Median(std::move(seconds)) * 1e3, 1e-3); }

}  // namespace

absl::StatusOr<json> MeasureFixed(EngineWorld& world, const FixedCase& fixed) {
  SYNCOPATE_RETURN_IF_ERROR(StartDecoding(world, fixed, fixed.repeats * kWindow));
  std::vector<Stretch> windows;
  for (int i = 0; i < fixed.repeats; ++i) {
    const Watch watch(world);
    for (int step = 0; step < kWindow; ++step) SYNCOPATE_RETURN_IF_ERROR(world.engine().Step());
    windows.push_back(watch.Read());
    if (windows.back().tokens != int64_t{fixed.batch} * kWindow) {
      return Error(absl::StatusCode::kInternal, "BENCH", "not every sequence drew in every step");
    }
  }
  json kernels;
  if (fixed.profile) {
    SYNCOPATE_ASSIGN_OR_RETURN(kernels, Profile(world, [&]() -> absl::Status {
                                 SYNCOPATE_RETURN_IF_ERROR(world.engine().Step());
                                 return world.engine().Synchronize();
                               }));
  }
  world.engine().Abort("");
  SYNCOPATE_RETURN_IF_ERROR(RunDry(world));
  const Stretch& median = MedianBy(windows, [](const Stretch& a, const Stretch& b) { return a.seconds < b.seconds; });
  json line = ToJson("fixed", median);
  line["batch"] = fixed.batch;
  line["context"] = fixed.context;
  line["top_p"] = fixed.top_p;
  line["top_k"] = fixed.top_k;
  if (fixed.profile) line["kernels"] = std::move(kernels);
  line["step_ms"] = Rounded(median.seconds / kWindow * 1e3, 1e-4);
  line["tokens_per_second"] = std::round(static_cast<double>(median.tokens) / median.seconds);
  return line;
}

absl::StatusOr<json> MeasureInstall(EngineWorld& world, const FixedCase& fixed) {
  SYNCOPATE_RETURN_IF_ERROR(StartDecoding(world, fixed, fixed.repeats * kWindow));
  rollouter::WeightArenas& arenas = world.engine().backend().arenas();
  std::vector<double> waits, exchanges;
  for (int i = 0; i < fixed.repeats; ++i) {
    for (int step = 0; step < kWindow; ++step) SYNCOPATE_RETURN_IF_ERROR(world.engine().Step());
    const auto begin = SteadyClock::now();
    SYNCOPATE_RETURN_IF_ERROR(world.engine().Synchronize());
    waits.push_back(SecondsSince(begin));
    const auto exchange = SteadyClock::now();
    PolicyVersion next = world.engine().policy().version();
    ++next.step;
    SYNCOPATE_RETURN_IF_ERROR(world.engine().policy().Install(next, /*digest=*/1));
    exchanges.push_back(SecondsSince(exchange));
    arenas.shadow();  // maps it again
  }
  world.engine().Abort("");
  SYNCOPATE_RETURN_IF_ERROR(RunDry(world));
  return json({{"event", "generate"},
               {"case", "install"},
               {"batch", fixed.batch},
               {"context", fixed.context},
               {"wait_ms", MedianMs(waits)},
               {"exchange_ms", MedianMs(exchanges)}});
}

absl::StatusOr<json> MeasureMix(EngineWorld& world) {
  auto length = [](uint64_t i, uint64_t of) { return static_cast<int32_t>(100 + Philox4x32(4242 + of, i)[0] % 925); };
  int64_t prompt_tokens = 0;
  for (uint64_t i = 0; i < kMixRequests; ++i) {
    prompt_tokens += length(i, 0);
    SYNCOPATE_RETURN_IF_ERROR(Add(world, RandomRequest(world, length(i, 0), length(i, 1))));
  }
  const Watch watch(world);
  SYNCOPATE_RETURN_IF_ERROR(RunDry(world));
  const Stretch stretch = watch.Read();
  json line = ToJson("mix", stretch);
  line["requests"] = kMixRequests;
  line["prompt_tokens"] = prompt_tokens;
  line["answer_tokens"] = stretch.tokens;
  line["tokens_per_second"] = std::round(static_cast<double>(stretch.tokens) / stretch.seconds);
  return line;
}

absl::StatusOr<json> MeasureShort(EngineWorld& world, int repeats) {
  std::vector<Stretch> runs;
  for (int i = 0; i <= repeats; ++i) {  // the first run is a warm-up
    for (int p = 0; p < kShortPrompts; ++p) {
      rollouter::GenerationRequest request = RandomRequest(world, kShortPromptTokens, kShortAnswerTokens);
      for (uint64_t s = 1; s < kShortSamples; ++s) request.seeds.push_back(request.seeds[0] * 1000 + s);
      SYNCOPATE_RETURN_IF_ERROR(Add(world, std::move(request)));
    }
    const Watch watch(world);
    SYNCOPATE_RETURN_IF_ERROR(RunDry(world));
    if (i > 0) runs.push_back(watch.Read());
  }
  const Stretch& median = MedianBy(runs, [](const Stretch& a, const Stretch& b) { return a.seconds < b.seconds; });
  json line = ToJson("short", median);
  line["await_ms_a_step"] = Rounded(median.await_s / static_cast<double>(median.steps) * 1e3, 1e-3);
  line["tokens_per_second"] = std::round(static_cast<double>(median.tokens) / median.seconds);
  return line;
}

absl::StatusOr<json> MeasurePrefill(EngineWorld& world, const PrefillCase& prefill) {
  const auto add = [&]() -> absl::Status {
    for (int32_t p = 0; p < prefill.prompts; ++p) {
      SYNCOPATE_RETURN_IF_ERROR(Add(world, RandomRequest(world, prefill.tokens, 1)));
    }
    return absl::OkStatus();
  };
  std::vector<Stretch> runs;
  for (int i = 0; i <= prefill.repeats; ++i) {  // the first run is a warm-up
    SYNCOPATE_RETURN_IF_ERROR(add());
    const Watch watch(world);
    SYNCOPATE_RETURN_IF_ERROR(RunDry(world));
    if (i > 0) runs.push_back(watch.Read());
  }
  const Stretch& median = MedianBy(runs, [](const Stretch& a, const Stretch& b) { return a.seconds < b.seconds; });
  json line = ToJson("prefill", median);
  line["prompts"] = prefill.prompts;
  line["tokens"] = prefill.tokens;
  line["tokens_per_second"] = std::round(static_cast<double>(prefill.prompts) * prefill.tokens / median.seconds);
  if (prefill.profile) {
    SYNCOPATE_RETURN_IF_ERROR(add());
    SYNCOPATE_ASSIGN_OR_RETURN(line["kernels"], Profile(world, [&] { return RunDry(world); }));
  }
  return line;
}

namespace {

class KeepingSink final : public rollouter::GenerationSink {
 public:
  void OnFinished(int32_t, Trajectory trajectory) override { tokens = std::move(trajectory.tokens); }
  std::vector<int32_t> tokens;
};

absl::StatusOr<std::vector<int32_t>> GreedyAnswer(EngineWorld& world) {
  rollouter::GenerationRequest request;
  for (int32_t i = 0; i < 100; ++i)
    request.prompt_ids.push_back(17 * i % static_cast<int32_t>(world.config().vocab_size));
  request.sampling = {.temperature = 0, .max_new_tokens = 64};
  request.seeds = {1};
  SYNCOPATE_RETURN_IF_ERROR(world.engine().CheckShape(request));
  auto sink = std::make_shared<KeepingSink>();
  world.engine().Add(request, sink);
  SYNCOPATE_RETURN_IF_ERROR(RunDry(world));
  return std::move(sink->tokens);
}

absl::StatusOr<json> SleepAndWake(EngineWorld& world, bool keep_weights) {
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::GpuMemory awake, cuda::ReadGpuMemory(/*device=*/0));
  auto begin = SteadyClock::now();
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t promised, world.engine().Sleep(keep_weights));
  const double sleep_s = SecondsSince(begin);
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::GpuMemory asleep, cuda::ReadGpuMemory(/*device=*/0));
  begin = SteadyClock::now();
  SYNCOPATE_RETURN_IF_ERROR(world.engine().WakeUp());
  const double wake_s = SecondsSince(begin);
  return json({{"promised_mib", promised >> 20},
               {"given_back_mib", (asleep.free - awake.free) >> 20},
               {"sleep_s", Rounded(sleep_s, 1e-3)},
               {"wake_s", Rounded(wake_s, 1e-3)}});
}

}  // namespace

absl::StatusOr<json> MeasureSleep(EngineWorld& world) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<int32_t> before, GreedyAnswer(world));
  SYNCOPATE_ASSIGN_OR_RETURN(const json kept, SleepAndWake(world, /*keep_weights=*/true));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<int32_t> after, GreedyAnswer(world));
  // A virtual machine may first have to get the memory for the host's copy; the second time it has it.
  SYNCOPATE_ASSIGN_OR_RETURN(const json again, SleepAndWake(world, /*keep_weights=*/true));
  SYNCOPATE_ASSIGN_OR_RETURN(const json dropped, SleepAndWake(world, /*keep_weights=*/false));
  return json({{"event", "generate"},
               {"case", "sleep"},
               {"level_1", kept},
               {"level_1_again", again},
               {"same_tokens", before == after},
               {"level_2", dropped}});
}

}  // namespace syncopate::bench
