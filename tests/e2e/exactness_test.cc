// Strictly on-policy, a distributed run has the bits of the synchronous loop in one process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing {
namespace {

constexpr int64_t kSteps = 40;

class ExactnessTest : public ::testing::TestWithParam<int> {};

TEST_P(ExactnessTest, StrictlyOnPolicyEveryStepHasTheBitsOfTheSynchronousTwin) {
  RunHarness run({"staleness.max_staleness=0", "run.seed=3", absl::StrCat("run.rollouters=", GetParam()),
                  absl::StrCat("run.steps=", kSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  ASSERT_EQ(twin->size(), static_cast<size_t>(kSteps));
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_EQ(run.Summary()["rollouters"].size(), static_cast<size_t>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Rollouters, ExactnessTest, ::testing::Values(1, 2),
                         [](const auto& info) { return absl::StrCat("With", info.param, "Rollouters"); });

// On the CPU passes of one number of rows give the same bits as others, so the twin need not have them.
TEST(ExactnessTest, ARunWithDeterministicRolloutersHasTheBitsOfATwinWithout) {
  constexpr int64_t kFewSteps = 8;
  RunHarness run({"staleness.max_staleness=0", "run.seed=3", "run.rollouters=2", "rollout.deterministic=true",
                  absl::StrCat("run.steps=", kFewSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  std::vector<std::string> plain = run.overrides();
  plain.emplace_back("rollout.deterministic=false");
  auto twin = TwinDigests(run.config(), plain, kFewSteps);
  ASSERT_THAT(twin, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
}

TEST(ExactnessTest, AnotherSeedHasOtherBits) {
  auto digest_of = [](int seed) {
    RunHarness run;
    auto twin = TwinDigests(run.config(), {absl::StrCat("run.seed=", seed)}, 1);
    return twin.ok() ? (*twin)[1] : twin.status().ToString();
  };
  const std::string three = digest_of(3);
  EXPECT_EQ(three, digest_of(3));
  EXPECT_NE(three, digest_of(4));
}

}  // namespace
}  // namespace syncopate::testing
