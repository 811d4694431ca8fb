#include "trainer/data/group_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tests/unit/trainer/data/group_factory.h"
#include "trainer/data/tasks.h"

namespace syncopate::trainer {
namespace {

using Result = GroupLedger::Result;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

GroupLedger::Options Options(int64_t batch, int64_t max_staleness, double target) {
  GroupLedger::Options options;
  options.gate = {.batch_groups = batch, .target_staleness = target, .max_staleness = max_staleness};
  options.samples = 2;
  options.sampling.max_new_tokens = 5;
  options.max_failures = 2;
  return options;
}

class GroupLedgerTest : public ::testing::Test {
 protected:
  void Start(const GroupLedger::Options& options, PolicyVersion version = {1, 0}) {
    prompts_ = *MakeTask({});
    auto queue = PromptQueue(GroupLedger::QueueOptions(options, *prompts_));
    ledger_ = std::make_unique<GroupLedger>(options, prompts_.get(), version, RestoredData{.queue = queue}, now_);
    ledger_->OnPublished(version);
  }

  SessionId Join(const std::string& replica, int32_t credits, PolicyVersion serving = {1, 0}) {
    SessionId session = ledger_->Connect({.role = "rollouter", .replica_id = replica, .incarnation = "a"}).session;
    ledger_->OnServing(session, serving);
    ledger_->OnCredits(session, credits);
    return session;
  }

  std::vector<Lease> Leases() {
    std::vector<Lease> leases;
    for (IssuedLease& issued : ledger_->NextLeases(now_)) leases.push_back(std::move(issued.lease));
    return leases;
  }

  // Submits a right answer and makes it durable.
  void Finish(SessionId session, const Lease& lease) {
    ASSERT_EQ(ledger_->Submit(session, Share(AnswerTo(lease)), now_).result, Result::kAccepted);
    ledger_->OnLogged(lease.id, ++sequence_);
  }

  void Step() {
    ASSERT_TRUE(ledger_->TakeBatch().has_value());
    ledger_->OnTakeLogged(0);
    ledger_->OnStepDone(now_);
    ledger_->OnPublished(ledger_->version());
  }

  absl::Time now_ = absl::UnixEpoch();
  uint64_t sequence_ = 0;
  std::unique_ptr<PromptSource> prompts_;
  std::unique_ptr<GroupLedger> ledger_;
};

// The prompts of a task, of which some are still being read and some are none.
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

std::vector<int64_t> Ordinals(const std::vector<Lease>& leases) {
  std::vector<int64_t> ordinals;
  for (const Lease& lease : leases) ordinals.push_back(lease.id.group.ordinal);
  return ordinals;
}

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
  StartSlow(Options(2, 4, 1));
  Join("r0", 3);
  EXPECT_THAT(Ordinals(Leases()), ElementsAre(0));
  EXPECT_THAT(Leases(), IsEmpty());
  states_.clear();
  EXPECT_THAT(Ordinals(Leases()), ElementsAre(1, 2));
}

TEST_F(SlowPromptsTest, SaysThatItWaitsForPrompts) {
  states_[0] = PromptSource::Readiness::kComing;
  StartSlow(Options(2, 4, 1));
  Join("r0", 3);
  EXPECT_THAT(Leases(), IsEmpty());
  EXPECT_EQ(ledger_->Explain(now_).waiting_for, "prompts");
}

TEST_F(SlowPromptsTest, ARowThatIsNoPromptIsDroppedInItsTurnAndTakesNobodysRoom) {
  states_[0] = states_[2] = PromptSource::Readiness::kUnusable;
  StartSlow(Options(2, 4, 1));
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
  EXPECT_EQ(ledger_->Snapshot().consumed_below, (GroupId{1, 0}));  // the whole pass
}

TEST_F(GroupLedgerTest, AcceptsEveryTokenOfAModelWhoseVocabularyIsLargerThanThatOfThePrompts) {
  GroupLedger::Options options = Options(2, 4, 1);
  options.vocab_size = 1000;
  Start(options);
  const SessionId session = Join("r0", 2);
  const std::vector<Lease> leases = Leases();
  ASSERT_THAT(leases, SizeIs(2));
  for (const auto& [lease, token, result] :
       {std::tuple(leases[0], 999, Result::kAccepted), std::tuple(leases[1], 1000, Result::kInvalid)}) {
    TrajectoryGroup answer = AnswerTo(lease);
    answer.samples[0].tokens[0] = token;
    EXPECT_EQ(ledger_->Submit(session, Share(std::move(answer)), now_).result, result);
  }
}

TEST_F(GroupLedgerTest, LeaseCarriesEverythingTheRollouterNeeds) {
  GroupLedger::Options options = Options(1, 0, 0);
  options.run_seed = 42;
  Start(options);
  SessionId session = Join("r0", 3);
  std::vector<IssuedLease> issued = ledger_->NextLeases(now_);
  ASSERT_THAT(issued, SizeIs(1));
  const Lease& lease = issued[0].lease;
  EXPECT_EQ(issued[0].session, session);
  EXPECT_EQ(lease.id, (LeaseId{{0, 0}, 1}));
  EXPECT_EQ(lease.kind, LeaseKind::kTraining);
  EXPECT_EQ(lease.version, (PolicyVersion{1, 0}));
  EXPECT_EQ(lease.samples, 2);
  EXPECT_EQ(lease.prompt_ids, prompts_->At({0, 0}).prompt_ids);
  EXPECT_EQ(lease.answer_ids, prompts_->At({0, 0}).answer_ids);
  EXPECT_EQ(lease.seed, GroupSeed(42, {0, 0}));
}

TEST_F(GroupLedgerTest, LeasesNoMoreThanCreditsAndShareThem) {
  Start(Options(8, 4, 4));
  SessionId a = Join("a", 2), b = Join("b", 1);
  std::vector<IssuedLease> issued = ledger_->NextLeases(now_);
  ASSERT_THAT(issued, SizeIs(3));
  std::multiset<SessionId> receivers;
  for (const IssuedLease& one : issued) receivers.insert(one.session);
  EXPECT_EQ(receivers.count(a), 2u);
  EXPECT_EQ(receivers.count(b), 1u);
  ledger_->OnCredits(a, 0);
  EXPECT_THAT(Leases(), IsEmpty());
}

TEST_F(GroupLedgerTest, LeasesOnlyToThoseWhoServeThisEpoch) {
  Start(Options(4, 4, 4), {2, 7});
  Join("old", 4, {1, 7});
  Join("nothing yet", 4, {});
  Join("unpublished", 4, {2, 8});
  EXPECT_THAT(Leases(), IsEmpty());
  EXPECT_EQ(ledger_->Explain(now_).waiting_for, "rollouters");
  Join("new", 1, {2, 7});
  EXPECT_THAT(Leases(), SizeIs(1));
}

TEST_F(GroupLedgerTest, OnPolicyTakesTheNextPromptsOfEachStepInOrder) {
  Start(Options(3, 0, 0));
  SessionId a = Join("a", 2), b = Join("b", 2);
  for (int64_t step = 0; step < 4; ++step) {
    for (SessionId session : {a, b}) {
      ledger_->OnServing(session, {1, step});
      ledger_->OnCredits(session, 2);
    }
    std::vector<IssuedLease> issued = ledger_->NextLeases(now_);
    ASSERT_THAT(issued, SizeIs(3));
    for (size_t i : {2, 0, 1}) Finish(issued[i].session, issued[i].lease);
    auto take = ledger_->TakeBatch();
    ASSERT_TRUE(take.has_value());
    EXPECT_EQ(take->record.produces, (PolicyVersion{1, step + 1}));
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(take->groups[i]->lease.group.ordinal, 3 * step + i);
    EXPECT_EQ(take->staleness.Max(), 0);
    ledger_->OnTakeLogged(0);
    ledger_->OnStepDone(now_);
    ledger_->OnPublished({1, step + 1});
  }
  EXPECT_EQ(ledger_->counters().trained, 12);
}

TEST_F(GroupLedgerTest, BrokenStreamPutsItsPromptsBackAtTheHead) {
  Start(Options(4, 4, 4));
  SessionId a = Join("a", 3);
  ASSERT_THAT(Ordinals(Leases()), ElementsAre(0, 1, 2));
  SessionId b = Join("b", 4);
  ledger_->Disconnect(a);
  std::vector<Lease> again = Leases();
  EXPECT_THAT(Ordinals(again), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(again[0].id.attempt, 2);
  EXPECT_EQ(ledger_->counters().reissued, 3);
  Finish(b, again[0]);
}

TEST_F(GroupLedgerTest, NewStreamOfAReplicaReplacesTheOld) {
  Start(Options(4, 4, 4));
  SessionId first = Join("a", 1);
  std::vector<Lease> leases = Leases();
  auto connected = ledger_->Connect({.role = "rollouter", .replica_id = "a", .incarnation = "b"});
  EXPECT_EQ(connected.replaced, first);
  EXPECT_EQ(ledger_->leased_groups(), 0);
  EXPECT_EQ(ledger_->Submit(connected.session, Share(AnswerTo(leases[0])), now_).result, Result::kExpired);
}

TEST_F(GroupLedgerTest, SaysWhatBecameOfASubmission) {
  Start(Options(1, 4, 4));
  SessionId a = Join("a", 1), b = Join("b", 0);
  Lease lease = Leases().at(0);
  auto submit = [&](SessionId session) { return ledger_->Submit(session, Share(AnswerTo(lease)), now_).result; };
  EXPECT_EQ(submit(b), Result::kExpired) << "another stream holds the lease";
  GroupLedger::Verdict accepted = ledger_->Submit(a, Share(AnswerTo(lease)), now_);
  ASSERT_EQ(accepted.result, Result::kAccepted);
  EXPECT_EQ(std::get<AcceptedRecord>(*accepted.record).admitted, lease.version);
  EXPECT_EQ(submit(a), Result::kPending);
  EXPECT_EQ(ledger_->TakeBatch(), std::nullopt) << "not durable yet";
  ledger_->OnLogged(lease.id, 1);
  EXPECT_EQ(submit(a), Result::kAlreadyAccepted);
  Step();
  EXPECT_EQ(submit(a), Result::kAlreadyAccepted) << "trained groups are remembered without a time limit";
  EXPECT_EQ(ledger_->counters().duplicate, 3);
  EXPECT_EQ(ledger_->counters().expired, 1);
  for (int32_t attempt : {0, 2, 77}) {
    lease.id.attempt = attempt;
    EXPECT_EQ(submit(a), Result::kExpired) << "attempt " << attempt << " was never accepted";
  }
  EXPECT_EQ(ledger_->counters().duplicate, 3);
  EXPECT_EQ(ledger_->counters().expired, 4);
  lease.id.group.ordinal = 1000000;
  EXPECT_EQ(submit(a), Result::kExpired);
}

TEST_F(GroupLedgerTest, RefusesAnOldAttemptAlsoFromTheStreamThatHoldsTheNewOne) {
  Start(Options(2, 4, 4));
  SessionId a = Join("a", 1);
  Lease first = Leases().at(0);
  ledger_->Return(a, first.id, absl::CancelledError("drained"));
  ledger_->OnCredits(a, 1);
  Lease second = Leases().at(0);
  ASSERT_EQ(second.id.group, first.id.group);
  EXPECT_EQ(ledger_->Submit(a, Share(AnswerTo(first)), now_).result, Result::kExpired);
  EXPECT_EQ(ledger_->Submit(a, Share(AnswerTo(second)), now_).result, Result::kAccepted);
}

TEST_F(GroupLedgerTest, InvalidGroupIsTriedWithAnotherRollouterAndGivenUpWhenThatFailsToo) {
  Start(Options(1, 4, 0));
  SessionId a = Join("a", 8), b = Join("b", 8);
  for (int attempt = 1; attempt <= 2; ++attempt) {
    std::vector<IssuedLease> issued = ledger_->NextLeases(now_);
    ASSERT_THAT(issued, SizeIs(1));
    EXPECT_EQ(issued[0].session, attempt == 1 ? a : b);
    EXPECT_EQ(issued[0].lease.id, (LeaseId{{0, 0}, attempt}));
    TrajectoryGroup bad = AnswerTo(issued[0].lease);
    bad.samples[0].logprobs[0] = 1;
    GroupLedger::Verdict verdict = ledger_->Submit(issued[0].session, Share(bad), now_);
    EXPECT_EQ(verdict.result, Result::kInvalid);
    EXPECT_EQ(ErrorReason(verdict.error), "BAD_LOGPROB");
  }
  std::vector<DropRecord> drops = ledger_->UnloggedDrops();
  ASSERT_THAT(drops, SizeIs(1));
  EXPECT_EQ(drops[0].reason, DropReason::kFailed);
  EXPECT_THAT(Ordinals(Leases()), ElementsAre(1));
  EXPECT_EQ(ledger_->counters().failed, 2);
}

TEST_F(GroupLedgerTest, NoPromptIsGivenUpBecauseOneRollouterReturnsEverything) {
  Start(Options(1, 4, 1));
  SessionId bad = Join("bad", 100);
  for (int i = 0; i < 50; ++i) {
    std::vector<Lease> leases = Leases();
    ASSERT_THAT(Ordinals(leases), ElementsAre(0, 1));
    for (const Lease& lease : leases) EXPECT_TRUE(ledger_->Return(bad, lease.id, absl::InternalError("no")));
    ledger_->OnCredits(bad, 100);
  }
  EXPECT_THAT(ledger_->UnloggedDrops(), IsEmpty());
  SessionId good = Join("good", 2);
  std::vector<IssuedLease> issued = ledger_->NextLeases(now_);
  ASSERT_THAT(issued, SizeIs(2));
  for (const IssuedLease& one : issued) {
    EXPECT_EQ(one.session, good) << "though the bad one holds fewest";
    Finish(good, one.lease);
  }
}

TEST_F(GroupLedgerTest, APromptIsGivenUpWhenTheOnlyRolloutersFailsAtItAloneAgainAndAgain) {
  Start(Options(1, 4, 1));
  SessionId only = Join("only", 2);
  std::vector<Lease> leases = Leases();
  ASSERT_THAT(Ordinals(leases), ElementsAre(0, 1));
  ledger_->Return(only, leases[0].id, absl::InternalError("no"));
  ledger_->OnCredits(only, 1);
  EXPECT_EQ(Leases().at(0).id, Id(0, 2));
  Finish(only, leases[1]);
  ledger_->Return(only, Id(0, 2), absl::InternalError("no"));
  ASSERT_THAT(ledger_->UnloggedDrops(), SizeIs(1)) << "it has answered another since, so it is the prompt";
}

TEST_F(GroupLedgerTest, TokensOfAnOlderEpochAreFencedAndThePromptLeasedAgain) {
  Start(Options(1, 4, 0), {2, 5});
  SessionId a = Join("a", 1, {2, 5});
  Lease lease = Leases().at(0);
  GroupLedger::Verdict verdict = ledger_->Submit(a, Share(AnswerTo(lease, {1, 5})), now_);
  EXPECT_EQ(verdict.result, Result::kFenced);
  EXPECT_EQ(ErrorReason(verdict.error), "FENCED");
  ledger_->OnCredits(a, 1);
  EXPECT_EQ(Leases().at(0).id, (LeaseId{{0, 0}, 2}));
}

class StallTest : public GroupLedgerTest {
 protected:
  void StartWith(int64_t batch) {
    GroupLedger::Options options = Options(batch, 4, 0);
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
  EXPECT_FALSE(ledger_->sessions().Find(a)->IsStalled()) << "it is slow, not stuck";
  EXPECT_EQ(ledger_->counters().timed_out, 1);

  ledger_->OnCredits(a, 1);
  lease = Leases().at(0);
  now_ += absl::Seconds(30);
  ledger_->OnProgress(other, lease.id, now_);
  EXPECT_THAT(ledger_->ExpireLeases(now_), SizeIs(1)) << "who does not hold it has no say";
}

TEST_F(StallTest, WhoStalledGetsNothingUntilALeaseOfItComesFurther) {
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
  EXPECT_THAT(Leases(), IsEmpty()) << "it holds that one no longer";
  ledger_->OnProgress(a, second.id, now_);
  EXPECT_THAT(Ordinals(Leases()), ElementsAre(0));
}

TEST_F(StallTest, WhoStalledAndHoldsNothingGetsLeasesAgainWhenItLetsGoOfAllThatStalled) {
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

TEST_F(GroupLedgerTest, WhoHoldsFewestIsNextWhateverRoomTheOthersHave) {
  Start(Options(8, 4, 4));
  SessionId wide = Join("wide", 1);
  ASSERT_THAT(Leases(), SizeIs(1));
  SessionId narrow = Join("narrow", 3);
  ledger_->OnCredits(wide, 100);
  std::vector<SessionId> order;
  for (const IssuedLease& one : ledger_->NextLeases(now_)) order.push_back(one.session);
  ASSERT_GE(order.size(), 6u);
  order.resize(6);
  EXPECT_THAT(order, ElementsAre(narrow, wide, narrow, wide, narrow, wide));
}

// Counts how often it looks for a batch.
struct CountsPicks : GroupLedger {
  using GroupLedger::GroupLedger;
  std::vector<GroupId> PickBatch() const override {
    ++picks;
    return GroupLedger::PickBatch();
  }
  mutable int picks = 0;
};

TEST_F(GroupLedgerTest, LooksForABatchOnlyAfterSomethingHasChanged) {
  const GroupLedger::Options options = Options(2, 4, 1);
  Start(options);  // for its prompts
  auto counting = std::make_unique<CountsPicks>(
      options, prompts_.get(), PolicyVersion{1, 0},
      RestoredData{.queue = PromptQueue(GroupLedger::QueueOptions(options, *prompts_))}, now_);
  const CountsPicks& counts = *counting;
  ledger_ = std::move(counting);
  ledger_->OnPublished({1, 0});
  SessionId a = Join("a", 4);
  std::vector<Lease> leases = Leases();
  ASSERT_THAT(leases, SizeIs(4));
  auto ask = [&] {
    bool has = false;
    for (int i = 0; i < 100; ++i) {
      ledger_->OnServing(a, {1, 0});
      ledger_->OnProgress(a, leases[3].id, now_);
      has = ledger_->HasBatch();
    }
    return has;
  };
  EXPECT_FALSE(ask());
  EXPECT_EQ(counts.picks, 1);
  Finish(a, leases[0]);
  EXPECT_FALSE(ask());
  EXPECT_EQ(counts.picks, 2);
  Finish(a, leases[1]);
  EXPECT_TRUE(ask());
  EXPECT_EQ(counts.picks, 3);
  Step();
  EXPECT_FALSE(ask());
  EXPECT_LE(counts.picks, 5);
}

TEST_F(GroupLedgerTest, RefusedLogRecordMeansThatTheGroupWasNeverAccepted) {
  Start(Options(1, 4, 0));
  SessionId a = Join("a", 1);
  Lease lease = Leases().at(0);
  ASSERT_EQ(ledger_->Submit(a, Share(AnswerTo(lease)), now_).result, Result::kAccepted);
  ledger_->OnLogFailed(lease.id);
  EXPECT_EQ(ledger_->counters().accepted, 0);
  ledger_->OnCredits(a, 1);
  EXPECT_EQ(Leases().at(0).id, (LeaseId{{0, 0}, 2}));
}

TEST_F(GroupLedgerTest, ReplacesGroupsWithoutSignalWhenAsked) {
  GroupLedger::Options options = Options(1, 4, 0);
  options.refill_zero_variance = true;
  Start(options);
  SessionId a = Join("a", 1);
  TrajectoryGroup equal = AnswerTo(Leases().at(0));
  for (Trajectory& sample : equal.samples) sample.reward = 1;
  GroupLedger::Verdict verdict = ledger_->Submit(a, Share(equal), now_);
  ASSERT_EQ(verdict.result, Result::kAccepted);
  EXPECT_EQ(std::get<DropRecord>(*verdict.record).reason, DropReason::kFiltered);
  ledger_->OnLogged(equal.lease, 1);
  EXPECT_EQ(ledger_->counters().filtered, 1);
  EXPECT_EQ(ledger_->TakeBatch(), std::nullopt);
  ledger_->OnCredits(a, 1);
  EXPECT_THAT(Ordinals(Leases()), ElementsAre(1));
}

TEST_F(GroupLedgerTest, TrainsAPartialLastBatchWhenTheDataEnd) {
  GroupLedger::Options options = Options(2, 4, 4);
  options.max_groups = 3;
  Start(options);
  SessionId a = Join("a", 8);
  std::vector<Lease> leases = Leases();
  ASSERT_THAT(leases, SizeIs(3));
  Finish(a, leases[0]);
  EXPECT_EQ(ledger_->TakeBatch(), std::nullopt) << "two more are being made";
  Finish(a, leases[1]);
  Step();
  EXPECT_FALSE(ledger_->DataEnded());
  Finish(a, leases[2]);
  auto last = ledger_->TakeBatch();
  ASSERT_TRUE(last.has_value());
  EXPECT_THAT(last->groups, SizeIs(1));
  ledger_->OnTakeLogged(0);
  ledger_->OnStepDone(now_);
  EXPECT_TRUE(ledger_->DataEnded());
  EXPECT_EQ(ledger_->Explain(now_).waiting_for, "end");
}

TEST_F(GroupLedgerTest, CountsStalenessByTokenAndFindsBrokenBoundsWhateverTheGateDid) {
  Lease lease;
  lease.samples = 1;
  TrajectoryGroup group = AnswerTo(lease, {1, 4});
  group.samples[0].spans = {{{1, 4}, 0, 1}, {{1, 6}, 1, 2}};
  StalenessTally tally;
  tally.Add(group, /*step=*/7, /*bound=*/3);
  EXPECT_THAT(tally.tokens, ElementsAre(0, 1, 0, 1));
  EXPECT_DOUBLE_EQ(tally.Mean(), 2);
  EXPECT_EQ(tally.Max(), 3);
  EXPECT_EQ(tally.mixed_groups, 1);
  EXPECT_EQ(tally.violating_groups, 0);
  tally.Add(group, 7, 2);
  EXPECT_EQ(tally.violating_groups, 1);
  tally.Add(group, 5, 2);
  EXPECT_EQ(tally.violating_groups, 2) << "tokens of a version that does not exist yet";
}

TEST_F(GroupLedgerTest, ExplainsWhomTheTrainerWaitsFor) {
  Start(Options(1, 1, 1));
  SessionId slow = Join("slow", 1), fast = Join("fast", 1);
  std::vector<IssuedLease> first = ledger_->NextLeases(now_);
  ASSERT_THAT(first, SizeIs(2));
  now_ += absl::Seconds(3);
  Explanation groups = ledger_->Explain(now_);
  EXPECT_EQ(groups.waiting_for, "groups");
  EXPECT_DOUBLE_EQ(groups.since_seconds, 3);
  EXPECT_THAT(groups.detail, HasSubstr("0 of 1 groups are ready, 2 are being made"));

  const Lease& fast_lease = first[0].session == fast ? first[0].lease : first[1].lease;
  Finish(fast, fast_lease);
  EXPECT_EQ(ledger_->Explain(now_).waiting_for, "nothing");
  Step();
  ledger_->OnServing(fast, {1, 1});
  ledger_->OnCredits(fast, 1);
  Finish(fast, Leases().at(0));
  EXPECT_EQ(ledger_->TakeBatch(), std::nullopt);
  Explanation deadline = ledger_->Explain(now_);
  EXPECT_EQ(deadline.waiting_for, "deadline");
  EXPECT_EQ(deadline.rollouter, "slow");
  EXPECT_THAT(deadline.detail, HasSubstr("must be trained by step 1 (now 1)"));
  ledger_->Disconnect(slow);
  EXPECT_TRUE(ledger_->TakeBatch().has_value()) << "a lost lease is not waited for";
}

TEST_F(GroupLedgerTest, NeedsTheLogFromTheOldestGroupThatIsNotTrained) {
  Start(Options(1, 4, 4));
  SessionId a = Join("a", 3);
  std::vector<Lease> leases = Leases();
  EXPECT_EQ(ledger_->OldestNeededSequence(), 1u);
  Finish(a, leases[1]);
  Finish(a, leases[0]);
  EXPECT_EQ(ledger_->OldestNeededSequence(), 1u);
  Step();  // prompt 0, record 2
  EXPECT_EQ(ledger_->OldestNeededSequence(), 1u);
  Step();
  EXPECT_EQ(ledger_->OldestNeededSequence(), 3u);
}

TEST(GroupLedgerOptionsTest, RefusesWhatCannotBeTrained) {
  EXPECT_TRUE(Options(1, 1, 1).Validate().ok());
  auto reason = [](auto change) {
    GroupLedger::Options options = Options(1, 1, 1);
    change(options);
    return ErrorReason(options.Validate());
  };
  EXPECT_EQ(reason([](auto& o) { o.samples = 0; }), "BAD_OPTION");
  EXPECT_EQ(reason([](auto& o) { o.sampling.top_k = 5; }), "BAD_OPTION");
  EXPECT_EQ(reason([](auto& o) { o.sampling.top_p = 0.9f; }), "BAD_OPTION");
  EXPECT_EQ(reason([](auto& o) { o.sampling.min_p = 0.1f; }), "BAD_OPTION");
  EXPECT_EQ(reason([](auto& o) { o.sampling.presence_penalty = 0.1f; }), "BAD_OPTION");
  EXPECT_EQ(reason([](auto& o) { o.sampling.temperature = 0; }), "BAD_OPTION");
  EXPECT_EQ(reason([](auto& o) { o.max_groups = -1; }), "BAD_OPTION");
  EXPECT_EQ(reason([](auto& o) { o.gate.target_staleness = 3; }), "BAD_OPTION");
  EXPECT_EQ(reason([](auto& o) { o.lease_limits.stall = absl::ZeroDuration(); }), "BAD_OPTION");
  EXPECT_EQ(reason([](auto& o) { o.lease_limits.timeout = absl::Seconds(1); }), "BAD_OPTION");
}

TEST_F(GroupLedgerTest, AQuarantinedRollouterGetsNoLeasesAndTheOthersDo) {
  Start(Options(2, 4, 1));
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

}  // namespace
}  // namespace syncopate::trainer
