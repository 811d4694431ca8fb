// Reverse L4 from random weights, as `syncopate run` trains it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::learning_test {
namespace {

constexpr int64_t kSteps = 80;
constexpr int64_t kBatchGroups = 16;
constexpr int64_t kSamples = 16;

// (seed, max_staleness)
class LearningTest : public ::testing::TestWithParam<std::tuple<int, int>> {};

// Every group is trained once, and the groups that were acknowledged but not trained are no more than the staleness
// bound allows.
void ExpectConsistent(const Json& summary, int64_t max_staleness) {
  const Json& groups = summary["groups"];
  EXPECT_EQ(groups["trained"], kSteps * kBatchGroups) << groups;
  EXPECT_EQ(groups["duplicate"], 0) << groups;
  for (const auto& [reason, count] : groups["dropped"].items()) EXPECT_EQ(count, 0) << reason;
  const int64_t ahead = groups["acked"].get<int64_t>() - groups["trained"].get<int64_t>();
  EXPECT_GE(ahead, 0) << groups;
  EXPECT_LE(ahead, (max_staleness + 1) * kBatchGroups) << groups;
  EXPECT_GE(groups["generated"], groups["acked"]) << groups;
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  EXPECT_EQ(summary["staleness"]["bound"], max_staleness);
  EXPECT_LE(summary["staleness"]["max"], max_staleness);
}

TEST_P(LearningTest, LearnsToReverseFourSymbolsFromNothing) {
  const auto& [seed, max_staleness] = GetParam();
  RunHarness run({absl::StrCat("run.seed=", seed), absl::StrCat("run.steps=", kSteps),
                  absl::StrCat("staleness.max_staleness=", max_staleness)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(*exit, ExitStatus{}) << (*process)->Log();

  const Json summary = run.Summary();
  ASSERT_TRUE(summary.is_object());
  EXPECT_EQ(summary["status"], "completed");
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_GE(summary["eval"]["best"], 0.95) << summary["eval"];
  ExpectConsistent(summary, max_staleness);

  EXPECT_EQ(summary["syncs"]["failed"], 0) << summary["syncs"];
  // There are two rollouters, and each may skip a version for a newer one.
  EXPECT_GT(summary["syncs"]["count"], kSteps);
  EXPECT_EQ(summary["rollouters"].size(), 2u);
  EXPECT_GE(summary["tokens"]["generated"], summary["tokens"]["trained"]);
  EXPECT_GE(summary["tokens"]["trained"], kSteps * kBatchGroups * kSamples);  // an answer has at least one token
  for (const char* side : {"trainer", "rollouters"}) {
    EXPECT_GE(summary["idle"][side], 0.0) << side;
    EXPECT_LE(summary["idle"][side], 1.0) << side;
  }
  EXPECT_EQ(run.Digests().size(), static_cast<size_t>(kSteps));
  for (const char* kind : {"step", "eval"}) {
    for (const Json& record : run.Records(kind)) EXPECT_THAT(record["alarms"], ::testing::IsEmpty()) << record;
  }
  EXPECT_THAT(ProcessesNaming(run.run_dir()), ::testing::IsEmpty());
}

// No random answer is wholly right, so every reward is 0.
TEST(NoSignalTest, StepsWithoutSignalChangeNothingAreCountedAndMoveNoBytes) {
  constexpr int64_t kFewSteps = 12;
  RunHarness run({absl::StrCat("run.steps=", kFewSteps), "reward.name=exact", "eval.every_steps=0"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(*exit, ExitStatus{}) << (*process)->Log();

  for (const Json& step : run.Records("step")) {
    EXPECT_EQ(step["updates"], 0) << step;
    EXPECT_EQ(step["zero_variance_ratio"], 1) << step;
    EXPECT_GT(step["entropy"], 2) << step;
  }
  const std::map<int64_t, std::string> digests = run.Digests();
  EXPECT_EQ(digests.size(), static_cast<size_t>(kFewSteps));
  for (const auto& [step, digest] : digests) EXPECT_EQ(digest, digests.begin()->second) << step;
  const Json summary = run.Summary();
  EXPECT_EQ(summary["groups"]["trained"], kFewSteps * kBatchGroups);
  // Each of two rollouters installs each version or a newer one. Weights are sent only for the first version, 0.44 MB
  // to each rollouter, since later steps change nothing.
  EXPECT_GT(summary["syncs"]["count"], kFewSteps);
  EXPECT_EQ(summary["syncs"]["failed"], 0);
  EXPECT_LT(summary["syncs"]["bytes"], 1'000'000) << summary["syncs"];
}

INSTANTIATE_TEST_SUITE_P(SeedsAndBounds, LearningTest,
                         ::testing::Combine(::testing::Values(0, 1, 2), ::testing::Values(0, 4)), [](const auto& info) {
                           return absl::StrCat("Seed", std::get<0>(info.param), "MaxStaleness",
                                               std::get<1>(info.param));
                         });

}  // namespace
}  // namespace syncopate::testing::learning_test
