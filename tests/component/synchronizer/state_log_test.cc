#include "synchronizer/loop/state_log.h"

#include <filesystem>

#include "base/uuid.h"
#include "gtest/gtest.h"
#include "services/wire/sync_codec.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

class StateLogTest : public ::testing::Test {
 protected:
  StateLogTest() : dir_(::testing::TempDir() + "state-" + RandomUuid()) {}
  ~StateLogTest() override { std::filesystem::remove_all(dir_); }

  absl::StatusOr<StateLog::Opened> Open() { return StateLog::Open(files_, dir_, wire::ProtoStateCodec()); }

  const std::string dir_;
  FileSystem* const files_ = FileSystem::Real();
};

TEST_F(StateLogTest, GivesBackWhatWasAppended) {
  std::vector<LedgerRecord> records = {RunIdRecord{"run"}, EpochRecord{1}, VersionWith({1, 2}, {7, 8, 9}),
                                       synchronizer::PublishedPart{{1, 3}, 1, 2, 2, {5, 6}, 12.5, {{{0, 2}}, 9}}};
  {
    auto opened = Open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(opened->records.empty());
    for (const LedgerRecord& record : records) ASSERT_TRUE(opened->log->Append(record).ok());
  }
  auto again = Open();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->records, records);
}

TEST_F(StateLogTest, ALongLogIsRewrittenWithTheSameMeaning) {
  ASSERT_TRUE(files_->CreateDirs(dir_).ok());
  {
    auto writer = RecordWriter::Open(files_, JoinPath(dir_, "log"));
    ASSERT_TRUE(writer.ok());
    std::vector<LedgerRecord> records = {RunIdRecord{"run"}, EpochRecord{1}};
    for (int64_t step = 0; step < 5000; ++step) records.emplace_back(VersionWith({1, step}));
    for (const LedgerRecord& record : records) {
      ASSERT_TRUE((*writer)->Append(wire::ProtoStateCodec().encode_record(record)).ok());
    }
    ASSERT_TRUE((*writer)->Sync().ok());
  }
  int64_t before = *files_->FileBytes(JoinPath(dir_, "log"));
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_LT(opened->records.size(), 200u);
  EXPECT_LT(*files_->FileBytes(JoinPath(dir_, "log")), before / 10);
  ASSERT_TRUE(opened->log->Append(VersionWith({1, 5000})).ok());
  auto ledger = VersionLedger::Restore(Open()->records);
  ASSERT_TRUE(ledger.ok());
  EXPECT_EQ(ledger->run_id(), "run");
  EXPECT_EQ(ledger->epoch(), 1);
  EXPECT_EQ(ledger->newest()->version, (PolicyVersion{1, 5000}));
}

TEST_F(StateLogTest, ALogThatGrowsIsRewrittenWhileItIsInUse) {
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  VersionLedger ledger;
  std::vector<LedgerRecord> records = {ledger.SetRunId("run"), ledger.RaiseEpoch(1)};
  int rewritten = 0;
  for (int64_t step = 0; step < 2500; ++step) records.push_back(**ledger.Publish(VersionWith({1, step})));
  ledger = *VersionLedger::Restore({});
  for (const LedgerRecord& record : records) {
    ASSERT_TRUE(opened->log->Append(record).ok());
    if (const auto* run = std::get_if<RunIdRecord>(&record)) ledger.SetRunId(run->run_id);
    if (const auto* epoch = std::get_if<EpochRecord>(&record)) ledger.RaiseEpoch(epoch->epoch);
    if (const auto* version = std::get_if<synchronizer::PublishedVersion>(&record)) {
      ASSERT_TRUE(ledger.Publish(*version).ok());
    }
    if (!opened->log->HasGrown()) continue;
    ++rewritten;
    ASSERT_TRUE(opened->log->Compact(ledger.Snapshot(), {}).ok());
  }
  EXPECT_EQ(rewritten, 2);
  auto again = Open();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_LT(again->records.size(), 700u);
  auto restored = VersionLedger::Restore(again->records);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->Snapshot(), ledger.Snapshot());
}

synchronizer::SyncTally Ended(int count) {
  synchronizer::SyncRecord sync;
  sync.SetResult("ok");
  synchronizer::SyncTally tally;
  for (int i = 0; i < count; ++i) tally.Add(sync);
  return tally;
}

TEST_F(StateLogTest, SyncsAddUpOverAllLivesAndRewrites) {
  {
    auto opened = Open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(opened->log->Append(RunIdRecord{"run"}).ok());
    for (int i = 0; i < 999; ++i) ASSERT_TRUE(opened->log->AppendSyncs(Ended(2)).ok());
    EXPECT_TRUE(opened->log->HasGrown());
  }
  {
    auto opened = Open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->syncs.count(), 1998);
    EXPECT_EQ(opened->records.size(), 1u);
    ASSERT_TRUE(opened->log->AppendSyncs(Ended(1)).ok());
    ASSERT_TRUE(opened->log->Compact({RunIdRecord{"run"}}, Ended(1999)).ok());
    ASSERT_TRUE(opened->log->AppendSyncs(Ended(1)).ok());
  }
  EXPECT_LT(*files_->FileBytes(JoinPath(dir_, "log")), 300);
  for (int life = 0; life < 3; ++life) {
    auto opened = Open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->syncs.count(), 2000 + 1000 * life);
    // The log is rewritten when it is opened.
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(opened->log->AppendSyncs(Ended(1)).ok());
  }
}

class FullStateLogTest : public ::testing::Test {
 protected:
  absl::StatusOr<StateLog::Opened> Open() { return StateLog::Open(&files_, "/state", wire::ProtoStateCodec()); }
  void LosePower() {
    files_.CrashAtOperation(files_.operations());
    files_.Restart(testing::FaultyFileSystem::Survives::kSynced);
  }
  testing::FaultyFileSystem files_;
};

// For each operation of the disk in turn, the disk is full for a while when the operation comes; then the same record
// is appended again.
TEST_F(FullStateLogTest, WhatAFullDiskRefusedIsAppendedAgainOnceAndTheSyncsBeforeItTooWhereverItWasFull) {
  for (int64_t operation = 0; operation < 8; ++operation) {
    SCOPED_TRACE(operation);
    ASSERT_TRUE(files_.RemoveTree("/state").ok());
    auto opened = Open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(opened->log->Append(RunIdRecord{"run"}).ok());
    ASSERT_TRUE(opened->log->AppendSyncs(Ended(3)).ok());
    files_.FailOperations(files_.operations() + operation / 4, 1 + operation % 4,
                          testing::FaultyFileSystem::Fault::kNoSpace);
    int tries = 1;
    for (absl::Status written; !(written = opened->log->Append(EpochRecord{1})).ok(); ++tries) {
      ASSERT_THAT(written, HasReason("NO_SPACE"));
      ASSERT_LT(tries, 10);
    }
    EXPECT_GT(tries, 1);
    LosePower();
    auto again = Open();
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->records, (std::vector<LedgerRecord>{RunIdRecord{"run"}, EpochRecord{1}}));
    EXPECT_EQ(again->syncs.count(), 3);
  }
}

TEST_F(FullStateLogTest, ARewriteThatFindsTheDiskFullAnywhereLosesNothingAndTheLogGoesOn) {
  for (int64_t operation = 0; operation < 12; ++operation) {
    SCOPED_TRACE(operation);
    ASSERT_TRUE(files_.RemoveTree("/state").ok());
    auto opened = Open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(opened->log->Append(RunIdRecord{"run"}).ok());
    ASSERT_TRUE(opened->log->AppendSyncs(Ended(3)).ok());
    files_.FailOperations(files_.operations() + operation, 2, testing::FaultyFileSystem::Fault::kNoSpace);
    EXPECT_TRUE(opened->log->Compact({RunIdRecord{"run"}}, Ended(3)).ok());
    int tries = 1;
    for (absl::Status written; !(written = opened->log->Append(EpochRecord{1})).ok(); ++tries) {
      ASSERT_THAT(written, HasReason("NO_SPACE"));
      ASSERT_LT(tries, 10);
    }
    LosePower();
    auto again = Open();
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->records, (std::vector<LedgerRecord>{RunIdRecord{"run"}, EpochRecord{1}}));
    EXPECT_EQ(again->syncs.count(), 3);
  }
}

TEST_F(StateLogTest, ATornEndIsCutOffAndARecordOfAnotherKindIsRefused) {
  {
    auto opened = Open();
    ASSERT_TRUE(opened->log->Append(RunIdRecord{"run"}).ok());
    ASSERT_TRUE(opened->log->Append(EpochRecord{1}).ok());
  }
  std::string path = JoinPath(dir_, "log");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->records, std::vector<LedgerRecord>{RunIdRecord{"run"}});
  ASSERT_TRUE((*RecordWriter::Open(files_, path))->Append("\xff\xff").ok());
  EXPECT_THAT(Open().status(), HasReason("BAD_LEDGER"));
}

}  // namespace
}  // namespace syncopate::synchronizer
