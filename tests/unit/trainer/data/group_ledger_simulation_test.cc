// The ledger in a world where everything goes wrong; see ledger_simulation.h.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "tests/unit/trainer/data/ledger_simulation.h"

namespace syncopate::trainer {
namespace {

// Accepts an older attempt's answer in place of the one that is leased now.
struct AcceptsOldAttempts : GroupLedger {
  using GroupLedger::GroupLedger;
  bool IsCurrent(const LeaseId&, SessionId, const LeaseId&, SessionId) const override { return true; }
  PolicyVersion OldestAllowed(const Lease&) const override { return {}; }
};

// Revokes only leases that are too old, as if no progress were ever reported.
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

// Drops the group of earliest deadline as soon as another is completed, whether a full batch waits for it or not.
struct DropsTooEarly : GroupLedger {
  using GroupLedger::GroupLedger;
  std::optional<GroupId> FindBlocker() const override {
    return queued_groups() > 0 ? gate().EarliestRunning() : std::nullopt;
  }
};

// Waits, though it was told to drop.
struct WaitsForTheDeadline : GroupLedger {
  using GroupLedger::GroupLedger;
  std::optional<GroupId> FindBlocker() const override { return std::nullopt; }
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
    totals.sums.dropped += outcome.dropped;
    totals.sums.sampled_time += outcome.sampled_time;
    totals.sums.trained_time += outcome.trained_time;
    totals.sums.sampled_groups += outcome.sampled_groups;
    totals.sums.trained_groups += outcome.trained_groups;
    totals.sums.now += outcome.now;
  }
  return totals;
}

constexpr int kOneRunIn = SYNCOPATE_ONE_RUN_IN;

// Whether runs of a ledger with a bug, `runs` at most, give more than `enough` errors. The sanitizers are not there to
// prove what the simulation notices: one error is enough for them.
bool IsNoticed(int runs, int64_t enough, const MakeLedger& make_ledger, SimulationConfig config = {}) {
  const int64_t wanted = kOneRunIn > 1 ? 0 : enough;
  int64_t errors = 0;
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

constexpr SimulationConfig kDropping{.on_deadline = OnDeadline::kDrop};

TEST(GroupLedgerSimulationTest, DroppingAtTheDeadlineKeepsTheBoundThroughFaultsAndRestores) {
  Totals totals = SimulateMany(200 / kOneRunIn, kDropping, MakeLedgerWith<>());
  EXPECT_EQ(totals.deadlocks, 0);
  EXPECT_EQ(totals.violations, 0);
  EXPECT_EQ(totals.old_attempts, 0);
  EXPECT_EQ(totals.errors, 0) << totals.first_error;
  EXPECT_GT(totals.sums.dropped, 1000 / kOneRunIn);
  EXPECT_GT(totals.bound_reached, 50 / kOneRunIn) << "the load hardly strains the gate";
  EXPECT_GT(totals.sums.replays, 100 / kOneRunIn);
}

TEST(GroupLedgerSimulationTest, NoticesALedgerThatDropsThoughNoBatchWaits) {
  EXPECT_TRUE(IsNoticed(50, 100, MakeLedgerWith<DropsTooEarly>(), kDropping));
}

TEST(GroupLedgerSimulationTest, NoticesALedgerThatWaitsInsteadOfDropping) {
  EXPECT_TRUE(IsNoticed(50, 100, MakeLedgerWith<WaitsForTheDeadline>(), kDropping));
}

// What dropping costs and gives: steps come sooner, and what is trained is shorter than what is drawn.
TEST(GroupLedgerSimulationTest, DroppingTradesLongAnswersForTime) {
  for (int64_t bound : {1, 2, 4}) {
    SimulationConfig config{.steps = 200, .faults = false, .fixed_bound = bound};
    auto length_ratio = [](const Totals& totals) {
      return totals.sums.trained_time / static_cast<double>(totals.sums.trained_groups) /
             (totals.sums.sampled_time / static_cast<double>(totals.sums.sampled_groups));
    };
    const int runs = std::max(1, 10 / kOneRunIn);
    const Totals stall = SimulateMany(runs, config, MakeLedgerWith<>());
    config.on_deadline = OnDeadline::kDrop;
    const Totals drop = SimulateMany(runs, config, MakeLedgerWith<>());
    const double steps = runs * 200.0;
    RecordProperty(
        "bound_" + std::to_string(bound),
        absl::StrFormat("stall %.3f s a step, length ratio %.3f; drop %.3f s, %.3f, dropped %.3f",
                        stall.sums.now / steps, length_ratio(stall), drop.sums.now / steps, length_ratio(drop),
                        static_cast<double>(drop.sums.dropped) / static_cast<double>(drop.sums.sampled_groups)));
    EXPECT_EQ(stall.violations + drop.violations, 0);
    EXPECT_EQ(stall.sums.dropped, 0);
    EXPECT_NEAR(length_ratio(stall), 1, 0.03);
    EXPECT_LT(length_ratio(drop), 0.97);
    EXPECT_LT(drop.sums.now, 0.9 * stall.sums.now);
  }
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
