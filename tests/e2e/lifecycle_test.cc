// How daemons start, are probed, stop and end, as a supervisor sees it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "tests/support/run_checker.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::lifecycle_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kEndless[] = "run.steps=1000000";
constexpr char kNoEvaluation[] = "eval.every_steps=0";

class LifecycleTest : public ::testing::Test {
 protected:
  void Begin(std::vector<std::string> overrides) {
    overrides.push_back(absl::StrCat("run.grace=", kGrace));
    run_ = std::make_unique<RunHarness>(std::move(overrides));
  }
  void Start(const std::string& role, int64_t index = 0, const std::vector<std::string>& more = {}) {
    auto daemon = run_->StartDaemon(role, index, more);
    ASSERT_THAT(daemon, IsOk());
    daemons_[absl::StrCat(role, "-", index)] = *std::move(daemon);
  }
  // Starts the daemon without waiting until it is ready: it may end at once.
  void Launch(const std::string& role, int64_t index = 0, const std::vector<std::string>& more = {}) {
    auto daemon = run_->LaunchDaemon(role, index, more);
    ASSERT_THAT(daemon, IsOk());
    daemons_[absl::StrCat(role, "-", index)] = *std::move(daemon);
  }
  void StartAll(const std::vector<std::string>& more = {}) {
    Start("synchronizer", 0, more);
    Start("trainer", 0, more);
    Start("rollouter", 0, more);
  }
  void ExpectExit(const std::string& daemon, int code) {
    auto exit = daemons_.at(daemon)->WaitExit(2 * kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(*exit, (ExitStatus{code, 0})) << daemon << "\n" << daemons_.at(daemon)->Log();
  }
  // Sends SIGTERM: the daemon ends with code 0 before a supervisor that allows the grace and a little more would kill
  // it.
  void TerminateInGrace(const std::string& daemon) {
    daemons_.at(daemon)->Terminate();
    auto exit = daemons_.at(daemon)->WaitExit(kGraceAndALittle);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(*exit, (ExitStatus{0, 0})) << daemon << "\n" << daemons_.at(daemon)->Log();
  }
  // Returns the answer to GET `path`, "ok" or the reason why not; "unreachable" if there is no answer.
  std::string Probe(const std::string& role, const std::string& path, int64_t index = 0) {
    auto endpoint = run_->Endpoint(role, index);
    if (!endpoint.ok()) return "no endpoint";
    auto page = HttpGet(endpoint->metrics, path);
    if (page.ok()) return page->substr(0, page->find('\n'));
    return absl::IsNotFound(page.status()) ? std::string(page.status().message()) : "unreachable";
  }
  bool Becomes(const std::string& role, const std::string& path, const std::string& answer) {
    return Eventually(kPatience, [&] { return Probe(role, path).find(answer) != std::string::npos; });
  }

  static constexpr char kGrace[] = "20s";  // long, since a busy machine is slow
  static constexpr absl::Duration kGraceAndALittle = absl::Seconds(22);
  std::unique_ptr<RunHarness> run_;
  std::map<std::string, std::unique_ptr<Process>> daemons_;
};

TEST_F(LifecycleTest, ProbesSayWhenEachRoleCanDoItsWork) {
  Begin({kEndless, kNoEvaluation});
  Start("synchronizer");
  EXPECT_EQ(Probe("synchronizer", "/livez"), "ok");
  EXPECT_TRUE(Becomes("synchronizer", "/readyz", "ok")) << "a synchronizer is reachable as soon as it is ready";
  Start("rollouter");
  EXPECT_EQ(Probe("rollouter", "/livez"), "ok");
  EXPECT_TRUE(Becomes("rollouter", "/readyz", "503")) << "there are no weights yet";
  Start("trainer");
  EXPECT_TRUE(Becomes("trainer", "/readyz", "ok"));
  EXPECT_TRUE(Becomes("rollouter", "/readyz", "ok"));
  auto rollouter = run_->Endpoint("rollouter");
  ASSERT_THAT(rollouter, IsOk());
  ASSERT_THAT(Call<v1::RolloutService>(rollouter->grpc, &v1::RolloutService::Stub::Pause, {}), IsOk());
  EXPECT_TRUE(Becomes("rollouter", "/readyz", "503"));
  EXPECT_EQ(Probe("rollouter", "/livez"), "ok") << "a daemon that is not ready is live";
  EXPECT_THAT(Probe("rollouter", "/secret"), HasSubstr("404"));
}

TEST_F(LifecycleTest, ATrainerThatHangsInASyncForLongerThanALoopMayStandStillLeavesTheOthersLive) {
  Begin({kEndless, kNoEvaluation, "sync.deadline=60s", "sync.suspect_after=50s", "sync.dead_after=60s"});
  StartAll();
  ASSERT_THAT(run_->AwaitStep(2), IsOk());
  auto synchronizer = run_->Endpoint("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  // While the trainer is stopped, the first sync of a new rollouter stays in progress.
  daemons_["trainer-0"]->Stop();
  Start("rollouter", 1);
  const auto syncs = [&] {
    auto status = Call<v1::SynchronizerService>(synchronizer->grpc, &v1::SynchronizerService::Stub::GetStatus, {});
    return status.ok() && status->attempts_under_way() > 0;
  };
  ASSERT_TRUE(Eventually(kPatience, syncs));
  const absl::Time until = Clock::Real()->Now() + absl::Seconds(12);
  while (Clock::Real()->Now() < until) {
    for (const char* role : {"synchronizer", "rollouter"}) ASSERT_EQ(Probe(role, "/livez"), "ok") << role;
    ASSERT_EQ(Probe("rollouter", "/livez", 1), "ok");
  }
  daemons_["trainer-0"]->Continue();
  EXPECT_THAT(run_->AwaitStep(run_->LastStep() + 3), IsOk());
}

TEST_F(LifecycleTest, EachRoleEndsInOrderWithinTheGraceAndNothingIsLost) {
  Begin({kEndless, kNoEvaluation});
  StartAll();
  Start("rollouter", 1);
  ASSERT_THAT(run_->AwaitStep(5), IsOk());
  TerminateInGrace("rollouter-1");
  ASSERT_THAT(run_->AwaitStep(run_->LastStep() + 3), IsOk());
  TerminateInGrace("trainer-0");
  TerminateInGrace("rollouter-0");
  TerminateInGrace("synchronizer-0");
  const Json summary = run_->Summary();
  EXPECT_EQ(summary["status"], "stopped");
  const int64_t steps = run_->LastStep();
  // The next incarnation continues from where this one ended, with the acknowledged groups.
  StartAll({"run.resume=true"});
  ASSERT_THAT(run_->AwaitStep(steps + 3), IsOk());
  EXPECT_THAT(daemons_["trainer-0"]->Log(), HasSubstr(absl::StrCat("restored checkpoint e1-s", steps)));
  for (const char* daemon : {"trainer-0", "rollouter-0", "synchronizer-0"}) TerminateInGrace(daemon);
  const Json after = run_->Summary();
  EXPECT_EQ(after["groups"]["duplicate"], 0);
  EXPECT_EQ(after["staleness"]["violations"], 0);
}

TEST_F(LifecycleTest, AStopThatHangsEndsItselfWithTheGraceAndLosesNothing) {
  Begin({kEndless, kNoEvaluation});
  Start("synchronizer");
  Start("trainer", 0, {"run.grace=500ms"});
  Start("rollouter");
  ASSERT_THAT(run_->AwaitStep(3), IsOk());
  // The trainer asks the stopped synchronizer for the summary's figures and gets no answer.
  daemons_["synchronizer-0"]->Stop();
  daemons_["trainer-0"]->Terminate();
  ExpectExit("trainer-0", 1);
  EXPECT_THAT(daemons_["trainer-0"]->Log(), HasSubstr("did not end within run.grace 500ms"));
  daemons_["synchronizer-0"]->Continue();
  const int64_t steps = run_->LastStep();
  Start("trainer", 0, {"run.resume=true"});
  EXPECT_THAT(run_->AwaitStep(steps + 3), IsOk());
}

TEST_F(LifecycleTest, ARollouterThatStopsIsNotReadyAndHandsBackWhatItCannotFinish) {
  Begin({kEndless, kNoEvaluation});
  StartAll();
  ASSERT_THAT(run_->AwaitStep(3), IsOk());
  auto rollouter = run_->Endpoint("rollouter");
  ASSERT_THAT(rollouter, IsOk());
  // A paused engine cannot finish, so its leases are handed back. It asks for no others, so the test pauses it while it
  // has some.
  using Stub = v1::RolloutService::Stub;
  ASSERT_TRUE(Eventually(kPatience, [&] {
    if (!Call<v1::RolloutService>(rollouter->grpc, &Stub::Pause, {}).ok()) return false;
    auto status = Call<v1::RolloutService>(rollouter->grpc, &Stub::GetStatus, {});
    if (status.ok() && status->running_sequences() + status->waiting_sequences() > 0) return true;
    return Call<v1::RolloutService>(rollouter->grpc, &Stub::Resume, {}).ok() && false;
  })) << "it is paused while it holds leases";
  daemons_["rollouter-0"]->Terminate();
  EXPECT_TRUE(Becomes("rollouter", "/readyz", "503"));
  EXPECT_EQ(Probe("rollouter", "/livez"), "ok") << "the daemon stops in order";
  auto synchronizer = run_->Endpoint("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  const bool left = Eventually(kPatience, [&] {
    auto members = Call<v1::SynchronizerService>(synchronizer->grpc, &v1::SynchronizerService::Stub::ListMembers, {});
    if (!members.ok()) return false;
    for (const v1::MemberStatus& member : members->members()) {
      if (member.member().role() == v1::ROLE_ROLLOUTER) return member.state() == v1::MEMBER_STATE_LEFT;
    }
    return false;
  });
  EXPECT_TRUE(left);
  EXPECT_TRUE(daemons_["rollouter-0"]->Running()) << "the rollouter leaves before it hands back its leases";
  ExpectExit("rollouter-0", 0);
  EXPECT_THAT(daemons_["rollouter-0"]->Log(), HasSubstr("handed back"));
  Start("rollouter", 1);
  EXPECT_THAT(run_->AwaitStep(run_->LastStep() + 5), IsOk());
}

TEST_F(LifecycleTest, ACompleteRunEndsEveryProcessThatWasToldToEndWithIt) {
  Begin({"run.steps=6", kNoEvaluation});
  StartAll({"--exit-on-completion"});
  for (const char* daemon : {"trainer-0", "rollouter-0", "synchronizer-0"}) ExpectExit(daemon, 0);
  EXPECT_EQ(run_->Summary()["status"], "completed");
  EXPECT_EQ(run_->LastStep(), 6);
  EXPECT_THAT(daemons_["rollouter-0"]->Log(), HasSubstr("the run is complete"));
}

TEST_F(LifecycleTest, WithoutTheFlagACompleteRunStaysToBeLookedAtUntilItIsStopped) {
  Begin({"run.steps=4", kNoEvaluation});
  run_->LetTrainersStay();
  StartAll();
  auto trainer = run_->Endpoint("trainer");
  auto synchronizer = run_->Endpoint("synchronizer");
  ASSERT_THAT(trainer, IsOk());
  ASSERT_THAT(synchronizer, IsOk());
  const bool known = Eventually(kPatience, [&] {
    auto status = Call<v1::SynchronizerService>(synchronizer->grpc, &v1::SynchronizerService::Stub::GetStatus, {});
    return status.ok() && status->completed();
  });
  EXPECT_TRUE(known);
  auto status = Call<v1::TrainerService>(trainer->grpc, &v1::TrainerService::Stub::GetStatus, {});
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(status->state(), "done");
  EXPECT_EQ(run_->Summary()["status"], "completed");
  EXPECT_EQ(Probe("trainer", "/livez"), "ok");
  EXPECT_THAT(*HttpGet(trainer->metrics, "/metrics"), HasSubstr("syncopate_policy_version_step"));
  for (const auto& [name, daemon] : daemons_) EXPECT_TRUE(daemon->Running()) << name;
  // A rollouter that joins now and ends with the run learns of the run's end at once, also after a restart of the
  // synchronizer.
  Launch("rollouter", 1, {"--exit-on-completion"});
  ExpectExit("rollouter-1", 0);
  daemons_["synchronizer-0"]->Kill();
  Start("synchronizer");
  Launch("rollouter", 2, {"--exit-on-completion"});
  ExpectExit("rollouter-2", 0);
  auto stopped = Call<v1::TrainerService>(trainer->grpc, &v1::TrainerService::Stub::Stop, {});
  EXPECT_THAT(stopped, IsOk());
  ExpectExit("trainer-0", 0);
}

TEST_F(LifecycleTest, WrongConfigurationsEndWithTwo) {
  Begin({});
  const std::vector<std::vector<std::string>> wrong = {
      {"run.stepz=3"}, {"--no-such-flag"}, {"rollouter.name=Not_A_Pod"}, {"rollouter.listen=0.0.0.0:0"}};
  for (const std::vector<std::string>& more : wrong) {
    auto daemon = run_->LaunchDaemon("rollouter", 0, more);
    ASSERT_THAT(daemon, IsOk());
    auto exit = (*daemon)->WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 2) << more[0] << "\n" << (*daemon)->Log();
  }
}

TEST_F(LifecycleTest, AMemberThatCannotReachItsSynchronizerEndsWithFour) {
  Begin({"synchronizer.lost_after=1s"});
  Launch("rollouter");
  Launch("trainer");
  ExpectExit("rollouter-0", 4);
  ExpectExit("trainer-0", 4);
}

TEST_F(LifecycleTest, ATrainerThatLosesItsSynchronizerSavesAndEndsWithFour) {
  Begin({kEndless, kNoEvaluation, "synchronizer.lost_after=1s"});
  StartAll();
  ASSERT_THAT(run_->AwaitStep(3), IsOk());
  daemons_["synchronizer-0"]->Kill();
  ExpectExit("trainer-0", 4);
  ExpectExit("rollouter-0", 4);
  const Json summary = run_->Summary();
  EXPECT_EQ(summary["status"], "stopped");
  StartAll({"run.resume=true"});
  EXPECT_THAT(daemons_["trainer-0"]->Log(), HasSubstr("restored checkpoint"));
}

TEST_F(LifecycleTest, ANamedRollouterIsKnownByItsNameEverywhere) {
  Begin({kEndless, kNoEvaluation});
  Start("synchronizer");
  Start("trainer");
  for (const char* name : {"pod-a", "pod-b"}) {
    auto daemon = run_->LaunchDaemon("rollouter", 0, {absl::StrCat("rollouter.name=", name)});
    ASSERT_THAT(daemon, IsOk());
    daemons_[name] = *std::move(daemon);
  }
  ASSERT_THAT(run_->AwaitStep(3), IsOk());
  auto named = [&](const std::string& name) {
    return Eventually(kPatience, [&] {
      auto members = run_->Ctl({"members"});
      return members.ok() && members->output.find(name) != std::string::npos;
    });
  };
  EXPECT_TRUE(named("pod-a"));
  EXPECT_TRUE(named("pod-b"));
  absl::StatusOr<std::vector<daemon::DaemonEndpoint>> endpoints;
  ASSERT_TRUE(Eventually(kPatience, [&] {
    endpoints = daemon::ReadRunEndpoints(run_->run_dir());
    return endpoints.ok() && endpoints->size() == 4;
  }));
  EXPECT_EQ((*endpoints)[0].Name(), "pod-a");
  EXPECT_EQ((*endpoints)[1].Name(), "pod-b");
  auto drained = run_->Ctl({"drain", "pod-a"});
  ASSERT_THAT(drained, IsOk());
  EXPECT_EQ(drained->code, 0) << drained->output;
  for (const char* name : {"pod-a", "pod-b"}) TerminateInGrace(name);
}

}  // namespace
}  // namespace syncopate::testing::lifecycle_test
