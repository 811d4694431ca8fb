// Ctrl-C, and the resume after it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::interrupt_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kInterrupted = 130;  // exit code of `syncopate run` after Ctrl-C
constexpr absl::Duration kGrace = absl::Seconds(5);

// Lets the run get to `step`, interrupts it and expects the end that the documentation promises.
void InterruptAfter(int64_t step, const RunHarness& run, Process& process) {
  ASSERT_THAT(run.AwaitStep(step), IsOk());
  const absl::Time asked = Clock::Real()->Now();
  process.Interrupt();
  auto exit = process.WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_LE(Clock::Real()->Now() - asked, kGrace);
  EXPECT_EQ(exit->code, kInterrupted) << process.Log();
  EXPECT_THAT(ProcessesNaming(run.run_dir()), IsEmpty());
  const Json summary = run.Summary();
  ASSERT_TRUE(summary.is_object());
  EXPECT_EQ(summary["status"], "stopped");
  EXPECT_EQ(summary["steps"], run.LastStep());
}

TEST(InterruptTest, CtrlCDrainsWithinTheGraceAndResumeGoesOnToTheEnd) {
  RunHarness run({"run.steps=60"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_NO_FATAL_FAILURE(InterruptAfter(15, run, **process));
  const int64_t stopped_at = run.LastStep();
  ASSERT_LT(stopped_at, 60);

  auto resumed = run.Resume();
  ASSERT_THAT(resumed, IsOk());
  auto exit = (*resumed)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*resumed)->Log();
  const Json summary = run.Summary();
  EXPECT_EQ(summary["status"], "completed");
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  EXPECT_EQ(summary["groups"]["duplicate"], 0);
  // The drain saved a checkpoint at the step where it stopped, so no step is made twice and none is left out.
  const std::vector<Json> steps = run.Records("step");
  ASSERT_EQ(steps.size(), 60u);
  for (int64_t i = 0; i < 60; ++i) {
    EXPECT_EQ(steps[i]["step"], i + 1);
    EXPECT_EQ(steps[i]["epoch"], i < stopped_at ? 1 : 2);
  }
  EXPECT_THAT(ProcessesNaming(run.run_dir()), IsEmpty());
}

TEST(InterruptTest, StrictlyOnPolicyAResumedRunHasTheBitsOfAnUninterruptedTwin) {
  constexpr int64_t kSteps = 36;
  RunHarness run({"staleness.max_staleness=0", absl::StrCat("run.steps=", kSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_NO_FATAL_FAILURE(InterruptAfter(8, run, **process));
  // The interrupt is repeated, so that a resumed run is interrupted as well.
  process = run.Resume();
  ASSERT_THAT(process, IsOk());
  ASSERT_NO_FATAL_FAILURE(InterruptAfter(run.LastStep() + 6, run, **process));
  process = run.Resume();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_EQ(run.Records("step").size(), static_cast<size_t>(kSteps));
}

TEST(InterruptTest, ACompletedRunTrainsOnWithMoreSteps) {
  RunHarness run({"run.steps=6", "staleness.max_staleness=0", "eval.every_steps=0"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT((*process)->WaitExit(kPatience), IsOk());
  auto longer = run.Resume({"run.steps=12"});
  ASSERT_THAT(longer, IsOk());
  auto exit = (*longer)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*longer)->Log();
  EXPECT_EQ(run.Summary()["status"], "completed");
  auto twin = TwinDigests(run.config(), run.overrides(), 12);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
  // eval.every_steps=0 evaluates at the end of each incarnation and at no other time.
  std::vector<int64_t> evaluated;
  for (const Json& record : run.Records("eval")) evaluated.push_back(record["step"]);
  EXPECT_THAT(evaluated, ElementsAre(6, 12));
}

}  // namespace
}  // namespace syncopate::testing::interrupt_test
