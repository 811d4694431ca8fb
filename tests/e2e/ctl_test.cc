// Every verb of `syncopate ctl` against a live run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::ctl_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const char kPrompt[] = "--prompt=8,1,2,3,4,9";  // the tokens are BOS 1 2 3 4 SEP

// A run of two rollouters that has made steps and would go on for hours.
class CtlTest : public ::testing::Test {
 protected:
  CtlTest() : run_({"run.steps=1000000", "eval.every_steps=0", "checkpoint.every_steps=0"}) {}

  void SetUp() override {
    auto process = run_.Run();
    ASSERT_THAT(process, IsOk());
    process_ = *std::move(process);
    ASSERT_THAT(run_.AwaitStep(2), IsOk());
    for (int rollouter : {0, 1}) ASSERT_THAT(run_.Endpoint("rollouter", rollouter), IsOk());
    ASSERT_TRUE(Eventually(
        kPatience, [&] { return MemberNamed("rollouter-0").is_object() && MemberNamed("rollouter-1").is_object(); }));
  }

  // Returns what the verb printed; an exit code other than `code` fails the test.
  std::string Do(std::vector<std::string> args, int code = 0) {
    auto result = run_.Ctl(args);
    EXPECT_THAT(result, IsOk());
    if (!result.ok()) return "";
    EXPECT_EQ(result->code, code) << args[0] << ": " << result->output;
    return result->output;
  }
  // Runs the verb with --json and returns its one object; returns null and fails the test if the output is anything
  // else.
  Json Ask(std::vector<std::string> args) {
    args.push_back("--json");
    std::vector<Json> lines = JsonLines(Do(args));
    EXPECT_THAT(lines, SizeIs(1)) << args[0];
    return lines.empty() ? Json() : lines[0];
  }
  std::string GetState(const std::string& daemon) { return Ask({"status"})[daemon]["state"]; }
  Json MemberNamed(const std::string& replica) {
    const Json answer = Ask({"members"});
    for (const Json& member : answer["members"]) {
      if (member["member"]["replica_id"] == replica) return member;
    }
    return Json();
  }
  // Pauses the trainer and waits until the step in progress has ended and its weights have reached all rollouters.
  void PauseAndSettle() {
    Do({"pause"});
    ASSERT_TRUE(Eventually(kPatience, [&] {
      const Json status = Ask({"status"});
      const Json& version = status["trainer-0"]["version"];
      return status["trainer-0"]["state"] == "paused" && status["rollouter-0"]["serving"] == version &&
             status["rollouter-1"]["serving"] == version;
    }));
  }

  RunHarness run_;
  std::unique_ptr<Process> process_;
};

TEST_F(CtlTest, ReadingVerbsDescribeTheRunForPeopleAndForMachines) {
  EXPECT_THAT(Do({"status"}), AllOf(HasSubstr("synchronizer-0"), HasSubstr("trainer-0"), HasSubstr("rollouter-0"),
                                    HasSubstr("rollouter-1"), HasSubstr("step ")));
  const Json status = Ask({"status"});
  EXPECT_THAT(status, SizeIs(4));
  EXPECT_EQ(status["trainer-0"]["state"], "running");
  EXPECT_EQ(status["synchronizer-0"]["rollouters_alive"], 2);

  EXPECT_THAT(Do({"versions"}), HasSubstr("e1-s1 "));
  const Json versions = Ask({"versions"})["versions"];
  EXPECT_GE(versions.size(), 2u);
  EXPECT_EQ(versions.back()["version"]["step"], "0");

  EXPECT_THAT(Do({"members"}), AllOf(HasSubstr("rollouter-1"), HasSubstr("alive")));
  EXPECT_THAT(Ask({"members"})["members"], SizeIs(3));

  EXPECT_THAT(Do({"syncs", "--last", "3"}), AllOf(HasSubstr("RECEIVER"), HasSubstr("grpc")));
  const std::vector<Json> syncs = JsonLines(Do({"syncs", "--last", "3", "--json"}));
  ASSERT_THAT(syncs, SizeIs(3));
  for (const Json& sync : syncs) {
    const Json& seconds = sync["seconds"];
    double parts = 0;
    for (const char* phase : {"prepare", "transfer", "verify", "install"}) parts += seconds[phase].get<double>();
    EXPECT_LE(parts, seconds["total"].get<double>() + 1e-6) << sync;
  }

  EXPECT_THAT(Do({"explain"}), AllOf(HasSubstr("waiting for"), HasSubstr("max_staleness at least")));
  EXPECT_FALSE(Ask({"explain"})["explanation"]["waiting_for"].get<std::string>().empty());

  // Refused until enough steps are made, then by what was measured a few seconds ago.
  ASSERT_TRUE(Eventually(kPatience, [&] { return run_.Ctl({"size"})->code == 0; }));
  EXPECT_THAT(Do({"size"}), AllOf(HasSubstr("limit"), HasSubstr("2 rollouters work on"), HasSubstr("predicted")));
  const Json size = Ask({"size"});
  EXPECT_EQ(size["rollouters"], "2");
  EXPECT_GT(size["steps_per_second"].get<double>(), 0);
  EXPECT_GE(std::stoll(size["useful_rollouters"].get<std::string>()), 1);
}

TEST_F(CtlTest, PauseHoldsTheStepsThroughACheckpointUntilResume) {
  PauseAndSettle();
  const Json paused = Ask({"explain"});
  EXPECT_EQ(paused["explanation"]["waiting_for"], "resume");
  EXPECT_THAT(paused["explanation"]["unblocked_by"].get<std::string>(), HasSubstr("syncopate ctl resume"));
  const std::string step = paused["version"]["step"];

  const std::string saved = Ask({"checkpoint"})["name"];
  EXPECT_EQ(saved, absl::StrCat("e1-s", step));
  EXPECT_TRUE(std::filesystem::exists(run_.Path("checkpoints/" + saved + "/manifest.json")));
  // The rollouters fill the queue up to the bound, and then all daemons wait.
  ASSERT_TRUE(Eventually(kPatience, [&] { return Ask({"explain"})["leased_groups"] == "0"; }));
  EXPECT_EQ(Ask({"explain"})["version"]["step"], step);
  EXPECT_EQ(Ask({"status"})["trainer-0"]["state"], "paused");

  Do({"resume"});
  EXPECT_THAT(run_.AwaitStep(std::stoll(step) + 5), IsOk());
}

TEST_F(CtlTest, GenerateGivesTheSameTokensForTheSameSeedAndWeights) {
  PauseAndSettle();
  const Json answer = Ask({"generate", kPrompt, "--max-new-tokens", "5", "--seed", "7", "rollouter-0"});
  ASSERT_GE(answer["tokens"].size(), 1u);
  EXPECT_EQ(answer["logprobs"].size(), answer["tokens"].size());
  EXPECT_EQ(answer["spans"].size(), 1u);
  // Another replica serves the same weights.
  EXPECT_EQ(Ask({"generate", kPrompt, "--max-new-tokens", "5", "--seed", "7", "rollouter-1"})["tokens"],
            answer["tokens"]);
  std::vector<Json> streamed =
      JsonLines(Do({"generate", kPrompt, "--max-new-tokens", "5", "--seed", "7", "--stream", "--json"}));
  ASSERT_EQ(streamed.size(), answer["tokens"].size());
  for (size_t i = 0; i < streamed.size(); ++i) EXPECT_EQ(streamed[i]["token"], answer["tokens"][i]);
  EXPECT_THAT(Do({"generate", kPrompt, "--max-new-tokens", "5"}), HasSubstr("e1-s"));
  EXPECT_THAT(Do({"generate", "--prompt=8,1,2,99", "--max-new-tokens", "5"}, 4), HasSubstr("99"));
  // The end of the context is an end as well: prompt and answer fill 16 positions.
  const Json longest = Ask({"generate", kPrompt, "--max-new-tokens", "5000"});
  EXPECT_THAT(longest["tokens"], SizeIs(16 - 6));
  EXPECT_EQ(longest["finish"], "FINISH_REASON_LENGTH");
}

TEST_F(CtlTest, ModeSwitchesNothingOnARollouterAndSaysSo) {
  for (const char* mode : {"rollout", "trainer", "rollout"}) {
    const Json answer = Ask({"mode", "rollouter-0", "--to", mode});
    EXPECT_EQ(answer["acted"], false) << mode;
    EXPECT_EQ(answer[std::string(mode) == "rollout" ? "offload_seconds" : "load_seconds"], 0.0);
  }
  EXPECT_EQ(GetState("rollouter-0"), "running");
  EXPECT_THAT(run_.AwaitStep(run_.LastStep() + 3), IsOk());
}

TEST_F(CtlTest, RolloutModeTakesTheTrainersStateAwayUntilTrainerMode) {
  ASSERT_THAT(run_.AwaitStep(2), IsOk());
  const Json away = Ask({"mode", "trainer-0", "--to", "rollout"});
  EXPECT_EQ(away["acted"], true);
  EXPECT_GT(away["offload_seconds"].get<double>(), 0.0);
  EXPECT_GT(std::stoll(away["moved_bytes"].get<std::string>()), 0);
  const Json again = Ask({"mode", "trainer-0", "--to", "rollout"});
  EXPECT_EQ(again["acted"], false);
  EXPECT_EQ(again["offload_seconds"], 0.0);
  ASSERT_TRUE(Eventually(kPatience, [&] { return Ask({"status"})["trainer-0"]["state"] == "rollout_mode"; }));
  const Json waiting = Ask({"explain"});
  EXPECT_EQ(waiting["explanation"]["waiting_for"], "trainer_mode");
  EXPECT_THAT(waiting["explanation"]["unblocked_by"].get<std::string>(), HasSubstr("syncopate ctl mode"));
  const std::string step = waiting["version"]["step"];
  EXPECT_EQ(Ask({"checkpoint"})["name"], absl::StrCat("e1-s", step));
  EXPECT_EQ(Ask({"explain"})["version"]["step"], step);

  const Json back = Ask({"mode", "trainer-0", "--to", "trainer"});
  EXPECT_EQ(back["acted"], true);
  EXPECT_GT(back["load_seconds"].get<double>(), 0.0);
  EXPECT_EQ(back["moved_bytes"], away["moved_bytes"]);
  EXPECT_THAT(run_.AwaitStep(std::stoll(step) + 5), IsOk());
}

TEST_F(CtlTest, APausedRollouterHoldsItsRequestsAndAbortEndsThem) {
  Do({"pause", "rollouter-1"});
  EXPECT_EQ(GetState("rollouter-1"), "paused");
  auto endpoint = run_.Endpoint("rollouter", 1);
  ASSERT_THAT(endpoint, IsOk());
  auto request = Process::Start({.program = BinaryPath("syncopate"),
                                 .args = {"ctl", "--target", endpoint->grpc, "generate", kPrompt, "--json"},
                                 .log_path = run_.temp_dir() + "/generate.log"});
  ASSERT_THAT(request, IsOk());
  // The verb's own request waits there; groups of the trainer may wait beside it.
  ASSERT_TRUE(Eventually(kPatience, [&] { return Ask({"status"})["rollouter-1"]["waiting_sequences"] != 0; }));
  EXPECT_EQ(Ask({"abort", "rollouter-1", "--request", "nobody's"})["aborted"], 0);
  EXPECT_TRUE((*request)->Running());
  ASSERT_TRUE(Eventually(kPatience, [&] {
    Ask({"abort", "rollouter-1"});
    return !(*request)->Running();
  }));
  EXPECT_THAT((*request)->Log(), HasSubstr("FINISH_REASON_ABORTED"));
  Do({"resume", "rollouter-1"});
  EXPECT_EQ(GetState("rollouter-1"), "running");
  EXPECT_THAT(run_.AwaitStep(run_.LastStep() + 5), IsOk());
}

TEST_F(CtlTest, ADrainedRollouterIsIdleWhileTheOtherGoesOnUntilItResumes) {
  Do({"drain", "rollouter-1"});
  Json drained = Ask({"status"})["rollouter-1"];
  EXPECT_EQ(drained["state"], "drained");
  EXPECT_EQ(drained["running_sequences"], 0);
  EXPECT_THAT(run_.AwaitStep(run_.LastStep() + 5), IsOk());
  EXPECT_EQ(Ask({"status"})["rollouter-1"]["generated_tokens"], drained["generated_tokens"]);
  Do({"resume", "rollouter-1"});
  EXPECT_TRUE(Eventually(
      kPatience, [&] { return Ask({"status"})["rollouter-1"]["generated_tokens"] != drained["generated_tokens"]; }));
}

TEST_F(CtlTest, ASleepingRollouterGivesItsMemoryBackWhileTheRunGoesOnAndServesTheNewestVersionAfterItWakes) {
  for (const std::string level : {"1", "2"}) {
    Do({"drain", "rollouter-1"});
    const Json slept = Ask({"sleep", "rollouter-1", "--level", level});
    EXPECT_GT(std::stoll(slept["freed_bytes"].get<std::string>()), 0);
    EXPECT_EQ(GetState("rollouter-1"), "asleep");
    EXPECT_THAT(Do({"generate", "rollouter-1", kPrompt}, 4), HasSubstr("sleeps"));
    EXPECT_THAT(run_.AwaitStep(run_.LastStep() + 5), IsOk()) << "the other rollouter gives answers to the trainer";
    const int64_t asleep_at = run_.LastStep();
    Do({"wake", "rollouter-1"});
    Do({"resume", "rollouter-1"});
    EXPECT_TRUE(Eventually(absl::Seconds(30), [&] {
      const Json serving = Ask({"status"})["rollouter-1"]["serving"];
      return serving.is_object() && std::stoll(serving["step"].get<std::string>()) >= asleep_at;
    }));
    Do({"generate", "rollouter-1", kPrompt});
    EXPECT_EQ(GetState("rollouter-1"), "running");
  }
  EXPECT_EQ(Ask({"status"})["synchronizer-0"]["syncs_failed"], Json("0"));
}

TEST_F(CtlTest, SyncSendsNothingToThoseWhoServeTheNewestVersion) {
  PauseAndSettle();
  const Json answer = Ask({"sync"});
  EXPECT_EQ(answer["receivers"], 0);
  EXPECT_EQ(answer["version"], Ask({"status"})["trainer-0"]["version"]);
}

TEST_F(CtlTest, AnEvictedRollouterComesBackAsANewProcess) {
  const std::string before = MemberNamed("rollouter-1")["member"]["incarnation"];
  auto old = run_.Endpoint("rollouter", 1);
  ASSERT_THAT(old, IsOk());
  Do({"evict", "rollouter-1", "--reason", "a test"});
  auto reborn = run_.Endpoint("rollouter", 1, static_cast<pid_t>(old->pid));
  ASSERT_THAT(reborn, IsOk());
  EXPECT_TRUE(Eventually(kPatience, [&] {
    auto status = Call<v1::RolloutService>(reborn->grpc, &v1::RolloutService::Stub::GetStatus, {});
    return status.ok() && status->groups_submitted() > 0 && status->member().incarnation() != before;
  }));
  const Json member = MemberNamed("rollouter-1");
  EXPECT_EQ(member["state"], "MEMBER_STATE_ALIVE");
  EXPECT_NE(member["member"]["incarnation"], before);
  EXPECT_THAT(Do({"evict", "rollouter-7"}, 4), HasSubstr("rollouter-7"));
}

TEST_F(CtlTest, WatchFollowsTheStepsUntilStopEndsTheRun) {
  auto watch = Process::Start({.program = BinaryPath("syncopate"),
                               .args = {"ctl", "--run", run_.run_dir(), "watch", "--last", "2", "--json"},
                               .log_path = run_.temp_dir() + "/watch.log"});
  ASSERT_THAT(watch, IsOk());
  for (int i = 0; i < 6; ++i) ASSERT_THAT((*watch)->WaitForLogLine("\"kind\":\"step\"", kPatience), IsOk());
  Do({"stop"});
  auto exit = process_->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << process_->Log();
  auto watched = (*watch)->WaitExit(kPatience);
  ASSERT_THAT(watched, IsOk());
  EXPECT_EQ(watched->code, 0) << (*watch)->Log();
  std::vector<Json> lines = JsonLines((*watch)->Log());
  EXPECT_EQ(lines.back()["step"], run_.LastStep());

  const Json summary = run_.Summary();
  EXPECT_EQ(summary["status"], "stopped");
  const std::string last = absl::StrCat("e1-s", run_.LastStep());
  EXPECT_TRUE(std::filesystem::exists(run_.Path("checkpoints/" + last + "/manifest.json")));
  Do({"status"}, 3);  // the daemon has ended
}

TEST_F(CtlTest, AWrongCommandLineHasItsOwnExitCode) {
  EXPECT_THAT(Do({"drain", "rollouter-9"}, 2), HasSubstr("rollouter-0, rollouter-1"));
  Do({"drain", "trainer"}, 2);
  Do({"no-such-verb"}, 2);
  Do({"mode", "--to", "sideways"}, 2);
  Do({"status", "--timeout", "soon"}, 2);
  EXPECT_EQ(RunCommand("syncopate", {"ctl", "--run", run_.Path("nowhere"), "status"})->code, 2);
  EXPECT_EQ(RunCommand("syncopate", {"ctl", "--target", "nonsense", "status"})->code, 2);
}

}  // namespace
}  // namespace syncopate::testing::ctl_test
