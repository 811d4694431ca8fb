// Rollouters whose second weight set is lent by their keys and values (sync.install: borrowed).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::borrowed_test {
namespace {

using ::testing::HasSubstr;

// A figure of a rollouter; -1 if it cannot be read.
double ReadFigure(const RunHarness& run, const std::string& name) {
  auto endpoint = run.Endpoint("rollouter");
  auto text = endpoint.ok() ? HttpGet(endpoint->metrics, "/metrics") : endpoint.status();
  const size_t begin = text.ok() ? text->find(absl::StrCat("\n", name, " ")) : std::string::npos;
  return begin == std::string::npos ? -1 : std::stod(text->substr(begin + name.size() + 2));
}

TEST(BorrowedTest, StrictlyOnPolicyARunHasTheBitsOfTheTwin) {
  constexpr int64_t kFewSteps = 20;
  RunHarness run(
      {"sync.install=borrowed", "staleness.max_staleness=0", "run.seed=3", absl::StrCat("run.steps=", kFewSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto twin = TwinDigests(run.config(), run.overrides(), kFewSteps);
  ASSERT_THAT(twin, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
}

TEST(BorrowedTest, ARunLearnsWhileEachSyncBorrowsItsMemory) {
  constexpr int64_t kSteps = 80;
  RunHarness run({"sync.install=borrowed", absl::StrCat("run.steps=", kSteps)});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  double lendings = 0, seconds = 0;
  EXPECT_TRUE(Eventually(2 * kPatience, [&] {
    lendings = std::max(lendings, ReadFigure(run, "syncopate_kv_lendings_total"));
    seconds = std::max(seconds, ReadFigure(run, "syncopate_kv_lent_seconds_total"));
    return lendings > kSteps / 4;
  })) << lendings;
  auto exit = (*process)->WaitExit(3 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(*exit, ExitStatus{}) << (*process)->Log();
  EXPECT_GT(seconds, 0);
  const Json summary = run.Summary();
  EXPECT_EQ(summary["status"], "completed");
  EXPECT_GE(summary["eval"]["best"], 0.95) << summary["eval"];
  EXPECT_EQ(summary["staleness"]["violations"], 0);
  EXPECT_EQ(summary["syncs"]["failed"], 0) << summary["syncs"];
  for (const auto& [reason, count] : summary["groups"]["dropped"].items()) EXPECT_EQ(count, 0) << reason;
}

TEST(BorrowedTest, WithAdaptersItChangesNothing) {
  RunHarness run({"sync.install=borrowed", "lora.rank=4", "run.steps=1000"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(3), IsOk());
  EXPECT_EQ(ReadFigure(run, "syncopate_kv_lendings_total"), 0);
}

TEST(BorrowedTest, TooFewKeysAndValuesAreRefusedAtTheStart) {
  RunHarness run({"sync.install=borrowed", "rollout.kv_tokens=64"});
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto trainer = run.StartDaemon("trainer");
  ASSERT_THAT(trainer, IsOk());
  auto rollouter = run.StartDaemon("rollouter");
  ASSERT_FALSE(rollouter.ok());
  EXPECT_THAT(std::string(rollouter.status().message()), HasSubstr("rollout.kv_tokens 64 is not enough"));
}

}  // namespace
}  // namespace syncopate::testing::borrowed_test
