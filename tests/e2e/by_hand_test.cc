// The daemons are started one by one, as the README describes, without `syncopate run`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::by_hand_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Four processes and the arguments that they were started with.
class ByHandTest : public ::testing::Test {
 protected:
  void Start(RunHarness& run, const std::string& role, int64_t index = 0, const std::vector<std::string>& more = {}) {
    auto daemon = run.StartDaemon(role, index, more);
    ASSERT_THAT(daemon, IsOk());
    daemons_[absl::StrCat(role, "-", index)] = *std::move(daemon);
  }
  void ExpectExit(const std::string& daemon, int code) {
    auto exit = daemons_.at(daemon)->WaitExit(2 * kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(*exit, (ExitStatus{code, 0})) << daemon << "\n" << daemons_.at(daemon)->Log();
  }
  void TerminateAndExpectGoodEnd(const std::string& daemon) {
    daemons_.at(daemon)->Terminate();
    ExpectExit(daemon, 0);
  }

  std::map<std::string, std::unique_ptr<Process>> daemons_;
};

TEST_F(ByHandTest, FourCommandsTrainToTheEndWithTheBitsOfTheTwin) {
  constexpr int64_t kSteps = 20;
  RunHarness run({"staleness.max_staleness=0", absl::StrCat("run.steps=", kSteps)});
  Start(run, "synchronizer");
  // A rollouter may start before the trainer.
  Start(run, "rollouter", 1);
  Start(run, "trainer");
  Start(run, "rollouter", 0);
  ExpectExit("trainer-0", 0);
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_EQ(run.Summary()["status"], "completed");
  EXPECT_THAT(run.Summary()["rollouters"], SizeIs(2));
  for (const char* daemon : {"rollouter-0", "rollouter-1", "synchronizer-0"}) TerminateAndExpectGoodEnd(daemon);
}

TEST_F(ByHandTest, AnInterruptedTrainerResumesAmongDaemonsThatStayed) {
  constexpr int64_t kSteps = 24;
  RunHarness run({"staleness.max_staleness=0", absl::StrCat("run.steps=", kSteps)});
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) Start(run, role);
  ASSERT_THAT(run.AwaitStep(5), IsOk());
  daemons_["trainer-0"]->Interrupt();
  ExpectExit("trainer-0", 0);
  EXPECT_EQ(run.Summary()["status"], "stopped");
  ASSERT_LT(run.LastStep(), kSteps);
  // Without run.resume the folder is refused because it belongs to another run, and it is not changed.
  auto refused = run.LaunchDaemon("trainer");
  ASSERT_THAT(refused, IsOk());
  ASSERT_THAT((*refused)->WaitExit(kPatience), IsOk());
  EXPECT_EQ((*refused)->WaitExit(kPatience)->code, 2);  // a second start would be refused, too
  EXPECT_THAT((*refused)->Log(), HasSubstr("run.resume=true"));

  Start(run, "trainer", 0, {"run.resume=true"});
  ExpectExit("trainer-0", 0);
  auto twin = TwinDigests(run.config(), run.overrides(), kSteps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run.Digests(), *twin);
  EXPECT_EQ(run.Records("step").back()["epoch"], 2);
  EXPECT_EQ(run.Summary()["status"], "completed");
}

TEST_F(ByHandTest, RolloutersLeaveAndJoinWhileTheRunGoesOn) {
  RunHarness run({"run.steps=1000000", "eval.every_steps=0"});
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) Start(run, role);
  ASSERT_THAT(run.AwaitStep(3), IsOk());
  // A rollouter that joins late gets the current version and work.
  Start(run, "rollouter", 5);
  auto late = run.Endpoint("rollouter", 5);
  ASSERT_THAT(late, IsOk());
  auto works = [&] {
    auto status = Call<v1::RolloutService>(late->grpc, &v1::RolloutService::Stub::GetStatus, {});
    return status.ok() && status->groups_submitted() > 0;
  };
  EXPECT_TRUE(Eventually(kPatience, works));
  // The first rollouter leaves in order: nothing is lost, and the other one carries on.
  TerminateAndExpectGoodEnd("rollouter-0");
  auto synchronizer = run.Endpoint("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto members = Call<v1::SynchronizerService>(synchronizer->grpc, &v1::SynchronizerService::Stub::ListMembers, {});
  ASSERT_THAT(members, IsOk());
  for (const v1::MemberStatus& member : members->members()) {
    const bool gone = member.member().replica_id() == "rollouter-0";
    EXPECT_EQ(member.state(), gone ? v1::MEMBER_STATE_LEFT : v1::MEMBER_STATE_ALIVE) << member.ShortDebugString();
  }
  EXPECT_THAT(run.AwaitStep(run.LastStep() + 10), IsOk());
  daemons_["trainer-0"]->Terminate();
  ExpectExit("trainer-0", 0);
  EXPECT_EQ(run.Summary()["staleness"]["violations"], 0);
  EXPECT_EQ(run.Summary()["groups"]["duplicate"], 0);
}

TEST_F(ByHandTest, AnEvictedRollouterEndsAndStaysOut) {
  RunHarness run({"run.steps=1000000", "eval.every_steps=0"});
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) Start(run, role);
  Start(run, "rollouter", 1);
  ASSERT_THAT(run.AwaitStep(3), IsOk());
  auto evicted = run.Ctl({"evict", "rollouter-1", "--reason", "a test"});
  ASSERT_THAT(evicted, IsOk());
  EXPECT_EQ(evicted->code, 0) << evicted->output;
  ExpectExit("rollouter-1", 1);
  EXPECT_THAT(daemons_["rollouter-1"]->Log(), HasSubstr("EVICTED"));
  EXPECT_THAT(run.AwaitStep(run.LastStep() + 5), IsOk());
  auto members = run.Ctl({"members"});
  ASSERT_THAT(members, IsOk());
  EXPECT_THAT(members->output, AllOf(HasSubstr("dead"), HasSubstr("a test")));
  // ctl finds daemons that were started by hand.
  auto status = run.Ctl({"explain", "--json"});
  ASSERT_THAT(status, IsOk());
  EXPECT_THAT(JsonLines(status->output), SizeIs(1));
}

}  // namespace
}  // namespace syncopate::testing::by_hand_test
