#include "tools/report/load_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/event_recorder.h"
#include "services/wire/codec.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace syncopate::report {
namespace {

using nlohmann::json;
using syncopate::testing::IsOk;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LoadRunTest : public ::testing::Test {
 protected:
  void Put(const std::string& name, const std::string& text) {
    std::ofstream(std::filesystem::path(dir_.path()) / name, std::ios::binary) << text;
  }
  json Load() {
    absl::StatusOr<RunHistory> history = LoadRun(FileSystem::Real(), dir_.path());
    EXPECT_THAT(history, IsOk());
    return history.ok() ? history->ToJson() : json();
  }

  testing::TempDir dir_;
};

TEST_F(LoadRunTest, ReadsWhatARunLeavesBehind) {
  Put("config.resolved.yaml", "run:\n  name: demo\n  steps: 5\ndata:\n  files: [a.jsonl, b.jsonl]\n");
  Put("metrics.jsonl",
      "{\"kind\":\"step\",\"epoch\":1,\"step\":1,\"reward_mean\":0.5}\n"
      "{\"kind\":\"eval\",\"epoch\":1,\"step\":1,\"eval_reward\":0.25}\n");
  Put("summary.json", R"({"status":"completed","run":{"outcome":"completed","reason":""}})");
  auto events = EventRecorder::Open(FileSystem::Real(), dir_.path(), "trainer-0", wire::EncodeEvent).value();
  events->Record({"publish", {1, 1}});
  ASSERT_THAT(events->Stop(), IsOk());
  const json run = Load();
  EXPECT_EQ(run["status"], "completed");
  EXPECT_EQ(run["steps_total"], 5);
  EXPECT_EQ(run["name"], std::filesystem::path(dir_.path()).filename().string());
  EXPECT_EQ(run["steps"]["figures"]["reward_mean"]["mean"], json::parse("[0.5]"));
  EXPECT_EQ(run["evaluations"][0]["reward_mean"], 0.25);
  EXPECT_EQ(run["version_now"]["trainer"], 1);
  EXPECT_THAT(run["config"], Contains(json::parse(R"(["data.files","[a.jsonl, b.jsonl]"])")));
  EXPECT_TRUE(run["warnings"].empty());
}

TEST_F(LoadRunTest, AFailedRunHasTheReasonAndTheLogThatTheTerminalShowedAndItsCheckpoints) {
  Put("config.resolved.yaml", "run:\n  steps: 5\n");
  Put("summary.json", R"({"status":"failed","checkpoints":{"failed":2},)"
                      R"("run":{"outcome":"failed","reason":"trainer-0 exited with code 1","log":["no room",7]}})");
  std::filesystem::create_directory(std::filesystem::path(dir_.path()) / "checkpoints");
  Put("checkpoints/best.json", R"({"checkpoint":"e1-s4","reward_mean":0.75})");
  json run = Load();
  EXPECT_EQ(run["status"], "failed");
  EXPECT_EQ(run["reason"], "trainer-0 exited with code 1");
  EXPECT_EQ(run["log"], json::array({"no room"}));
  EXPECT_EQ(run["checkpoints"], json::parse(R"({"failed":2,"error":"","best":"e1-s4","best_reward":0.75})"));
  // Checkpoints may be in another folder, and one of their files may be damaged.
  std::filesystem::create_directory(std::filesystem::path(dir_.path()) / "far");
  Put("config.resolved.yaml", "checkpoint:\n  dir: " + dir_.path() + "/far\n");
  EXPECT_EQ(Load()["checkpoints"]["best"], "");
  Put("far/best.json", "[");
  EXPECT_EQ(Load()["checkpoints"]["best"], "");
}

TEST_F(LoadRunTest, OfARepeatedStepTheHighestEpochCountsAndWhatWasRolledBackIsGone) {
  std::string lines;
  for (int step = 1; step <= 6; ++step) {
    lines += R"({"kind":"step","epoch":1,"reward_mean":0.1,"step":)" + std::to_string(step) + "}\n";
    lines += R"({"kind":"eval","epoch":1,"eval_reward":0.1,"step":)" + std::to_string(step) + "}\n";
  }
  // The run was restored at step 3: that version is evaluated again, and training has reached step 4 so far.
  lines += R"({"kind":"eval","epoch":2,"eval_reward":0.2,"step":3})"
           "\n";
  lines += R"({"kind":"step","epoch":2,"reward_mean":0.2,"step":4})"
           "\n";
  Put("metrics.jsonl", lines);
  const json run = Load();
  EXPECT_EQ(run["steps"]["at"], json::parse("[1,2,3,4]"));
  EXPECT_EQ(run["steps"]["figures"]["reward_mean"]["mean"], json::parse("[0.1,0.1,0.1,0.2]"));
  ASSERT_EQ(run["evaluations"].size(), 3u);
  EXPECT_EQ(run["evaluations"][2]["reward_mean"], 0.2);
}

TEST_F(LoadRunTest, NamesWhatIsDamagedAndReadsTheRest) {
  Put("config.resolved.yaml", "run: [\n");
  Put("metrics.jsonl", "{\"kind\":\"step\",\"step\":1}\nnot json\n{\"kind\":\"step\",\"step\":2");
  Put("summary.json", "{");
  const json run = Load();
  EXPECT_EQ(run["steps"]["at"], json::parse("[1]"));  // the last line is still being written
  EXPECT_THAT(run["warnings"], ElementsAre(HasSubstr("config.resolved.yaml"), "summary.json is damaged",
                                           "1 lines of metrics.jsonl are damaged"));
}

TEST_F(LoadRunTest, RefusesWhatIsNoRun) {
  const absl::Status refused = LoadRun(FileSystem::Real(), dir_.path()).status();
  EXPECT_EQ(ErrorReason(refused), "NOT_A_RUN");
  EXPECT_THAT(std::string(refused.message()), HasSubstr(dir_.path()));
}

}  // namespace
}  // namespace syncopate::report
