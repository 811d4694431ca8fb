#include "trainer/data/data_restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "tests/unit/trainer/data/group_factory.h"
#include "trainer/data/group_ledger.h"
#include "trainer/data/tasks.h"

namespace syncopate::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

AcceptedRecord Accepted(const LeaseId& id, const PolicyVersion& version) {
  Lease lease;
  lease.id = id;
  lease.samples = 2;
  return {version, Share(AnswerTo(lease, version))};
}

TakeRecord MakeTake(const PolicyVersion& produces, std::vector<LeaseId> groups) {
  return {produces, std::move(groups)};
}

// Restores `state` and adds the records, numbered from 1.
absl::StatusOr<RestoredData> Restore(const DataState& state, int64_t step, std::vector<LogRecord> records) {
  DataRestore restore({}, state, step);
  uint64_t sequence = 0;
  for (LogRecord& record : records) SYNCOPATE_RETURN_IF_ERROR(restore.Add(std::move(record), ++sequence));
  return restore.Finish();
}

DataState StateWithConsumed(int64_t consumed, int64_t next) {
  return {.next = {0, next}, .consumed_below = {0, consumed}};
}

TEST(DataRestoreTest, ReplaysTakesAfterTheCheckpointAndForgetsThoseBefore) {
  auto data = Restore(StateWithConsumed(1, 4), 1,
                      {Accepted(Id(0), {1, 0}), MakeTake({1, 1}, {Id(0)}), Accepted(Id(1), {1, 0}),
                       Accepted(Id(2), {1, 1}), MakeTake({1, 2}, {Id(1)}), MakeTake({1, 3}, {Id(2)})});
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_THAT(data->replays, SizeIs(2));
  EXPECT_EQ(data->replays[0].step, 2);
  EXPECT_EQ(data->replays[0].groups[0]->lease, Id(1));
  EXPECT_EQ(data->replays[1].groups[0]->lease, Id(2));
  EXPECT_EQ(data->oldest_sequence, 3u);
  EXPECT_EQ(data->queue.Head(), (GroupId{0, 3})) << "the group that was leased and never answered";
}

TEST(DataRestoreTest, CountsWhatTheLogHoldsBeyondTheCheckpointsCount) {
  DataState state = StateWithConsumed(1, 6);
  state.sums = {.accepted = 1, .trained = 1, .counted_to = 2};
  const DropRecord filtered{Id(3), DropReason::kFiltered}, stale{Id(1), DropReason::kStale};
  const DropRecord failed{Id(4), DropReason::kFailed};
  auto data = Restore(state, 1,
                      {Accepted(Id(0), {1, 0}), MakeTake({1, 1}, {Id(0)}), Accepted(Id(1), {1, 0}),
                       Accepted(Id(2), {1, 1}), filtered, failed, stale, MakeTake({1, 2}, {Id(2)})});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->sums.accepted, 1 + 2 + 1) << "filtered groups were acknowledged too";
  EXPECT_EQ(data->sums.filtered, 1);
  EXPECT_EQ(data->sums.dropped_stale, 1);
  EXPECT_EQ(data->sums.trained, 1) << "the take is repeated, and counted then";
  EXPECT_EQ(data->sums.counted_to, 7u);
}

TEST(DataRestoreTest, DropsWhatVersionsBeyondTheCheckpointMadeAndLeasesItAgain) {
  auto data = Restore(StateWithConsumed(0, 2), 5, {Accepted(Id(0), {1, 6}), Accepted(Id(1), {1, 5})});
  ASSERT_TRUE(data.ok());
  ASSERT_THAT(data->drops, SizeIs(1));
  EXPECT_EQ(data->drops[0].lease, Id(0));
  EXPECT_EQ(data->drops[0].reason, DropReason::kRolledBack);
  ASSERT_THAT(data->accepted, SizeIs(1));
  EXPECT_EQ(data->queue.Lease(), Id(0, 2));
}

TEST(DataRestoreTest, ADropThatTheLogHoldsStaysDropped) {
  auto data = Restore(StateWithConsumed(0, 3), 9,
                      {Accepted(Id(0), {1, 6}), DropRecord{Id(0), DropReason::kRolledBack},
                       DropRecord{Id(1), DropReason::kFiltered}, DropRecord{Id(2, 3), DropReason::kFailed}});
  ASSERT_TRUE(data.ok());
  EXPECT_THAT(data->accepted, IsEmpty());
  EXPECT_EQ(data->queue.Lease(), Id(0, 2));
  EXPECT_EQ(data->queue.Lease(), Id(3)) << "filtered and failed prompts are consumed";
}

TEST(DataRestoreTest, KnowsWhichAttemptsOfTheGroupsBeforeTheCheckpointCounted) {
  DataState state = StateWithConsumed(1, 4);
  state.accepted = {Id(0, 5)};
  auto data = Restore(state, 1,
                      {MakeTake({1, 1}, {Id(0, 5)}), Accepted(Id(1, 2), {1, 0}), MakeTake({1, 1}, {Id(1, 2)}),
                       DropRecord{Id(2, 3), DropReason::kFiltered}, DropRecord{Id(3, 8), DropReason::kFailed},
                       DropRecord{Id(4, 1), DropReason::kSkipped}});
  ASSERT_TRUE(data.ok());
  EXPECT_TRUE(data->queue.WasAccepted(Id(0, 5)));
  EXPECT_TRUE(data->queue.WasAccepted(Id(1, 2)));
  EXPECT_FALSE(data->queue.WasAccepted(Id(1, 1)));
  EXPECT_TRUE(data->queue.WasAccepted(Id(2, 3)));
  EXPECT_FALSE(data->queue.WasAccepted(Id(3, 8))) << "given up, not accepted";
  EXPECT_TRUE(data->queue.IsConsumed(Id(4).group)) << "its row is a bad row";
  EXPECT_EQ(data->sums.skipped, 1);
}

TEST(DataRestoreTest, KeepsTheNewestAttemptOfAGroup) {
  auto data = Restore(StateWithConsumed(0, 1), 9,
                      {Accepted(Id(0, 1), {1, 6}), DropRecord{Id(0, 1), DropReason::kRolledBack},
                       Accepted(Id(0, 2), {2, 7}), DropRecord{Id(0, 1), DropReason::kRolledBack}});
  ASSERT_TRUE(data.ok());
  ASSERT_THAT(data->accepted, SizeIs(1));
  EXPECT_EQ(data->accepted[0].record.group->lease, Id(0, 2));
}

TEST(DataRestoreTest, StartsFromNothingWithTheLogAlone) {
  auto data = Restore({}, 0, {Accepted(Id(1), {1, 0}), MakeTake({1, 1}, {Id(1)})});
  ASSERT_TRUE(data.ok());
  EXPECT_THAT(data->replays, SizeIs(1));
  EXPECT_EQ(data->queue.Head(), (GroupId{0, 0})) << "passed over, so never lost";
}

TEST(DataRestoreTest, ATakeThatWasWrittenTwiceCountsOnce) {
  auto data = Restore({}, 0, {Accepted(Id(0), {1, 0}), MakeTake({1, 1}, {Id(0)}), MakeTake({1, 1}, {Id(0)})});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->replays, SizeIs(1));
}

TEST(DataRestoreTest, RefusesALogThatDoesNotBelongToTheCheckpoint) {
  auto gap = Restore({}, 0, {Accepted(Id(0), {1, 0}), MakeTake({1, 3}, {Id(0)})});
  EXPECT_EQ(ErrorReason(gap.status()), "LOG_INCONSISTENT");
  auto missing = Restore({}, 0, {MakeTake({1, 1}, {Id(0)})});
  EXPECT_EQ(ErrorReason(missing.status()), "LOG_INCONSISTENT");
  auto two = Restore(
      {}, 0, {Accepted(Id(0), {1, 0}), Accepted(Id(1), {1, 0}), MakeTake({1, 1}, {Id(0)}), MakeTake({1, 1}, {Id(1)})});
  EXPECT_EQ(ErrorReason(two.status()), "LOG_INCONSISTENT");
}

TEST(DataRestoreTest, WhileLoggedStepsAreRepeatedLeasesOnlyWhatLaterStepsCanTrain) {
  auto prompts = *MakeTask({});
  GroupLedger::Options options;
  options.gate = {.batch_groups = 1, .target_staleness = 2, .max_staleness = 2};
  options.samples = 2;
  auto data = Restore({}, 0,
                      {Accepted(Id(0), {1, 0}), Accepted(Id(1), {1, 0}), MakeTake({1, 1}, {Id(0)}),
                       MakeTake({1, 2}, {Id(1)}), Accepted(Id(2), {1, 0})});
  ASSERT_TRUE(data.ok());
  GroupLedger ledger(options, prompts.get(), {2, 0}, *std::move(data), absl::UnixEpoch());
  ledger.OnPublished({2, 0});
  auto session = ledger.Connect({"rollouter", "a", 0, 1, "x"}).session;
  ledger.OnServing(session, {2, 0});
  ledger.OnCredits(session, 8);
  auto replay = [&] {
    auto take = ledger.TakeBatch();
    ASSERT_TRUE(take.has_value());
    EXPECT_TRUE(take->is_replay);
    EXPECT_EQ(take->record.produces, (PolicyVersion{2, ledger.version().step + 1}));
    ledger.OnTakeLogged(0);
  };
  EXPECT_THAT(ledger.NextLeases(absl::UnixEpoch()), IsEmpty()) << "version 0 may be taken at step 2 at the latest";
  replay();
  ledger.OnStepDone(absl::UnixEpoch());
  ledger.OnPublished({2, 1});
  ledger.OnServing(session, {2, 1});
  EXPECT_THAT(ledger.NextLeases(absl::UnixEpoch()), SizeIs(1)) << "version 1 may be taken at step 3";
  replay();
  ledger.OnStepDone(absl::UnixEpoch());
  auto take = ledger.TakeBatch();
  ASSERT_TRUE(take.has_value());
  EXPECT_FALSE(take->is_replay);
  EXPECT_EQ(take->groups[0]->lease, Id(2));
}

TEST(DataRestoreTest, DropsRestoredGroupsThatATighterBoundCannotTrain) {
  auto prompts = *MakeTask({});
  GroupLedger::Options options;
  options.gate = {.batch_groups = 1, .target_staleness = 0, .max_staleness = 0};
  options.samples = 2;
  auto data =
      Restore(StateWithConsumed(0, 3), 4, {Accepted(Id(0), {1, 4}), Accepted(Id(1), {1, 4}), Accepted(Id(2), {1, 2})});
  GroupLedger ledger(options, prompts.get(), {2, 4}, *std::move(data), absl::UnixEpoch());
  std::vector<LeaseId> dropped;
  for (const DropRecord& drop : ledger.UnloggedDrops()) dropped.push_back(drop.lease);
  EXPECT_THAT(dropped, ::testing::UnorderedElementsAre(Id(1), Id(2)));
  EXPECT_EQ(ledger.counters().dropped_stale, 2);
  EXPECT_EQ(ledger.queued_groups(), 1);
}

}  // namespace
}  // namespace syncopate::trainer
