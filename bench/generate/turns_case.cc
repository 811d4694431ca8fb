#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status.h"
#include "bench/generate/engine_cases.h"
#include "bench/measure/figures.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

constexpr int64_t kGiven = 512;    // tokens of the prompt, and of what the environment says to a turn
constexpr int32_t kSampled = 256;  // tokens of a turn
constexpr double kShortestCall = 0.2, kLongestCall = 5;  // seconds; uniform in between
constexpr double kWarmUp = 0.4;                          // of the time that is measured

// An episode that waits for its environment.
struct Waiting {
  SteadyClock::time_point until;
  uint64_t episode = 0;
  bool operator>(const Waiting& other) const { return until > other.until; }
};
using Calls = std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>>;

// Parks its sample after each turn but the last, and notes when the environment will have answered.
class EpisodeSink final : public rollouter::GenerationSink {
 public:
  EpisodeSink(uint64_t episode, bool waits, Calls& calls, int64_t& ended)
      : episode_(episode), waits_(waits), calls_(calls), ended_(ended) {}
  bool OnTurnEnded(int32_t, FinishReason, const Trajectory&) override {
    if (++turn_ == kTurns) return false;
    const double draw = PhiloxUniform(episode_, static_cast<uint64_t>(turn_));
    const double seconds = waits_ ? kShortestCall + draw * (kLongestCall - kShortestCall) : 0;
    calls_.push({SteadyClock::now() + std::chrono::microseconds(std::llround(seconds * 1e6)), episode_});
    return true;
  }
  void OnFinished(int32_t, Trajectory) override { ++ended_; }

 private:
  const uint64_t episode_;
  const bool waits_;
  Calls& calls_;
  int64_t& ended_;
  int turn_ = 0;
};

// Keeps `episodes` episodes in flight; as one ends, the next one begins.
class EpisodeLoad {
 public:
  EpisodeLoad(EngineWorld& world, int32_t episodes, bool waits, uint64_t first)
      : world_(world), episodes_(episodes), waits_(waits), first_(first) {}

  absl::Status Step() {
    for (; begun_ - ended_ < episodes_; ++begun_) {
      const uint64_t episode = first_ + static_cast<uint64_t>(begun_);
      rollouter::GenerationRequest request;
      request.id = absl::StrCat(episode);
      request.prompt_ids = Tokens(episode, 0);
      request.sampling.max_new_tokens = kSampled;
      request.max_total_tokens = kTurns * kSampled + (kTurns - 1) * kGiven;
      request.seeds = {episode};
      SYNCOPATE_RETURN_IF_ERROR(world_.engine().CheckShape(request));
      world_.engine().Add(std::move(request), std::make_shared<EpisodeSink>(episode, waits_, calls_, ended_));
    }
    const auto now = SteadyClock::now();
    for (; !calls_.empty() && calls_.top().until <= now; calls_.pop()) {
      const uint64_t episode = calls_.top().episode;
      world_.engine().Extend(absl::StrCat(episode), 0, Tokens(episode, ++answers_));
    }
    return world_.engine().HasWork() ? world_.engine().Step() : absl::OkStatus();
  }
  int64_t ended() const { return ended_; }

 private:
  std::vector<int32_t> Tokens(uint64_t episode, uint64_t part) const {
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < kGiven; ++i) {
      tokens.push_back(static_cast<int32_t>(Philox4x32(episode, part * kGiven + i)[0] % world_.config().vocab_size));
    }
    return tokens;
  }

  EngineWorld& world_;
  const int32_t episodes_;
  const bool waits_;
  const uint64_t first_;
  Calls calls_;
  uint64_t answers_ = 0;
  int64_t begun_ = 0;
  int64_t ended_ = 0;
};

struct Rate {
  double tokens_per_second = 0;
  double running = 0;  // mean of the samples in the engine that are not parked
  int64_t ended = 0;
  int64_t given_up = 0;
  int64_t preemptions = 0;
};

absl::StatusOr<Rate> ComputeRate(EngineWorld& world, int32_t episodes, bool waits, uint64_t first, double seconds) {
  rollouter::Engine& engine = world.engine();
  EpisodeLoad load(world, episodes, waits, first);
  for (const auto begin = SteadyClock::now(); SecondsSince(begin) < kWarmUp * seconds;) {
    SYNCOPATE_RETURN_IF_ERROR(load.Step());
  }
  const int64_t tokens = engine.generated_tokens(), ended = load.ended();
  const rollouter::Scheduler::Counters before = engine.counters();
  double running = 0;
  int64_t steps = 0;
  const auto begin = SteadyClock::now();
  for (; SecondsSince(begin) < seconds; ++steps) {
    SYNCOPATE_RETURN_IF_ERROR(load.Step());
    running += static_cast<double>(engine.running_sequences());
  }
  const Rate rate = {static_cast<double>(engine.generated_tokens() - tokens) / SecondsSince(begin),
                     running / static_cast<double>(std::max<int64_t>(1, steps)), load.ended() - ended,
                     engine.counters().given_up - before.given_up, engine.counters().preemptions - before.preemptions};
  engine.Abort("");
  while (engine.HasWork()) SYNCOPATE_RETURN_IF_ERROR(engine.Step());
  return rate;
}

}  // namespace

absl::StatusOr<json> MeasureTurns(EngineWorld& world, int32_t slots, int32_t episodes, double seconds) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Rate calm, ComputeRate(world, slots, /*waits=*/false, uint64_t{1} << 40, seconds));
  SYNCOPATE_ASSIGN_OR_RETURN(const Rate waiting,
                             ComputeRate(world, episodes, /*waits=*/true, uint64_t{2} << 40, seconds));
  auto line = [](const Rate& rate) {
    return json({{"tokens_per_second", std::round(rate.tokens_per_second)},
                 {"mean_running", Rounded(rate.running, 0.1)},
                 {"episodes", rate.ended},
                 {"given_up", rate.given_up},
                 {"preemptions", rate.preemptions}});
  };
  return json({{"event", "generate"},
               {"case", "turns"},
               {"slots", slots},
               {"in_flight", episodes},
               {"seconds", seconds},
               {"without_waiting", line(calm)},
               {"waiting", line(waiting)},
               {"kept", Rounded(waiting.tokens_per_second / calm.tokens_per_second, 1e-4)}});
}

}  // namespace syncopate::bench
