#include "synchronizer/versions/version_ledger.h"

#include "gtest/gtest.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

VersionLedger LedgerAtEpoch(int64_t epoch) {
  VersionLedger ledger;
  ledger.SetRunId("run");
  ledger.RaiseEpoch(epoch);
  return ledger;
}

TEST(VersionLedgerTest, RefusesALowerEpochAsFenced) {
  VersionLedger ledger = LedgerAtEpoch(3);
  EXPECT_THAT(ledger.Publish(VersionWith({2, 9})).status(), HasReason("FENCED"));
  EXPECT_EQ(ledger.newest(), nullptr);
}

TEST(VersionLedgerTest, RefusesAnEpochThatWasNeverAllocated) {
  EXPECT_THAT(LedgerAtEpoch(3).Publish(VersionWith({4, 0})).status(), HasReason("EPOCH_UNKNOWN"));
  EXPECT_THAT(VersionLedger().Publish(VersionWith({0, 0})).status(), HasReason("EPOCH_UNKNOWN"));
}

TEST(VersionLedgerTest, AVersionHasOneDigestForEver) {
  VersionLedger ledger = LedgerAtEpoch(1);
  ASSERT_TRUE(ledger.Publish(VersionWith({1, 5}, {1})).ok());
  EXPECT_THAT(ledger.Publish(VersionWith({1, 5}, {2})).status(), HasReason("DIGEST_CHANGED"));
  auto again = ledger.Publish(VersionWith({1, 5}, {1}));
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->has_value());
}

TEST(VersionLedgerTest, VersionsOnlyGoForward) {
  VersionLedger ledger = LedgerAtEpoch(1);
  ASSERT_TRUE(ledger.Publish(VersionWith({1, 5})).ok());
  EXPECT_THAT(ledger.Publish(VersionWith({1, 4})).status(), HasReason("VERSION_ORDER"));
  ledger.RaiseEpoch(2);
  EXPECT_TRUE(ledger.Publish(VersionWith({2, 0})).ok());  // a restored trainer starts at an older step
  EXPECT_EQ(ledger.newest()->version, (PolicyVersion{2, 0}));
}

TEST(VersionLedgerTest, KnowsWhatAMemberCanServe) {
  VersionLedger ledger = LedgerAtEpoch(1);
  EXPECT_TRUE(ledger.CheckServed({}, 0).ok());
  EXPECT_THAT(ledger.CheckServed({1, 1}, 0), HasReason("UNPUBLISHED_VERSION"));
  for (int64_t step = 1; step <= 101; step += 2) ASSERT_TRUE(ledger.Publish(VersionWith({1, step}, {7})).ok());
  EXPECT_TRUE(ledger.CheckServed({1, 5}, CombineDigests({7})).ok());
  EXPECT_THAT(ledger.CheckServed({1, 5}, CombineDigests({8})), HasReason("WRONG_DIGEST"));
  EXPECT_TRUE(absl::IsFailedPrecondition(ledger.CheckServed({1, 5}, 0)));
  for (PolicyVersion never : {PolicyVersion{1, 4}, PolicyVersion{1, 102}, PolicyVersion{2, 0}}) {
    EXPECT_THAT(ledger.CheckServed(never, CombineDigests({7})), HasReason("UNPUBLISHED_VERSION")) << never.ToString();
  }
  EXPECT_TRUE(ledger.CheckServed({1, 0}, 9).ok()) << "older than all that are remembered";
}

PublishedPart GetPart(PolicyVersion version, int32_t rank, std::vector<uint64_t> digests, int64_t begin) {
  return {version, rank, 2, begin, std::move(digests), 0};
}

TEST(VersionLedgerTest, ReadsVersionsThatAnEarlierBuildPublishedByParts) {
  auto ledger = VersionLedger::Restore({RunIdRecord{"run"}, EpochRecord{1}, GetPart({1, 4}, 1, {9}, 1),
                                        GetPart({1, 5}, 1, {3}, 2), GetPart({1, 5}, 0, {1, 2}, 0),
                                        GetPart({1, 6}, 0, {4, 5}, 0)});
  ASSERT_TRUE(ledger.ok()) << ledger.status();
  ASSERT_EQ(ledger->versions().size(), 1u) << "the other versions lack parts";
  EXPECT_EQ(ledger->newest()->version, (PolicyVersion{1, 5}));
  EXPECT_EQ(ledger->newest()->bucket_digests, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(ledger->newest()->digest, CombineDigests({1, 2, 3}));
  EXPECT_EQ(ledger->Snapshot().size(), 3u) << "run, epoch and the version, whole";
  EXPECT_TRUE(ledger->Publish({{1, 6}, {4, 5, 6}, CombineDigests({4, 5, 6}), 0})->has_value());
}

TEST(VersionLedgerTest, ChecksTheRun) {
  VersionLedger ledger = LedgerAtEpoch(1);
  EXPECT_TRUE(ledger.CheckRun("").ok());
  EXPECT_TRUE(ledger.CheckRun("run").ok());
  EXPECT_THAT(ledger.CheckRun("another"), HasReason("WRONG_RUN"));
}

TEST(VersionLedgerTest, IsTheSameAfterARestartFromItsRecordsOrItsSnapshot) {
  VersionLedger ledger;
  std::vector<LedgerRecord> records;
  records.emplace_back(ledger.SetRunId("run"));
  for (int64_t epoch = 1; epoch <= 3; ++epoch) {
    records.emplace_back(ledger.RaiseEpoch(epoch));
    for (int64_t step = 0; step < 60; ++step) records.emplace_back(**ledger.Publish(VersionWith({epoch, step})));
  }
  auto restored = VersionLedger::Restore(records);
  auto compacted = VersionLedger::Restore(ledger.Snapshot());
  ASSERT_TRUE(restored.ok() && compacted.ok());
  for (const VersionLedger* other : {&*restored, &*compacted}) {
    EXPECT_EQ(other->run_id(), "run");
    EXPECT_EQ(other->epoch(), 3);
    EXPECT_EQ(other->newest()->version, (PolicyVersion{3, 59}));
    EXPECT_EQ(other->versions().size(), VersionLedger::kKept);
  }
}

TEST(VersionLedgerTest, ARunIsCompleteOnceAndUntilANewTrainerBegins) {
  VersionLedger ledger = LedgerAtEpoch(2);
  EXPECT_THAT(ledger.Complete({1, 9}).status(), HasReason("FENCED"));
  EXPECT_THAT(ledger.Complete({3, 9}).status(), HasReason("EPOCH_UNKNOWN"));
  EXPECT_FALSE(ledger.completed());
  auto record = ledger.Complete({2, 9});
  ASSERT_TRUE(record.ok() && record->has_value());
  EXPECT_EQ(std::get<CompletedRecord>(**record).epoch, 2);
  EXPECT_TRUE(ledger.completed());
  EXPECT_FALSE(ledger.Complete({2, 9})->has_value()) << "repeating it is harmless";
  for (const auto& records : {ledger.Snapshot(), std::vector<LedgerRecord>{EpochRecord{2}, **record}}) {
    EXPECT_TRUE(VersionLedger::Restore(records)->completed());
  }
  ledger.RaiseEpoch(3);
  EXPECT_FALSE(ledger.completed());
  EXPECT_FALSE(VersionLedger::Restore({EpochRecord{2}, **record, EpochRecord{3}})->completed());
}

TEST(VersionLedgerTest, RefusesToStartFromContradictoryRecords) {
  EXPECT_THAT(VersionLedger::Restore({EpochRecord{1}, CompletedRecord{2}}).status(), HasReason("BAD_LEDGER"));
  EXPECT_THAT(VersionLedger::Restore({CompletedRecord{0}}).status(), HasReason("BAD_LEDGER"));
  EXPECT_THAT(VersionLedger::Restore({RunIdRecord{"a"}, RunIdRecord{"b"}}).status(), HasReason("BAD_LEDGER"));
  EXPECT_THAT(VersionLedger::Restore({EpochRecord{2}, EpochRecord{1}}).status(), HasReason("BAD_LEDGER"));
  EXPECT_THAT(VersionLedger::Restore({EpochRecord{1}, VersionWith({2, 1})}).status(), HasReason("BAD_LEDGER"));
  EXPECT_THAT(VersionLedger::Restore({EpochRecord{1}, VersionWith({1, 2}), VersionWith({1, 1})}).status(),
              HasReason("BAD_LEDGER"));
}

}  // namespace
}  // namespace syncopate::synchronizer
