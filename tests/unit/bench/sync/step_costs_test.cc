#include "bench/sync/step_costs.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_format.h"

namespace syncopate::bench {
namespace {

// Steps take 100 ms, and those directly after a publication 110 ms; every second step publishes.
std::string Lines(bool stages_beside) {
  std::string lines = "{\"kind\":\"evaluation\",\"step\":4}\nno json\n";
  for (int step = 1; step <= 8; ++step) {
    const bool publishes = step % 2 == 0;
    lines += absl::StrFormat(
        "{\"kind\":\"step\",\"step\":%d,\"forward_backward_seconds\":%g,\"optimizer_seconds\":0.01,"
        "\"stage_seconds\":%g%s}\n",
        step, publishes ? 0.09 : 0.10, publishes ? 0.02 : 0.0, stages_beside ? ",\"stage_wait_seconds\":0.0005" : "");
  }
  return lines;
}

TEST(StepCostsTest, TellsStepsBesideAPublicationFromTheOthers) {
  const StepCosts costs = ReadStepCosts(Lines(false), 2, 2);
  EXPECT_EQ(costs.beside_seconds.count, 3);  // steps 3, 5, 7
  EXPECT_EQ(costs.calm_seconds.count, 3);    // steps 4, 6, 8
  EXPECT_DOUBLE_EQ(costs.beside_seconds.median, 0.11);
  EXPECT_DOUBLE_EQ(costs.calm_seconds.median, 0.10);
  EXPECT_NEAR(costs.rate_share(), 0.10 / 0.11, 1e-12);
}

TEST(StepCostsTest, AStepThatWaitsForAllOfTheStagingWaitsAsLongAsThatTakes) {
  EXPECT_DOUBLE_EQ(ReadStepCosts(Lines(false), 2, 0).wait_seconds.median, 0.02);
  const StepCosts beside = ReadStepCosts(Lines(true), 2, 0);
  EXPECT_DOUBLE_EQ(beside.wait_seconds.median, 0.0005);
  EXPECT_DOUBLE_EQ(beside.stage_seconds.median, 0.02);
  EXPECT_EQ(beside.wait_seconds.count, 4);
}

TEST(StepCostsTest, WithoutStepsNothingWasMeasured) {
  EXPECT_EQ(ReadStepCosts(Lines(true), 2, 8).wait_seconds.count, 0);
  EXPECT_EQ(ReadStepCosts("", 2, 0).rate_share(), 0);
}

}  // namespace
}  // namespace syncopate::bench
