#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/data/staleness_gate.h"

namespace syncopate::trainer {

// What a run has measured of itself, from which SizeRun() advises. Times are in seconds.
struct SizingInputs {
  StalenessGate::Options gate = {};
  // Times from lease to accepted answer of recent groups, in any order: E[D] is their mean, D_max their maximum.
  std::vector<double> group_seconds = {};
  double step_seconds = 0;  // mean interval between steps less the wait for groups: a trainer that never waits needs it
  // Mean interval between steps with the present rollouters, waits included; 0: too few steps since they changed.
  double interval_seconds = 0;
  double kept_ratio = 1;   // of answered groups, those that are trained and not replaced for want of signal
  double lag_steps = 0;    // mean steps by which a rollouter lags behind the trainer when it gets a lease
  int64_t rollouters = 0;  // that may get leases
  int64_t slots = 0;       // groups that they work on at once, all together
};

enum class RunLimit : uint8_t {
  kTrainer,     // it hardly waits: more rollouters give nothing
  kRollouters,  // the trainer waits for groups, and more rollouters bring them sooner
  kStaleness,   // both sides wait: target_staleness or max_staleness does not let them work beside each other
};
const char* RunLimitName(RunLimit limit);  // "trainer", "rollouters", "staleness"

struct SizingAdvice {
  int64_t rollouters = 0;                 // now
  double slots_per_rollouter = 0;         // mean
  RunLimit limit = RunLimit::kTrainer;    // of the present pace
  double steps_per_second = 0;            // now: measured, or predicted if too few steps were made
  double steps_per_second_one_more = 0;   // predicted, with one rollouter more, like the mean of the present ones
  double steps_per_second_one_fewer = 0;  // predicted; 0 with one rollouter
  double steps_per_second_most = 0;       // of a trainer that never waits
  double trainer_idle_ratio = 0;          // share of its time in which the trainer waits for groups, now
  int64_t useful_rollouters = 0;          // the least that reach kEnough of what any number could, as things are set
  double mean_group_seconds = 0;          // E[D]
  double longest_group_seconds = 0;       // D_max
  double step_seconds = 0;                // T of a trainer that never waits
  double target_staleness = 0;            // E[D] / T: keeps the trainer busy
  int64_t max_staleness = 0;              // D_max / T, rounded up, at least the target: never makes it wait
  int64_t advised_rollouters = 0;         // the least that reach kEnough of what any number could with these two
  double advised_steps_per_second = 0;    // predicted with these two and so many rollouters
};

// The share of the possible pace that counts as all of it.
inline constexpr double kEnough = 0.95;

// Predicts the steps per second of a run with so many slots by playing its own staleness gate with its own group times:
// the slots are filled as the gate admits, batches are taken as it allows, and a step takes `step_seconds`. Pure and
// deterministic; takes milliseconds. It assumes that a group takes as long however many slots are filled. 0 without
// slots, group times or step time.
double PredictStepRate(const SizingInputs& inputs, int64_t slots);

// The sizing law with a run's own times. What one rollouter more or fewer gives is the measured pace times the ratio of
// two predictions, so that what no model knows of the run (its syncs, its evaluations) cancels out. FAILED_PRECONDITION
// (reason NOT_MEASURED) without rollouters, and before a batch of groups and two steps were measured. Pure; takes up to
// twenty predictions.
absl::StatusOr<SizingAdvice> SizeRun(const SizingInputs& inputs);

}  // namespace syncopate::trainer
