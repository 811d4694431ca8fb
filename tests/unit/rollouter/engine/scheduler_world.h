#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
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
  std::vector<std::string> errors;  // the run ends with the first
  Scheduler::Counters counters;
  int64_t finished = 0, aborted = 0, ended_by_sink = 0, installs = 0, plans = 0, overtaken = 0;
  int64_t lends = 0, returned_early = 0, moving_plans = 0;  // lends that came to be; the others were given up before
};

// A scheduler, a runner that is up to two plans ahead, and a world that adds and aborts requests, ends samples and
// installs versions at any moment, with memory that is too small: everything random, by `seed`. Says what the scheduler
// got wrong. `lends`: in half of the runs blocks are lent, too.
SchedulerOutcome SimulateScheduler(uint64_t seed, const MakeScheduler& make_scheduler, bool lends = true);

// What SimulateScheduler runs.
class SchedulerWorld {
 public:
  SchedulerWorld(uint64_t seed, const MakeScheduler& make_scheduler, bool lends);
  SchedulerOutcome Run();

 private:
  // What the world knows of one sample.
  struct Sample {
    std::vector<int32_t> drawn;
    uint64_t chain = 0;  // of the prompt and these
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
  // One plan, launched; false if there was nothing to plan.
  bool LaunchOne();
  void NoteStarts(const StepPlan& plan);
  void CompleteOldest();
  void Take(const Scheduler::Drawn& drawn, int32_t token);
  std::optional<FinishReason> Expected(const Known& known, const Sample& sample) const;
  void CheckEnd();

  std::mt19937_64 random_;
  const Scheduler::Options options_;
  const int64_t depth_;
  const double abort_chance_, install_chance_, sink_chance_, priority_chance_, lend_chance_;
  std::unique_ptr<Scheduler> scheduler_;
  StampingRunner runner_;
  std::map<uint64_t, Known> known_;  // by key
  struct Launched {
    int64_t plan = 0;
    std::vector<int32_t> tokens;
  };
  std::deque<Launched> launched_;
  int64_t to_add_ = 0;
  uint64_t last_key_ = 0;
  PolicyVersion version_{1, 0};
  bool lending_ = false, taken_away_ = false;
  int64_t lending_since_ = 0;  // rounds
  int64_t moved_ = 0;          // blocks, so far
  SchedulerOutcome outcome_;
};

}  // namespace syncopate::rollouter
