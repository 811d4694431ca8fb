#include "tools/run/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "services/config/run_config.h"

namespace syncopate::run {
namespace {

using ::testing::ElementsAre;

v1::RunConfig Config(const std::vector<std::string>& overrides = {}) {
  return config::ParseRunConfig("", "test", overrides).config;
}

std::vector<std::string> Arguments(const v1::RunConfig& config, const ChildId& child, const std::string& synchronizer) {
  return PlanLaunch(config, "/bin", "/run", child, synchronizer).arguments;
}

TEST(PlanLaunchTest, NamesBinaryConfigurationAndLog) {
  Launch launch = PlanLaunch(Config(), "/bin", "/run", {"trainer", 0}, "127.0.0.1:9");
  EXPECT_EQ(launch.binary, "/bin/syncopate-trainer");
  EXPECT_EQ(launch.log, "/run/logs/trainer-0.log");
  EXPECT_THAT(launch.arguments,
              ElementsAre("/run/config.resolved.yaml", "synchronizer.address=127.0.0.1:9", "--exit-on-completion"));
}

TEST(PlanLaunchTest, AResumeOnTrialHasAConfigurationOfItsOwn) {
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
    EXPECT_EQ(PlanLaunch(Config(), "/bin", "/run", {role, 0}, "", "", "", /*accept_reward_change=*/false,
                         /*on_trial=*/true)
                  .arguments[0],
              "/run/config.next.yaml");
  }
}

TEST(PlanLaunchTest, NumbersItsRolloutersAlsoIfTheConfigurationNamesOne) {
  EXPECT_THAT(Arguments(Config({"rollouter.name=pod-7"}), {"rollouter", 1}, ""),
              ElementsAre("/run/config.resolved.yaml", "rollouter.index=1", "rollouter.name="));
}

TEST(PlanLaunchTest, TellsEachRollouterItsIndex) {
  EXPECT_THAT(Arguments(Config(), {"rollouter", 1}, "127.0.0.1:9"),
              ElementsAre("/run/config.resolved.yaml", "synchronizer.address=127.0.0.1:9", "rollouter.index=1"));
}

TEST(PlanLaunchTest, ASynchronizerStartedAgainListensWhereItWas) {
  EXPECT_THAT(Arguments(Config(), {"synchronizer", 0}, ""), ElementsAre("/run/config.resolved.yaml"));
  EXPECT_THAT(Arguments(Config(), {"synchronizer", 0}, "127.0.0.1:9"),
              ElementsAre("/run/config.resolved.yaml", "synchronizer.address=127.0.0.1:9"));
  EXPECT_THAT(
      Arguments(Config({"synchronizer.listen=127.0.0.1:0"}), {"synchronizer", 0}, "127.0.0.1:9"),
      ElementsAre("/run/config.resolved.yaml", "synchronizer.address=127.0.0.1:9", "synchronizer.listen=127.0.0.1:9"));
}

TEST(PlanLaunchTest, AFixedSynchronizerAddressIsLeftAlone) {
  EXPECT_THAT(Arguments(Config({"synchronizer.address=127.0.0.1:7070"}), {"trainer", 0}, "127.0.0.1:7070"),
              ElementsAre("/run/config.resolved.yaml", "--exit-on-completion"));
}

TEST(PlanLaunchTest, FixedPortsAreCountedUpFromTheFirstRollouter) {
  v1::RunConfig config = Config({"rollouter.listen=127.0.0.1:8000", "metrics.rollouter_listen=[::1]:9000"});
  EXPECT_THAT(Arguments(config, {"rollouter", 0}, ""), ElementsAre("/run/config.resolved.yaml", "rollouter.index=0"));
  EXPECT_THAT(Arguments(config, {"rollouter", 2}, ""),
              ElementsAre("/run/config.resolved.yaml", "rollouter.index=2", "rollouter.listen=127.0.0.1:8002",
                          "metrics.rollouter_listen=[::1]:9002"));
}

TEST(PlanLaunchTest, RanksOfATrainerAreNumberedAndToldWhereTheFirstOneListens) {
  const v1::RunConfig config =
      Config({"trainer.world=2", "trainer.ranks_listen=127.0.0.1:7500", "metrics.trainer_listen=127.0.0.1:9000"});
  EXPECT_THAT(Arguments(config, {"trainer", 0}, ""),
              ElementsAre("/run/config.resolved.yaml", "--exit-on-completion", "trainer.rank=0"));
  EXPECT_THAT(
      PlanLaunch(config, "/bin", "/run", {"trainer", 1}, "", "", "127.0.0.1:7").arguments,
      ElementsAre("/run/config.resolved.yaml", "--exit-on-completion", "trainer.rank=1", "trainer.rank0=127.0.0.1:7",
                  "trainer.ranks_listen=127.0.0.1:7501", "metrics.trainer_listen=127.0.0.1:9001"));
}

TEST(PlanLaunchTest, RanksOfARollouterAreNumberedAndToldWhereItsFirstOneListens) {
  const v1::RunConfig config = Config({"rollout.tensor_parallel=2", "metrics.rollouter_listen=127.0.0.1:9000"});
  EXPECT_THAT(Arguments(config, {"rollouter", 0}, ""),
              ElementsAre("/run/config.resolved.yaml", "rollouter.index=0", "rollouter.rank=0"));
  const ChildId last{"rollouter", 1, 1};
  EXPECT_EQ(last.Name(), "rollouter-1-rank1");
  EXPECT_THAT(PlanLaunch(config, "/bin", "/run", last, "", "", "127.0.0.1:7").arguments,
              ElementsAre("/run/config.resolved.yaml", "rollouter.index=1", "rollouter.rank=1",
                          "rollouter.rank0=127.0.0.1:7", "metrics.rollouter_listen=127.0.0.1:9003"));
}

TEST(PlanLaunchTest, TheWorkerIsItsCommandWithWhereToListenBehindIt) {
  v1::RunConfig config;
  config.mutable_environment()->set_command("nice syncopate-worker 'my rewards.py'");
  config.mutable_environment()->set_address("unix:/run/environment.sock");
  const Launch launch = PlanLaunch(config, "/bin", "/run", {"environment", 0}, "");
  EXPECT_EQ(launch.binary, "/bin/sh");
  EXPECT_EQ(launch.log, "/run/logs/environment-0.log");
  EXPECT_THAT(launch.arguments,
              ::testing::ElementsAre("-c", "exec nice syncopate-worker 'my rewards.py' \"$@\"", "sh", "--listen",
                                     "unix:/run/environment.sock", "--announce", "/run/environment.json"));
}

TEST(PlanLaunchTest, EachOfSeveralWorkersHasItsAddressAndItsAnnouncement) {
  v1::RunConfig config;
  config.mutable_environment()->set_command("syncopate-worker rewards.py");
  config.mutable_environment()->set_address("unix:/run/a.sock, unix:/srv/b.sock");
  const std::vector<std::string> second = PlanLaunch(config, "/bin", "/run", {"environment", 1}, "").arguments;
  EXPECT_THAT(std::vector<std::string>(second.begin() + 3, second.end()),
              ElementsAre("--listen", "unix:/srv/b.sock", "--announce", "/srv/b.sock.json"));
  config.mutable_environment()->set_address("unix:/run/a.sock,127.0.0.1:7080");
  EXPECT_EQ(EnvironmentAnnouncement(config, "/run", 0), "/run/environment.json");
  EXPECT_EQ(EnvironmentAnnouncement(config, "/run", 1), "/run/environment-1.json");
}

TEST(PlanLaunchTest, AWorkerBeyondLoopbackIsToldItsCertificate) {
  v1::RunConfig config;
  config.mutable_environment()->set_command("syncopate-worker rewards.py");
  config.mutable_environment()->set_address("10.0.0.7:7080");
  config.mutable_security()->set_tls_cert("certs/{role}.crt");
  config.mutable_security()->set_tls_key("certs/{role}.key");
  config.mutable_security()->set_tls_ca("certs/ca.crt");
  config.mutable_security()->set_trust_domain("rl");
  config.mutable_security()->set_token_file("certs/tokens");
  const std::vector<std::string> all = PlanLaunch(config, "/bin", "/run", {"environment", 0}, "").arguments;
  EXPECT_THAT(std::vector<std::string>(all.begin() + 7, all.end()),
              ElementsAre("--tls-cert", "certs/environment.crt", "--tls-key", "certs/environment.key", "--tls-ca",
                          "certs/ca.crt", "--trust-domain", "rl"));
}

TEST(PlanLaunchTest, AWorkerAnnouncesItselfBesideASocketThatIsElsewhere) {
  v1::RunConfig config;
  for (const auto& [address, file] :
       {std::pair("unix:/run/environment.sock", "/run/environment.json"),
        std::pair("unix:/srv/w.sock", "/srv/w.sock.json"), std::pair("127.0.0.1:7080", "/run/environment.json")}) {
    config.mutable_environment()->set_address(address);
    EXPECT_EQ(EnvironmentAnnouncement(config, "/run"), file);
  }
}

TEST(PlanLaunchTest, AWorkerAtAPortIsToldWhoseTokensItTakesAndOneAtASocketIsNot) {
  v1::RunConfig config;
  config.mutable_environment()->set_command("syncopate-worker rewards.py");
  config.mutable_security()->set_token_file("certs/{role}.tokens");
  auto words = [&config](const std::string& address) {
    config.mutable_environment()->set_address(address);
    std::vector<std::string> all = PlanLaunch(config, "/bin", "/run", {"environment", 0}, "").arguments;
    return std::vector<std::string>(all.begin() + 7, all.end());
  };
  EXPECT_THAT(words("unix:/run/environment.sock"), ElementsAre());
  EXPECT_THAT(words("127.0.0.1:7080"), ElementsAre("--token-file", "certs/rollouter.tokens"));
  config.mutable_environment()->set_socket_mode("0660");
  config.mutable_environment()->set_socket_group("agents");
  EXPECT_THAT(words("unix:/run/environment.sock"), ElementsAre("--socket-mode", "0660", "--socket-group", "agents"));
  EXPECT_THAT(words("127.0.0.1:7080"), ElementsAre("--token-file", "certs/rollouter.tokens"));
  EXPECT_THAT(words("10.0.0.7:7080"), ElementsAre("--insecure-bind"));
}

TEST(PlanLaunchTest, WhoTrainsAndGeneratesIsToldTheWorkersDigestUnlessTheConfigurationSaysIt) {
  v1::RunConfig config;
  for (const char* role : {"trainer", "rollouter"}) {
    EXPECT_THAT(PlanLaunch(config, "/bin", "/run", {role, 0}, "", "d1").arguments,
                ::testing::Contains("environment.digest=d1"));
  }
  EXPECT_EQ(PlanLaunch(config, "/bin", "/run", {"synchronizer", 0}, "", "d1").arguments.size(), 1u);
  config.mutable_environment()->set_digest("d0");
  EXPECT_EQ(PlanLaunch(config, "/bin", "/run", {"trainer", 0}, "", "d1").arguments.size(), 2u);
}

TEST(PlanLaunchTest, RankZeroOfTheTrainerAloneIsToldThatAnotherRewardIsMeant) {
  const v1::RunConfig config;
  const auto flagged = [&](const ChildId& child) {
    const Launch launch = PlanLaunch(config, "/bin", "/run", child, "", "", "", /*accept_reward_change=*/true);
    return std::count(launch.arguments.begin(), launch.arguments.end(), "--accept-reward-change");
  };
  EXPECT_EQ(flagged({"trainer", 0}), 1);
  EXPECT_EQ(flagged({"trainer", 1}), 0);
  EXPECT_EQ(flagged({"rollouter", 0}), 0);
}

}  // namespace
}  // namespace syncopate::run
