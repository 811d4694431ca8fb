// Strictly on-policy, a distributed run has the bits of the synchronous loop in one process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing {
namespace {

using ::testing::HasSubstr;

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

// Memory for a third of what runs, so that answers make room for each other, and host memory for some of those that do. The
// twin has room for all.
TEST(ExactnessTest, ARunWhoseAnswersAreSwappedToHostMemoryHasTheBitsOfATwinWithRoomForAll) {
  constexpr int64_t kFewSteps = 6;
  const std::vector<std::string> common = {"staleness.max_staleness=0",
                                           "run.seed=3",
                                           "data.length=20",
                                           "rollout.max_new_tokens=42",
                                           "model.max_position_embeddings=64",
                                           "data.batch_groups=6",
                                           "run.rollouters=1",
                                           absl::StrCat("run.steps=", kFewSteps)};
  std::vector<std::string> tight = common;
  tight.insert(tight.end(), {"rollout.kv_tokens=1024", "rollout.host_kv_memory=0.001"});
  RunHarness run(tight);
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto swaps = [&] {
    auto endpoint = run.Endpoint("rollouter");
    auto text = endpoint.ok() ? HttpGet(endpoint->metrics, "/metrics") : endpoint.status();
    if (!text.ok() || !absl::StrContains(*text, "syncopate_preemptions_total{kind=\"swap\"} ")) return false;
    return !absl::StrContains(*text, "syncopate_preemptions_total{kind=\"swap\"} 0\n");
  };
  EXPECT_TRUE(Eventually(kPatience, swaps));
  auto twin = TwinDigests(run.config(), common, kFewSteps);
  ASSERT_THAT(twin, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_THAT(run.Log("rollouter-0"), HasSubstr("preempted sequences are swapped to host memory"));
}

// All that may leave the device does, at every step; what was trained is the same, and its durations are in each line.
TEST(ExactnessTest, AStateThatLeavesTheDeviceBetweenStepsHasTheBitsOfOneThatStays) {
  constexpr int64_t kFew = 8;
  const std::vector<std::string> common = {"staleness.max_staleness=0", "run.seed=3", "train.updates_per_batch=2",
                                           "train.kl_coef=0.01", absl::StrCat("run.steps=", kFew)};
  for (const std::vector<std::string>& offload :
       {std::vector<std::string>{},
        {"train.offload_params=true", "train.offload_optimizer_for_logprob=true", "train.offload_reference=true",
         "train.empty_cache_after_update=always"}}) {
    std::vector<std::string> overrides = common;
    overrides.insert(overrides.end(), offload.begin(), offload.end());
    RunHarness run(overrides);
    auto process = run.Run();
    ASSERT_THAT(process, IsOk());
    auto twin = TwinDigests(run.config(), common, kFew);
    ASSERT_THAT(twin, IsOk());
    auto exit = (*process)->WaitExit(2 * kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 0) << (*process)->Log();
    EXPECT_EQ(run.Digests(), *twin);
    int64_t lines = 0;
    for (const Json& line : run.Records("step")) {
      ++lines;
      const bool leaves = !offload.empty();
      for (const char* part : {"parameters", "optimizer", "reference"}) {
        const double load = line[absl::StrCat(part, "_load_seconds")];
        const double offloading = line[absl::StrCat(part, "_offload_seconds")];
        EXPECT_EQ(load > 0.0, leaves) << part;
        EXPECT_EQ(offloading > 0.0, leaves) << part;
        EXPECT_TRUE(leaves || (load == 0.0 && offloading == 0.0));
        EXPECT_EQ(line[absl::StrCat(part, "_moved_bytes")].get<int64_t>() > 0, leaves);
      }
      EXPECT_EQ(line["parameters_device_bytes"].get<int64_t>() == 0, leaves);
      EXPECT_EQ(line["reference_device_bytes"].get<int64_t>() == 0, leaves);
      EXPECT_EQ(line["cache_flushes"].get<int64_t>() > 0, leaves);
      if (!leaves) continue;
      EXPECT_EQ(line["optimizer_moved_bytes"].get<int64_t>(), 2 * line["optimizer_device_bytes"].get<int64_t>());
    }
    EXPECT_EQ(lines, kFew);
  }
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
