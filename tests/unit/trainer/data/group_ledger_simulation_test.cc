// The ledger in a world where everything goes wrong; see ledger_simulation.h.
#include <gtest/gtest.h>

#include "tests/unit/trainer/data/ledger_simulation.h"

namespace syncopate::trainer {
namespace {

// Accepts an older attempt's answer in place of the one that is leased now.
struct AcceptsOldAttempts : GroupLedger {
  using GroupLedger::GroupLedger;
  bool IsCurrent(const LeaseId&, SessionId, const LeaseId&, SessionId) const override { return true; }
  PolicyVersion OldestAllowed(const Lease&) const override { return {}; }
};

// Takes back only what is too old, as if nobody ever said how leases come along.
struct WaitsForTheStalled : GroupLedger {
  using GroupLedger::GroupLedger;
  std::optional<RevokeReason> Overdue(const LeaseTimes& times, absl::Time now) const override {
    return GroupLedger::Overdue({times.issued, now}, now);
  }
};

// Looks at the age of a lease alone.
struct IgnoresProgress : GroupLedger {
  using GroupLedger::GroupLedger;
  std::optional<RevokeReason> Overdue(const LeaseTimes& times, absl::Time now) const override {
    return GroupLedger::Overdue({times.issued, times.issued}, now);
  }
};

// Leases to the rollouters that have room.
struct TrustsTheStalled : GroupLedger {
  using GroupLedger::GroupLedger;
  bool IsHeldBack(const RolloutSession&, absl::Time) const override { return false; }
};

// Puts a prompt back as soon as one of two attempts at it is lost.
struct PutsBackTooEarly : GroupLedger {
  using GroupLedger::GroupLedger;
  bool MayPutBack(size_t) const override { return true; }
};

// Gives the second attempt to a rollouter that has room.
struct TakesOverWithOlderWeights : GroupLedger {
  using GroupLedger::GroupLedger;
  bool MayTakeOver(const RolloutSession&, const PolicyVersion&) const override { return true; }
};

struct Totals {
  int64_t deadlocks = 0, violations = 0, bound_reached = 0, old_attempts = 0, errors = 0;
  SimulationOutcome sums;
  std::string first_error;
};

Totals SimulateMany(int runs, SimulationConfig config, const MakeLedger& make_ledger) {
  Totals totals;
  for (int seed = 1; seed <= runs; ++seed) {
    config.seed = seed;
    SimulationOutcome outcome = Simulate(config, make_ledger);
    totals.deadlocks += outcome.deadlock;
    totals.violations += outcome.worst_staleness > outcome.bound;
    totals.bound_reached += outcome.worst_staleness == outcome.bound;
    totals.old_attempts += outcome.accepted_old_attempts;
    totals.errors += std::ssize(outcome.errors);
    if (!outcome.errors.empty() && totals.first_error.empty()) {
      totals.first_error = "seed " + std::to_string(seed) + ": " + outcome.errors.front();
    }
    totals.sums.restores += outcome.restores;
    totals.sums.replays += outcome.replays;
    totals.sums.reissued += outcome.reissued;
    totals.sums.stalled += outcome.stalled;
    totals.sums.timed_out += outcome.timed_out;
    totals.sums.duplicates += outcome.duplicates;
    totals.sums.expired += outcome.expired;
    totals.sums.invalid += outcome.invalid;
    totals.sums.fenced += outcome.fenced;
    totals.sums.filtered += outcome.filtered;
    totals.sums.second_attempts += outcome.second_attempts;
    totals.sums.superseded += outcome.superseded;
    totals.sums.answered_by_second += outcome.answered_by_second;
  }
  return totals;
}

constexpr int kOneRunIn = SYNCOPATE_ONE_RUN_IN;

// Whether runs of a ledger with a bug, `runs` at most, give more than `enough` errors. The sanitizers are not there to prove
// what the simulation notices: one error is enough for them.
bool IsNoticed(int runs, int64_t enough, const MakeLedger& make_ledger) {
  const int64_t wanted = kOneRunIn > 1 ? 0 : enough;
  int64_t errors = 0;
  SimulationConfig config;
  for (config.seed = 1; config.seed <= static_cast<uint64_t>(runs) && errors <= wanted; ++config.seed) {
    errors += std::ssize(Simulate(config, make_ledger).errors);
  }
  return errors > wanted;
}

TEST(GroupLedgerSimulationTest, KeepsItsPromisesThroughFaultsAndRestores) {
  Totals totals = SimulateMany(400 / kOneRunIn, {}, MakeLedgerWith<>());
  EXPECT_EQ(totals.deadlocks, 0);
  EXPECT_EQ(totals.violations, 0);
  EXPECT_EQ(totals.old_attempts, 0);
  EXPECT_EQ(totals.errors, 0) << totals.first_error;
  EXPECT_GT(totals.bound_reached, 100 / kOneRunIn) << "the load hardly strains the gate";
  EXPECT_GT(totals.sums.restores, 400 / kOneRunIn);
  EXPECT_GT(totals.sums.replays, 400 / kOneRunIn);
  EXPECT_GT(totals.sums.reissued, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.stalled, 500 / kOneRunIn);
  EXPECT_GT(totals.sums.timed_out, 10 / kOneRunIn);
  EXPECT_GT(totals.sums.duplicates, 100 / kOneRunIn);
  EXPECT_GT(totals.sums.expired, 100 / kOneRunIn);
  EXPECT_GT(totals.sums.invalid, 100 / kOneRunIn);
  EXPECT_GT(totals.sums.fenced, 10 / kOneRunIn);
  EXPECT_GT(totals.sums.filtered, 100 / kOneRunIn);
  EXPECT_GT(totals.sums.second_attempts, 400 / kOneRunIn);
  EXPECT_GT(totals.sums.superseded, 200 / kOneRunIn);
  EXPECT_GT(totals.sums.answered_by_second, 100 / kOneRunIn);
  EXPECT_LT(totals.sums.answered_by_second, totals.sums.superseded) << "the first attempt may win, too";
}

TEST(GroupLedgerSimulationTest, OnPolicyTrainsThePromptsInOrderThroughFaultsAndRestores) {
  Totals totals = SimulateMany(150 / kOneRunIn, {.steps = 40, .on_policy = true}, MakeLedgerWith<>());
  EXPECT_EQ(totals.deadlocks, 0);
  EXPECT_EQ(totals.violations, 0);
  EXPECT_EQ(totals.errors, 0) << totals.first_error;
  EXPECT_GT(totals.sums.restores, 100 / kOneRunIn);
}

TEST(GroupLedgerSimulationTest, NoticesALedgerThatAcceptsOldAttempts) {
  Totals totals = SimulateMany(400 / kOneRunIn, {}, MakeLedgerWith<AcceptsOldAttempts>());
  EXPECT_GT(totals.old_attempts, 10 / kOneRunIn);
  EXPECT_GT(totals.violations, 5 / kOneRunIn);
}

TEST(GroupLedgerSimulationTest, NoticesALedgerThatWaitsForTheStalled) {
  EXPECT_TRUE(IsNoticed(50, 100, MakeLedgerWith<WaitsForTheStalled>()));
}

TEST(GroupLedgerSimulationTest, NoticesALedgerThatTakesBackWhatComesFurther) {
  EXPECT_TRUE(IsNoticed(50, 10, MakeLedgerWith<IgnoresProgress>()));
}

TEST(GroupLedgerSimulationTest, NoticesALedgerThatLeasesToTheStalled) {
  EXPECT_TRUE(IsNoticed(50, 10, MakeLedgerWith<TrustsTheStalled>()));
}

TEST(GroupLedgerSimulationTest, NoticesALedgerThatPutsAPromptBackWhileAnotherAttemptLives) {
  EXPECT_TRUE(IsNoticed(50, 10, MakeLedgerWith<PutsBackTooEarly>()));
}

TEST(GroupLedgerSimulationTest, NoticesASecondAttemptByOlderWeights) {
  EXPECT_TRUE(IsNoticed(200, 4, MakeLedgerWith<TakesOverWithOlderWeights>()));
}

TEST(GroupLedgerSimulationTest, EqualEventsGiveEqualActions) {
  for (uint64_t seed : {3, 4, 5}) {
    SimulationOutcome a = Simulate({.seed = seed}, MakeLedgerWith<>());
    SimulationOutcome b = Simulate({.seed = seed}, MakeLedgerWith<>());
    EXPECT_EQ(a.steps, b.steps);
    EXPECT_EQ(a.worst_staleness, b.worst_staleness);
    EXPECT_EQ(a.reissued, b.reissued);
    EXPECT_EQ(a.stalled, b.stalled);
    EXPECT_EQ(a.expired, b.expired);
    EXPECT_EQ(a.second_attempts, b.second_attempts);
  }
}

}  // namespace
}  // namespace syncopate::trainer
