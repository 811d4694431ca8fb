#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "tests/unit/trainer/data/group_ledger_fixture.h"

// The ledger's behaviour while it waits: for prompts that are not read yet, for rollouters that make no progress or
// fail at everything.
namespace syncopate::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The prompts of a task, of which some are still being read and some are bad rows.
class SlowPrompts final : public PromptSource {
 public:
  explicit SlowPrompts(std::map<int64_t, Readiness>* states) : states_(states) {}
  Readiness CheckReadiness(const GroupId& group) const override {
    auto found = states_->find(group.ordinal);
    return found == states_->end() ? Readiness::kReady : found->second;
  }
  Prompt At(const GroupId& group) const override { return task_->At(group); }
  std::string Render(const std::vector<int32_t>& ids) const override { return task_->Render(ids); }
  int64_t prompts_per_pass() const override { return 4; }
  int32_t vocab_size() const override { return task_->vocab_size(); }
  std::vector<int32_t> stop_token_ids() const override { return task_->stop_token_ids(); }
  int64_t max_prompt_tokens() const override { return task_->max_prompt_tokens(); }
  int64_t max_answer_tokens() const override { return task_->max_answer_tokens(); }

 private:
  const std::unique_ptr<PromptSource> task_ = *MakeTask({});
  std::map<int64_t, Readiness>* const states_;
};

class SlowPromptsTest : public GroupLedgerTest {
 protected:
  void StartSlow(const GroupLedger::Options& options) {
    Start(options);
    prompts_ = std::make_unique<SlowPrompts>(&states_);
    auto queue = PromptQueue(GroupLedger::QueueOptions(options, *prompts_));
    ledger_ =
        std::make_unique<GroupLedger>(options, prompts_.get(), PolicyVersion{1, 0}, RestoredData{.queue = queue}, now_);
    ledger_->OnPublished({1, 0});
  }
  std::map<int64_t, PromptSource::Readiness> states_;
};

TEST_F(SlowPromptsTest, APromptThatIsBeingReadHoldsTheOthersBackUntilItIsThere) {
  states_[1] = PromptSource::Readiness::kComing;
  StartSlow(SmallLedger(2, 4, 1));
  Join("r0", 3);
  EXPECT_THAT(Ordinals(Leases()), ElementsAre(0));
  EXPECT_THAT(Leases(), IsEmpty());
  states_.clear();
  EXPECT_THAT(Ordinals(Leases()), ElementsAre(1, 2));
}

TEST_F(SlowPromptsTest, SaysThatItWaitsForPrompts) {
  states_[0] = PromptSource::Readiness::kComing;
  StartSlow(SmallLedger(2, 4, 1));
  Join("r0", 3);
  EXPECT_THAT(Leases(), IsEmpty());
  EXPECT_EQ(ledger_->Explain(now_).waiting_for, "prompts");
}

TEST_F(SlowPromptsTest, ARowThatIsNoPromptIsDroppedInItsTurnAndTakesNobodysRoom) {
  states_[0] = states_[2] = PromptSource::Readiness::kUnusable;
  StartSlow(SmallLedger(2, 4, 1));
  const SessionId session = Join("r0", 2);
  const std::vector<Lease> leases = Leases();
  EXPECT_THAT(Ordinals(leases), ElementsAre(1, 3));
  const std::vector<DropRecord> drops = ledger_->UnloggedDrops();
  ASSERT_THAT(drops, SizeIs(2));
  EXPECT_EQ(drops[0].lease, Id(0));
  EXPECT_EQ(drops[1].lease, Id(2));
  EXPECT_EQ(drops[1].reason, DropReason::kSkipped);
  EXPECT_EQ(ledger_->counters().skipped, 2);
  for (const Lease& lease : leases) Finish(session, lease);
  Step();
  EXPECT_EQ(ledger_->Snapshot().consumed_below, (GroupId{1, 0}));  // the whole pass is consumed
}

class StallTest : public GroupLedgerTest {
 protected:
  void StartWith(int64_t batch) {
    GroupLedger::Options options = SmallLedger(batch, 4, 0);
    options.lease_limits = {.stall = absl::Seconds(30), .timeout = absl::Seconds(100)};
    Start(options);
  }
};

TEST_F(StallTest, ALeaseThatComesNoFurtherIsRevokedAndLeasedToAnother) {
  StartWith(1);
  SessionId a = Join("a", 1);
  Lease lease = Leases().at(0);
  SessionId b = Join("b", 1);
  now_ += absl::Seconds(29);
  EXPECT_THAT(ledger_->ExpireLeases(now_), IsEmpty());
  now_ += absl::Seconds(1);
  std::vector<Revocation> revoked = ledger_->ExpireLeases(now_);
  ASSERT_THAT(revoked, SizeIs(1));
  EXPECT_EQ(revoked[0].session, a);
  EXPECT_EQ(revoked[0].lease, lease.id);
  EXPECT_EQ(revoked[0].reason, RevokeReason::kStalled);
  std::vector<IssuedLease> again = ledger_->NextLeases(now_);
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].session, b);
  EXPECT_EQ(again[0].lease.id, (LeaseId{lease.id.group, 2}));
  EXPECT_EQ(ledger_->Submit(a, Share(AnswerTo(lease)), now_).result, Result::kExpired);
  EXPECT_EQ(ledger_->counters().stalled, 1);
  EXPECT_EQ(ledger_->counters().reissued, 1);
}

// Rollouter and trainer take turns on one device.
TEST_F(StallTest, TheClocksOfALeaseStandStillWhileItsRollouterIsAway) {
  StartWith(1);
  SessionId a = Join("a", 1);
  Lease lease = Leases().at(0);
  now_ += absl::Seconds(20);
  ledger_->OnAway(a, true, now_);
  now_ += absl::Minutes(10);
  EXPECT_THAT(ledger_->ExpireLeases(now_), IsEmpty());
  ledger_->OnAway(a, true, now_);  // changes nothing
  ledger_->OnAway(a, false, now_);
  now_ += absl::Seconds(9);
  EXPECT_THAT(ledger_->ExpireLeases(now_), IsEmpty());
  now_ += absl::Seconds(1);
  std::vector<Revocation> revoked = ledger_->ExpireLeases(now_);
  ASSERT_THAT(revoked, SizeIs(1));
  EXPECT_EQ(revoked[0].reason, RevokeReason::kStalled);
}

TEST_F(StallTest, ALeaseIsTooOldByTheTimeThatItsRollouterWasThere) {
  StartWith(1);
  SessionId a = Join("a", 1);
  Lease lease = Leases().at(0);
  for (int i = 0; i < 9; ++i) {
    now_ += absl::Seconds(11);
    ledger_->OnProgress(a, lease.id, now_);
    ledger_->OnAway(a, true, now_);
    now_ += absl::Minutes(3);
    ledger_->OnAway(a, false, now_);
    EXPECT_THAT(ledger_->ExpireLeases(now_), IsEmpty());
  }
  now_ += absl::Seconds(1);
  std::vector<Revocation> revoked = ledger_->ExpireLeases(now_);
  ASSERT_THAT(revoked, SizeIs(1));
  EXPECT_EQ(revoked[0].reason, RevokeReason::kTimeout);
}

TEST_F(StallTest, ALeaseThatComesFurtherIsKeptUntilItIsTooOld) {
  StartWith(1);
  SessionId a = Join("a", 1), other = Join("other", 0);
  Lease lease = Leases().at(0);
  for (int i = 0; i < 9; ++i) {
    now_ += absl::Seconds(11);
    ledger_->OnProgress(a, lease.id, now_);
    EXPECT_THAT(ledger_->ExpireLeases(now_), IsEmpty());
  }
  now_ += absl::Seconds(1);
  std::vector<Revocation> revoked = ledger_->ExpireLeases(now_);
  ASSERT_THAT(revoked, SizeIs(1));
  EXPECT_EQ(revoked[0].reason, RevokeReason::kTimeout);
  EXPECT_FALSE(ledger_->sessions().Find(a)->IsStalled()) << "the rollouter is slow, not stuck";
  EXPECT_EQ(ledger_->counters().timed_out, 1);

  ledger_->OnCredits(a, 1);
  lease = Leases().at(0);
  now_ += absl::Seconds(30);
  ledger_->OnProgress(other, lease.id, now_);
  EXPECT_THAT(ledger_->ExpireLeases(now_), SizeIs(1)) << "a report by another session does not count";
}

TEST_F(StallTest, ARollouterThatStalledGetsNothingUntilALeaseOfItProgresses) {
  StartWith(2);
  SessionId a = Join("a", 1);
  const Lease first = Leases().at(0);
  now_ += absl::Seconds(20);
  ledger_->OnCredits(a, 1);
  const Lease second = Leases().at(0);
  now_ += absl::Seconds(10);
  ASSERT_THAT(ledger_->ExpireLeases(now_), SizeIs(1));
  ledger_->OnCredits(a, 8);
  EXPECT_THAT(Leases(), IsEmpty());
  const Explanation explanation = ledger_->Explain(now_);
  EXPECT_THAT(explanation.detail, HasSubstr("by a for 10.0 s, no further for 10.0 s"));
  ledger_->OnProgress(a, first.id, now_);
  EXPECT_THAT(Leases(), IsEmpty()) << "the session no longer holds that lease";
  ledger_->OnProgress(a, second.id, now_);
  EXPECT_THAT(Ordinals(Leases()), ElementsAre(0));
}

TEST_F(StallTest, AStalledRollouterGetsLeasesAgainWhenItLetsGoOfAllThatStalled) {
  StartWith(2);
  SessionId a = Join("a", 2);
  std::vector<Lease> leases = Leases();
  ASSERT_THAT(leases, SizeIs(2));
  now_ += absl::Seconds(30);
  ASSERT_THAT(ledger_->ExpireLeases(now_), SizeIs(2));
  ledger_->OnCredits(a, 2);
  EXPECT_EQ(ledger_->Explain(now_).waiting_for, "rollouters");
  EXPECT_THAT(ledger_->Explain(now_).detail, HasSubstr("1 have stalled"));
  EXPECT_FALSE(ledger_->Return(a, leases[0].id, absl::AbortedError("its generation has ended"))) << "not held";
  EXPECT_THAT(Leases(), IsEmpty());
  EXPECT_EQ(ledger_->Submit(a, Share(AnswerTo(leases[1])), now_).result, Result::kExpired);
  EXPECT_THAT(Leases(), SizeIs(2));
}

TEST_F(StallTest, ANewStreamOfOneThatStalledStartsAfresh) {
  StartWith(1);
  Join("a", 1);
  Leases();
  now_ += absl::Seconds(30);
  ASSERT_THAT(ledger_->ExpireLeases(now_), SizeIs(1));
  Join("a", 1);
  EXPECT_THAT(Leases(), SizeIs(1));
}

TEST_F(GroupLedgerTest, AQuarantinedRollouterGetsNoLeasesAndTheOthersDo) {
  Start(SmallLedger(2, 4, 1));
  const SessionId bad = Join("bad", 8);
  const absl::Status fault = Error(absl::StatusCode::kInvalidArgument, "BAD_LOGPROB", "nan");
  for (int64_t i = 0; i < RolloutSessions::kInvalidInRow; ++i) ledger_->sessions().OnAnswer(bad, fault, now_);
  EXPECT_THAT(Leases(), IsEmpty());
  const Explanation explanation = ledger_->Explain(now_);
  EXPECT_EQ(explanation.waiting_for, "rollouters");
  EXPECT_NE(explanation.detail.find("1 are quarantined"), std::string::npos) << explanation.detail;
  const SessionId good = Join("good", 1);
  std::vector<IssuedLease> issued = ledger_->NextLeases(now_);
  ASSERT_EQ(issued.size(), 1u);
  EXPECT_EQ(issued[0].session, good);
  now_ += RolloutSessions::kQuarantine;
  issued = ledger_->NextLeases(now_);
  ASSERT_FALSE(issued.empty());
  EXPECT_EQ(issued[0].session, bad);
}

// A batch is two groups. Of the four groups that were admitted at step 0, the last still runs when the trainer is at
// step 1.
class DeadlineTest : public GroupLedgerTest {
 protected:
  void StartBlocked(OnDeadline on_deadline) {
    GroupLedger::Options options = SmallLedger(2, 1, 1);
    options.gate.on_deadline = on_deadline;
    Start(options);
    session_ = Join("one", 8);
    leases_ = Leases();  // admitted for step 0, so due at step 1
    ASSERT_EQ(leases_.size(), 4u);
    Finish(session_, leases_[0]);
    Finish(session_, leases_[1]);
    Step();
    ledger_->OnServing(session_, ledger_->version());
    const std::vector<Lease> newer = Leases();
    ASSERT_EQ(newer.size(), 2u);
    now_ += absl::Seconds(3);
    Finish(session_, leases_[2]);
    EXPECT_THAT(ledger_->DropPastDeadline(now_), ::testing::IsEmpty()) << "no full batch is there";
    Finish(session_, newer[0]);
  }

  SessionId session_ = 0;
  std::vector<Lease> leases_;
};

TEST_F(DeadlineTest, StallWaitsForTheGroupThatIsDue) {
  StartBlocked(OnDeadline::kStall);
  EXPECT_THAT(ledger_->DropPastDeadline(now_), ::testing::IsEmpty());
  EXPECT_FALSE(ledger_->HasBatch());
  Finish(session_, leases_[3]);
  EXPECT_TRUE(ledger_->HasBatch());
}

// The group that still runs was admitted at step 0 and is taken at step 2, where the bound is 1.
TEST_F(DeadlineTest, MaskTakesTheBatchAndKnowsTheVersionsOfTheGroupThatRunsOn) {
  StartBlocked(OnDeadline::kMask);
  EXPECT_THAT(ledger_->DropPastDeadline(now_), ::testing::IsEmpty());
  EXPECT_TRUE(ledger_->HasBatch());
  Step();
  ledger_->OnServing(session_, ledger_->version());
  std::vector<Lease> newer = Leases();
  ASSERT_FALSE(newer.empty());
  TrajectoryGroup late = AnswerTo(leases_[3]);
  for (Trajectory& sample : late.samples) {
    ASSERT_EQ(sample.tokens.size(), 2u);
    sample.spans = {{{1, 0}, 0, 1}, {{1, 1}, 1, 2}};
  }
  ASSERT_EQ(ledger_->Submit(session_, Share(late), now_).result, GroupLedger::Result::kAccepted);
  ledger_->OnLogged(leases_[3].id, ++sequence_);
  Finish(session_, newer[0]);
  const std::optional<GroupLedger::Take> take = ledger_->TakeBatch();
  ASSERT_TRUE(take.has_value());
  EXPECT_EQ(take->record.groups[0], leases_[3].id) << "the group of the oldest start comes first";
  EXPECT_EQ(take->staleness.masked_tokens, 2);
  EXPECT_EQ(take->staleness.Max(), 1);
  EXPECT_EQ(take->staleness.violating_groups, 0);
}

// A version that no running group can contain is forgotten: an answer that names it is invalid.
TEST_F(DeadlineTest, MaskForgetsVersionsThatNoOutstandingGroupMayHold) {
  StartBlocked(OnDeadline::kMask);
  EXPECT_TRUE(ledger_->rules().known_steps.contains(0));
  Finish(session_, leases_[3]);
  Step();
  EXPECT_TRUE(ledger_->rules().known_steps.contains(1));
  EXPECT_FALSE(ledger_->rules().known_steps.contains(0));
}

TEST_F(DeadlineTest, DropRevokesTheGroupThatIsDueAndConsumesItsPrompt) {
  StartBlocked(OnDeadline::kDrop);
  const std::vector<Revocation> revoked = ledger_->DropPastDeadline(now_);
  ASSERT_EQ(revoked.size(), 1u);
  EXPECT_EQ(revoked[0].lease, leases_[3].id);
  EXPECT_EQ(revoked[0].session, session_);
  EXPECT_STREQ(RevokeReasonName(revoked[0].reason), "PAST_DEADLINE");
  EXPECT_TRUE(ledger_->HasBatch());
  EXPECT_THAT(ledger_->DropPastDeadline(now_), ::testing::IsEmpty());
  const std::vector<DropRecord> drops = ledger_->UnloggedDrops();
  ASSERT_EQ(drops.size(), 1u);
  EXPECT_EQ(drops[0].lease, leases_[3].id);
  EXPECT_EQ(drops[0].reason, DropReason::kPastDeadline);
  EXPECT_EQ(ledger_->counters().past_deadline, 1);
  // The answer comes too late, and the prompt is not leased again.
  EXPECT_EQ(ledger_->Submit(session_, Share(AnswerTo(leases_[3])), now_).result, GroupLedger::Result::kExpired);
  for (const Lease& lease : Leases()) EXPECT_GT(lease.id.group, leases_[3].id.group);
  // Answers took 0, 0, 3 and 3 s, and the dropped group had run for 3 s.
  EXPECT_DOUBLE_EQ(ledger_->flow().answered_time_ratio(), (6.0 / 4) / (9.0 / 5));
}

}  // namespace
}  // namespace syncopate::trainer
