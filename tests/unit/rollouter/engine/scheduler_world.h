#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rollouter/engine/scheduler.h"
#include "tests/unit/rollouter/engine/stamping_runner.h"

namespace syncopate::rollouter {

using MakeScheduler = std::function<std::unique_ptr<Scheduler>(const Scheduler::Options&)>;

template <typename S = Scheduler>
MakeScheduler MakeSchedulerWith() {
  return [](const Scheduler::Options& options) { return std::make_unique<S>(options); };
}

struct SchedulerOutcome {
  std::vector<std::string> errors;  // the run ends with the first error
  Scheduler::Counters counters;
  int64_t finished = 0, aborted = 0, ended_by_sink = 0, installs = 0, plans = 0, overtaken = 0;
  // Lends that succeeded, lends given up before, plans that moved blocks.
  int64_t lends = 0, lends_without_a_step = 0, returned_early = 0, moving_plans = 0, yields = 0;
  int64_t parks = 0, extensions = 0, ended_parked = 0, aborted_parked = 0, rewinds = 0;
};

// Runs a scheduler, a runner that is up to two plans ahead, and a world that adds and aborts requests, ends samples and
// installs versions at any moment, with too little memory; all is random, by `seed`. Returns the errors of the
// scheduler. `lends`: in half of the runs blocks are lent, too. `turns`: half of the requests have turns. `yields`: now
// and then the storage is lost, after all sequences have been taken off it.
SchedulerOutcome SimulateScheduler(uint64_t seed, const MakeScheduler& make_scheduler, bool lends = true,
                                   bool turns = false, bool yields = false);

// The world that SimulateScheduler runs.
class SchedulerWorld {
 public:
  SchedulerWorld(uint64_t seed, const MakeScheduler& make_scheduler, bool lends, bool turns, bool yields);
  SchedulerOutcome Run();

 private:
  // The world's knowledge of one sample.
  struct Sample {
    std::vector<int32_t> drawn;  // given tokens included
    uint64_t chain = 0;          // hash of the prompt and these tokens
    int64_t turn_begin = 0;      // the first token of the turn
    bool parked = false;
    bool ended = false;
  };
  struct Known {
    Scheduler::Request request;
    std::vector<Sample> samples;
    bool started = false;
    int64_t overtaken = 0;
  };

  int64_t Int(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
  void Fail(const std::string& what) { outcome_.errors.push_back(what); }
  Scheduler::Options RandomOptions(bool lends);
  Scheduler::Request RandomRequest();
  void AddRequest();
  void AbortRequest();
  void Install();
  // Lends the last blocks, notices when they are lent, and takes them back, each at a random moment.
  void LendOrReturn();
  // Closes the blocks by a plan that makes no step, as an engine does that is paused or has no work.
  void LendWithoutAStep();
  void Yield();
  // Makes and launches one plan; false if there was nothing to plan.
  bool LaunchOne();
  void NoteStarts(const StepPlan& plan);
  void CompleteOldest();
  void Take(const Scheduler::Drawn& drawn, int32_t token);
  void NotePark(uint64_t key, int32_t sample);
  // Ends the turn of a sample before its time, or the sample.
  void EndAsSink(uint64_t key, int32_t sample);
  // Gives tokens to some parked samples, and ends other parked samples.
  void ExtendOrEnd();
  void Extend(uint64_t key, int32_t sample);
  void Rewind(uint64_t key, int32_t sample);
  std::optional<FinishReason> Expected(const Known& known, const Sample& sample) const;
  void CheckEnd();

  std::mt19937_64 random_;
  const bool turns_;
  const Scheduler::Options options_;
  const int64_t depth_;
  const double abort_chance_, install_chance_, sink_chance_, priority_chance_, lend_chance_, extend_chance_,
      yield_chance_;
  std::unique_ptr<Scheduler> scheduler_;
  StampingRunner runner_;
  std::map<uint64_t, Known> known_;  // key: the request's key
  struct Launched {
    int64_t plan = 0;
    std::vector<int32_t> tokens;
    BlockIndex highest = -1;  // that it has touched
  };
  std::deque<Launched> launched_;
  int64_t to_add_ = 0;
  uint64_t last_key_ = 0;
  PolicyVersion version_{1, 0};
  bool lending_ = false, taken_away_ = false;
  int64_t lending_since_ = 0;  // rounds since the lend began
  int64_t moved_ = 0;          // blocks moved so far
  int64_t preempted_ = 0;      // sequences preempted so far
  std::vector<std::pair<uint64_t, int32_t>> parked_;
  SchedulerOutcome outcome_;
};

}  // namespace syncopate::rollouter
