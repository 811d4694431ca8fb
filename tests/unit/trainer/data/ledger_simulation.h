#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/group_ledger.h"

namespace syncopate::trainer {

// A seeded world in virtual time round a GroupLedger: rollouters that lag, are slow, die, lose their stream, hang, stall, are
// paused, answer twice, answer late and answer nonsense; a log that makes records durable after a while, or refuses
// them; a trainer that crashes, restores from its newest or second newest checkpoint and the log, and replays. It keeps
// its own book and says what the ledger got wrong.
struct SimulationOutcome {
  int64_t steps = 0;
  int64_t worst_staleness = 0;
  int64_t bound = 0;
  int64_t restores = 0, replays = 0, reissued = 0, stalled = 0, timed_out = 0, duplicates = 0, expired = 0, invalid = 0,
          fenced = 0, filtered = 0, second_attempts = 0, superseded = 0, answered_by_second = 0;
  int64_t accepted_old_attempts = 0;
  int64_t dropped = 0;  // groups, at their deadline
  // Time that groups which ran took, as drawn before anything happened to them, and its part of those that were trained.
  double sampled_time = 0, trained_time = 0;
  int64_t sampled_groups = 0, trained_groups = 0;
  // Tokens of trained groups, those beyond the bound, and both of the answers that took longer than nine of ten do.
  int64_t answer_tokens = 0, masked_tokens = 0, long_tokens = 0, long_masked_tokens = 0;
  double now = 0;  // at the end
  bool deadlock = false;
  std::vector<std::string> errors;  // broken promises, a sentence each
};

struct SimulationConfig {
  uint64_t seed = 0;
  int64_t steps = 60;
  bool on_policy = false;  // max_staleness 0, nothing filtered or given up
  bool faults = true;
  OnDeadline on_deadline = OnDeadline::kStall;
  // A world of fixed load in place of a drawn one: answers whose time varies widely, of ten tokens a second, each token by
  // the weights that are served when it is made; and this bound. -1: drawn.
  int64_t fixed_bound = -1;
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
