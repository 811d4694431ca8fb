// deploy/examples/orchestrate.py against a live run: a client that shares no code with the daemons.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::orchestrate_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class OrchestrateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Python({"-c", "import grpc, grpc_reflection"}).code != 0) {
      GTEST_SKIP() << SYNCOPATE_PYTHON
          " has no grpcio and grpcio-reflection; scripts/bootstrap.sh --tests installs them";
    }
  }

  CommandResult Python(const std::vector<std::string>& args) {
    const std::string log = absl::StrCat(scratch_.path(), "/python", ++commands_, ".log");
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

  // A synchronizer, a trainer and one rollouter.
  void StartRun(std::vector<std::string> settings = {}) {
    settings.insert(settings.end(), {"run.steps=1000000", "eval.every_steps=0", "checkpoint.every_steps=0"});
    run_.emplace(settings);
    for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
      auto daemon = run_->StartDaemon(role);
      ASSERT_THAT(daemon, IsOk());
      daemons_.push_back(*std::move(daemon));
    }
    auto synchronizer = run_->Endpoint("synchronizer");
    ASSERT_THAT(synchronizer, IsOk());
    synchronizer_ = synchronizer->grpc;
  }

  // Returns what the script reports under `what`; returns null and fails the test if it reports nothing.
  static Json Find(const std::vector<Json>& said, const std::string& what) {
    for (const Json& line : said) {
      if (line["did"] == what) return line;
    }
    ADD_FAILURE() << "it did not say that it " << what;
    return Json();
  }

  TempDir scratch_;
  std::optional<RunHarness> run_;
  std::string synchronizer_;                       // the synchronizer's address
  std::vector<std::unique_ptr<Process>> daemons_;  // declared after the folder that the daemons work in
  int commands_ = 0;
};

TEST_F(OrchestrateTest, AnotherLanguageSteersTheRunByReflection) {
  ASSERT_NO_FATAL_FAILURE(StartRun());
  const std::string another =
      absl::StrCat(BinaryPath("syncopate-rollouter"), " ", run_->config(), " ", absl::StrJoin(run_->overrides(), " "),
                   " synchronizer.address=", synchronizer_, " rollouter.index=1");
  const CommandResult result = Orchestrate({"--synchronizer", synchronizer_, "--start", another});
  ASSERT_EQ(result.code, 0) << result.output;
  const std::vector<Json> said = JsonLines(result.output);

  EXPECT_THAT(Find(said, "looked")["rollouters"], ElementsAre("rollouter-0"));
  EXPECT_GE(Find(said, "waited for a step")["step"], 2);
  const Json paused = Find(said, "paused"), resumed = Find(said, "resumed");
  EXPECT_EQ(resumed["step"], paused["step"]) << "steps were made while the trainer was paused";
  // The step that was in progress at the pause may have been published after the sync.
  const int64_t synced = Find(said, "synced")["version"][1], step = paused["step"];
  EXPECT_THAT(synced, AnyOf(step, step - 1));
  EXPECT_GE(Find(said, "read the versions")["versions"][0][1], synced);
  const std::string checkpoint = Find(said, "took a checkpoint")["name"];
  EXPECT_EQ(checkpoint, absl::StrCat("e1-s", step));
  EXPECT_TRUE(std::filesystem::exists(run_->Path("checkpoints/" + checkpoint + "/manifest.json")));
  EXPECT_EQ(Find(said, "started a rollouter")["rollouter"], "rollouter-1");
  EXPECT_EQ(Find(said, "drained")["state"], "drained");
  EXPECT_GE(Find(said, "saw it go on")["step"].get<int64_t>(), resumed["step"].get<int64_t>() + 3);
  EXPECT_THAT(Find(said, "stopped the rollouter")["exit_codes"], ElementsAre(0));

  // The daemons report the same.
  auto first = run_->Endpoint("rollouter", 0);
  ASSERT_THAT(first, IsOk());
  auto status = Call<v1::RolloutService>(first->grpc, &v1::RolloutService::Stub::GetStatus, {});
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(status->state(), "drained");
}

TEST_F(OrchestrateTest, OverTlsACertificateOrATokenOfRoleAdminIsLetInAndNobodyElse) {
  const std::string certificates = scratch_.path() + "/certs/";
  const std::string make = absl::StrCat(SYNCOPATE_SOURCE_DIR "/scripts/make-certs.sh ", certificates, " --tokens");
  ASSERT_EQ(std::system(make.c_str()), 0) << make;
  auto file = [&](const std::string& name) { return certificates + name; };
  ASSERT_NO_FATAL_FAILURE(StartRun({"security.tls_cert=" + file("{role}.crt"), "security.tls_key=" + file("{role}.key"),
                                    "security.tls_ca=" + file("ca.crt"), "security.token_file=" + file("tokens")}));
  auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--synchronizer", synchronizer_, "--tls-ca", file("ca.crt")});
    return Orchestrate(flags);
  };
  const CommandResult certificate = with({"--tls-cert", file("admin.crt"), "--tls-key", file("admin.key")});
  EXPECT_EQ(certificate.code, 0) << certificate.output;
  EXPECT_GT(Find(JsonLines(certificate.output), "saw it go on")["step"], 0);
  const CommandResult token = with({"--token-file", file("tokens")});
  EXPECT_EQ(token.code, 0) << token.output;

  const CommandResult viewer = with({"--tls-cert", file("viewer.crt"), "--tls-key", file("viewer.key")});
  EXPECT_EQ(viewer.code, 1);
  EXPECT_THAT(viewer.output, AllOf(HasSubstr("waited for a step"), HasSubstr("orchestrate: PERMISSION_DENIED")));
  const CommandResult nobody = with({});
  EXPECT_EQ(nobody.code, 1);
  EXPECT_THAT(nobody.output, AllOf(HasSubstr("orchestrate: UNAUTHENTICATED"), Not(HasSubstr("Traceback"))));
}

TEST_F(OrchestrateTest, WhereNobodyListensItSaysSoAndEnds) {
  auto port = FreePort();
  ASSERT_THAT(port, IsOk());
  const CommandResult result = Orchestrate({"--synchronizer", absl::StrCat("127.0.0.1:", *port), "--timeout", "2"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr("orchestrate: UNAVAILABLE"), Not(HasSubstr("Traceback"))));
}

}  // namespace
}  // namespace syncopate::testing::orchestrate_test
