// What SizeRun() predicts of one rollouter more, from what the ledger of a simulated run has measured, against what that
// rollouter then gave.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/unit/trainer/data/ledger_simulation.h"
#include "trainer/data/sizing.h"

namespace syncopate::trainer {
namespace {

// Both are measured over the last steps: those that the trainer's figures are of, and, as an answer's time depends on its
// prompt alone, the same answers with and without the further rollouter.
constexpr int64_t kSteps = 600, kMeasured = 256;
constexpr double kWithin = 0.15;

struct Setting {
  std::string name;
  int64_t bound = 0;
  FixedLoad load = {};
};

struct Measured {
  double rate = 0;  // steps per second of the last kMeasured steps
  SizingInputs inputs;
};

Measured Play(const Setting& setting, int64_t rollouters) {
  SimulationConfig config{.seed = 1, .steps = kSteps, .faults = false, .fixed_bound = setting.bound};
  config.load = setting.load;
  config.load.rollouters = rollouters;
  const SimulationOutcome outcome = Simulate(config, MakeLedgerWith<>());
  EXPECT_TRUE(outcome.errors.empty()) << outcome.errors.front();
  const double begin = *(outcome.step_ends.end() - 1 - kMeasured);
  return {static_cast<double>(kMeasured) / (outcome.step_ends.back() - begin), outcome.sizing};
}

void ExpectPredicted(const Setting& setting, const std::vector<int64_t>& numbers) {
  if (SYNCOPATE_ONE_RUN_IN > 1) GTEST_SKIP() << "how good a prediction is does not depend on a sanitizer";
  double worst = 0;
  for (const int64_t rollouters : numbers) {
    const Measured before = Play(setting, rollouters), after = Play(setting, rollouters + 1);
    EXPECT_EQ(before.inputs.rollouters, rollouters);
    EXPECT_EQ(before.inputs.slots, rollouters * setting.load.slots);
    const absl::StatusOr<SizingAdvice> advice = SizeRun(before.inputs);
    ASSERT_TRUE(advice.ok()) << advice.status();
    const double error = advice->steps_per_second_one_more / after.rate - 1;
    worst = std::max(worst, std::abs(error));
    ::testing::Test::RecordProperty(
        absl::StrCat(setting.name, "_", rollouters),
        absl::StrFormat("%.3f steps/s; one more: predicted %.3f, became %.3f (%+.1f %%); limit %s, useful %d",
                        before.rate, advice->steps_per_second_one_more, after.rate, 100 * error,
                        RunLimitName(advice->limit), advice->useful_rollouters));
    EXPECT_LE(std::abs(error), kWithin) << setting.name << " with " << rollouters;
  }
  ::testing::Test::RecordProperty(setting.name + "_worst", absl::StrFormat("%.1f %%", 100 * worst));
}

const std::vector<int64_t> kNumbers = {1, 2, 3, 8, 16, 24, 32, 63};

// Answers are log-normal with sigma 1: a median of 1 s, 1.65 s on average, 20 s at most.
TEST(SizingSimulationTest, PredictsOneMoreWhereRolloutersAndThenTheTrainerAreTheLimit) {
  ExpectPredicted({"ample", 40, {.slots = 2, .batch_groups = 16, .target_staleness = 20, .step_seconds = 0.4}},
                  kNumbers);
}

TEST(SizingSimulationTest, PredictsOneMoreWhereTheTargetBecomesTheLimit) {
  ExpectPredicted({"target", 16, {.slots = 2, .batch_groups = 16, .target_staleness = 2, .step_seconds = 0.25}},
                  kNumbers);
}

TEST(SizingSimulationTest, PredictsOneMoreWhereTheBoundBecomesTheLimit) {
  ExpectPredicted({"bound", 4, {.slots = 2, .batch_groups = 16, .target_staleness = 4, .step_seconds = 0.25}},
                  kNumbers);
}

TEST(SizingSimulationTest, PredictsOneMoreOfAnOnPolicyRun) {
  ExpectPredicted({"on_policy", 0, {.slots = 2, .batch_groups = 32, .target_staleness = 0, .step_seconds = 1}},
                  {1, 2, 4, 8, 15, 63});
}

}  // namespace
}  // namespace syncopate::trainer
