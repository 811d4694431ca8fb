// Trainers and rollouters that die while keys and values lend their memory to a sync (sync.install: borrowed).

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::borrowed_kill_test {
namespace {

// The bytes that rollouter `index` has lent now; -1 if it does not answer.
double LentBytes(const RunHarness& run, int64_t index) {
  const std::string name = "\nsyncopate_lent_kv_bytes ";
  auto endpoint = run.Endpoint("rollouter", index);
  auto text = endpoint.ok() ? HttpGet(endpoint->metrics, "/metrics") : endpoint.status();
  const size_t begin = text.ok() ? text->find(name) : std::string::npos;
  return begin == std::string::npos ? -1 : std::stod(text->substr(begin + name.size()));
}

// Stops the trainer in the middle of a transfer to rollouter `index`, so that the lending lasts.
::testing::AssertionResult StopWhileLent(const RunHarness& run, pid_t trainer, int64_t index) {
  constexpr int kReads = 10;  // what had arrived when the trainer stopped is installed within fewer
  const bool stopped = Eventually(kPatience, [&] {
    if (LentBytes(run, index) <= 0) return false;
    ::kill(trainer, SIGSTOP);
    for (int read = 0; read < kReads; ++read) {
      if (LentBytes(run, index) > 0) continue;
      ::kill(trainer, SIGCONT);
      return false;
    }
    return true;
  });
  if (stopped) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "no transfer was under way when the trainer was stopped";
}

// A run whose weights take some milliseconds to send.
std::vector<std::string> BorrowedRun(std::vector<std::string> more) {
  std::vector<std::string> run = {"sync.install=borrowed", "model.hidden_size=256", "model.intermediate_size=512",
                                  "model.num_hidden_layers=3", "eval.every_steps=0"};
  run.insert(run.end(), more.begin(), more.end());
  return run;
}

TEST(BorrowedKillTest, ATrainerThatDiesInATransferGetsTheMemoryBackToItsOwnersAndChangesNoBit) {
  constexpr int64_t kSteps = 12;
  RunHarness run(BorrowedRun({"staleness.max_staleness=0", absl::StrCat("run.steps=", kSteps)}));
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto trainer = run.StartDaemon("trainer", 0, {"run.resume=false"});
  ASSERT_THAT(trainer, IsOk());
  std::vector<std::unique_ptr<Process>> rollouters;
  for (int64_t index : {0, 1}) {
    auto rollouter = run.StartDaemon("rollouter", index);
    ASSERT_THAT(rollouter, IsOk());
    rollouters.push_back(*std::move(rollouter));
  }
  ASSERT_THAT(run.AwaitStep(4), IsOk());
  auto endpoint = run.Endpoint("trainer");
  ASSERT_THAT(endpoint, IsOk());
  ASSERT_TRUE(StopWhileLent(run, static_cast<pid_t>(endpoint->pid), 0));
  (*trainer)->Kill();
  ASSERT_THAT((*trainer)->WaitExit(kPatience), IsOk());
  for (int64_t index : {0, 1}) {
    EXPECT_TRUE(Eventually(kPatience, [&] { return LentBytes(run, index) == 0; })) << "rollouter " << index;
  }
  trainer = run.StartDaemon("trainer", 0, {"run.resume=true"});
  ASSERT_THAT(trainer, IsOk());
  auto exit = (*trainer)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*trainer)->Log();
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
}

TEST(BorrowedKillTest, ARolloutersDeathWhileItsMemoryIsLentLosesNothing) {
  RunHarness run(EndlessRun(BorrowedRun({})));
  RunWatch watch(&run);
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto trainer = run.StartDaemon("trainer");
  ASSERT_THAT(trainer, IsOk());
  std::vector<std::unique_ptr<Process>> rollouters;
  for (int64_t index : {0, 1}) {
    auto rollouter = run.StartDaemon("rollouter", index);
    ASSERT_THAT(rollouter, IsOk());
    rollouters.push_back(*std::move(rollouter));
  }
  ASSERT_THAT(watch.AwaitMoreSteps(5), IsOk());
  auto endpoint = run.Endpoint("trainer");
  ASSERT_THAT(endpoint, IsOk());
  for (int kill = 0; kill < 3; ++kill) {
    SCOPED_TRACE(absl::StrCat("kill ", kill));
    ASSERT_TRUE(StopWhileLent(run, static_cast<pid_t>(endpoint->pid), 0));
    rollouters[0]->Kill();
    ::kill(static_cast<pid_t>(endpoint->pid), SIGCONT);
    ASSERT_THAT(rollouters[0]->WaitExit(kPatience), IsOk());
    auto next = run.StartDaemon("rollouter", 0);
    ASSERT_THAT(next, IsOk());
    rollouters[0] = *std::move(next);
    ASSERT_THAT(watch.AwaitMoreSteps(5), IsOk());
  }
  EXPECT_TRUE(Eventually(kPatience, [&] { return LentBytes(run, 1) == 0; }));
  ASSERT_THAT(watch.Stop(), IsOk());
  auto exit = (*trainer)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*trainer)->Log();
  EXPECT_THAT(Judge(run), IsClean());
}

}  // namespace
}  // namespace syncopate::testing::borrowed_kill_test
