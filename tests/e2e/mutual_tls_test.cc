// A whole run over mutual TLS, with the certificates of scripts/make-certs.sh.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/support/hostile_peer.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::mutual_tls_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kHostilePeers = 20;  // for each kind, at each port

class MutualTlsTest : public ::testing::Test {
 protected:
  void SetUp() override { MakeCertificates("--tokens"); }

  void MakeCertificates(const std::string& arguments) {
    const std::string command = absl::StrCat(SYNCOPATE_SOURCE_DIR, "/scripts/make-certs.sh ", folder(), " ", arguments);
    ASSERT_EQ(std::system(command.c_str()), 0) << command;  // NOLINT: the test waits for the command
  }
  std::string folder() const { return certificates_.path() + "/certs"; }

  // The settings of a run with these certificates, and `more`.
  std::vector<std::string> Settings(std::vector<std::string> more) const {
    for (const char* setting :
         {"security.tls_cert={role}.crt", "security.tls_key={role}.key", "security.tls_ca=ca.crt"}) {
      const std::string text(setting);
      const size_t value = text.find('=') + 1;
      more.push_back(absl::StrCat(text.substr(0, value), folder(), "/", text.substr(value)));
    }
    more.push_back("security.tls_reload=1s");
    return more;
  }
  // Flags of ctl that show the certificate of `role`.
  std::vector<std::string> As(const std::string& role, std::vector<std::string> verb) const {
    for (const auto& [flag, file] : {std::pair<const char*, std::string>{"--tls-cert", role + ".crt"},
                                     {"--tls-key", role + ".key"},
                                     {"--tls-ca", "ca.crt"}}) {
      verb.insert(verb.end(), {flag, absl::StrCat(folder(), "/", file)});
    }
    return verb;
  }

  TempDir certificates_;
};

// The time, in seconds since 1970, at which the certificate of a daemon ends, by its own metrics; 0 if there is no such
// metric.
double CertificateExpiry(const daemon::DaemonEndpoint& daemon) {
  const std::string text = HttpGet(daemon.metrics, "/metrics").value_or("");
  const std::string name =
      absl::StrCat("\nsyncopate_certificate_expiry_timestamp_seconds{role=\"", daemon.role, "\"} ");
  const size_t at = text.find(name);
  double seconds = 0;
  const bool said =
      at != std::string::npos &&
      absl::SimpleAtod(text.substr(at + name.size(), text.find('\n', at + 1) - at - name.size()), &seconds);
  return said ? seconds : 0;
}

TEST_F(MutualTlsTest, ARunTrainsToTheEndWithTheBitsOfTheTwin) {
  constexpr int64_t kSteps = 20;
  RunHarness run(Settings({"staleness.max_staleness=0", absl::StrCat("run.steps=", kSteps)}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  auto exit = (*process)->WaitExit(2 * kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*process)->Log();
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_EQ(run.Summary()["status"], "completed");
  EXPECT_EQ(run.Summary()["rollouters"].size(), 2u);  // the trainer could call the rollouters
  EXPECT_GT(run.Summary()["syncs"]["count"], 0);      // the trainer could call the synchronizer
}

TEST_F(MutualTlsTest, OperatorsMayDoWhatTheirRoleMayAndEachActionIsInTheLog) {
  RunHarness run(Settings({"run.steps=1000000", "eval.every_steps=0"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(2), IsOk());
  auto trainer = run.Endpoint("trainer");
  ASSERT_THAT(trainer, IsOk());

  auto expect = [&](std::vector<std::string> arguments, int code, const std::string& words) {
    auto result = run.Ctl(arguments);
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->code, code) << result->output;
    EXPECT_THAT(result->output, HasSubstr(words));
  };
  expect({"pause"}, 0, "");  // ctl calls as admin, by the configuration in the run directory
  expect(As("viewer", {"status"}), 0, "paused");
  expect(As("viewer", {"resume"}), 4, "the role viewer may not call /syncopate.v1.TrainerService/Resume; admin may");
  expect(As("rollouter", {"checkpoint"}), 4, "the role rollouter may not call");
  expect(As("admin", {"resume"}), 0, "");
  auto plaintext = RunCommand("syncopate", {"ctl", "--target", trainer->grpc, "status"});
  ASSERT_THAT(plaintext, IsOk());
  EXPECT_EQ(plaintext->code, 3) << plaintext->output;

  const std::string admin = "by spiffe://syncopate/role/admin (admin) from ipv4:127.0.0.1:";
  EXPECT_TRUE(Eventually(
      kPatience, [&] { return run.Log("trainer-0").find("TrainerService/Resume " + admin) != std::string::npos; }));
  EXPECT_THAT(run.Log("trainer-0"), AllOf(HasSubstr(absl::StrCat("audit: /syncopate.v1.TrainerService/Pause ", admin)),
                                          HasSubstr("security: refused a call of spiffe://syncopate/role/viewer"),
                                          Not(HasSubstr("No match found for server name"))));
  (*process)->Interrupt();
  ASSERT_THAT((*process)->WaitExit(kPatience), IsOk());
}

TEST_F(MutualTlsTest, ARunWithTokensAloneServesCallersThatHaveOne) {
  RunHarness run(
      {absl::StrCat("security.token_file=", folder(), "/tokens"), "run.steps=1000000", "eval.every_steps=0"});
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(5), IsOk());
  auto trainer = run.Endpoint("trainer");
  ASSERT_THAT(trainer, IsOk());
  const std::vector<std::string> pause = {"ctl", "--target", trainer->grpc, "pause"};
  auto without = RunCommand("syncopate", pause);
  ASSERT_THAT(without, IsOk());
  EXPECT_EQ(without->code, 4) << without->output;
  EXPECT_THAT(without->output, HasSubstr("a bearer token is needed"));
  std::vector<std::string> with_token = pause;
  with_token.insert(with_token.end(), {"--token-file", folder() + "/tokens"});
  auto with = RunCommand("syncopate", with_token);
  ASSERT_THAT(with, IsOk());
  EXPECT_EQ(with->code, 0) << with->output;
  EXPECT_TRUE(Eventually(
      kPatience, [&] { return run.Log("trainer-0").find("Pause by a token of admin (admin)") != std::string::npos; }));
  (*process)->Interrupt();
  ASSERT_THAT((*process)->WaitExit(kPatience), IsOk());
}

TEST_F(MutualTlsTest, CertificatesAreRenewedUnderARunThatGoesOn) {
  RunHarness run(Settings({"run.steps=1000000", "eval.every_steps=0"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(2), IsOk());
  std::vector<daemon::DaemonEndpoint> daemons;
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
    auto endpoint = run.Endpoint(role);
    ASSERT_THAT(endpoint, IsOk());
    daemons.push_back(*endpoint);
  }
  const double before = CertificateExpiry(daemons[0]);
  ASSERT_GT(before, 0);
  MakeCertificates("--renew --days 60");
  for (const auto& daemon : daemons) {
    EXPECT_TRUE(Eventually(kPatience, [&] { return CertificateExpiry(daemon) > before; })) << daemon.role;
  }
  EXPECT_THAT(run.AwaitStep(run.LastStep() + 5), IsOk());
  auto status = run.Ctl({"status"});
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(status->code, 0) << status->output;
  // A rollouter that dies reconnects with the new certificates.
  auto rollouter = run.Endpoint("rollouter", 0);
  ASSERT_THAT(rollouter, IsOk());
  ASSERT_EQ(::kill(static_cast<pid_t>(rollouter->pid), SIGKILL), 0);
  EXPECT_THAT(run.Endpoint("rollouter", 0, static_cast<pid_t>(rollouter->pid)), IsOk());
  EXPECT_THAT(run.AwaitStep(run.LastStep() + 5), IsOk());
  (*process)->Interrupt();
  ASSERT_THAT((*process)->WaitExit(kPatience), IsOk());
}

TEST_F(MutualTlsTest, GarbageAndSilenceAtEveryPortLeaveTheRunAlone) {
  RunHarness run(Settings({"run.steps=1000000", "eval.every_steps=0"}));
  auto process = run.Run();
  ASSERT_THAT(process, IsOk());
  ASSERT_THAT(run.AwaitStep(2), IsOk());
  Dice dice(9);
  std::vector<std::unique_ptr<HostilePeer>> mute;
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
    SCOPED_TRACE(role);
    auto endpoint = run.Endpoint(role);
    ASSERT_THAT(endpoint, IsOk());
    for (const std::string& address : {endpoint->grpc, endpoint->metrics}) {
      for (int i = 0; i < kHostilePeers; ++i) {
        mute.push_back(std::make_unique<HostilePeer>(address));
        EXPECT_TRUE(mute.back()->connected()) << address;
        HostilePeer peer(address);
        peer.Send(Garbage(dice));
      }
    }
    EXPECT_THAT(HttpGet(endpoint->metrics, "/metrics"), IsOk());
  }
  // While the mute clients stay connected, the trainer makes steps, and callers with a certificate are served.
  EXPECT_THAT(run.AwaitStep(run.LastStep() + 10), IsOk());
  auto status = run.Ctl(As("viewer", {"status"}));
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(status->code, 0) << status->output;
  // The server closes the connection of a client that begins no handshake.
  EXPECT_TRUE(mute.front()->WaitClosed(kPatience));
  (*process)->Interrupt();
  auto exit = (*process)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  for (const auto& [daemon, restarts] : run.Summary()["run"]["restarts"].items()) EXPECT_EQ(restarts, 0) << daemon;
}

TEST_F(MutualTlsTest, ADaemonWithAWrongCertificateSaysSoAndDisturbsNobody) {
  RunHarness run(Settings({"run.steps=1000000", "eval.every_steps=0"}));
  auto synchronizer = run.StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto trainer = run.StartDaemon("trainer");
  ASSERT_THAT(trainer, IsOk());
  auto rollouter = run.StartDaemon("rollouter");
  ASSERT_THAT(rollouter, IsOk());

  // The certificate is that of another role: a mistake in the configuration, which is reported at once.
  auto confused = run.LaunchDaemon("rollouter", 7,
                                   {absl::StrCat("security.tls_cert=", folder(), "/trainer.crt"),
                                    absl::StrCat("security.tls_key=", folder(), "/trainer.key")});
  ASSERT_THAT(confused, IsOk());
  auto exit = (*confused)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 2);
  EXPECT_THAT((*confused)->Log(), HasSubstr("is the certificate of a trainer, and this is a rollouter"));

  // The certificate is that of another authority: only the other end can detect it.
  const std::string ours = folder();
  const TempDir elsewhere;
  ASSERT_EQ(std::system(absl::StrCat(SYNCOPATE_SOURCE_DIR, "/scripts/make-certs.sh ", elsewhere.path()).c_str()), 0);
  std::vector<std::string> foreign;
  for (const char* setting : {"tls_cert=@/{role}.crt", "tls_key=@/{role}.key", "tls_ca=@/ca.crt"}) {
    std::string text = absl::StrCat("security.", setting);
    foreign.push_back(text.replace(text.find('@'), 1, elsewhere.path()));
  }
  auto stranger = run.LaunchDaemon("rollouter", 8, foreign);
  ASSERT_THAT(stranger, IsOk());
  EXPECT_TRUE(Eventually(kPatience, [&] {
    return (*stranger)->Log().find("does not come from an authority in tls_ca (UNKNOWN_AUTHORITY)") !=
           std::string::npos;
  })) << (*stranger)->Log();

  EXPECT_THAT(run.AwaitStep(run.LastStep() + 5), IsOk());
  auto members = run.Ctl(As("viewer", {"members"}));
  ASSERT_THAT(members, IsOk());
  EXPECT_THAT(members->output,
              AllOf(HasSubstr("rollouter-0"), Not(HasSubstr("rollouter-7")), Not(HasSubstr("rollouter-8"))));
}

}  // namespace
}  // namespace syncopate::testing::mutual_tls_test
