// Live rollouters that make no progress: a paused one, and one that takes prompts and never answers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/uuid.h"
#include "services/wire/codec.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "tests/component/trajectory/fake_rollouter.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::lease_stall_test {
namespace {

using trainerd::FakeRollouter;
using v1::RolloutService;

constexpr absl::Duration kStall = absl::Milliseconds(500);
// A slow rollouter's next trial comes ten times the late limit later, and other tests run on this machine too.
constexpr absl::Duration kSlack = absl::Seconds(20);

class LeaseStallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [role, index] :
         {std::pair<std::string, int64_t>{"synchronizer", 0}, {"trainer", 0}, {"rollouter", 0}, {"rollouter", 1}}) {
      auto daemon = run_.StartDaemon(role, index);
      ASSERT_THAT(daemon, IsOk());
      daemons_.push_back(*std::move(daemon));
    }
    ASSERT_THAT(watch_.AwaitWork(0), IsOk());
    ASSERT_THAT(watch_.AwaitWork(1), IsOk());
  }

  void EndInOrder() {
    ASSERT_THAT(watch_.Stop(), IsOk());
    auto exit = daemons_[1]->WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 0) << daemons_[1]->Log();
    EXPECT_THAT(Judge(run_), IsClean());
  }

  template <typename Request, typename Response>
  void Ask(grpc::Status (RolloutService::Stub::*method)(grpc::ClientContext*, const Request&, Response*)) {
    EXPECT_THAT(Call<RolloutService>(run_.Endpoint("rollouter", 1)->grpc, method, Request()).status(), IsOk());
  }

  int64_t Count(const std::string& what) const {
    auto status = watch_.Trainer();
    return status.ok() ? status->groups().at(what) : -1;
  }
  int64_t Stalled() const { return Count("stalled"); }

  RunHarness run_{EndlessRun({"data.lease_stall=500ms", "sync.heartbeat=100ms"})};
  RunWatch watch_{&run_};
  std::vector<std::unique_ptr<Process>> daemons_;
};

TEST_F(LeaseStallTest, APausedRolloutersGroupsGoToTheOtherAndAfterwardsItWorksAgain) {
  std::optional<Stopwatch> since_pause;
  ASSERT_TRUE(Eventually(kPatience, [&] {
    since_pause.emplace();
    Ask(&RolloutService::Stub::Pause);
    auto view = watch_.Stream(1);
    // Answers that are whole are submitted in a pause, too, so only unfinished ones keep their lease.
    const auto engine = Call<RolloutService>(run_.Endpoint("rollouter", 1)->grpc, &RolloutService::Stub::GetStatus,
                                             v1::RolloutServiceGetStatusRequest());
    const bool is_unfinished = engine.ok() && engine->running_sequences() > 0;
    if (is_unfinished && view.ok() && view->leased_groups() > 0) return true;
    Ask(&RolloutService::Stub::Resume);  // the rollouter may have finished its leases before the pause
    return false;
  }));
  EXPECT_TRUE(Eventually(kPatience, [&] {
    auto view = watch_.Stream(1);
    return view.ok() && view->leased_groups() == 0 && view->credits() == 0;
  }));
  Report("the groups of a paused rollouter are with the other after", since_pause->Elapsed());
  EXPECT_GE(since_pause->Elapsed(), kStall);
  EXPECT_LE(since_pause->Elapsed(), kStall + kSlack);
  // In its first five seconds a trainer takes back no stalled lease: the second attempt at a late group is answered
  // first.
  EXPECT_GT(Stalled() + Count("superseded"), 0);
  ASSERT_THAT(watch_.AwaitMoreSteps(10), IsOk());
  EXPECT_EQ(watch_.Stream(1)->leased_groups(), 0);

  const int64_t accepted = watch_.Stream(1)->accepted_groups();
  Ask(&RolloutService::Stub::Resume);
  EXPECT_TRUE(Eventually(kPatience, [&] { return watch_.Stream(1)->accepted_groups() > accepted; }));
  ASSERT_NO_FATAL_FAILURE(EndInOrder());
}

TEST_F(LeaseStallTest, OneThatHeartbeatsAndNeverAnswersHoldsTheRunUpOnceAndGetsNoMore) {
  FakeRollouter stuck(run_.Endpoint("trainer")->grpc);
  stuck.Hello({"rollouter", "rollouter-66", 0, 1, RandomUuid()}, watch_.Synchronizer()->run_id());
  ASSERT_THAT(stuck.WaitForWelcome(), IsOk());
  auto lives = [&] { stuck.Credits(4, wire::FromProto(watch_.Trainer()->version())); };
  ASSERT_TRUE(Eventually(kPatience, [&] {
    lives();
    return stuck.leases() > 0;
  }));
  Stopwatch since_lease;
  ASSERT_TRUE(Eventually(kPatience, [&] {
    lives();
    return Stalled() > 0;
  }));
  Report("what it holds is leased to others after", since_lease.Elapsed());
  EXPECT_LE(since_lease.Elapsed(), kStall + kSlack);
  EXPECT_TRUE(Eventually(kPatience, [&] {  // the leases from the second before
    lives();
    return watch_.Stream(66)->leased_groups() == 0;
  }));
  const size_t got = stuck.leases();
  const int64_t step = watch_.Step();
  EXPECT_TRUE(Eventually(kPatience, [&] {
    lives();
    return watch_.Step() >= step + 20;
  }));
  EXPECT_EQ(stuck.leases(), got);
  EXPECT_GT(watch_.Stream(66)->stalled_groups(), 0);
  auto explained = run_.Ctl({"explain"});
  ASSERT_THAT(explained, IsOk());
  EXPECT_THAT(explained->output, ::testing::HasSubstr("rollouter-66 gets no prompts: "));
  stuck.Break();
  ASSERT_NO_FATAL_FAILURE(EndInOrder());
}

}  // namespace
}  // namespace syncopate::testing::lease_stall_test
