// Changes that a resume refuses, and files that it does not touch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/run_expectations.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::resume_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRefused = 2;

// Path -> contents of all files below `folder`.
std::map<std::string, std::string> Files(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::string& bytes = files[entry.path().string()];
    if (entry.is_regular_file()) bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

// The lines of samples.jsonl, which only its owner may read.
std::vector<Json> Samples(const RunHarness& run) {
  std::ifstream file(run.Path("samples.jsonl"));
  const auto mode = fs::status(run.Path("samples.jsonl")).permissions();
  EXPECT_EQ(mode, fs::perms::owner_read | fs::perms::owner_write);
  return JsonLines(std::string(std::istreambuf_iterator<char>(file), {}));
}

TEST(ResumeTest, ARunWritesItsSamplesWithWhatBecameOfThem) {
  RunHarness run({"run.steps=6", "eval.every_steps=3", "eval.prompts=8", "metrics.train_samples=1",
                  "metrics.eval_samples=1", "data.batch_groups=4", "rollout.samples=8"});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  std::map<int64_t, double> advantages;  // key: step; sums over its samples
  std::map<std::string, int> kinds;
  for (const Json& sample : Samples(run)) {
    ++kinds[sample["kind"]];
    EXPECT_FALSE(sample["prompt"].get<std::string>().empty());
    EXPECT_EQ(sample["answer_ids"].size(), sample["answer_tokens"]);
    if (sample["kind"] != "train") continue;
    EXPECT_EQ(sample["trained"], sample["outcome"] == "trained");
    EXPECT_EQ(sample["trained"], sample["advantage"] != 0);
    EXPECT_EQ(sample["loss"], Json::parse("[[0," + sample["answer_tokens"].dump() + "]]"));
    advantages[sample["step"]] += sample["advantage"].get<double>();
  }
  EXPECT_EQ(kinds["train"], 6 * 4 * 8);
  EXPECT_GE(kinds["eval"], 2 * 8);
  ASSERT_EQ(advantages.size(), 6u);
  for (const auto& [step, sum] : advantages) EXPECT_NEAR(sum, 0, 1e-3) << "groups of step " << step;
}

TEST(ResumeTest, AWrongOneIsRefusedWithBothValuesAndLeavesEveryByteAsItWas) {
  RunHarness run({"run.steps=6", "eval.every_steps=0"});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  const std::map<std::string, std::string> before = Files(run.run_dir());
  auto wrong = run.Resume({"model.hidden_size=128", "run.seed=7", "rollout.samples=4"});
  ASSERT_THAT(wrong, IsOk());
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(*std::move(wrong), kRefused));
  auto again = RunCommand("syncopate", {"run", "--resume", run.run_dir(), "data.task=sort"});
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->code, kRefused);
  EXPECT_THAT(again->output, HasSubstr("data.task = \"sort\": the run has \"reverse\""));
  EXPECT_EQ(Files(run.run_dir()), before);
}

TEST(ResumeTest, ATrainerByHandRefusesItAsWellAndTellsWhatElseHasChanged) {
  RunHarness run({"run.steps=4", "eval.every_steps=0"});
  auto synchronizer = run.StartDaemon("synchronizer");
  auto rollouter = run.StartDaemon("rollouter");
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.StartDaemon("trainer"), 0));
  auto wrong = run.LaunchDaemon("trainer", 0, {"run.resume=true", "model.hidden_size=128", "eval.prompts=9"});
  ASSERT_THAT(wrong, IsOk());
  auto exit = (*wrong)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, kRefused);
  EXPECT_THAT((*wrong)->Log(), AllOf(HasSubstr("model.hidden_size = 128: the run has 64"),
                                     HasSubstr("eval.prompts = 9: the run has 256"), HasSubstr("FIXED_KEY")));

  auto right = run.LaunchDaemon("trainer", 0, {"run.resume=true", "run.steps=5", "train.learning_rate=0.001"});
  ASSERT_THAT(right, IsOk());
  ASSERT_THAT((*right)->WaitExit(kPatience), IsOk());
  EXPECT_THAT((*right)->Log(), AllOf(HasSubstr("run.steps is 5 from here on; the run had 4"),
                                     HasSubstr("train.learning_rate is 0.001 from here on; the run had 0.002")));
  EXPECT_EQ(run.LastStep(), 5);
}

TEST(ResumeTest, OneWithNothingToDoLeavesTheSummaryAsItWas) {
  RunHarness run({"run.steps=6", "eval.every_steps=0"});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  const std::string summary = Files(run.run_dir()).at(run.Path("summary.json"));
  ASSERT_EQ(run.Summary()["steps"], 6);
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Resume(), 0));
  EXPECT_EQ(Files(run.run_dir()).at(run.Path("summary.json")), summary);
}

TEST(ResumeTest, OneAfterATrainerThatDiedBeforeItsSummarySaysWhatTheRunHasReached) {
  RunHarness run({"run.steps=6", "eval.every_steps=0"});
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Run(), 0));
  // The files that `syncopate run` leaves when a trainer has saved its last checkpoint and dies.
  std::ofstream(run.Path("summary.json"))
      << R"({"status": "failed", "run": {"outcome": "failed", "reason": "trainer-0 was killed by signal 9"}})";
  auto again = RunCommand("syncopate", {"run", "--resume", run.run_dir()});
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->code, 0);
  EXPECT_THAT(again->output, HasSubstr("completed       at step 6 of 6"));
  const Json summary = run.Summary();
  EXPECT_EQ(summary["status"], "completed");
  EXPECT_EQ(summary["steps"], 6);
  EXPECT_EQ(summary["groups"]["trained"], 6 * 16);
  EXPECT_EQ(summary["run"]["outcome"], "completed");
}

TEST(ResumeTest, TheSummaryOfARunThatWasKilledIsOfTheWholeRun) {
  constexpr int64_t kSteps = 60, kBatchGroups = 16;
  RunHarness run({absl::StrCat("run.steps=", kSteps), "checkpoint.every_steps=10", "eval.every_steps=20",
                  "metrics.train_samples=1", "rollout.samples=8"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(15), IsOk());
  ASSERT_TRUE(Eventually(kPatience, [&] { return fs::exists(run.Path("state/trainer/flow.pb")); }));
  auto trainer = run.Endpoint("trainer");
  ASSERT_THAT(trainer, IsOk());
  ::kill(static_cast<pid_t>(trainer->pid), SIGKILL);
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(std::move(process), 1));
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(run.Resume(), 0));

  const Json summary = run.Summary();
  EXPECT_EQ(summary["steps"], kSteps);
  EXPECT_EQ(summary["groups"]["trained"], kSteps * kBatchGroups);
  EXPECT_GE(summary["groups"]["acked"], kSteps * kBatchGroups);
  std::map<int64_t, int64_t> tokens;  // key: step; a step that was repeated counts once
  for (const Json& step : run.Records("step")) tokens[step["step"]] = step["trained_tokens"];
  int64_t trained = 0;
  for (const auto& [step, count] : tokens) trained += count;
  EXPECT_EQ(summary["tokens"]["trained"], trained);
  EXPECT_GE(summary["tokens"]["generated"], trained);
  EXPECT_EQ(summary["rollouters"].size(), 4u) << "two of each incarnation";
  std::map<std::string, int> seen;
  for (const Json& sample : Samples(run)) {
    if (sample["kind"] != "train") continue;
    const std::string id = sample["group"].get<std::string>() + "#" + sample["sample"].dump();
    EXPECT_EQ(++seen[id], 1) << id << " is there twice";
    EXPECT_LE(sample["step"], kSteps);
  }
  // What waited for the disk when the trainer was killed may be missing, unless its step was repeated.
  EXPECT_LE(seen.size(), kSteps * kBatchGroups * 8u);
  EXPECT_GE(seen.size(), (kSteps - 3) * kBatchGroups * 8u);
  auto events = RunCommand("syncopate", {"events", run.run_dir(), "--kind", "sync"});
  ASSERT_THAT(events, IsOk());
  const int64_t syncs = static_cast<int64_t>(JsonLines(events->output).size());
  EXPECT_LE(summary["syncs"]["count"], syncs);
  EXPECT_GE(summary["syncs"]["count"], syncs - 4) << "except the daemons that had ended when the summary was written";
}

}  // namespace
}  // namespace syncopate::testing::resume_test
