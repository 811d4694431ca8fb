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
#include "tests/unit/trainer/data/group_ledger_fixture.h"

namespace syncopate::trainer {
namespace {

using Result = GroupLedger::Result;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(GroupLedgerTest, AcceptsEveryTokenOfAModelWhoseVocabularyIsLargerThanThatOfThePrompts) {
  GroupLedger::Options options = SmallLedger(2, 4, 1);
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
  GroupLedger::Options options = SmallLedger(1, 0, 0);
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
  Start(SmallLedger(8, 4, 4));
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

TEST_F(GroupLedgerTest, LeasesOnlyToRolloutersThatServeThisEpoch) {
  Start(SmallLedger(4, 4, 4), {2, 7});
  Join("old", 4, {1, 7});
  Join("nothing yet", 4, {});
  Join("unpublished", 4, {2, 8});
  EXPECT_THAT(Leases(), IsEmpty());
  EXPECT_EQ(ledger_->Explain(now_).waiting_for, "rollouters");
  Join("new", 1, {2, 7});
  EXPECT_THAT(Leases(), SizeIs(1));
}

TEST_F(GroupLedgerTest, OnPolicyTakesTheNextPromptsOfEachStepInOrder) {
  Start(SmallLedger(3, 0, 0));
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
  Start(SmallLedger(4, 4, 4));
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
  Start(SmallLedger(4, 4, 4));
  SessionId first = Join("a", 1);
  std::vector<Lease> leases = Leases();
  auto connected = ledger_->Connect({.role = "rollouter", .replica_id = "a", .incarnation = "b"});
  EXPECT_EQ(connected.replaced, first);
  EXPECT_EQ(ledger_->leased_groups(), 0);
  EXPECT_EQ(ledger_->Submit(connected.session, Share(AnswerTo(leases[0])), now_).result, Result::kExpired);
}

TEST_F(GroupLedgerTest, SaysWhatBecameOfASubmission) {
  Start(SmallLedger(1, 4, 4));
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
  Start(SmallLedger(2, 4, 4));
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
  Start(SmallLedger(1, 4, 0));
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
  EXPECT_EQ(ledger_->counters().failed_attempts, 2);
  EXPECT_EQ(ledger_->counters().failed, 1) << "groups";
}

TEST_F(GroupLedgerTest, NoPromptIsGivenUpBecauseOneRollouterReturnsEverything) {
  Start(SmallLedger(1, 4, 1));
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
    EXPECT_EQ(one.session, good) << "although the bad rollouter holds the fewest leases";
    Finish(good, one.lease);
  }
}

TEST_F(GroupLedgerTest, APromptIsGivenUpWhenTheOnlyRolloutersFailsAtItAloneAgainAndAgain) {
  Start(SmallLedger(1, 4, 1));
  SessionId only = Join("only", 2);
  std::vector<Lease> leases = Leases();
  ASSERT_THAT(Ordinals(leases), ElementsAre(0, 1));
  ledger_->Return(only, leases[0].id, absl::InternalError("no"));
  ledger_->OnCredits(only, 1);
  EXPECT_EQ(Leases().at(0).id, Id(0, 2));
  Finish(only, leases[1]);
  ledger_->Return(only, Id(0, 2), absl::InternalError("no"));
  ASSERT_THAT(ledger_->UnloggedDrops(), SizeIs(1))
      << "the rollouter has answered another prompt since, so this prompt is the cause";
}

TEST_F(GroupLedgerTest, TokensOfAnOlderEpochAreFencedAndThePromptLeasedAgain) {
  Start(SmallLedger(1, 4, 0), {2, 5});
  SessionId a = Join("a", 1, {2, 5});
  Lease lease = Leases().at(0);
  GroupLedger::Verdict verdict = ledger_->Submit(a, Share(AnswerTo(lease, {1, 5})), now_);
  EXPECT_EQ(verdict.result, Result::kFenced);
  EXPECT_EQ(ErrorReason(verdict.error), "FENCED");
  ledger_->OnCredits(a, 1);
  EXPECT_EQ(Leases().at(0).id, (LeaseId{{0, 0}, 2}));
}

TEST_F(GroupLedgerTest, TheRollouterWithTheFewestLeasesIsNextWhateverRoomTheOthersHave) {
  Start(SmallLedger(8, 4, 4));
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

// Counts how often the ledger looks for a batch.
struct CountsPicks : GroupLedger {
  using GroupLedger::GroupLedger;
  std::vector<GroupId> PickBatch() const override {
    ++picks;
    return GroupLedger::PickBatch();
  }
  mutable int picks = 0;
};

TEST_F(GroupLedgerTest, LooksForABatchOnlyAfterSomethingHasChanged) {
  const GroupLedger::Options options = SmallLedger(2, 4, 1);
  Start(options);  // makes the prompts that the next ledger uses
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
  Start(SmallLedger(1, 4, 0));
  SessionId a = Join("a", 1);
  Lease lease = Leases().at(0);
  ASSERT_EQ(ledger_->Submit(a, Share(AnswerTo(lease)), now_).result, Result::kAccepted);
  ledger_->OnLogFailed(lease.id);
  EXPECT_EQ(ledger_->counters().accepted, 0);
  ledger_->OnCredits(a, 1);
  EXPECT_EQ(Leases().at(0).id, (LeaseId{{0, 0}, 2}));
}

TEST_F(GroupLedgerTest, ATakePassesOnTheOriginOfGroupsThatAreRecordedAndOfNoOthers) {
  GroupLedger::Options options = SmallLedger(1, 4, 0);
  for (const double share : {0.0, 1.0}) {
    options.recorded.share = share;
    Start(options);
    const SessionId a = Join("a", 1);
    const Lease lease = Leases().at(0);
    const TrajectoryGroup answer = AnswerTo(lease);
    ASSERT_EQ(ledger_->Submit(a, Share(answer), now_).result, Result::kAccepted);
    ledger_->OnLogged(answer.lease, 1);
    const std::optional<GroupLedger::Take> take = ledger_->TakeBatch();
    ASSERT_TRUE(take.has_value());
    ASSERT_EQ(take->origins.size(), share > 0 ? 1u : 0u);
    if (share > 0) {
      EXPECT_EQ(take->origins.at(lease.id.group).answer_ids, lease.answer_ids);
    }
  }
}

TEST_F(GroupLedgerTest, ReplacesGroupsWithoutSignalWhenAsked) {
  GroupLedger::Options options = SmallLedger(1, 4, 0);
  options.refill_zero_variance = true;
  Start(options);
  SessionId a = Join("a", 1);
  TrajectoryGroup equal = AnswerTo(Leases().at(0));
  for (Trajectory& sample : equal.samples) sample.reward = 1;
  GroupLedger::Verdict verdict = ledger_->Submit(a, Share(equal), now_);
  ASSERT_EQ(verdict.result, Result::kAccepted);
  EXPECT_EQ(std::get<DropRecord>(*verdict.record).reason, DropReason::kFiltered);
  EXPECT_EQ(std::get<DropRecord>(*verdict.record).group->lease, equal.lease);
  ledger_->OnLogged(equal.lease, 1);
  EXPECT_EQ(ledger_->counters().filtered, 1);
  EXPECT_EQ(ledger_->TakeBatch(), std::nullopt);
  EXPECT_EQ(ledger_->flow().kept_length_ratio(), 1) << "nothing is kept yet";
  ledger_->OnCredits(a, 1);
  const std::vector<Lease> next = Leases();
  EXPECT_THAT(Ordinals(next), ElementsAre(1));
  // Two answers of two tokens were replaced, and two of one token are kept.
  TrajectoryGroup kept = AnswerTo(next.at(0));
  for (Trajectory& sample : kept.samples) {
    sample.tokens.resize(1);
    sample.logprobs.resize(1);
    sample.spans[0].end = 1;
  }
  ASSERT_EQ(ledger_->Submit(a, Share(kept), now_).result, Result::kAccepted);
  EXPECT_DOUBLE_EQ(ledger_->flow().kept_length_ratio(), 1 / 1.5);
}

TEST_F(GroupLedgerTest, TrainsAPartialLastBatchWhenTheDataEnd) {
  GroupLedger::Options options = SmallLedger(2, 4, 4);
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

  StalenessTally masked;
  masked.Add(group, 7, 2, /*may_be_older=*/true);
  EXPECT_THAT(masked.tokens, ElementsAre(0, 1));
  EXPECT_EQ(masked.masked_tokens, 1);
  EXPECT_EQ(masked.violating_groups, 0);
  masked.Add(group, 5, 2, true);
  EXPECT_EQ(masked.violating_groups, 1) << "tokens of a version that does not exist yet";
  StalenessTally sum = tally;
  sum.Merge(masked);
  EXPECT_EQ(sum.masked_tokens, 1);
  EXPECT_EQ(sum.violating_groups, 3);
}

TEST_F(GroupLedgerTest, ExplainsWhomTheTrainerWaitsFor) {
  Start(SmallLedger(1, 1, 1));
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
  Start(SmallLedger(1, 4, 4));
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
  EXPECT_TRUE(SmallLedger(1, 1, 1).Validate().ok());
  auto reason = [](auto change) {
    GroupLedger::Options options = SmallLedger(1, 1, 1);
    change(options);
    return ErrorReason(options.Validate());
  };
  EXPECT_EQ(reason([](auto& o) { o.samples = 0; }), "BAD_OPTIONS");
  EXPECT_EQ(reason([](auto& o) { o.sampling.top_k = 5; }), "BAD_OPTIONS");
  EXPECT_EQ(reason([](auto& o) { o.sampling.top_p = 0.9f; }), "BAD_OPTIONS");
  EXPECT_EQ(reason([](auto& o) { o.sampling.min_p = 0.1f; }), "BAD_OPTIONS");
  EXPECT_EQ(reason([](auto& o) { o.sampling.presence_penalty = 0.1f; }), "BAD_OPTIONS");
  EXPECT_EQ(reason([](auto& o) { o.sampling.temperature = 0; }), "BAD_OPTIONS");
  EXPECT_EQ(reason([](auto& o) { o.max_groups = -1; }), "BAD_OPTIONS");
  EXPECT_EQ(reason([](auto& o) { o.gate.target_staleness = 3; }), "BAD_OPTIONS");
  EXPECT_EQ(reason([](auto& o) { o.lease_limits.stall = absl::ZeroDuration(); }), "BAD_OPTIONS");
  EXPECT_EQ(reason([](auto& o) { o.lease_limits.timeout = absl::Seconds(1); }), "BAD_OPTIONS");
}

AnswerPart PartOf(const PolicyVersion& version, int32_t sample, int32_t begin, int32_t end) {
  AnswerPart part{.sample = sample, .begin = begin, .spans = {{version, begin, end}}};
  part.tokens.assign(static_cast<size_t>(end - begin), 1);
  part.logprobs.assign(part.tokens.size(), -0.25f);
  return part;
}

TEST_F(GroupLedgerTest, AGroupWhoseRollouterIsLostIsLeasedAgainWithTheTokensThatItHas) {
  GroupLedger::Options options = SmallLedger(4, 4, 4);
  options.partial_bytes = 1000;
  Start(options);
  const SessionId a = Join("a", 1);
  const Lease first = Leases().at(0);
  ASSERT_TRUE(ledger_->OnPart(a, first.id, PartOf({1, 0}, 1, 0, 3)).ok());
  ledger_->Disconnect(a);
  EXPECT_EQ(ledger_->leased_groups(), 1) << "the gate counts it all the while";
  const SessionId b = Join("b", 2);
  const std::vector<Lease> again = Leases();
  ASSERT_THAT(Ordinals(again), ElementsAre(0, 1));
  EXPECT_EQ(again[0].id.attempt, 2);
  ASSERT_THAT(again[0].starts, SizeIs(2));
  EXPECT_THAT(again[0].starts[0].tokens, IsEmpty());
  EXPECT_THAT(again[0].starts[1].tokens, ElementsAre(1, 1, 1));
  EXPECT_EQ(ledger_->counters().continued, 1);

  TrajectoryGroup answer = AnswerTo(again[0]);
  answer.samples[1].spans = {{{1, 0}, 3, 5}};
  const GroupLedger::Verdict verdict = ledger_->Submit(b, Share(answer), now_);
  ASSERT_EQ(verdict.result, Result::kAccepted) << verdict.error;
  const TrajectoryGroup& whole = *std::get<AcceptedRecord>(*verdict.record).group;
  EXPECT_THAT(whole.samples[0].tokens, ElementsAre(0, 1));
  EXPECT_THAT(whole.samples[1].tokens, ElementsAre(1, 1, 1, 0, 1));
  EXPECT_THAT(whole.samples[1].logprobs, ElementsAre(-0.25f, -0.25f, -0.25f, -0.5f, 0.0f));
  EXPECT_EQ(whole.samples[1].spans, (std::vector<VersionSpan>{{{1, 0}, 0, 5}}));
  EXPECT_EQ(ledger_->partial_answers().bytes(), 0);
}

TEST_F(GroupLedgerTest, KeptTokensWaitForARollouterOfWeightsThatAreNotOlder) {
  GroupLedger::Options options = SmallLedger(1, 4, 4);
  options.partial_bytes = 1000;
  Start(options);
  const SessionId a = Join("a", 2);
  std::vector<Lease> leases = Leases();
  Finish(a, leases[0]);
  Step();
  ledger_->OnServing(a, {1, 1});
  ASSERT_TRUE(ledger_->OnPart(a, leases[1].id, PartOf({1, 1}, 0, 0, 2)).ok());
  ledger_->Disconnect(a);
  const SessionId b = Join("b", 1, {1, 0});
  EXPECT_THAT(Ordinals(Leases()), ::testing::Not(::testing::Contains(1)));
  ledger_->OnServing(b, {1, 1});
  ledger_->OnCredits(b, 1);
  EXPECT_THAT(Ordinals(Leases()), ElementsAre(1));
}

TEST_F(GroupLedgerTest, PartsThatNoAnswerCanHaveAreRefusedAndAnAnswerThatFailsBeginsAnew) {
  GroupLedger::Options options = SmallLedger(4, 4, 4);
  options.partial_bytes = 1000;
  Start(options);
  const SessionId a = Join("a", 1);
  const Lease lease = Leases().at(0);
  AnswerPart bad = PartOf({1, 0}, 0, 0, 2);
  bad.tokens[1] = 1'000'000;
  EXPECT_EQ(ErrorReason(ledger_->OnPart(a, lease.id, bad)), "BAD_TOKEN");
  EXPECT_EQ(ErrorReason(ledger_->OnPart(a, lease.id, PartOf({1, 9}, 0, 0, 2))), "UNKNOWN_VERSION");
  EXPECT_EQ(ErrorReason(ledger_->OnPart(a, lease.id, PartOf({1, 0}, 2, 0, 2))), "BAD_PART");
  EXPECT_EQ(ErrorReason(ledger_->OnPart(a, lease.id, PartOf({1, 0}, 0, 4, 6))), "BAD_PART") << "longer than an answer";
  EXPECT_EQ(ledger_->partial_answers().bytes(), 0);
  ASSERT_TRUE(ledger_->OnPart(a, lease.id, PartOf({1, 0}, 0, 0, 2)).ok());
  ledger_->Return(a, lease.id, absl::InternalError("no"));
  Join("b", 1);
  EXPECT_THAT(Leases().at(0).starts, IsEmpty());
}

}  // namespace
}  // namespace syncopate::trainer
