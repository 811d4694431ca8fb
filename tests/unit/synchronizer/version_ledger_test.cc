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

TEST(VersionLedgerTest, RefusesToStartFromContradictoryRecords) {
  EXPECT_THAT(VersionLedger::Restore({RunIdRecord{"a"}, RunIdRecord{"b"}}).status(), HasReason("BAD_LEDGER"));
  EXPECT_THAT(VersionLedger::Restore({EpochRecord{2}, EpochRecord{1}}).status(), HasReason("BAD_LEDGER"));
  EXPECT_THAT(VersionLedger::Restore({EpochRecord{1}, VersionWith({2, 1})}).status(), HasReason("BAD_LEDGER"));
  EXPECT_THAT(VersionLedger::Restore({EpochRecord{1}, VersionWith({1, 2}), VersionWith({1, 1})}).status(),
              HasReason("BAD_LEDGER"));
}

}  // namespace
}  // namespace syncopate::synchronizer
