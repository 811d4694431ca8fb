#include "trainer/data/segmented_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using ::syncopate::testing::FaultyFileSystem;
using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Fault = FaultyFileSystem::Fault;
using Survives = FaultyFileSystem::Survives;

constexpr char kFolder[] = "/run/state/trainer/log";

SegmentedLog::Options Segments(int64_t bytes = 1 << 20) { return {.folder = kFolder, .segment_bytes = bytes}; }

// An open log, and its replayed records: records[i] has number first + i.
struct Opened {
  std::unique_ptr<SegmentedLog> log;
  uint64_t first = 0;
  std::vector<std::string> records;
};

absl::StatusOr<Opened> Open(FileSystem* files, const SegmentedLog::Options& options) {
  Opened opened;
  auto replay = [&opened](uint64_t sequence, absl::string_view payload) {
    if (opened.records.empty()) opened.first = sequence;
    EXPECT_EQ(sequence, opened.first + opened.records.size());
    opened.records.emplace_back(payload);
    return absl::OkStatus();
  };
  SYNCOPATE_ASSIGN_OR_RETURN(opened.log, SegmentedLog::Open(files, options, replay));
  return opened;
}

class SegmentedLogTest : public ::testing::Test {
 protected:
  Opened MustOpen(int64_t segment_bytes = 1 << 20) {
    auto opened = Open(&files_, Segments(segment_bytes));
    EXPECT_THAT(opened, IsOk());
    return *std::move(opened);
  }

  static void AppendAndCommit(SegmentedLog* log, const std::vector<std::string>& records) {
    for (const std::string& record : records) ASSERT_THAT(log->Append(record), IsOk());
    ASSERT_THAT(log->Commit(), IsOk());
  }

  std::vector<std::string> Names() { return files_.List(kFolder).value(); }

  FaultyFileSystem files_;
};

TEST_F(SegmentedLogTest, NumbersRecordsFromOneAndGoesOnAfterAReopen) {
  auto first = MustOpen();
  EXPECT_EQ(first.log->Append("a").value(), 1u);
  EXPECT_EQ(first.log->Append("b").value(), 2u);
  ASSERT_THAT(first.log->Commit(), IsOk());
  auto second = MustOpen();
  EXPECT_THAT(second.records, ElementsAre("a", "b"));
  EXPECT_EQ(second.log->Append("c").value(), 3u);
}

TEST_F(SegmentedLogTest, ReplaysAcrossSegmentsAndGenerations) {
  std::vector<std::string> sent;
  for (int generation = 0; generation < 5; ++generation) {
    auto opened = MustOpen(/*segment_bytes=*/50);
    EXPECT_EQ(opened.records, sent);
    for (int i = 0; i < 10; ++i) {
      sent.push_back(std::to_string(generation * 10 + i));
      AppendAndCommit(opened.log.get(), {sent.back()});
    }
    EXPECT_GT(opened.log->segments(), 2u);
  }
}

TEST_F(SegmentedLogTest, DeletesWholeSegmentsThatHoldNothingNeeded) {
  auto opened = MustOpen(/*segment_bytes=*/50);
  for (int i = 1; i <= 20; ++i) AppendAndCommit(opened.log.get(), {"record " + std::to_string(i)});
  size_t before = Names().size();
  ASSERT_THAT(opened.log->PruneBefore(10), IsOk());
  EXPECT_LT(Names().size(), before);
  auto reopened = MustOpen(50);
  EXPECT_LE(reopened.first, 10u);
  EXPECT_GT(reopened.first, 1u);
  EXPECT_EQ(reopened.records.back(), "record 20");
}

TEST_F(SegmentedLogTest, KeepsItsNumberingWhenEverythingHasBeenPruned) {
  {
    auto opened = MustOpen();
    AppendAndCommit(opened.log.get(), {"a", "b"});
  }
  {
    auto opened = MustOpen();
    ASSERT_THAT(opened.log->PruneBefore(opened.log->next_sequence()), IsOk());
    EXPECT_THAT(Names(), SizeIs(1));
  }
  auto opened = MustOpen();
  EXPECT_THAT(opened.records, IsEmpty());
  EXPECT_EQ(opened.log->next_sequence(), 3u);
}

TEST_F(SegmentedLogTest, CutsATornTailAndReportsIt) {
  {
    auto opened = MustOpen();
    AppendAndCommit(opened.log.get(), {"kept"});
  }
  std::string path = JoinPath(kFolder, Names().back());
  std::string contents = ReadFile(&files_, path, 1 << 20).value();
  ASSERT_THAT(files_.PutFile(path, contents + "torn"), IsOk());
  auto opened = MustOpen();
  EXPECT_THAT(opened.records, ElementsAre("kept"));
  EXPECT_EQ(opened.log->replayed().cut_bytes, 4);
  EXPECT_THAT(opened.log->replayed().damage, HasSubstr("cut short"));
}

TEST_F(SegmentedLogTest, RefusesALogThatLostRecordsBeforeItsEnd) {
  {
    auto opened = MustOpen();
    AppendAndCommit(opened.log.get(), {"one", "two"});
  }
  { auto opened = MustOpen(); }  // a new generation: the first one must contain two records for ever
  std::string path = JoinPath(kFolder, Names().front());
  ASSERT_THAT(files_.FlipBits(path, files_.FileBytes(path).value() - 1, 0x10), IsOk());
  auto opened = Open(&files_, Segments());
  EXPECT_THAT(opened, HasReason("LOG_DAMAGED"));
  EXPECT_THAT(opened.status(), HasMessage(HasSubstr(path)));
  EXPECT_THAT(opened.status(), HasMessage(HasSubstr("checksum")));
}

TEST_F(SegmentedLogTest, RefusesALogWithASegmentMissingInTheMiddle) {
  {
    auto opened = MustOpen(/*segment_bytes=*/50);
    for (int i = 0; i < 20; ++i) AppendAndCommit(opened.log.get(), {"some record"});
  }
  ASSERT_THAT(files_.RemoveTree(JoinPath(kFolder, Names()[1])), IsOk());
  EXPECT_THAT(Open(&files_, Segments()), HasReason("LOG_DAMAGED"));
}

TEST_F(SegmentedLogTest, IgnoresWhatALateProcessAppendsAfterALaterOneHasOpened) {
  auto late = MustOpen(/*segment_bytes=*/50);
  AppendAndCommit(late.log.get(), {"shared"});
  auto newer = MustOpen(50);
  for (int i = 0; i < 10; ++i) AppendAndCommit(late.log.get(), {"late"});  // also into new segments
  AppendAndCommit(newer.log.get(), {"new"});
  auto opened = MustOpen(50);
  EXPECT_THAT(opened.records, ElementsAre("shared", "new"));
  EXPECT_GT(opened.log->replayed().ignored_records, 0);
  EXPECT_THAT(MustOpen(50).records, ElementsAre("shared", "new"));
}

TEST_F(SegmentedLogTest, MakesDurableWhatItReplaysThoughTheProcessBeforeDiedUnsynced) {
  {
    auto opened = MustOpen();
    ASSERT_THAT(opened.log->Append("never committed"), IsOk());
  }
  EXPECT_THAT(MustOpen().records, ElementsAre("never committed"));
  files_.Restart(Survives::kSynced);
  EXPECT_THAT(MustOpen().records, ElementsAre("never committed"));
}

TEST_F(SegmentedLogTest, PassesOnAnErrorOfTheReplay) {
  {
    auto opened = MustOpen();
    AppendAndCommit(opened.log.get(), {"a"});
  }
  auto refuse = [](uint64_t, absl::string_view) { return Error(absl::StatusCode::kDataLoss, "ODD", "odd record"); };
  auto opened = SegmentedLog::Open(&files_, Segments(), refuse);
  EXPECT_THAT(opened, HasReason("ODD"));
  EXPECT_THAT(opened.status(), HasMessage(HasSubstr("record 1")));
}

TEST_F(SegmentedLogTest, ValidatesItsOptions) {
  EXPECT_THAT(Open(&files_, {.folder = ""}), HasReason("BAD_OPTIONS"));
  EXPECT_THAT(Open(&files_, {.folder = kFolder, .segment_bytes = 1}), HasReason("BAD_OPTIONS"));
  EXPECT_THAT(Open(&files_, {.folder = kFolder, .max_record_bytes = 0}), HasReason("BAD_OPTIONS"));
}

TEST_F(SegmentedLogTest, GivesTheNumbersOfAFailedCommitAgain) {
  auto opened = MustOpen();
  AppendAndCommit(opened.log.get(), {"kept"});
  ASSERT_THAT(opened.log->Append("lost"), IsOk());
  files_.FailOperations(files_.operations(), 1, Fault::kIoError);
  EXPECT_THAT(opened.log->Commit(), HasReason("IO_ERROR"));
  EXPECT_EQ(opened.log->Append("instead").value(), 2u);
  ASSERT_THAT(opened.log->Commit(), IsOk());
  files_.Restart(Survives::kSynced);
  EXPECT_THAT(MustOpen().records, ElementsAre("kept", "instead"));
}

// Every record is synced or failed, one operation in two fails, and now and then the disk is full. Afterwards the log
// contains the acknowledged records, in order, and no record that was never appended.
TEST_F(SegmentedLogTest, LosesNothingAcknowledgedHoweverOftenTheDiskFails) {
  for (int64_t period = 1; period <= 9; ++period) {
    FaultyFileSystem files;
    std::vector<std::string> acknowledged;
    {
      auto opened = Open(&files, Segments(300));
      ASSERT_THAT(opened, IsOk());
      for (int i = 0; i < 200; ++i) {
        if (i % 10 < 5) files.FailOperations(files.operations() + i % period, 1 + i % 3, Fault::kNoSpace);
        std::string record = "record " + std::to_string(i);
        bool appended = opened->log->Append(record).ok();
        if (opened->log->Commit().ok() && appended) acknowledged.push_back(record);
      }
    }
    files.Restart(period % 2 == 0 ? Survives::kSynced : Survives::kSome, static_cast<uint64_t>(period));
    auto reopened = Open(&files, Segments(300));
    ASSERT_THAT(reopened, IsOk());
    ASSERT_GT(acknowledged.size(), 50u);
    ASSERT_LT(acknowledged.size(), 200u);
    ASSERT_GE(reopened->records.size(), acknowledged.size());
    ASSERT_LE(reopened->records.size(), acknowledged.size() + 1) << "only the last record may be in doubt";
    EXPECT_TRUE(std::equal(acknowledged.begin(), acknowledged.end(), reopened->records.begin()));
  }
}

// Opens a log with records, appends more in batches of two and prunes, dies at operation `crash_at`, and checks the
// results of the next two opens. Returns false if no crash happened.
bool CrashOnce(int64_t crash_at, Survives survives) {
  FaultyFileSystem files;
  std::vector<std::string> handed_in, acknowledged;
  for (int i = 0; i < 6; ++i) handed_in.push_back("old " + std::to_string(i));
  {
    auto opened = Open(&files, Segments(60));
    EXPECT_THAT(opened, IsOk());
    for (const std::string& record : handed_in) {
      EXPECT_THAT(opened->log->Append(record), IsOk());
      EXPECT_THAT(opened->log->Commit(), IsOk());
    }
    acknowledged = handed_in;
  }
  files.CrashAtOperation(files.operations() + crash_at);
  bool crashed = true;
  if (auto opened = Open(&files, Segments(60)); opened.ok()) {
    EXPECT_EQ(opened->records, acknowledged);
    crashed = false;
    for (int i = 0; i < 4 && !crashed; ++i) {
      std::vector<std::string> batch = {"new " + std::to_string(2 * i), "new " + std::to_string(2 * i + 1)};
      handed_in.insert(handed_in.end(), batch.begin(), batch.end());
      crashed =
          !opened->log->Append(batch[0]).ok() || !opened->log->Append(batch[1]).ok() || !opened->log->Commit().ok();
      if (!crashed) acknowledged = handed_in;
    }
    crashed = crashed || !opened->log->PruneBefore(5).ok();
  }
  for (int reopen = 0; reopen < 2; ++reopen) {
    files.Restart(survives, static_cast<uint64_t>(crash_at));
    auto opened = Open(&files, Segments(60));
    EXPECT_THAT(opened, IsOk()) << "crash at " << crash_at;
    if (!opened.ok()) return crashed;
    EXPECT_LE(opened->first, 5u);
    std::vector<std::string> all(handed_in.begin(), handed_in.begin() + static_cast<int64_t>(opened->first) - 1);
    all.insert(all.end(), opened->records.begin(), opened->records.end());
    EXPECT_GE(all.size(), acknowledged.size()) << "crash at " << crash_at;
    EXPECT_LE(all.size(), handed_in.size());
    EXPECT_TRUE(std::equal(all.begin(), all.end(), handed_in.begin())) << "crash at " << crash_at;
  }
  return crashed;
}

TEST(SegmentedLogCrashTest, KeepsEveryAcknowledgedRecordThroughACrashAtAnyOperation) {
  for (Survives survives : {Survives::kEverything, Survives::kSynced, Survives::kSome}) {
    int64_t crash_at = 0;
    while (CrashOnce(crash_at, survives)) ++crash_at;
    EXPECT_GT(crash_at, 20) << "the crash points were not reached";
  }
}

}  // namespace
}  // namespace syncopate::trainer
