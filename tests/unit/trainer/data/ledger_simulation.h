#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/group_ledger.h"

namespace syncopate::trainer {

// A seeded world in virtual time around a GroupLedger. Its rollouters lag, are slow, die, lose their stream, hang,
// stall, are paused, answer twice, answer late and send invalid answers. Its log makes records durable after a while,
// or refuses them. Its trainer crashes, restores from its newest or second newest checkpoint and the log, and replays.
// The world keeps its own record of the events and reports the errors of the ledger.
struct SimulationOutcome {
  int64_t steps = 0;
  int64_t worst_staleness = 0;
  int64_t bound = 0;
  int64_t restores = 0, replays = 0, reissued = 0, stalled = 0, timed_out = 0, duplicates = 0, expired = 0, invalid = 0,
          fenced = 0, filtered = 0, second_attempts = 0, superseded = 0, answered_by_second = 0;
  int64_t accepted_old_attempts = 0;
  int64_t continued = 0, kept_tokens = 0;
  int64_t dropped = 0;  // groups dropped at their deadline
  // The time that running groups took, as drawn before any fault, and the part of it that belongs to trained groups.
  double sampled_time = 0, trained_time = 0;
  int64_t sampled_groups = 0, trained_groups = 0;
  // The tokens of trained groups and those beyond the bound, and both for answers that took longer than nine of ten
  // answers.
  int64_t answer_tokens = 0, masked_tokens = 0, long_tokens = 0, long_masked_tokens = 0;
  double now = 0;                 // the time at the end
  std::vector<double> step_ends;  // the time of each step that was made
  SizingInputs sizing;            // as the ledger measured them at the end
  bool deadlock = false;
  std::vector<std::string> errors;  // broken invariants, one sentence each
};

// The world of SimulationConfig::fixed_bound.
struct FixedLoad {
  int64_t rollouters = 4;
  int64_t slots = 8;  // groups that a rollouter works on at once
  int64_t batch_groups = 8;
  double target_staleness = 1;  // at most the bound
  double step_seconds = 0.25;   // a quarter of an answer's median time
};

struct SimulationConfig {
  uint64_t seed = 0;
  int64_t steps = 60;
  bool on_policy = false;  // max_staleness is 0, and no group is filtered or given up
  bool faults = true;
  bool keeps_parts = true;  // in two of three worlds
  OnDeadline on_deadline = OnDeadline::kStall;
  // A world of fixed load in place of a drawn one, with this bound: answers of ten tokens a second whose time varies
  // widely, each token by the weights that serve when it is made. -1: a drawn world.
  int64_t fixed_bound = -1;
  FixedLoad load = {};
};

using MakeLedger = std::function<std::unique_ptr<GroupLedger>(const GroupLedger::Options&, const PromptSource*,
                                                              const PolicyVersion&, RestoredData, absl::Time)>;

template <typename Ledger = GroupLedger>
MakeLedger MakeLedgerWith() {
  return [](const GroupLedger::Options& options, const PromptSource* prompts, const PolicyVersion& version,
            RestoredData restored, absl::Time now) -> std::unique_ptr<GroupLedger> {
    return std::make_unique<Ledger>(options, prompts, version, std::move(restored), now);
  };
}

SimulationOutcome Simulate(const SimulationConfig& config, const MakeLedger& make_ledger);

}  // namespace syncopate::trainer
