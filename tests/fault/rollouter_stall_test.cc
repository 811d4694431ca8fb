// A rollouter that is stopped in the middle of a transfer, and continued.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/wire/codec.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::rollouter_stall_test {
namespace {

constexpr absl::Duration kSyncDeadline = absl::Seconds(10);  // the default of sync.deadline
constexpr absl::Duration kDeadAfter = absl::Seconds(5);      // the default of sync.dead_after
constexpr absl::Duration kSlack = absl::Seconds(3);          // other tests run on this machine too
constexpr absl::Duration kRejoinsWithin = absl::Seconds(10);
constexpr int64_t kStalled = 1;
constexpr int64_t kOther = 0;

// A vocabulary that makes weights of 48 MB, few of which a step uses: transfers take long, steps do not.
std::vector<std::string> RunOfLongTransfers() {
  return EndlessRun({"model.vocab_size=48000", "model.hidden_size=128", "model.num_hidden_layers=1",
                     "model.head_dim=32", "data.batch_groups=2", "rollout.samples=2", "checkpoint.every_steps=0"});
}

RunRules Rules() {
  RunRules rules = RulesOfEndlessRun();
  rules.batch_groups = rules.samples = 2;
  return rules;
}

class RollouterStallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [role, index] : {std::pair<std::string, int64_t>{"synchronizer", 0}, {"trainer", 0}}) {
      auto daemon = run_.StartDaemon(role, index);
      ASSERT_THAT(daemon, IsOk());
      (role == "trainer" ? trainer_ : synchronizer_) = *std::move(daemon);
    }
    for (int64_t index : {kOther, kStalled}) {
      auto daemon = run_.StartDaemon("rollouter", index);
      ASSERT_THAT(daemon, IsOk());
      (index == kStalled ? stalled_ : other_) = *std::move(daemon);
    }
    ASSERT_THAT(watch_.AwaitWork(kOther), IsOk());
    ASSERT_THAT(watch_.AwaitWork(kStalled), IsOk());
  }

  PolicyVersion Newest() const {
    auto status = watch_.Synchronizer();
    return status.ok() ? wire::FromProto(status->newest()) : PolicyVersion{};
  }
  PolicyVersion Served(int64_t rollouter) const {
    auto member = watch_.Member(rollouter);
    return member.ok() ? wire::FromProto(member->serving()) : PolicyVersion{};
  }

  // Stops the process while a sync to it is in progress; the process stays stopped.
  void StopInTheMiddleOfASync() {
    ASSERT_TRUE(Eventually(kPatience, [&] {
      auto member = watch_.Member(kStalled);
      if (!member.ok() || member->attempt() == 0) return false;
      stalled_->Stop();
      auto after = watch_.Member(kStalled);
      if (after.ok() && after->attempt() == member->attempt()) return true;
      stalled_->Continue();  // the sync had just ended
      return false;
    }));
  }

  RunHarness run_{RunOfLongTransfers()};
  RunWatch watch_{&run_};
  std::unique_ptr<Process> synchronizer_, trainer_, other_, stalled_;
};

TEST_F(RollouterStallTest, TheOtherGetsEachVersionAndTheStalledOneRejoinsByItself) {
  ASSERT_NO_FATAL_FAILURE(StopInTheMiddleOfASync());
  Stopwatch since_stop;
  auto lost = watch_.Stream(kStalled);
  ASSERT_THAT(lost, IsOk());
  const PolicyVersion newest = Newest();
  EXPECT_TRUE(Eventually(kSyncDeadline, [&] { return Served(kOther) >= newest; }));
  Report("the other rollouter has the version after", since_stop.Elapsed());
  EXPECT_LE(since_stop.Elapsed(), kSyncDeadline);

  // Other rollouters get the stalled rollouter's leases within a second after it was declared dead.
  EXPECT_TRUE(Eventually(kPatience, [&] { return absl::IsNotFound(watch_.Stream(kStalled).status()); }));
  Report("leases of the stalled rollouter are issued again after", since_stop.Elapsed());
  EXPECT_LE(since_stop.Elapsed(), kDeadAfter + absl::Seconds(1) + kSlack);
  ASSERT_THAT(watch_.AwaitMoreSteps(10), IsOk());
  EXPECT_EQ(watch_.Member(kStalled)->state(), v1::MEMBER_STATE_DEAD);
  const PolicyVersion missed = Newest();
  EXPECT_LT(Served(kStalled), missed);

  stalled_->Continue();
  Stopwatch since_continue;
  EXPECT_TRUE(Eventually(kPatience, [&] { return Served(kStalled) >= missed; }));
  Report("the stalled rollouter serves a current version after its return", since_continue.Elapsed());
  EXPECT_LE(since_continue.Elapsed(), kRejoinsWithin);
  auto back = watch_.AwaitWork(kStalled);
  ASSERT_THAT(back, IsOk());
  Report("and had a group accepted after", since_continue.Elapsed());
  EXPECT_EQ(*back, lost->incarnation());
  EXPECT_TRUE(stalled_->Running());

  ASSERT_THAT(watch_.Stop(), IsOk());
  auto exit = trainer_->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << trainer_->Log();
  EXPECT_THAT(Judge(run_, Rules()), IsClean());
}

}  // namespace
}  // namespace syncopate::testing::rollouter_stall_test
