// A run of several turns whose rollouters, worker of users' Python, trainer and gateway die.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/fault/fault_support.h"
#include "tests/support/environment_worker.h"
#include "tests/support/eventually.h"
#include "tests/support/process.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::play_kill_test {
namespace {

constexpr int kKills = 6, kTrainerKills = 3;

// The game that is built in, with a tool that takes its time, so that a kill meets episodes in the middle of a call.
constexpr char kCode[] = R"(
import asyncio
from syncopate import registry
from syncopate.games import Guess

class Slow(Guess):
    async def step(self, action):
        await asyncio.sleep(0.02)
        return await super().step(action)

registry.ENVIRONMENTS["guess"].make = Slow
)";

class PlayKillTest : public ::testing::Test {
 protected:
  PlayKillTest() {
    const std::string code = folder_.path() + "/code.py";
    std::ofstream(code) << kCode;
    run_ = std::make_unique<RunHarness>(
        EndlessRun({"data.task=guess", "environment.name=guess", "reward.name=environment", "rollout.max_turns=5",
                    "rollout.max_total_tokens=18", "model.max_position_embeddings=20", "run.rollouters=2",
                    "endpoint.listen=127.0.0.1:0", "endpoint.sequences=4",
                    absl::StrCat("environment.command=env PYTHONPATH=", SYNCOPATE_SOURCE_DIR, "/python ",
                                 SYNCOPATE_PYTHON, " -m syncopate.worker ", code)}));
  }

  void KillWorker() {
    const pid_t worker = GetWorker(*run_);
    ASSERT_GT(worker, 0);
    ASSERT_EQ(::kill(worker, SIGKILL), 0);
    EXPECT_TRUE(Eventually(kPatience, [&] {
      const pid_t next = GetWorker(*run_);
      return next != 0 && next != worker;
    }));
  }
  void KillRollouter(const RunWatch& watch, int64_t victim) {
    const auto before = watch.AwaitWork(victim);
    ASSERT_THAT(before, IsOk());
    const auto endpoint = run_->Endpoint("rollouter", victim);
    ASSERT_THAT(endpoint, IsOk());
    ASSERT_EQ(::kill(static_cast<pid_t>(endpoint->pid), SIGKILL), 0);
    ASSERT_THAT(watch.AwaitWork(victim, *before), IsOk());
  }

  TempDir folder_;
  std::unique_ptr<RunHarness> run_;
};

TEST_F(PlayKillTest, NoEpisodeIsTrainedTwiceAndNoneThatWasAcknowledgedIsLost) {
  auto process = run_->Run();
  ASSERT_THAT(process, IsOk());
  const RunWatch watch(run_.get());
  Dice dice(7);
  ASSERT_THAT(watch.AwaitWork(0), IsOk());
  for (int i = 0; i < kKills; ++i) {
    SCOPED_TRACE(absl::StrCat("kill ", i));
    ASSERT_THAT(watch.AwaitRandomMoment(dice), IsOk());
    // At each third time both, so that a new rollouter meets a worker that has lost all episodes.
    if (i % 3 != 1) {
      ASSERT_NO_FATAL_FAILURE(KillWorker());
    }
    if (i % 3 != 0) {
      ASSERT_NO_FATAL_FAILURE(KillRollouter(watch, dice.Between(0, 1)));
    }
  }
  ASSERT_THAT(watch.AwaitMoreSteps(5), IsOk());
  ASSERT_THAT(watch.Stop(), IsOk());
  const auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  const RunFindings findings = Judge(*run_);
  EXPECT_THAT(findings, IsClean());
  EXPECT_GT(findings.reissued, 0) << "no kill hit a rollouter that held a lease";
  const Json summary = run_->Summary();
  EXPECT_EQ(summary["groups"]["duplicate"], 0);
  EXPECT_EQ(summary["run"]["restarts"]["environment-0"], kKills * 2 / 3);
  EXPECT_EQ(summary["run"]["restarts"]["trainer-0"], 0);
  for (const Json& step : run_->Records("step")) EXPECT_GT(step["turns_mean"].get<double>(), 1);
}

TEST_F(PlayKillTest, ATrainerThatIsKilledAmongEpisodesLosesNoneThatItHasAcknowledged) {
  auto process = run_->Run();
  ASSERT_THAT(process, IsOk());
  const RunWatch watch(run_.get());
  Dice dice(11);
  std::map<int64_t, int64_t> acknowledged;  // by epoch
  for (int i = 0; i < kTrainerKills; ++i) {
    SCOPED_TRACE(absl::StrCat("kill ", i));
    ASSERT_THAT(watch.AwaitMoreSteps(2), IsOk());
    ASSERT_THAT(watch.AwaitRandomMoment(dice), IsOk());
    const auto status = watch.Trainer();
    ASSERT_THAT(status, IsOk());
    acknowledged[status->version().epoch()] = status->groups().at("accepted");
    const auto trainer = run_->Endpoint("trainer");
    ASSERT_THAT(trainer, IsOk());
    ASSERT_EQ(::kill(static_cast<pid_t>(trainer->pid), SIGKILL), 0);
    const auto exit = (*process)->WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_NE(exit->code, 0);
    process = run_->Resume();
    ASSERT_THAT(process, IsOk());
  }
  ASSERT_THAT(watch.AwaitMoreSteps(5), IsOk());
  ASSERT_THAT(watch.Stop(), IsOk());
  const auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  const RunFindings findings = Judge(*run_);
  EXPECT_THAT(findings, IsClean());
  ASSERT_EQ(acknowledged.size(), static_cast<size_t>(kTrainerKills));
  for (const auto& [epoch, groups] : acknowledged) {
    const auto kept = findings.accepted_by_epoch.find(epoch);
    EXPECT_GE(kept == findings.accepted_by_epoch.end() ? 0 : kept->second, groups) << "epoch " << epoch;
  }
  for (const Json& step : run_->Records("step")) EXPECT_GT(step["turns_mean"].get<double>(), 1);
}

// Asks one address for completions until it ends, one after the other, and counts the answers.
class EndpointClient {
 public:
  explicit EndpointClient(std::string address) : address_(std::move(address)), thread_([this] { Ask(); }) {}
  ~EndpointClient() { Stop(); }
  void Stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
  }
  bool AwaitMore(int64_t count) const {
    const int64_t before = answered_;
    return Eventually(kPatience, [&] { return answered_ >= before + count; });
  }
  int64_t malformed() const { return malformed_; }

 private:
  void Ask() {
    const Json question = {{"prompt", {1, 2, 3}}, {"max_tokens", 4}, {"return_token_ids", true}};
    while (!stopped_) {
      const auto body = HttpPost(address_, "/v1/completions", question);
      if (!body.ok()) continue;  // nobody listens while the gateway is dead, and it knows no rollouter at first
      const Json answer = Json::parse(*body, nullptr, false);
      const bool whole = answer.is_object() && !answer["choices"][0]["token_ids"].empty();
      ++(whole ? answered_ : malformed_);
    }
  }

  const std::string address_;
  std::atomic<bool> stopped_{false};
  std::atomic<int64_t> answered_{0}, malformed_{0};
  std::thread thread_;
};

TEST_F(PlayKillTest, AGatewayThatIsKilledWithOthersAmongEpisodesCostsNoEpisodeAndItsClientsGoOn) {
  auto process = run_->Run();
  ASSERT_THAT(process, IsOk());
  const RunWatch watch(run_.get());
  ASSERT_THAT(watch.AwaitWork(0), IsOk());
  const auto port = FreePort();
  ASSERT_THAT(port, IsOk());
  const std::string address = absl::StrCat("127.0.0.1:", *port);
  const auto start = [&] {
    auto gateway = Process::Start({.program = BinaryPath("syncopate"),
                                   .args = {"gateway", "--run", run_->run_dir(), "--listen", address},
                                   .log_path = folder_.path() + "/gateway.log"});
    if (gateway.ok()) {
      EXPECT_THAT((*gateway)->WaitForLogLine("gateway at http://" + address, kPatience), IsOk());
    }
    return gateway;
  };
  auto gateway = start();
  ASSERT_THAT(gateway, IsOk());
  EndpointClient client(address);
  ASSERT_TRUE(client.AwaitMore(3));
  Dice dice(13);
  for (int i = 0; i < kKills; ++i) {
    SCOPED_TRACE(absl::StrCat("kill ", i));
    ASSERT_THAT(watch.AwaitRandomMoment(dice), IsOk());
    (*gateway)->Kill();
    ASSERT_THAT((*gateway)->WaitExit(kPatience), IsOk());
    if (i % 3 == 1) {
      ASSERT_NO_FATAL_FAILURE(KillWorker());
    }
    if (i % 3 == 2) {
      ASSERT_NO_FATAL_FAILURE(KillRollouter(watch, dice.Between(0, 1)));
    }
    gateway = start();
    ASSERT_THAT(gateway, IsOk());
    ASSERT_TRUE(client.AwaitMore(3));
  }
  client.Stop();
  EXPECT_EQ(client.malformed(), 0);
  ASSERT_THAT(watch.AwaitMoreSteps(5), IsOk());
  ASSERT_THAT(watch.Stop(), IsOk());
  const auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  EXPECT_THAT(Judge(*run_), IsClean());
  EXPECT_EQ(run_->Summary()["groups"]["duplicate"], 0);
}

}  // namespace
}  // namespace syncopate::testing::play_kill_test
