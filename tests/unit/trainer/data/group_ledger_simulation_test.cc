// The ledger in a world with many faults; see ledger_simulation.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/unit/trainer/data/ledger_simulation.h"

namespace syncopate::trainer {
namespace {

// Accepts the answer of an older attempt in place of that of the present lease.
struct AcceptsOldAttempts : GroupLedger {
  using GroupLedger::GroupLedger;
  bool IsCurrent(const LeaseId&, SessionId, const LeaseId&, SessionId) const override { return true; }
  PolicyVersion OldestAllowed(const Lease&) const override { return {}; }
};

// Revokes only leases that are too old, as if it got no reports of progress.
struct WaitsForTheStalled : GroupLedger {
  using GroupLedger::GroupLedger;
  std::optional<RevokeReason> Overdue(const LeaseTimes& times, absl::Time now) const override {
    return GroupLedger::Overdue({times.issued, now}, now);
  }
};

// Uses only the age of a lease.
struct IgnoresProgress : GroupLedger {
  using GroupLedger::GroupLedger;
  std::optional<RevokeReason> Overdue(const LeaseTimes& times, absl::Time now) const override {
    return GroupLedger::Overdue({times.issued, times.issued}, now);
  }
};

// Leases to stalled rollouters that have room.
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

// Drops the group of the earliest deadline as soon as another group is completed, whether a full batch waits for it or
// not.
struct DropsTooEarly : GroupLedger {
  using GroupLedger::GroupLedger;
  std::optional<GroupId> FindBlocker() const override {
    return queued_groups() > 0 ? gate().EarliestRunning() : std::nullopt;
  }
};

// Waits although the option is to drop.
struct WaitsForTheDeadline : GroupLedger {
  using GroupLedger::GroupLedger;
  std::optional<GroupId> FindBlocker() const override { return std::nullopt; }
};

// Forgets versions as if no group could be trained later than the bound.
struct ForgetsVersions : GroupLedger {
  using GroupLedger::GroupLedger;
  int64_t OldestKnownStep() const override { return version().step - options().gate.max_staleness; }
};

// Takes no batch while an older group runs that would come first in the batch.
struct WaitsForOlderGroups : GroupLedger {
  using GroupLedger::GroupLedger;
  std::vector<GroupId> PickBatch() const override {
    const std::optional<GroupId> running = gate().EarliestRunning();
    const bool waits = running.has_value() && gate().GetDeadline(*running) <= gate().step();
    return waits ? std::vector<GroupId>() : GroupLedger::PickBatch();
  }
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
    totals.sums.continued += outcome.continued;
    totals.sums.kept_tokens += outcome.kept_tokens;
    totals.sums.sampled_time += outcome.sampled_time;
    totals.sums.trained_time += outcome.trained_time;
    totals.sums.sampled_groups += outcome.sampled_groups;
    totals.sums.trained_groups += outcome.trained_groups;
    totals.sums.answer_tokens += outcome.answer_tokens;
    totals.sums.masked_tokens += outcome.masked_tokens;
    totals.sums.long_tokens += outcome.long_tokens;
    totals.sums.long_masked_tokens += outcome.long_masked_tokens;
    totals.sums.now += outcome.now;
  }
  return totals;
}

constexpr int kOneRunIn = SYNCOPATE_ONE_RUN_IN;

// Whether at most `runs` runs of a ledger with a bug give more than `enough` errors. Builds with sanitizers do not have
// to prove what the simulation detects: one error is enough for them.
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
  EXPECT_GT(totals.sums.continued, 1000 / kOneRunIn);
  EXPECT_GT(totals.sums.kept_tokens, totals.sums.continued);
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
  Totals totals = SimulateMany(400 / kOneRunIn, {.keeps_parts = false}, MakeLedgerWith<AcceptsOldAttempts>());
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

constexpr SimulationConfig kMasking{.on_deadline = OnDeadline::kMask};

TEST(GroupLedgerSimulationTest, MaskingWaitsForNoDeadlineAndCountsTokensBeyondTheBoundApartThroughFaultsAndRestores) {
  Totals totals = SimulateMany(200 / kOneRunIn, kMasking, MakeLedgerWith<>());
  EXPECT_EQ(totals.deadlocks, 0);
  EXPECT_EQ(totals.violations, 0);
  EXPECT_EQ(totals.old_attempts, 0);
  EXPECT_EQ(totals.errors, 0) << totals.first_error;
  EXPECT_GT(totals.sums.masked_tokens, 1000 / kOneRunIn);
  EXPECT_GT(totals.bound_reached, 50 / kOneRunIn) << "the load hardly strains the gate";
  EXPECT_GT(totals.sums.replays, 100 / kOneRunIn);
}

TEST(GroupLedgerSimulationTest, NoticesALedgerThatForgetsVersionsWhichAnOutstandingGroupMayHold) {
  EXPECT_TRUE(IsNoticed(50, 100, MakeLedgerWith<ForgetsVersions>(), kMasking));
}

TEST(GroupLedgerSimulationTest, NoticesALedgerThatWaitsInsteadOfMasking) {
  EXPECT_TRUE(IsNoticed(50, 100, MakeLedgerWith<WaitsForOlderGroups>(), kMasking));
}

double Fraction(double part, double whole) { return whole > 0 ? part / whole : 0; }

// The mean length of trained answers relative to that of drawn answers; a token without a loss does not count as
// trained.
double LengthRatio(const SimulationOutcome& sums) {
  const double drawn = Fraction(sums.sampled_time, static_cast<double>(sums.sampled_groups));
  const double whole = Fraction(sums.trained_time, static_cast<double>(sums.trained_groups)) / drawn;
  return whole * (1 - Fraction(static_cast<double>(sums.masked_tokens), static_cast<double>(sums.answer_tokens)));
}

std::string Describe(const SimulationOutcome& sums, double steps) {
  return absl::StrFormat("%.3f s a step, length ratio %.3f, dropped %.3f, masked %.3f, of the longest tenth %.3f",
                         sums.now / steps, LengthRatio(sums),
                         Fraction(static_cast<double>(sums.dropped), static_cast<double>(sums.sampled_groups)),
                         Fraction(static_cast<double>(sums.masked_tokens), static_cast<double>(sums.answer_tokens)),
                         Fraction(static_cast<double>(sums.long_masked_tokens), static_cast<double>(sums.long_tokens)));
}

// Both options save time: dropping costs long answers, masking costs the first tokens of long answers.
TEST(GroupLedgerSimulationTest, WhatEachOnDeadlineCostsAndGives) {
  if (kOneRunIn > 1) GTEST_SKIP() << "what something costs does not depend on a sanitizer";
  for (int64_t bound : {1, 2, 4, 8}) {
    SimulationConfig config{.steps = 200, .faults = false, .fixed_bound = bound};
    const int runs = std::max(1, 10 / kOneRunIn);
    std::map<OnDeadline, Totals> totals;
    for (const auto& [mode, name] : {std::pair(OnDeadline::kStall, "stall"), std::pair(OnDeadline::kMask, "mask"),
                                     std::pair(OnDeadline::kDrop, "drop")}) {
      config.on_deadline = mode;
      totals[mode] = SimulateMany(runs, config, MakeLedgerWith<>());
      RecordProperty(absl::StrCat(name, "_bound_", bound), Describe(totals[mode].sums, runs * 200.0));
      EXPECT_EQ(totals[mode].violations, 0);
      EXPECT_EQ(totals[mode].errors, 0) << totals[mode].first_error;
    }
    const SimulationOutcome &stall = totals[OnDeadline::kStall].sums, &mask = totals[OnDeadline::kMask].sums,
                            &drop = totals[OnDeadline::kDrop].sums;
    EXPECT_EQ(stall.dropped + mask.dropped, 0);
    EXPECT_EQ(stall.masked_tokens + drop.masked_tokens, 0);
    EXPECT_NEAR(LengthRatio(stall), 1, 0.03);
    if (bound > 4) continue;  // deadlines have hardly any effect then
    EXPECT_LT(LengthRatio(drop), 0.97);
    EXPECT_LT(LengthRatio(mask), 0.98);
    EXPECT_GT(LengthRatio(mask), LengthRatio(drop));
    EXPECT_LT(drop.now, 0.9 * stall.now);
    EXPECT_LT(mask.now, 0.9 * stall.now);
  }
}

// Over-sampling by a quarter as it is usually done: of 20 groups that are begun at once the first 16 are trained, and the
// others are discarded.
struct FirstOfMore {
  double step_seconds = 0;
  double length_ratio = 0;
};

FirstOfMore TakeTheFirst(int64_t batch, int64_t begun, double train_seconds) {
  constexpr int kBatches = 20000;
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> draw(0, 1);
  double waited = 0, trained = 0, drawn = 0;
  for (int i = 0; i < kBatches; ++i) {
    std::vector<double> times(static_cast<size_t>(begun));
    for (double& time : times) time = std::min(draw(random), 20.0);
    std::sort(times.begin(), times.end());
    waited += times[static_cast<size_t>(batch - 1)];
    for (int64_t g = 0; g < begun; ++g) (g < batch ? trained : drawn) += times[static_cast<size_t>(g)];
  }
  drawn += trained;
  const auto batches = static_cast<double>(kBatches);
  return {waited / batches + train_seconds,
          trained / static_cast<double>(batch) / (drawn / static_cast<double>(begun))};
}

// A target of a quarter is over-sampling by a quarter: a step waits for fewer of the longest answers. The late answers are
// trained by the next step, so their lengths are trained as they are drawn.
TEST(GroupLedgerSimulationTest, ATargetOfAQuarterSavesTheWaitOfOverSamplingWithoutItsBias) {
  if (kOneRunIn > 1) GTEST_SKIP() << "what something costs does not depend on a sanitizer";
  SimulationConfig config{.steps = 200, .faults = false, .fixed_bound = 0};
  config.load = {.rollouters = 4, .slots = 8, .batch_groups = 16, .target_staleness = 0.25};
  const int runs = std::max(1, 10 / kOneRunIn);
  const Totals on_policy = SimulateMany(runs, config, MakeLedgerWith<>());
  config.fixed_bound = 1;
  const Totals quarter = SimulateMany(runs, config, MakeLedgerWith<>());
  const FirstOfMore discards = TakeTheFirst(16, 20, config.load.step_seconds);
  RecordProperty("on_policy", Describe(on_policy.sums, runs * 200.0));
  RecordProperty("quarter", Describe(quarter.sums, runs * 200.0));
  RecordProperty("discards",
                 absl::StrFormat("%.3f s a step, length ratio %.3f", discards.step_seconds, discards.length_ratio));
  EXPECT_EQ(quarter.errors + on_policy.errors, 0) << quarter.first_error << on_policy.first_error;
  EXPECT_EQ(quarter.violations + on_policy.violations, 0);
  EXPECT_NEAR(LengthRatio(quarter.sums), 1, 0.03);
  EXPECT_LT(discards.length_ratio, 0.8);
  // The bound of one step still waits for the longest answers, one step later: the saving is small.
  EXPECT_LT(quarter.sums.now, 0.97 * on_policy.sums.now);
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
