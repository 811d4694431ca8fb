#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tests/unit/trainer/data/group_ledger_fixture.h"

// The ledger leases a group to a second rollouter when a batch waits for a rollouter that is late.
namespace syncopate::trainer {
namespace {

using Result = GroupLedger::Result;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A batch is one group that takes 0.2 s; rollouter "slow" holds group 1, which is `late` when the test begins.
class SecondAttemptTest : public GroupLedgerTest {
 protected:
  void StartLate(int64_t max_staleness, double target, int32_t max_failures = 2) {
    GroupLedger::Options options = SmallLedger(1, max_staleness, target);
    options.max_failures = max_failures;
    options.lease_limits = {.stall = absl::Seconds(30), .timeout = absl::Seconds(100)};
    Start(options);
    quick_ = Join("quick", 1);
    const Lease first = Leases().at(0);
    now_ += absl::Milliseconds(200);
    Finish(quick_, first);
    Step();
    slow_ = Join("slow", 1, {1, 1});
    late_ = Leases().at(0);
    ledger_->OnServing(quick_, {1, 1});
  }

  void PassPatience() { now_ += absl::Milliseconds(2001); }

  IssuedLease Second() {
    std::vector<IssuedLease> issued = ledger_->NextLeases(now_);
    SYNCOPATE_CHECK(issued.size() == 1 && issued[0].second);
    return issued[0];
  }

  SessionId quick_ = 0, slow_ = 0;
  Lease late_;
};

TEST_F(SecondAttemptTest, ALateGroupIsAskedOfAnotherAndTheFirstAnswerCounts) {
  StartLate(0, 0);
  ledger_->OnCredits(quick_, 1);
  now_ += absl::Seconds(2);
  EXPECT_THAT(Leases(), IsEmpty()) << "ten times 0.2 s, and not late yet";
  now_ += absl::Milliseconds(1);
  const IssuedLease second = Second();
  EXPECT_EQ(second.session, quick_);
  EXPECT_EQ(second.lease.id, (LeaseId{late_.id.group, 2}));
  EXPECT_EQ(second.lease.seed, late_.seed);
  EXPECT_EQ(second.lease.prompt_ids, late_.prompt_ids);
  EXPECT_EQ(ledger_->gate().outstanding(), 1) << "the gate knows one group";
  ledger_->OnCredits(quick_, 1);
  Join("third", 1, {1, 1});
  EXPECT_THAT(Leases(), IsEmpty()) << "one second attempt, and no more";
  EXPECT_THAT(ledger_->Explain(now_).detail, HasSubstr("by slow for 2.0 s, asked of quick too"));

  const GroupLedger::Verdict verdict = ledger_->Submit(quick_, Share(AnswerTo(second.lease)), now_);
  ASSERT_EQ(verdict.result, Result::kAccepted);
  ASSERT_TRUE(verdict.superseded.has_value());
  EXPECT_EQ(verdict.superseded->session, slow_);
  EXPECT_EQ(verdict.superseded->lease, late_.id);
  EXPECT_STREQ(RevokeReasonName(verdict.superseded->reason), "SUPERSEDED");
  EXPECT_EQ(ledger_->Submit(slow_, Share(AnswerTo(late_)), now_).result, Result::kExpired);
  EXPECT_FALSE(ledger_->Return(slow_, late_.id, absl::AbortedError("revoked")).has_value())
      << "the return does not count against the rollouter";
  ledger_->OnLogged(second.lease.id, ++sequence_);
  EXPECT_EQ(ledger_->Submit(quick_, Share(AnswerTo(second.lease)), now_).result, Result::kAlreadyAccepted);
  EXPECT_EQ(ledger_->counters().superseded, 1);
  EXPECT_EQ(ledger_->counters().failed_attempts, 0);
  EXPECT_EQ(ledger_->counters().reissued, 0);
  Step();
  EXPECT_EQ(ledger_->counters().trained, 2);
}

TEST_F(SecondAttemptTest, TheFirstAttemptMayStillBeTheFirstToAnswer) {
  StartLate(0, 0);
  ledger_->OnCredits(quick_, 1);
  PassPatience();
  const IssuedLease second = Second();
  const GroupLedger::Verdict verdict = ledger_->Submit(slow_, Share(AnswerTo(late_)), now_);
  ASSERT_EQ(verdict.result, Result::kAccepted);
  EXPECT_EQ(verdict.superseded->session, quick_);
  EXPECT_EQ(verdict.superseded->lease, second.lease.id);
  ledger_->OnLogged(late_.id, ++sequence_);
  Step();
}

TEST_F(SecondAttemptTest, ItStaysAdmittedForTheFirstAttemptsVersion) {
  StartLate(4, 1);
  ledger_->OnCredits(quick_, 1);
  const Lease other = Leases().at(0);
  Finish(quick_, other);
  Step();
  ASSERT_EQ(ledger_->version(), (PolicyVersion{1, 2}));
  ledger_->OnServing(quick_, {1, 2});
  const int64_t deadline = ledger_->gate().GetDeadline(late_.id.group);
  PassPatience();
  ledger_->OnCredits(quick_, 1);
  const IssuedLease second = Second();
  EXPECT_EQ(second.lease.version, (PolicyVersion{1, 1}));
  EXPECT_EQ(ledger_->gate().GetDeadline(late_.id.group), deadline);
  TrajectoryGroup older = AnswerTo(second.lease, {1, 0});
  EXPECT_EQ(ErrorReason(CheckSubmission(older, second.lease, late_.version, ledger_->rules())), "VERSION_BEFORE_LEASE");
  const GroupLedger::Verdict verdict = ledger_->Submit(quick_, Share(AnswerTo(second.lease, {1, 2})), now_);
  ASSERT_EQ(verdict.result, Result::kAccepted);
  EXPECT_EQ(std::get<AcceptedRecord>(*verdict.record).admitted, (PolicyVersion{1, 1}));
}

TEST_F(SecondAttemptTest, ThereIsNoneWhileTheTrainerNeedsNone) {
  StartLate(4, 1);
  ledger_->OnCredits(quick_, 1);
  const Lease other = Leases().at(0);
  PassPatience();
  Finish(quick_, other);
  ledger_->OnCredits(quick_, 1);
  ASSERT_TRUE(ledger_->HasBatch());
  for (const IssuedLease& one : ledger_->NextLeases(now_)) EXPECT_FALSE(one.second) << "a batch may be taken";
  ASSERT_TRUE(ledger_->TakeBatch().has_value());
  ledger_->OnTakeLogged(0);
  ledger_->OnCredits(quick_, 4);
  for (const IssuedLease& one : ledger_->NextLeases(now_)) EXPECT_FALSE(one.second) << "a step runs";
}

TEST_F(SecondAttemptTest, ItGoesToNoRollouterWithOlderWeightsOrWithoutRoomOrWithTheFirst) {
  StartLate(4, 0);
  PassPatience();
  EXPECT_THAT(Leases(), IsEmpty()) << "without room";
  ledger_->OnCredits(slow_, 1);
  EXPECT_THAT(Leases(), IsEmpty()) << "has the first attempt";
  ledger_->OnServing(quick_, {1, 0});
  ledger_->OnCredits(quick_, 1);
  EXPECT_THAT(Leases(), IsEmpty()) << "serves weights from before the admission";
  ledger_->OnServing(quick_, {1, 1});
  EXPECT_EQ(Second().session, quick_);
}

TEST_F(SecondAttemptTest, ThePromptGoesBackOnlyWhenNeitherAttemptLives) {
  const auto disconnect = [this](SessionId session, const LeaseId&) { ledger_->Disconnect(session); };
  const auto drain = [this](SessionId session, const LeaseId& lease) {
    EXPECT_TRUE(ledger_->Return(session, lease, absl::CancelledError("drained")).has_value());
  };
  const auto fail = [this](SessionId session, const LeaseId& lease) {
    EXPECT_TRUE(ledger_->Return(session, lease, absl::InternalError("no")).has_value());
  };
  const std::vector<std::function<void(SessionId, LeaseId)>> ends = {disconnect, drain, fail};
  for (const bool second_first : {false, true}) {
    for (const auto& end : ends) {
      StartLate(0, 0, /*max_failures=*/3);
      ledger_->OnCredits(quick_, 1);
      PassPatience();
      const LeaseId second = Second().lease.id;
      second_first ? end(quick_, second) : end(slow_, late_.id);
      EXPECT_EQ(ledger_->leased_groups(), 1);
      EXPECT_TRUE(ledger_->gate().IsOutstanding(late_.id.group));
      EXPECT_THAT(Leases(), IsEmpty());
      second_first ? end(slow_, late_.id) : end(quick_, second);
      EXPECT_EQ(ledger_->leased_groups(), 0);
      Join("other", 1, {1, 1});
      const std::vector<IssuedLease> again = ledger_->NextLeases(now_);
      ASSERT_THAT(again, SizeIs(1));
      EXPECT_FALSE(again[0].second);
      EXPECT_EQ(again[0].lease.id, (LeaseId{late_.id.group, 3}));
    }
  }
}

TEST_F(SecondAttemptTest, AGroupThatBothFailAtIsGivenUpWithTheLastOfThem) {
  StartLate(0, 0);  // two failures are enough
  ledger_->OnCredits(quick_, 1);
  PassPatience();
  const Lease second = Second().lease;
  TrajectoryGroup bad = AnswerTo(second);
  bad.samples[0].logprobs[0] = 1;
  EXPECT_EQ(ledger_->Submit(quick_, Share(bad), now_).result, Result::kInvalid);
  EXPECT_THAT(ledger_->UnloggedDrops(), IsEmpty());
  EXPECT_TRUE(ledger_->Return(slow_, late_.id, absl::InternalError("no")).has_value());
  EXPECT_THAT(ledger_->UnloggedDrops(), SizeIs(1));
}

TEST_F(SecondAttemptTest, OneThatStallsIsRevokedAndTheOtherGoesOn) {
  StartLate(0, 0);
  ledger_->OnCredits(quick_, 1);
  PassPatience();
  const Lease second = Second().lease;
  now_ += absl::Seconds(28);
  const std::vector<Revocation> revoked = ledger_->ExpireLeases(now_);
  ASSERT_THAT(revoked, SizeIs(1));
  EXPECT_EQ(revoked[0].session, slow_);
  EXPECT_EQ(ledger_->leased_groups(), 1);
  Finish(quick_, second);
  Step();
}

TEST_F(SecondAttemptTest, AnAnswerThatTheLogRefusesPutsThePromptBack) {
  StartLate(0, 0);
  ledger_->OnCredits(quick_, 1);
  PassPatience();
  const Lease second = Second().lease;
  ASSERT_EQ(ledger_->Submit(quick_, Share(AnswerTo(second)), now_).result, Result::kAccepted);
  ledger_->OnLogFailed(second.id);
  EXPECT_EQ(ledger_->leased_groups(), 0);
  ledger_->OnCredits(quick_, 1);
  const std::vector<Lease> again = Leases();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].id, (LeaseId{late_.id.group, 3}));
}

}  // namespace
}  // namespace syncopate::trainer
