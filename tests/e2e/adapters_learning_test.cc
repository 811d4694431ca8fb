// Adapters learn what their base has not: reverse L4 from a base that was taught a part of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/run_expectations.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::adapters_learning_test {
namespace {

// The base is made once: a small model of random weights, a supervised run of all its weights, and its export.
class AdapterLearningTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir();
    const std::string random = folder_->path() + "/random";
    const std::string make = absl::StrCat(SYNCOPATE_PYTHON, " '", SYNCOPATE_SOURCE_DIR, "/scripts/tiny_model.py' '",
                                          random, "' --vocabulary 300 --context 64");
    ASSERT_EQ(std::system(make.c_str()), 0) << make;
    RunHarness taught({"model.path=" + random, "train.objective=sft", "run.steps=150", "train.learning_rate=2e-3"});
    ASSERT_NO_FATAL_FAILURE(ExpectEnd(taught.Run(), 0, 4 * kPatience));
    const auto exported =
        RunCommand("syncopate", {"export", taught.Path("checkpoints/e1-s150"), Base(), "--dtype", "float32"});
    ASSERT_THAT(exported, IsOk());
    ASSERT_EQ(exported->code, 0) << exported->output;
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string Base() { return folder_->path() + "/base"; }
  static std::vector<std::string> Overrides(const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {
        "model.path=" + Base(),     "lora.rank=8",           "reward.name=exact", "data.batch_groups=32",
        "train.learning_rate=3e-3", "train.schedule=cosine", "run.rollouters=1"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return overrides;
  }

  // The four tokens of greatest probability of `syncopate generate`.
  static std::vector<int> Generate(std::vector<std::string> args) {
    args.insert(args.begin(), "generate");
    args.insert(args.end(), {"--max-new-tokens", "4", "--json"});
    const auto result = RunCommand("syncopate", args);
    EXPECT_THAT(result, IsOk());
    const std::vector<Json> lines = result.ok() ? JsonLines(result->output) : std::vector<Json>();
    return lines.size() == 1 ? lines[0]["ids"].get<std::vector<int>>() : std::vector<int>();
  }

  static inline TempDir* folder_ = nullptr;
};

TEST_F(AdapterLearningTest, RewardsTeachAdaptersAloneWhatTheBaseDoesNotKnow) {
  RunHarness run(Overrides({"run.steps=200"}));
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0, 4 * kPatience));
  const double before = run.Records("eval").at(0)["eval_exact"];
  EXPECT_GE(before, 0.4);
  EXPECT_LE(before, 0.7);
  EXPECT_GE(run.Summary()["eval"]["best"], 0.95) << run.Summary()["eval"];

  // What was learned goes home: beside the base, and merged into it.
  const std::string checkpoint = run.Path("checkpoints/e1-s200");
  const std::string adapters = run.temp_dir() + "/adapters", merged = run.temp_dir() + "/merged";
  for (const std::vector<std::string>& args : {std::vector<std::string>{"export", checkpoint, adapters, "--adapter"},
                                               {"export", checkpoint, merged, "--merged", "--dtype", "float32"}}) {
    const auto exported = RunCommand("syncopate", args);
    ASSERT_THAT(exported, IsOk());
    ASSERT_EQ(exported->code, 0) << exported->output;
  }
  int right = 0;
  for (const auto& [ids, reversed] : {std::pair("8,1,2,3,4,9", std::vector<int>{4, 3, 2, 1}),
                                      {"8,7,0,5,5,9", {5, 5, 0, 7}},
                                      {"8,6,2,0,1,9", {1, 0, 2, 6}}}) {
    const auto beside = Generate({Base(), "--adapter", adapters, "--ids", ids});
    EXPECT_EQ(beside, Generate({merged, "--ids", ids}));
    right += beside == reversed ? 1 : 0;
  }
  EXPECT_GE(right, 2);
}

// docs/adapters.md states the divergence.
TEST_F(AdapterLearningTest, HeldToTheirBaseTheyLearnWithinAStatedDivergence) {
  constexpr size_t kSteps = 50, kLast = 20;
  RunHarness run(Overrides({absl::StrCat("run.steps=", kSteps), "train.kl_coef=0.3"}));
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0, 4 * kPatience));
  EXPECT_GE(run.Summary()["eval"]["best"], 0.7) << run.Summary()["eval"];
  const std::vector<Json> steps = run.Records("step");
  ASSERT_EQ(steps.size(), kSteps);
  double divergence = 0;
  for (size_t i = kSteps - kLast; i < kSteps; ++i) divergence += steps[i]["reference_kl"].get<double>() / kLast;
  EXPECT_GT(divergence, 0);
  EXPECT_LT(divergence, 0.15);
}

}  // namespace
}  // namespace syncopate::testing::adapters_learning_test
