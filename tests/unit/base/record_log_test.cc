#include "base/record_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"

namespace syncopate {
namespace {

using ::syncopate::testing::FaultyFileSystem;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Fault = FaultyFileSystem::Fault;
using Survives = FaultyFileSystem::Survives;

constexpr char kPath[] = "/log/file";

struct Found {
  std::vector<std::string> records;
  int64_t valid_bytes = 0;
  std::string damage;
};

class RecordLogTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_THAT(files_.CreateDirs("/log"), IsOk()); }

  std::unique_ptr<RecordWriter> Open() {
    auto writer = RecordWriter::Open(&files_, kPath);
    EXPECT_THAT(writer, IsOk());
    return writer.ok() ? *std::move(writer) : nullptr;
  }

  absl::StatusOr<Found> Read(int64_t max_record_bytes = kDefaultMaxRecordBytes) {
    SYNCOPATE_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open(&files_, kPath, max_record_bytes));
    Found found;
    while (true) {
      SYNCOPATE_ASSIGN_OR_RETURN(std::optional<std::string> record, reader.Next());
      if (!record.has_value()) break;
      found.records.push_back(*std::move(record));
    }
    found.valid_bytes = reader.valid_bytes();
    found.damage = reader.damage();
    return found;
  }

  void WriteRecords(const std::vector<std::string>& records) {
    auto writer = Open();
    for (const std::string& record : records) ASSERT_THAT(writer->Append(record), IsOk());
    ASSERT_THAT(writer->Sync(), IsOk());
  }

  FaultyFileSystem files_;
};

TEST_F(RecordLogTest, ReadsBackWhatWasWrittenIncludingEmptyAndBinaryRecords) {
  std::vector<std::string> records = {"first", "", std::string("\0\n\xff", 3), std::string(300000, 'x')};
  WriteRecords(records);
  auto found = Read();
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->records, records);
  EXPECT_EQ(found->damage, "");
  EXPECT_EQ(found->valid_bytes, files_.FileBytes(kPath).value());
}

TEST_F(RecordLogTest, ContinuesALogThatWasClosed) {
  WriteRecords({"a"});
  WriteRecords({"b"});
  EXPECT_THAT(Read()->records, ElementsAre("a", "b"));
}

TEST_F(RecordLogTest, StopsAtTheCutWhereverAFileIsCut) {
  std::vector<std::string> records = {"one", "", "three", std::string(40, 'x')};
  WriteRecords(records);
  std::string whole = ReadFile(&files_, kPath, 1 << 20).value();
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    ASSERT_THAT(files_.PutFile(kPath, whole.substr(0, cut)), IsOk());
    auto found = Read();
    ASSERT_THAT(found, IsOk());
    ASSERT_LT(found->records.size(), records.size());
    EXPECT_TRUE(std::equal(found->records.begin(), found->records.end(), records.begin()));
    EXPECT_LE(found->valid_bytes, static_cast<int64_t>(cut));
    EXPECT_EQ(found->damage.empty(), found->valid_bytes == static_cast<int64_t>(cut)) << cut;
  }
}

TEST_F(RecordLogTest, NeverReturnsARecordWithAFlippedBitNorOneAfterIt) {
  std::vector<std::string> records = {"one", "two", std::string(40, 'x')};
  WriteRecords(records);
  int64_t size = files_.FileBytes(kPath).value();
  for (int64_t at = 0; at < size; ++at) {
    for (uint8_t mask : {0x01, 0x80}) {
      ASSERT_THAT(files_.FlipBits(kPath, at, mask), IsOk());
      auto found = Read();
      if (at < kRecordLogHeaderBytes) {
        EXPECT_THAT(found, HasReason("BAD_LOG")) << at;
      } else {
        ASSERT_THAT(found, IsOk());
        ASSERT_LT(found->records.size(), records.size()) << at;
        EXPECT_TRUE(std::equal(found->records.begin(), found->records.end(), records.begin()));
        EXPECT_NE(found->damage, "");
      }
      ASSERT_THAT(files_.FlipBits(kPath, at, mask), IsOk());
    }
  }
}

TEST_F(RecordLogTest, CutsATornTailWhenItOpensAndSaysHowLongItWas) {
  WriteRecords({"kept"});
  std::string contents = ReadFile(&files_, kPath, 1 << 20).value();
  ASSERT_THAT(files_.PutFile(kPath, contents + "torn!"), IsOk());
  auto writer = Open();
  EXPECT_EQ(writer->cut_bytes(), 5);
  EXPECT_THAT(writer->damage(), HasSubstr("cut short"));
  ASSERT_THAT(writer->Append("after"), IsOk());
  ASSERT_THAT(writer->Sync(), IsOk());
  EXPECT_THAT(Read()->records, ElementsAre("kept", "after"));
}

TEST_F(RecordLogTest, TakesAZeroFilledTailForTorn) {
  WriteRecords({"kept"});
  std::string contents = ReadFile(&files_, kPath, 1 << 20).value();
  ASSERT_THAT(files_.PutFile(kPath, contents + std::string(4096, '\0')), IsOk());
  EXPECT_EQ(Open()->cut_bytes(), 4096);
  EXPECT_THAT(Read()->records, ElementsAre("kept"));
}

TEST_F(RecordLogTest, MakesALogAnewWhoseCreationWasCutShort) {
  ASSERT_THAT(files_.PutFile(kPath, std::string(kRecordLogHeaderBytes, '\0')), IsOk());
  auto writer = Open();
  ASSERT_NE(writer, nullptr);
  EXPECT_EQ(writer->cut_bytes(), kRecordLogHeaderBytes);
  EXPECT_THAT(Read()->records, IsEmpty());
}

TEST_F(RecordLogTest, RefusesAFileOfAnotherKindAndLeavesItAlone) {
  std::string other(1000, 'z');
  ASSERT_THAT(files_.PutFile(kPath, other), IsOk());
  EXPECT_THAT(Read(), HasReason("BAD_LOG"));
  EXPECT_THAT(RecordWriter::Open(&files_, kPath), HasReason("BAD_LOG"));
  EXPECT_EQ(ReadFile(&files_, kPath, 2000).value(), other);
}

TEST_F(RecordLogTest, BoundsTheLengthOfARecordOnBothSides) {
  auto writer = RecordWriter::Open(&files_, kPath, 10);
  ASSERT_THAT(writer, IsOk());
  EXPECT_THAT((*writer)->Append(std::string(11, 'x')), HasReason("RECORD_TOO_LARGE"));
  ASSERT_THAT((*writer)->Append(std::string(10, 'x')), IsOk());
  EXPECT_EQ(Read(10)->records.size(), 1u);
  EXPECT_EQ(Read(9)->records.size(), 0u);
  EXPECT_THAT(Read(9)->damage, HasSubstr("over the limit"));
}

TEST_F(RecordLogTest, CreateRefusesALogThatExists) {
  WriteRecords({"a"});
  EXPECT_THAT(RecordWriter::Create(&files_, kPath), HasReason("FILE_EXISTS"));
}

TEST_F(RecordLogTest, GoesOnAfterAFullDiskWithoutATraceOfTheRecordThatDidNotFit) {
  auto writer = Open();
  ASSERT_THAT(writer->Append("fits"), IsOk());
  files_.SetCapacity(writer->size() + 12);
  EXPECT_THAT(writer->Append("does not fit"), HasReason("NO_SPACE"));
  EXPECT_EQ(files_.FileBytes(kPath).value(), writer->size());
  files_.SetCapacity(1 << 20);
  ASSERT_THAT(writer->Append("fits again"), IsOk());
  ASSERT_THAT(writer->Sync(), IsOk());
  EXPECT_THAT(Read()->records, ElementsAre("fits", "fits again"));
}

TEST_F(RecordLogTest, CutsTheTornRecordLaterIfItCannotDoSoAtOnce) {
  auto writer = Open();
  // Operations: the append, its repair, the next repair.
  files_.FailOperations(files_.operations(), 3, Fault::kIoError);
  EXPECT_THAT(writer->Append("lost"), HasReason("IO_ERROR"));
  EXPECT_GT(files_.FileBytes(kPath).value(), writer->size());
  EXPECT_THAT(writer->Append("lost as well"), HasReason("IO_ERROR"));
  ASSERT_THAT(writer->Append("kept"), IsOk());
  ASSERT_THAT(writer->Sync(), IsOk());
  EXPECT_THAT(Read()->records, ElementsAre("kept"));
}

TEST_F(RecordLogTest, TakesBackEverythingThatAFailedSyncDidNotMakeDurable) {
  auto writer = Open();
  ASSERT_THAT(writer->Append("synced"), IsOk());
  ASSERT_THAT(writer->Sync(), IsOk());
  ASSERT_THAT(writer->Append("lost"), IsOk());
  files_.FailOperations(files_.operations(), 1, Fault::kIoError);
  EXPECT_THAT(writer->Sync(), HasReason("IO_ERROR"));
  EXPECT_EQ(writer->size(), writer->synced_size());
  ASSERT_THAT(writer->Append("later"), IsOk());
  ASSERT_THAT(writer->Sync(), IsOk());
  files_.Restart(Survives::kSynced);
  EXPECT_THAT(Read()->records, ElementsAre("synced", "later"));
}

TEST_F(RecordLogTest, DoesNotTrustAHeaderWhoseSyncFailed) {
  files_.FailOperations(files_.operations() + 2, 1, Fault::kIoError);  // operations: open, append, sync
  EXPECT_THAT(RecordWriter::Open(&files_, kPath), HasReason("IO_ERROR"));
  WriteRecords({"kept"});
  files_.Restart(Survives::kSynced);
  EXPECT_THAT(Read()->records, ElementsAre("kept"));
}

TEST_F(RecordLogTest, MakesDurableWhatItFindsWhenItOpens) {
  {
    auto writer = Open();
    ASSERT_THAT(writer->Append("written, not synced"), IsOk());
  }
  Open();
  files_.Restart(Survives::kSynced);
  EXPECT_THAT(Read()->records, ElementsAre("written, not synced"));
}

// Writes ten records with a sync after every second one, dies at operation `crash_at`, and checks the remaining file.
// Returns false if no crash happened.
bool CrashOnce(int64_t crash_at, Survives survives) {
  FaultyFileSystem files;
  EXPECT_THAT(files.CreateDirs("/log"), IsOk());
  files.CrashAtOperation(crash_at);
  std::vector<std::string> written, synced;
  bool crashed = true;
  if (auto writer = RecordWriter::Open(&files, kPath); writer.ok()) {
    crashed = false;
    for (int i = 0; i < 10 && !crashed; ++i) {
      std::string record(static_cast<size_t>(3000 * i), static_cast<char>('a' + i));
      written.push_back(record);
      crashed = !(*writer)->Append(record).ok() || (i % 2 == 1 && !(*writer)->Sync().ok());
      if (!crashed && i % 2 == 1) synced = written;
    }
  }
  files.Restart(survives, static_cast<uint64_t>(crash_at));
  auto reopened = RecordWriter::Open(&files, kPath);
  EXPECT_THAT(reopened, IsOk());
  auto reader = RecordReader::Open(&files, kPath);
  EXPECT_THAT(reader, IsOk());
  std::vector<std::string> found;
  while (auto record = reader->Next().value()) found.push_back(*record);
  EXPECT_EQ(reader->damage(), "");
  EXPECT_GE(found.size(), synced.size()) << "crash at " << crash_at;
  EXPECT_LE(found.size(), written.size());
  EXPECT_TRUE(std::equal(found.begin(), found.end(), written.begin())) << "crash at " << crash_at;
  return crashed;
}

TEST(RecordLogCrashTest, KeepsEverySyncedRecordThroughACrashAtAnyOperation) {
  for (Survives survives : {Survives::kEverything, Survives::kSynced, Survives::kSome}) {
    int64_t crash_at = 1;  // the first operation after the folder was made
    while (CrashOnce(crash_at, survives)) ++crash_at;
    EXPECT_GT(crash_at, 15) << "the crash points were not reached";
  }
}

}  // namespace
}  // namespace syncopate
