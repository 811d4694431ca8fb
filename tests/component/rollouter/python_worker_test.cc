// The scorer, its client and the real worker of python/, connected as in a rollouter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rollouter/reward/scorer.h"
#include "services/rollouter/environment_client.h"
#include "tests/support/eventually.h"
#include "tests/support/notification.h"
#include "tests/support/process.h"
#include "tests/support/test_authority.h"
#include "tools/data/worker_tasks.h"

namespace syncopate::rollouterd {
namespace {

using syncopate::testing::Process;
using syncopate::testing::TempDir;
using ::testing::HasSubstr;

constexpr char kCode[] = R"(
import asyncio, os, time
from syncopate import group_reward, reward, tasks

@reward("length", concurrency=256)
def length(answer, row): return {"value": len(answer), "known": float("answer" in row)}

@group_reward("rank", tokens=True)
def rank(answers, row): return [sum(b.tokens < a.tokens for b in answers) + a.logprobs[0] for a in answers]

@reward("hour")
def hour(answer, row): time.sleep(3600)

@tasks("rows")
def rows():
    for i in range(600): yield {"id": f"row-{i}", "prompt": f"{i}?\n", "answer": i}

@tasks("none")
def none(): return []

@tasks("texts")
def texts(): yield {"id": "good", "prompt": "1"}; yield "no object"

@reward("exits")
async def exits(answer, row): os._exit(1)
)";

class PythonWorkerTest : public ::testing::Test {
 protected:
  PythonWorkerTest() {
    std::ofstream(dir_.path() + "/code.py") << kCode;
    StartWorker();
    client_ = EnvironmentClient::Start({.address = address(), .max_backoff = absl::Milliseconds(50)});
    scorer_ = rollouter::Scorer::Create({.rules = {.timeout = absl::Seconds(1), .attempts = 2},
                                         .reward = "python:length",
                                         .decode =
                                             [](const std::vector<int32_t>& tokens) {
                                               return std::string(static_cast<size_t>(tokens[0]), 'x');
                                             },
                                         .python = client_.get()})
                  .value();
    scorer_->SetAvailabilityListener([this] { changes_.Put(0); });
  }
  ~PythonWorkerTest() override {
    scorer_.reset();
    client_->Stop();
  }

  std::string address() const { return absl::StrCat("unix:", dir_.path(), "/w.sock"); }
  void StartWorker() {
    worker_ = Process::Start({.program = SYNCOPATE_PYTHON,
                              .args = {"-m", "syncopate.worker", dir_.path() + "/code.py", "--listen", address(),
                                       "--processes", "2"},
                              .log_path = dir_.path() + "/log",
                              .working_folder = SYNCOPATE_SOURCE_DIR "/python"})
                  .value();
  }
  bool AwaitWorker(bool there) {
    for (size_t seen = 0; scorer_->Availability().ok() != there; seen = changes_.size()) {
      if (!changes_.WaitFor(seen + 1)) return false;
    }
    return true;
  }
  void Score(const std::string& id, const std::string& reward, int32_t samples = 2) {
    Lease lease;
    lease.id = {{0, 1}, 1};
    lease.reward = reward;
    lease.task.row_json = R"({"ground_truth": "5", "answer": "5"})";
    TrajectoryGroup group;
    group.samples.resize(static_cast<size_t>(samples));
    for (int32_t i = 0; i < samples; ++i) group.samples[static_cast<size_t>(i)].tokens = {i};
    for (Trajectory& sample : group.samples) sample.logprobs = {-0.25f};
    scorer_->Score(id, lease, std::move(group),
                   [this](absl::StatusOr<TrajectoryGroup> scored) { scored_.Put(std::move(scored)); });
  }

  const TempDir dir_;
  Mailbox<int> changes_;
  Mailbox<absl::StatusOr<TrajectoryGroup>> scored_;
  std::unique_ptr<Process> worker_;
  std::shared_ptr<EnvironmentClient> client_;
  std::unique_ptr<rollouter::Scorer> scorer_;
};

TEST_F(PythonWorkerTest, JudgesAGroup) {
  ASSERT_TRUE(AwaitWorker(true));
  Score("a", "python:length");
  ASSERT_TRUE(scored_.WaitFor(1));
  const TrajectoryGroup group = scored_.All()[0].value();
  EXPECT_EQ(group.samples[1].reward, 1);
  EXPECT_EQ(group.samples[1].reward_parts, (std::vector<RewardPart>{{"python:length", 1}, {"python:length/known", 1}}));
}

TEST_F(PythonWorkerTest, JudgesTheAnswersOfAGroupByTheirTokensTogether) {
  ASSERT_TRUE(AwaitWorker(true));
  Score("a", "python:rank", /*samples=*/3);
  ASSERT_TRUE(scored_.WaitFor(1));
  const TrajectoryGroup group = scored_.All()[0].value();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(group.samples[i].reward, static_cast<float>(i) - 0.25f);
}

TEST_F(PythonWorkerTest, AtAPortWithTokensTheRolloutersTokenScoresAndTheTrainersLists) {
  const std::string tokens = dir_.path() + "/tokens";
  std::ofstream(tokens) << "rollouter " << std::string(40, 'r') << "\ntrainer " << std::string(40, 't') << "\nviewer "
                        << std::string(40, 'v') << "\n";
  std::filesystem::permissions(tokens, std::filesystem::perms::owner_read);
  const std::string guarded = absl::StrCat("127.0.0.1:", testing::FreePort().value());
  auto worker = Process::Start({.program = SYNCOPATE_PYTHON,
                                .args = {"-m", "syncopate.worker", dir_.path() + "/code.py", "--listen", guarded,
                                         "--token-file", tokens, "--processes", "1"},
                                .log_path = dir_.path() + "/guarded-log",
                                .working_folder = SYNCOPATE_SOURCE_DIR "/python"})
                    .value();
  ASSERT_TRUE(worker->WaitForLogLine(guarded, absl::Seconds(60)).ok());
  auto availability = [&guarded](const std::string& role, const std::string& file) {
    auto client = EnvironmentClient::Start(
        {.address = guarded, .security = auth::TransportSecurity::Load({.role = role, .token_file = file}).value()});
    Mailbox<int> changes;
    client->SetAvailabilityListener([&changes] { changes.Put(0); });
    const absl::Time until = absl::Now() + absl::Seconds(60);
    absl::Status last = client->Availability("length");
    // The first status is "It was not reached yet".
    while (absl::StrContains(last.message(), "not reached yet") && absl::Now() < until) {
      changes.WaitFor(changes.size() + 1, absl::Milliseconds(100));
      last = client->Availability("length");
    }
    client->Stop();
    return last;
  };
  EXPECT_TRUE(availability("rollouter", tokens).ok());
  EXPECT_THAT(std::string(availability("viewer", tokens).message()), HasSubstr("the role viewer may not call"));
  EXPECT_THAT(std::string(availability("rollouter", "").message()), HasSubstr("a bearer token is needed"));
  const std::string rows = dir_.path() + "/guarded-rows";
  EXPECT_TRUE(
      absl::IsUnauthenticated(data::WriteWorkerTasks({.worker = guarded, .list = "rows", .output = rows}).status()));
  EXPECT_EQ(data::WriteWorkerTasks({.worker = guarded, .list = "rows", .output = rows, .token_file = tokens}).value(),
            600);
}

TEST_F(PythonWorkerTest, AtAPortWithTlsBothSidesShowACertificateOfTheirRole) {
  const testing::TestAuthority authority, foreign;
  const auto start = [&](const std::string& role, const std::string& listen) {
    const testing::TestAuthority::Files files = authority.IssueFor(role);
    auto worker = Process::Start({.program = SYNCOPATE_PYTHON,
                                  .args = {"-m", "syncopate.worker", dir_.path() + "/code.py", "--listen", listen,
                                           "--tls-cert", files.certificate, "--tls-key", files.key, "--tls-ca",
                                           authority.ca(), "--processes", "1"},
                                  .log_path = absl::StrCat(dir_.path(), "/", role, "-log"),
                                  .working_folder = SYNCOPATE_SOURCE_DIR "/python"})
                      .value();
    EXPECT_TRUE(worker->WaitForLogLine(listen, absl::Seconds(60)).ok());
    return worker;
  };
  const auto reach = [](const std::string& address, std::shared_ptr<const auth::TransportSecurity> security) {
    auto client = EnvironmentClient::Start({.address = address, .security = std::move(security)});
    absl::Status last;
    // The first status is "It was not reached yet".
    EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] {
      last = client->Availability("length");
      return !absl::StrContains(last.message(), "not reached yet");
    }));
    client->Stop();
    return last;
  };
  const std::string address = absl::StrCat("127.0.0.1:", testing::FreePort().value());
  const auto worker = start("environment", address);
  EXPECT_TRUE(reach(address, authority.SecurityFor("rollouter")).ok());
  EXPECT_THAT(std::string(reach(address, authority.SecurityFor("viewer")).message()),
              HasSubstr("the role viewer may not call"));
  EXPECT_FALSE(reach(address, foreign.SecurityFor("rollouter")).ok()) << "of another authority";
  EXPECT_FALSE(reach(address, nullptr).ok()) << "plaintext";
  const std::string posed = absl::StrCat("127.0.0.1:", testing::FreePort().value());
  const auto impostor = start("viewer", posed);
  EXPECT_FALSE(reach(posed, authority.SecurityFor("rollouter")).ok()) << "a viewer is no worker";
}

TEST_F(PythonWorkerTest, ListsItsTasksIntoAFile) {
  ASSERT_TRUE(AwaitWorker(true));
  const std::string path = dir_.path() + "/rows.jsonl";
  ASSERT_EQ(data::WriteWorkerTasks({.worker = address(), .list = "rows", .output = path}).value(), 600);
  std::ifstream file(path);
  std::string line;
  for (int i = 0; i < 600; ++i) {
    ASSERT_TRUE(std::getline(file, line));
    EXPECT_EQ(line, absl::StrCat(R"({"answer":)", i, R"(,"id":"row-)", i, R"(","prompt":")", i, R"(?\n"})"));
  }
  EXPECT_FALSE(std::getline(file, line));
  EXPECT_EQ(ErrorReason(data::WriteWorkerTasks({.worker = address(), .list = "rows", .output = path}).status()),
            "FILE_TAKEN");
}

TEST_F(PythonWorkerTest, AListThatCannotBeReadLeavesNoFile) {
  ASSERT_TRUE(AwaitWorker(true));
  const std::string path = dir_.path() + "/rows.jsonl";
  const auto list = [&](const std::string& name) {
    return data::WriteWorkerTasks({.worker = address(), .list = name, .output = path}).status();
  };
  EXPECT_EQ(ErrorReason(list("none")), "NO_TASKS");
  EXPECT_TRUE(absl::IsNotFound(list("unheard-of")));
  EXPECT_FALSE(list("texts").ok());
  EXPECT_TRUE(absl::IsUnavailable(
      data::WriteWorkerTasks({.worker = "unix:" + dir_.path() + "/none", .list = "rows", .output = path}).status()));
  EXPECT_FALSE(std::ifstream(path).is_open());
  EXPECT_FALSE(std::ifstream(path + ".partial").is_open());
}

TEST_F(PythonWorkerTest, ARewardThatTakesAnHourFailsInItsTimeAndHoldsNobodyUp) {
  ASSERT_TRUE(AwaitWorker(true));
  Score("a", "python:hour");
  ASSERT_TRUE(scored_.WaitFor(1));
  EXPECT_EQ(ErrorReason(scored_.All()[0].status()), "REWARD_FAILED");
  Score("b", "python:length");
  ASSERT_TRUE(scored_.WaitFor(2));
  EXPECT_TRUE(scored_.All()[1].ok());
}

TEST_F(PythonWorkerTest, ARewardThatEndsTheWorkerFailsAndTheNextWorkerGoesOn) {
  ASSERT_TRUE(AwaitWorker(true));
  Score("a", "python:exits");
  ASSERT_TRUE(AwaitWorker(false));
  StartWorker();
  ASSERT_TRUE(AwaitWorker(true));
  ASSERT_TRUE(AwaitWorker(false)) << "its second attempt";
  ASSERT_TRUE(scored_.WaitFor(1));
  EXPECT_EQ(ErrorReason(scored_.All()[0].status()), "REWARD_FAILED");
  StartWorker();
  ASSERT_TRUE(AwaitWorker(true));
  Score("b", "python:length");
  ASSERT_TRUE(scored_.WaitFor(2));
  EXPECT_TRUE(scored_.All()[1].ok());
}

TEST_F(PythonWorkerTest, JudgesThousandsOfAnswersAtOnce) {
  ASSERT_TRUE(AwaitWorker(true));
  constexpr int kGroups = 400, kSamples = 16;
  for (int i = 0; i < kGroups; ++i) Score(absl::StrCat(i), "python:length", kSamples);
  ASSERT_TRUE(scored_.WaitFor(kGroups));
  for (const auto& group : scored_.All()) EXPECT_TRUE(group.ok()) << group.status();
}

}  // namespace
}  // namespace syncopate::rollouterd
