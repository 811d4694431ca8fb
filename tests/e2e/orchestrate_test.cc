// deploy/examples/orchestrate.py against a live run: a client that nobody compiled with us.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class OrchestrateTest : public ::testing::Test {
 protected:
  OrchestrateTest() : run_({"run.steps=1000000", "eval.every_steps=0", "checkpoint.every_steps=0"}) {}

  void SetUp() override {
    if (Python({"-c", "import grpc, grpc_reflection"}).code != 0) {
      GTEST_SKIP() << SYNCOPATE_PYTHON
          " has no grpcio and grpcio-reflection; scripts/bootstrap.sh --tests installs them";
    }
  }

  CommandResult Python(const std::vector<std::string>& args) {
    const std::string log = absl::StrCat(run_.temp_dir(), "/python", ++commands_, ".log");
    auto process = Process::Start({.program = SYNCOPATE_PYTHON, .args = args, .log_path = log});
    if (!process.ok()) return {-1, process.status().ToString()};
    auto exit = (*process)->WaitExit(3 * kPatience);
    if (!exit.ok()) return {-1, exit.status().ToString()};
    return {exit->signal != 0 ? 128 + exit->signal : exit->code, (*process)->Log()};
  }
  CommandResult Orchestrate(std::vector<std::string> args) {
    args.insert(args.begin(), ExamplePath("orchestrate.py"));
    return Python(args);
  }

  void Start(const std::string& role, int64_t index = 0) {
    auto daemon = run_.StartDaemon(role, index);
    ASSERT_THAT(daemon, IsOk());
    daemons_.push_back(*std::move(daemon));
  }

  RunHarness run_;
  std::vector<std::unique_ptr<Process>> daemons_;
  int commands_ = 0;
};

// What the script says it did under `what`; null, failing the test, if it did not.
Json Find(const std::vector<Json>& said, const std::string& what) {
  for (const Json& line : said) {
    if (line["did"] == what) return line;
  }
  ADD_FAILURE() << "it did not say that it " << what;
  return Json();
}

TEST_F(OrchestrateTest, ADifferentLanguageSteersTheRunByReflection) {
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) ASSERT_NO_FATAL_FAILURE(Start(role));
  auto synchronizer = run_.Endpoint("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  const std::string another =
      absl::StrCat(BinaryPath("syncopate-rollouter"), " ", run_.config(), " ", absl::StrJoin(run_.overrides(), " "),
                   " synchronizer.address=", synchronizer->grpc, " rollouter.index=1");
  const CommandResult result = Orchestrate({"--synchronizer", synchronizer->grpc, "--start", another});
  ASSERT_EQ(result.code, 0) << result.output;
  const std::vector<Json> said = JsonLines(result.output);

  EXPECT_THAT(Find(said, "looked")["rollouters"], ElementsAre("rollouter-0"));
  EXPECT_GE(Find(said, "waited for a step")["step"], 2);
  const Json paused = Find(said, "paused"), resumed = Find(said, "resumed");
  EXPECT_EQ(resumed["step"], paused["step"]) << "steps were made while the trainer was paused";
  EXPECT_EQ(Find(said, "synced")["version"], Json::array({1, paused["step"]}));
  EXPECT_EQ(Find(said, "read the versions")["versions"][0], Json::array({1, paused["step"], 1}));
  const std::string checkpoint = Find(said, "took a checkpoint")["name"];
  EXPECT_EQ(checkpoint, absl::StrCat("e1-s", paused["step"].get<int64_t>()));
  EXPECT_TRUE(std::filesystem::exists(run_.Path("checkpoints/" + checkpoint + "/manifest.json")));
  EXPECT_EQ(Find(said, "started a rollouter")["rollouter"], "rollouter-1");
  EXPECT_EQ(Find(said, "drained")["state"], "drained");
  EXPECT_GE(Find(said, "saw it go on")["step"].get<int64_t>(), resumed["step"].get<int64_t>() + 3);
  EXPECT_THAT(Find(said, "stopped the rollouter")["exit_codes"], ElementsAre(0));

  // And the daemons agree.
  auto first = run_.Endpoint("rollouter", 0);
  ASSERT_THAT(first, IsOk());
  auto status = Call<v1::RolloutService>(first->grpc, &v1::RolloutService::Stub::GetStatus, {});
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(status->state(), "drained");
}

TEST_F(OrchestrateTest, WhereNobodyListensItSaysSoAndEnds) {
  auto port = FreePort();
  ASSERT_THAT(port, IsOk());
  const CommandResult result = Orchestrate({"--synchronizer", absl::StrCat("127.0.0.1:", *port), "--timeout", "2"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr("orchestrate: UNAVAILABLE"), Not(HasSubstr("Traceback"))));
}

}  // namespace
}  // namespace syncopate::testing
