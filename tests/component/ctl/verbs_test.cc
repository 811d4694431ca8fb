#include "tools/ctl/verbs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file_system.h"
#include "base/status.h"
#include "tests/support/fake_daemons.h"
#include "tests/support/status_matchers.h"
#include "text/tokenizer/tokenizer.h"
#include "tools/ctl/target_security.h"

namespace syncopate::ctl {
namespace {

using syncopate::testing::FakeRun;
using syncopate::testing::HasMessage;
using syncopate::testing::HasReason;
using syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CtlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::filesystem::path dir = std::filesystem::path(::testing::TempDir()) / "ctl" / test->name();
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir / "runs" / "a");
    context_.daemons.runs_dir = (dir / "runs").string();
    context_.out = &out_;
    ASSERT_THAT(daemon::WriteRunEndpoints((dir / "runs" / "a").string(),
                                          {{"synchronizer", 0, run_.synchronizer_address(), "", 1},
                                           {"trainer", 0, run_.trainer_address(), "", 2},
                                           {"rollouter", 0, run_.rollouter_address(0), "", 3},
                                           {"rollouter", 1, run_.rollouter_address(1), "", 4}}),
                IsOk());
  }

  // Returns what was printed since the last call.
  std::string Printed() {
    std::string text = out_.str();
    out_.str("");
    return text;
  }
  nlohmann::json PrintedJson() { return nlohmann::json::parse(Printed(), nullptr, false); }

  FakeRun run_;
  std::ostringstream out_;
  CtlContext context_;
};

TEST_F(CtlTest, ShowsTheCredentialsThatTheDaemonsOfAResumeOnTrialWereStartedWith) {
  const std::string run = context_.daemons.runs_dir + "/a";
  std::ofstream(run + "/config.resolved.yaml") << "run: {name: a}\n";
  EXPECT_THAT(FindTargetSecurity({}, context_.daemons), IsOk());
  std::ofstream(run + "/config.next.yaml") << "security: {token_file: /nowhere/tokens}\n";
  EXPECT_THAT(FindTargetSecurity({}, context_.daemons), HasMessage(HasSubstr("/nowhere/tokens")));
  std::filesystem::remove(run + "/config.next.yaml");
  EXPECT_THAT(FindTargetSecurity({}, context_.daemons), IsOk());
}

TEST_F(CtlTest, StatusShowsEveryDaemonOfTheNewestRun) {
  ASSERT_THAT(CtlStatus(context_), IsOk());
  EXPECT_THAT(Printed(),
              AllOf(HasSubstr("synchronizer-0"), HasSubstr("syncs 84 ok, 0 failed, 3 superseded"),
                    HasSubstr("step 42/150"), HasSubstr("rollouter-1"), HasSubstr("idle 10%"), HasSubstr("e1-s41")));
}

TEST_F(CtlTest, StatusShowsTheOthersWhenOneIsGoneAndSaysSoInItsExitCode) {
  run_.StopRollouter(1);
  absl::Status status = CtlStatus(context_);
  EXPECT_EQ(CtlExitCode(status), 3) << status;
  EXPECT_THAT(Printed(), AllOf(HasSubstr("step 42/150"), HasSubstr("unreachable"),
                               HasSubstr("2 checkpoints failed, the newest with e1-s40: no space left")));
}

TEST_F(CtlTest, JsonIsWhatTheDaemonAnswered) {
  context_.json = true;
  ASSERT_THAT(CtlStatus(context_), IsOk());
  nlohmann::json status = PrintedJson();
  EXPECT_EQ(status["trainer-0"]["state"], "running");
  EXPECT_EQ(status["synchronizer-0"]["run_id"], "run-1");
  ASSERT_THAT(CtlMembers(context_), IsOk());
  EXPECT_EQ(PrintedJson()["members"][0]["member"]["replica_id"], "rollouter-0");
  ASSERT_THAT(CtlVersions(context_), IsOk());
  EXPECT_EQ(PrintedJson()["versions"][0]["served_by"], 2);
  ASSERT_THAT(CtlExplain(context_), IsOk());
  EXPECT_EQ(PrintedJson()["explanation"]["waiting_for"], "groups");
  ASSERT_THAT(CtlWatch(context_, 1), IsOk());
  EXPECT_EQ(PrintedJson()["step"], 1);
}

TEST_F(CtlTest, TablesShowMembersVersionsSyncsAndSteps) {
  ASSERT_THAT(CtlMembers(context_), IsOk());
  EXPECT_THAT(Printed(),
              AllOf(HasSubstr("rollouter-0"), HasSubstr("suspect"), HasSubstr("01234567 "), HasSubstr("slow")));
  ASSERT_THAT(CtlVersions(context_), IsOk());
  EXPECT_THAT(Printed(), AllOf(HasSubstr("e1-s42"), HasSubstr("0000000000abcdef"),
                               ContainsRegex("  20[0-9]{2}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}")));
  ASSERT_THAT(CtlSyncs(context_, 2, false), IsOk());
  EXPECT_THAT(Printed(), AllOf(HasSubstr("TRANSFER"), HasSubstr("e1-s2"), HasSubstr("412,345"), HasSubstr("full+lora"),
                               HasSubstr("0.25"), HasSubstr("6.1 ms"),
                               HasSubstr("all members offer it, from trainer ranks 200,345 + 212,000")));
  ASSERT_THAT(CtlWatch(context_, 2), IsOk());
  EXPECT_THAT(Printed(), AllOf(HasSubstr("step 1  reward 0.500"), HasSubstr("step 2  reward 0.500")));
}

TEST_F(CtlTest, ExplainSaysWhoWaitsForWhomAndWhatWouldEndIt) {
  ASSERT_THAT(CtlExplain(context_), IsOk());
  EXPECT_THAT(Printed(), AllOf(HasSubstr("groups"), HasSubstr("on rollouter-1"), HasSubstr("3 of 16 groups are done"),
                               HasSubstr("13 more groups"), HasSubstr("connected")));
}

TEST_F(CtlTest, SizeSaysWhichSideIsTheLimitAndWhatOneMoreRollouterWouldGive) {
  v1::Sizing& sizing = run_.trainer.sizing.emplace();
  sizing.set_rollouters(3);
  sizing.set_slots_per_rollouter(16);
  sizing.set_limit("rollouters");
  sizing.set_steps_per_second(0.92);
  sizing.set_steps_per_second_one_more(1.21);
  sizing.set_steps_per_second_one_fewer(0.61);
  sizing.set_steps_per_second_most(1.7);
  sizing.set_trainer_idle_ratio(0.46);
  sizing.set_useful_rollouters(5);
  sizing.set_target_staleness(2.25);
  sizing.set_max_staleness(9);
  sizing.set_advised_rollouters(6);
  sizing.set_advised_steps_per_second(1.65);
  ASSERT_THAT(CtlSize(context_), IsOk());
  EXPECT_THAT(Printed(),
              AllOf(HasSubstr("the rollouters: the trainer could do more, it waits for groups 46 % of its time"),
                    ContainsRegex("2 +0.610  predicted"), ContainsRegex("3 +0.920  now"),
                    ContainsRegex("4 +1.210  predicted"), HasSubstr("5 rollouters give 95 %"),
                    HasSubstr("target_staleness 2.25 and max_staleness 9, 6 rollouters give 1.650 steps/s")));
  context_.json = true;
  ASSERT_THAT(CtlSize(context_), IsOk());
  EXPECT_EQ(PrintedJson()["steps_per_second_one_more"], 1.21);
}

TEST_F(CtlTest, SizeSaysWhatIsNotMeasuredYetAndIsRefused) {
  EXPECT_EQ(CtlExitCode(CtlSize(context_)), 4) << "the trainer has not begun";
  run_.trainer.sizing.emplace().set_not_measured("fewer than two steps were made");
  const absl::Status status = CtlSize(context_);
  EXPECT_EQ(CtlExitCode(status), 4);
  EXPECT_THAT(status, HasMessage(HasSubstr("fewer than two steps")));
}

TEST_F(CtlTest, ExplainSaysHowRewardsFail) {
  run_.trainer.reward_failures.set_failed(1234);
  run_.trainer.reward_failures.set_recent_failed(60);
  run_.trainer.reward_failures.set_recent(64);
  run_.trainer.reward_failures.set_first("KeyError: 'x' (mine.py:3 in short)");
  run_.trainer.reward_failures.set_last("TypeError: no");
  run_.trainer.no_rewards = "the worker runs other code";
  ASSERT_THAT(CtlExplain(context_), IsOk());
  EXPECT_THAT(Printed(),
              HasSubstr("1,234 groups got no reward, 60 of the last 64; the first: KeyError: 'x' (mine.py:3 in short)\n"
                        "the last: TypeError: no\n"
                        "rollouter-1 asks for no work: the worker runs other code\n"));
}

TEST_F(CtlTest, PauseAndResumeGoToTheTrainerUnlessARollouterIsNamed) {
  ASSERT_THAT(CtlPause(context_, ""), IsOk());
  ASSERT_THAT(CtlResume(context_, "trainer"), IsOk());
  EXPECT_THAT(run_.trainer.book.calls(), ::testing::ElementsAre("Pause", "Resume"));
  ASSERT_THAT(CtlPause(context_, "rollouter-1"), IsOk());
  ASSERT_THAT(CtlResume(context_, "rollouter-1"), IsOk());
  EXPECT_THAT(run_.rollouters[1].book.calls(), ::testing::ElementsAre("Pause", "Resume"));
  EXPECT_THAT(run_.rollouters[0].book.calls(), IsEmpty());
  EXPECT_THAT(Printed(), HasSubstr("rollouter-1 is paused"));
}

TEST_F(CtlTest, SleepSaysWhatItFreedAndBothGoToRolloutersAlone) {
  ASSERT_THAT(CtlSleep(context_, "", 1), IsOk());
  EXPECT_THAT(Printed(), HasSubstr("rollouter-0 sleeps and gave 5 MiB back"));
  ASSERT_THAT(CtlSleep(context_, "rollouter-1", 2), IsOk());
  ASSERT_THAT(CtlWake(context_, "rollouter-1"), IsOk());
  EXPECT_THAT(Printed(), HasSubstr("rollouter-1 is awake"));
  EXPECT_THAT(run_.rollouters[0].book.calls(), ::testing::ElementsAre("Sleep 1"));
  EXPECT_THAT(run_.rollouters[1].book.calls(), ::testing::ElementsAre("Sleep 2", "WakeUp"));
  EXPECT_THAT(CtlSleep(context_, "trainer", 1), HasReason("WRONG_ROLE"));
}

TEST_F(CtlTest, VerbsReachTheDaemonThatServesThem) {
  ASSERT_THAT(CtlDrain(context_, "rollouter-1"), IsOk());
  ASSERT_THAT(CtlAbort(context_, "rollouter-1", "request-9"), IsOk());
  EXPECT_THAT(run_.rollouters[1].book.calls(), ::testing::ElementsAre("Drain", "Abort request-9"));
  ASSERT_THAT(CtlSync(context_), IsOk());
  ASSERT_THAT(CtlEvict(context_, "rollouter-0", 0, "broken fan"), IsOk());
  EXPECT_THAT(run_.synchronizer.book.calls(),
              ::testing::ElementsAre("TriggerSync", "EvictMember rollouter-0 broken fan"));
  ASSERT_THAT(CtlCheckpoint(context_), IsOk());
  ASSERT_THAT(CtlStop(context_), IsOk());
  EXPECT_THAT(run_.trainer.book.calls(), ::testing::ElementsAre("SaveCheckpoint", "Stop"));
  EXPECT_THAT(Printed(), AllOf(HasSubstr("ended 3 sequence(s)"), HasSubstr("e1-s42 goes to 1 receiver(s)"),
                               HasSubstr("saved checkpoint e1-s42"), HasSubstr("trainer-0 ends the run")));
}

TEST_F(CtlTest, ModeSaysWhetherAnythingWasSwitched) {
  for (const char* who : {"", "rollouter-0"}) {
    for (const char* mode : {"rollout", "trainer"}) ASSERT_THAT(CtlMode(context_, who, mode), IsOk());
  }
  EXPECT_THAT(run_.trainer.book.calls(), ::testing::ElementsAre("RolloutMode", "TrainerMode"));
  EXPECT_THAT(run_.rollouters[0].book.calls(), ::testing::ElementsAre("RolloutMode", "TrainerMode"));
  EXPECT_THAT(Printed(), HasSubstr("rollouter-0 has nothing to switch to trainer mode"));
}

TEST_F(CtlTest, GeneratePrintsTokensWithTheVersionThatMadeThem) {
  GenerateArguments arguments;
  arguments.prompt_ids = {1, 2};
  ASSERT_THAT(CtlGenerate(context_, "", arguments), IsOk());
  EXPECT_THAT(Printed(), AllOf(HasSubstr("101"), HasSubstr("102"), HasSubstr("-0.5000"), HasSubstr("e1-s7")));
  arguments.stream = true;
  ASSERT_THAT(CtlGenerate(context_, "rollouter-1", arguments), IsOk());
  EXPECT_THAT(Printed(), AllOf(HasSubstr("101"), HasSubstr("102")));
  EXPECT_THAT(run_.rollouters[1].book.calls(), ::testing::ElementsAre("GenerateStream"));
}

// A model directory with a tokenizer, a matching configuration and a chat template.
void WriteModel(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy(
      std::filesystem::path(SYNCOPATE_SOURCE_DIR) / "tests/unit/text/tokenizer/golden/gpt2/tokenizer.json",
      folder / "tokenizer.json");
  std::ifstream golden(std::filesystem::path(SYNCOPATE_SOURCE_DIR) / "tests/golden/models/mistral/model/config.json");
  nlohmann::json config = nlohmann::json::parse(golden);
  config["vocab_size"] = 100000;
  std::ofstream(folder / "config.json") << config;
  std::ofstream(folder / "chat_template.jinja") << "<{{ messages[0].content }}>";
}

TEST_F(CtlTest, GenerateOfATextAsksByTheRunsChatTemplateAndPrintsTheAnswersText) {
  WriteModel(std::filesystem::path(context_.daemons.runs_dir) / "a" / "model");
  GenerateArguments arguments;
  arguments.text = "one";
  ASSERT_THAT(CtlGenerate(context_, "", arguments), IsOk());
  const std::string printed = Printed();  // the fake answers with the ids of the prompt, then 100
  context_.json = true;
  ASSERT_THAT(CtlGenerate(context_, "", arguments), IsOk());
  const nlohmann::json json = PrintedJson();
  EXPECT_EQ(json["text"].get<std::string>() + "\n", printed);
  const auto tokenizer =
      text::tokenizer::Tokenizer::Load(FileSystem::Real(), JoinPath(context_.daemons.runs_dir, "a/model"));
  ASSERT_THAT(tokenizer, IsOk());
  std::vector<int32_t> expected = (*tokenizer)->Encode("<one>", /*add_special_tokens=*/false).value();
  for (int32_t& id : expected) id += 100;
  EXPECT_EQ(json["tokens"].get<std::vector<int32_t>>(), expected);
  context_.json = false;
  arguments.stream = true;
  ASSERT_THAT(CtlGenerate(context_, "", arguments), IsOk());
  EXPECT_EQ(Printed(), printed);
}

TEST_F(CtlTest, GenerateOfATextWithoutATokenizerSaysWhatToDo) {
  GenerateArguments arguments;
  arguments.text = "one";
  absl::Status status = CtlGenerate(context_, "", arguments);
  EXPECT_THAT(status, HasReason("NO_TOKENIZER"));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("a/model has no tokenizer.json"), HasSubstr("--prompt")));
  EXPECT_EQ(CtlExitCode(status), 2);
  EXPECT_THAT(run_.rollouters[0].book.calls(), IsEmpty());
}

TEST_F(CtlTest, ATargetIsAskedWhatItIsAndWhatItIsCalled) {
  context_.daemons.target = run_.rollouter_address(1);
  ASSERT_THAT(CtlStatus(context_), IsOk());
  EXPECT_THAT(Printed(), HasSubstr("rollouter-1"));
  ASSERT_THAT(CtlPause(context_, ""), IsOk());
  EXPECT_THAT(Printed(), HasSubstr("rollouter-1 is paused"));
  EXPECT_THAT(run_.rollouters[1].book.calls(), Contains("Pause"));
  absl::Status status = CtlExplain(context_);
  EXPECT_THAT(status, HasReason("NO_SUCH_DAEMON"));
  EXPECT_EQ(CtlExitCode(status), 2);
}

TEST_F(CtlTest, ARefusalNamesTheDaemonKeepsItsReasonAndHasItsOwnExitCode) {
  run_.trainer.book.Refuse("SaveCheckpoint", Error(absl::StatusCode::kFailedPrecondition, "NOT_STARTED", "no step"));
  absl::Status status = CtlCheckpoint(context_);
  EXPECT_THAT(status, HasReason("NOT_STARTED"));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("trainer-0 at 127.0.0.1:"), HasSubstr("no step")));
  EXPECT_EQ(CtlExitCode(status), 4);
}

TEST_F(CtlTest, ADaemonThatIsGoneHasItsOwnExitCode) {
  run_.StopRollouter(0);
  EXPECT_EQ(CtlExitCode(CtlDrain(context_, "rollouter-0")), 3);
  context_.daemons.target = run_.rollouter_address(0);
  EXPECT_EQ(CtlExitCode(CtlStatus(context_)), 3);
}

TEST_F(CtlTest, AWrongNameIsAUsageErrorThatListsTheRightOnes) {
  absl::Status status = CtlDrain(context_, "rollouter-7");
  EXPECT_THAT(status, HasReason("NO_SUCH_DAEMON"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rollouter-0, rollouter-1, synchronizer-0, trainer-0"));
  EXPECT_EQ(CtlExitCode(status), 2);
  EXPECT_THAT(CtlDrain(context_, "trainer"), HasReason("WRONG_ROLE"));
  context_.daemons.runs_dir = "/nowhere";
  EXPECT_EQ(CtlExitCode(CtlStatus(context_)), 2);
  context_.daemons.target = "not an address";
  EXPECT_EQ(CtlExitCode(CtlStatus(context_)), 2);
}

}  // namespace
}  // namespace syncopate::ctl
