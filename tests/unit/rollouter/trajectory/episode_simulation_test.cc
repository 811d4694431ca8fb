// Episodes with an environment that fails, hangs, answers twice and dies, and with an engine that draws tokens by their
// place; all is random, by seed. The result must equal that of an undisturbed play.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "rollouter/trajectory/episode.h"

namespace syncopate::rollouter {
namespace {

using Action = Episode::Action;
using Kind = Episode::Action::Kind;

// The environment's answer is a function of the seed and of all that the policy wrote.
struct Environment {
  uint64_t state = 0;

  EnvironmentAnswer Reset(uint64_t seed) {
    state = HashCombine(seed, 1);
    EnvironmentAnswer answer = Answer();
    if (state % 3 == 0) return {};  // the environment's message is empty
    answer.done = answer.rejected = false;
    return answer;
  }
  EnvironmentAnswer Step(const std::vector<int32_t>& turn) {
    for (int32_t token : turn) state = HashCombine(state, static_cast<uint64_t>(token));
    return Answer();
  }
  EnvironmentAnswer Answer() const {
    EnvironmentAnswer answer;
    answer.opening = {100};
    for (uint64_t i = 0; i < state % 7; ++i) answer.content.push_back(static_cast<int32_t>(200 + (state >> i) % 50));
    answer.closing = {101};
    if (state % 3 != 1) answer.reward = static_cast<float>(state % 11) - 5;
    answer.done = state % 6 == 0;
    answer.rejected = state % 23 == 0;
    answer.seconds = static_cast<double>(state % 5);
    return answer;
  }
};

// A sample of the engine: a token is a function of the seed, its place and all tokens before it.
struct Sample {
  enum class State : uint8_t { kEmpty, kWriting, kParked, kOver };
  State state = State::kEmpty;
  std::vector<int32_t> tokens;
  std::vector<bool> given;

  void Give(const std::vector<int32_t>& what) {
    tokens.insert(tokens.end(), what.begin(), what.end());
    given.resize(tokens.size(), true);
  }
  std::vector<int32_t> Write(uint64_t seed, int64_t max_total_tokens) {
    std::vector<int32_t> turn;
    do {
      uint64_t drawn = HashCombine(seed, tokens.size());
      for (int32_t token : tokens) drawn = HashCombine(drawn, static_cast<uint64_t>(token));
      turn.push_back(static_cast<int32_t>(drawn % 50));
      tokens.push_back(turn.back());
      given.push_back(false);
    } while (turn.back() % 4 != 0 && std::ssize(tokens) < max_total_tokens);
    return turn;
  }
};

struct Expected {
  Sample sample;
  float reward = 0;
  std::vector<Turn> turns;
  bool rejected = false;
  bool possible = true;  // the reset left room
};

// An undisturbed play, written as plainly as possible.
Expected PlayCalmly(const Episode::Options& options, uint64_t seed) {
  Expected expected;
  Environment environment;
  EnvironmentAnswer answer = environment.Reset(seed);
  for (int32_t turn = 0;; ++turn) {
    if (answer.reward.has_value()) expected.reward += *answer.reward;
    if (turn > 0) {
      const auto end = static_cast<int32_t>(expected.sample.tokens.size());
      expected.turns.push_back({.end = end, .reward = answer.reward.value_or(0), .seconds = answer.seconds});
    }
    expected.rejected = answer.rejected;
    if (answer.done || answer.rejected || turn == options.max_turns) return expected;
    std::vector<int32_t> given = answer.opening;
    for (size_t i = 0; i < answer.content.size(); ++i) {
      const size_t most = static_cast<size_t>(options.max_given_tokens);
      if (options.keep_tail ? i + most >= answer.content.size() : i < most) given.push_back(answer.content[i]);
    }
    given.insert(given.end(), answer.closing.begin(), answer.closing.end());
    if (std::ssize(expected.sample.tokens) + std::ssize(given) >= options.max_total_tokens) {
      expected.possible = turn > 0;
      return expected;
    }
    expected.sample.Give(given);
    answer = environment.Step(expected.sample.Write(seed, options.max_total_tokens));
  }
}

using MakeEpisode = std::function<std::unique_ptr<Episode>(const Episode::Options&, uint64_t seed)>;

struct Outcome {
  std::string error;
  Episode::Phase phase = Episode::Phase::kNew;
  Episode::Counters counters;
  int64_t hung = 0, lost = 0, answered_twice = 0;
};

class World {
 public:
  World(uint64_t seed, const MakeEpisode& make) : random_(seed), options_(RandomOptions()), seed_(seed * 31) {
    episode_ = make(options_, seed_);
    fault_chance_ = 0.1 * static_cast<double>(Int(0, 3));
    stop_chance_ = Chance(0.3) ? 0.05 : 0;
  }

  Outcome Run() {
    Obey(episode_->Start());
    for (int round = 0; outcome_.error.empty(); ++round) {
      if (round > 10000) Fail("it does not end");
      if (Chance(stop_chance_)) Stop();
      if (events_.empty()) break;
      const size_t next = static_cast<size_t>(Int(0, std::ssize(events_) - 1));
      const std::function<void()> event = std::move(events_[next]);
      events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(next));
      event();
    }
    if (outcome_.error.empty()) CheckEnd();
    outcome_.phase = episode_->phase();
    outcome_.counters = episode_->counters();
    return outcome_;
  }

 private:
  // A call that the environment works on.
  struct Call {
    EnvironmentAnswer answer;
    bool cancelled = false;
  };

  int64_t Int(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
  void Fail(const std::string& what) {
    if (outcome_.error.empty()) outcome_.error = what;
  }
  Episode::Options RandomOptions() {
    return {.max_turns = static_cast<int32_t>(Int(1, 6)),
            .max_total_tokens = Int(4, 70),
            .max_given_tokens = static_cast<int32_t>(Int(1, 8)),
            .keep_tail = Chance(0.5),
            .max_retries = static_cast<int32_t>(Int(0, 3))};
  }

  void Stop() {
    stopped_ = stopped_ || !episode_->is_over();
    Obey(Chance(0.5) ? episode_->Cancel() : episode_->Drain(absl::UnavailableError("drained")));
  }

  void Obey(const Episode::Actions& actions) {
    if (ended_ && !actions.empty()) Fail("an action after the end");
    for (const Action& action : actions) Obey(action);
    ended_ = episode_->is_over();
  }

  void Obey(const Action& action) {
    switch (action.kind) {
      case Kind::kReset:
        if (action.seed != seed_) Fail("a reset with another seed");
        if (++plays_ > options_.max_retries + 1) Fail("too many plays");
        return Begin(action.call, environment_.Reset(action.seed));
      case Kind::kStep:
        if (sample_.state != Sample::State::kParked || action.tokens != turn_) Fail("a step without its turn");
        return Begin(action.call, environment_.Step(action.tokens));
      case Kind::kCancelCall:
        return CancelCall(action.call);
      case Kind::kBegin:
      case Kind::kExtend: {
        const auto wanted = action.kind == Kind::kBegin ? Sample::State::kEmpty : Sample::State::kParked;
        if (sample_.state != wanted) return Fail("a turn begins where none can");
        sample_.Give(action.tokens);
        sample_.state = Sample::State::kWriting;
        events_.push_back([this] { EndTurn(); });
        return;
      }
      case Kind::kRewind:
        if (sample_.state != Sample::State::kParked) Fail("a sample that writes is rewound");
        sample_ = Sample();
        return;
      case Kind::kFinish:
        if (sample_.state != Sample::State::kParked) Fail("a sample that writes is finished");
        sample_.state = Sample::State::kOver;
        return;
      case Kind::kAbort:
        sample_.state = Sample::State::kOver;
        return;
      case Kind::kHandBack:
        if (!stopped_ && failures_ <= options_.max_retries && expected_.possible) Fail("a lease handed back too early");
        return;
    }
  }

  void EndTurn() {
    if (sample_.state != Sample::State::kWriting) return;  // the sample was aborted
    turn_ = sample_.Write(seed_, options_.max_total_tokens);
    sample_.state = Sample::State::kParked;
    Obey(episode_->OnTurnEnded(turn_, FinishReason::kStop));
  }

  void Begin(int64_t call, const EnvironmentAnswer& answer) {
    for (const auto& [other, state] : calls_) {
      if (!state.cancelled) Fail("two calls at once");
    }
    calls_[call] = {answer};
    if (!Chance(fault_chance_)) return Later(call, Answering(call));
    switch (Int(0, 4)) {
      case 0:
        return Later(call, [this, call] {
          ++failures_;
          Obey(episode_->OnFailed(call, absl::InternalError("it failed")));
        });
      case 1:  // the call hangs until it is cancelled
        ++outcome_.hung;
        events_.push_back([this, call] { TimeOut(call); });
        return;
      case 2:  // the answer is slow
        events_.push_back([this, call] { TimeOut(call); });
        return Later(call, Answering(call));
      case 3:  // the environment answers twice
        ++outcome_.answered_twice;
        for (int i = 0; i < 2; ++i) {
          events_.push_back([this, call, answer = Answering(call)] {
            calls_.erase(call);
            answer();
          });
        }
        return;
      default:
        events_.push_back([this] { Lose(); });
        return Later(call, Answering(call));
    }
  }

  std::function<void()> Answering(int64_t call) {
    return [this, call, answer = calls_[call].answer] { Obey(episode_->OnAnswered(call, answer)); };
  }

  // Schedules an event that ends the call.
  void Later(int64_t call, std::function<void()> event) {
    events_.push_back([this, call, event = std::move(event)] {
      if (calls_.erase(call) > 0) event();
    });
  }

  void TimeOut(int64_t call) {
    auto found = calls_.find(call);
    if (found == calls_.end()) return;
    failures_ += found->second.cancelled ? 0 : 1;
    Obey(episode_->OnTimedOut(call));
  }

  void CancelCall(int64_t call) {
    auto found = calls_.find(call);
    if (found == calls_.end()) return;
    if (std::exchange(found->second.cancelled, true)) Fail("a call cancelled twice");
    Later(call, [this, call] { Obey(episode_->OnCancelled(call)); });
  }

  void Lose() {
    ++outcome_.lost;
    ++failures_;
    calls_.clear();
    Obey(episode_->OnLost(absl::UnavailableError("the worker died")));
  }

  void CheckEnd() {
    if (!episode_->is_over()) return Fail("an episode that stands still");
    if (!calls_.empty()) return Fail("a call that nobody cancelled");
    if (episode_->has_open_calls()) return Fail("it waits for a call that has ended");
    if (episode_->phase() != Episode::Phase::kFinished) {
      if (sample_.state != Sample::State::kOver && sample_.state != Sample::State::kEmpty) Fail("a sample left behind");
      return;
    }
    const Episode::Result& result = episode_->result();
    std::vector<bool> given(sample_.tokens.size(), false);
    for (const TokenRange& range : result.given) {
      for (int32_t i = range.begin; i < range.end; ++i) given.at(static_cast<size_t>(i)) = true;
    }
    if (sample_.tokens != expected_.sample.tokens) return Fail("other tokens than an undisturbed play");
    if (given != expected_.sample.given) return Fail("a given token with a loss, or a written one without");
    if (result.reward != expected_.reward || result.answered != expected_.turns) {
      return Fail("other rewards than an undisturbed play");
    }
    if (result.rejected != expected_.rejected) Fail("rejected wrongly, or not");
  }

  std::mt19937_64 random_;
  const Episode::Options options_;
  const uint64_t seed_;
  const Expected expected_ = PlayCalmly(options_, seed_);
  std::unique_ptr<Episode> episode_;
  double fault_chance_ = 0, stop_chance_ = 0;
  Environment environment_;
  Sample sample_;
  std::vector<int32_t> turn_;
  std::deque<std::function<void()>> events_;
  std::map<int64_t, Call> calls_;
  int64_t plays_ = 0, failures_ = 0;
  bool stopped_ = false, ended_ = false;
  Outcome outcome_;
};

struct Totals {
  int64_t failed = 0;
  std::map<std::string, int64_t> kinds;
  std::string first_error;
  std::map<Episode::Phase, int64_t> phases;
  Outcome sums;
};

template <typename E = Episode>
Totals SimulateMany(int runs) {
  Totals totals;
  for (int seed = 1; seed <= runs; ++seed) {
    const Outcome outcome = World(static_cast<uint64_t>(seed), [](const Episode::Options& options, uint64_t of) {
                              return std::make_unique<E>(options, of);
                            }).Run();
    ++totals.phases[outcome.phase];
    if (!outcome.error.empty()) {
      ++totals.failed;
      ++totals.kinds[outcome.error];
      if (totals.first_error.empty()) totals.first_error = absl::StrCat("seed ", seed, ": ", outcome.error);
    }
    totals.sums.counters.calls += outcome.counters.calls;
    totals.sums.counters.retries += outcome.counters.retries;
    totals.sums.counters.cancelled += outcome.counters.cancelled;
    totals.sums.counters.ignored += outcome.counters.ignored;
    totals.sums.hung += outcome.hung;
    totals.sums.lost += outcome.lost;
    totals.sums.answered_twice += outcome.answered_twice;
  }
  return totals;
}

constexpr int kOneRunIn = SYNCOPATE_ONE_RUN_IN;

TEST(EpisodeSimulationTest, PlaysWhatAnUndisturbedPlayGivesAndLeavesNoCallBehind) {
  Totals totals = SimulateMany(40000 / kOneRunIn);
  EXPECT_EQ(totals.failed, 0) << totals.first_error;
  EXPECT_GT(totals.phases[Episode::Phase::kFinished], 10000 / kOneRunIn);
  EXPECT_GT(totals.phases[Episode::Phase::kHandedBack], 1000 / kOneRunIn);
  EXPECT_GT(totals.phases[Episode::Phase::kCancelled], 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.calls, 80000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.retries, 5000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.cancelled, 2000 / kOneRunIn);
  EXPECT_GT(totals.sums.counters.ignored, 2000 / kOneRunIn);
  EXPECT_GT(totals.sums.hung, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.lost, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.answered_twice, 1000 / kOneRunIn);
}

int64_t Count(const Totals& totals, const std::string& kind) {
  auto found = totals.kinds.find(kind);
  return found == totals.kinds.end() ? 0 : found->second;
}

struct LosesACancel : Episode {
  using Episode::Episode;
  bool MustCancel(int64_t) const override { return false; }
};
TEST(EpisodeSimulationTest, NoticesALostCancel) {
  const Totals totals = SimulateMany<LosesACancel>(2000);
  EXPECT_GT(Count(totals, "a call that nobody cancelled"), 30) << totals.first_error;
  EXPECT_GT(Count(totals, "two calls at once"), 30) << "after a call that took too long";
}

struct GoesOnTwice : Episode {
  using Episode::Episode;
  bool IsDue(int64_t) const override { return true; }
};
TEST(EpisodeSimulationTest, NoticesATurnAnsweredTwice) {
  const Totals totals = SimulateMany<GoesOnTwice>(2000);
  EXPECT_GT(totals.failed, 50) << totals.first_error;
}

struct TrainsAGivenToken : Episode {
  using Episode::Episode;
  TokenRange MakeGiven(int32_t begin, int32_t end) const override { return {begin, end - 1}; }
};
TEST(EpisodeSimulationTest, NoticesAGivenTokenWithALoss) {
  const Totals totals = SimulateMany<TrainsAGivenToken>(2000);
  EXPECT_GT(Count(totals, "a given token with a loss, or a written one without"), 500) << totals.first_error;
}

struct DrawsAnotherSeed : Episode {
  using Episode::Episode;
  uint64_t ResetSeed(uint64_t seed) const override { return seed + static_cast<uint64_t>(counters().retries); }
};
TEST(EpisodeSimulationTest, NoticesAnotherSeed) {
  const Totals totals = SimulateMany<DrawsAnotherSeed>(2000);
  EXPECT_GT(Count(totals, "a reset with another seed"), 50) << totals.first_error;
}

struct KeepsTheRewardsOfALostPlay : Episode {
  using Episode::Episode;
  Result AtRestart() const override {
    Result kept;
    kept.reward = result().reward;
    return kept;
  }
};
TEST(EpisodeSimulationTest, NoticesRewardsOfALostPlay) {
  const Totals totals = SimulateMany<KeepsTheRewardsOfALostPlay>(4000);
  EXPECT_GT(Count(totals, "other rewards than an undisturbed play"), 30) << totals.first_error;
}

}  // namespace
}  // namespace syncopate::rollouter
