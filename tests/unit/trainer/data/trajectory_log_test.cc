#include "trainer/data/trajectory_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/faulty_file_system.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using ::syncopate::testing::FaultyFileSystem;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;
using Fault = FaultyFileSystem::Fault;
using Survives = FaultyFileSystem::Survives;

constexpr char kFolder[] = "/run/state/trainer/log";
constexpr absl::Duration kPatience = absl::Seconds(20);

// Passes every call on to another disk, but delays every Sync until the test lets it go.
class GatedFileSystem final : public FileSystem {
 public:
  explicit GatedFileSystem(FileSystem* files) : files_(files) {}

  void Close() {
    MutexLock lock(&mutex_);
    open_ = false;
  }
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
  }
  // False if no Sync was delayed within kPatience.
  bool WaitForSync() {
    MutexLock lock(&mutex_);
    auto held = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_ > 0; };
    return mutex_.AwaitWithTimeout(Condition(&held), kPatience);
  }

  absl::Status CreateDirs(const std::string& path) override { return files_->CreateDirs(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return files_->List(path); }
  absl::StatusOr<int64_t> FileBytes(const std::string& path) override { return files_->FileBytes(path); }
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    return files_->OpenForRead(path);
  }
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path, OpenMode mode) override {
    SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, files_->OpenForAppend(path, mode));
    return std::unique_ptr<AppendFile>(new GatedFile(this, std::move(file)));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override { return files_->Rename(from, to); }
  absl::Status RemoveTree(const std::string& path) override { return files_->RemoveTree(path); }
  absl::Status SyncDir(const std::string& path) override { return files_->SyncDir(path); }

 private:
  class GatedFile final : public AppendFile {
   public:
    GatedFile(GatedFileSystem* gate, std::unique_ptr<AppendFile> file) : gate_(gate), file_(std::move(file)) {}
    absl::Status Append(absl::string_view data) override { return file_->Append(data); }
    absl::Status Sync() override {
      gate_->Pass();
      return file_->Sync();
    }
    absl::Status Truncate(int64_t bytes) override { return file_->Truncate(bytes); }
    int64_t size() const override { return file_->size(); }

   private:
    GatedFileSystem* gate_;
    std::unique_ptr<AppendFile> file_;
  };

  void Pass() {
    MutexLock lock(&mutex_);
    ++waiting_;
    EXPECT_TRUE(mutex_.AwaitWithTimeout(Condition(&open_), kPatience));
    --waiting_;
  }

  FileSystem* files_;
  Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
};

TrajectoryLog::Options Options() { return {.segments = {.folder = kFolder}}; }

absl::Status IgnoreRecord(uint64_t, absl::string_view) { return absl::OkStatus(); }

std::unique_ptr<TrajectoryLog> MustOpen(FileSystem* files, const TrajectoryLog::Options& options = Options()) {
  auto log = TrajectoryLog::Open(files, options, IgnoreRecord);
  EXPECT_THAT(log, IsOk());
  return log.ok() ? *std::move(log) : nullptr;
}

std::vector<std::string> Records(FileSystem* files) {
  std::vector<std::string> records;
  auto log = TrajectoryLog::Open(files, Options(), [&records](uint64_t, absl::string_view payload) {
    records.emplace_back(payload);
    return absl::OkStatus();
  });
  EXPECT_THAT(log, IsOk());
  return records;
}

TEST(TrajectoryLogTest, AnswersInOrderWithTheNumbersOfTheRecords) {
  FaultyFileSystem files;
  auto log = MustOpen(&files);
  std::vector<uint64_t> answers;  // written by the log thread, read after Stop
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(log->Append("record",
                            [&answers](absl::Status status, uint64_t sequence) {
                              EXPECT_THAT(status, IsOk());
                              answers.push_back(sequence);
                            }),
                IsOk());
  }
  log->Stop();
  ASSERT_EQ(answers.size(), 100u);
  for (size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i], i + 1);
  EXPECT_EQ(log->stats().committed_records, 100);
  EXPECT_EQ(log->stats().pending_bytes, 0);
}

TEST(TrajectoryLogTest, WorksOnTheRealFileSystem) {
  testing::TempDir folder;
  TrajectoryLog::Options options = {.segments = {.folder = folder.path() + "/a/log", .segment_bytes = 100}};
  for (int life = 0; life < 3; ++life) {
    std::vector<std::string> replayed;
    auto log = TrajectoryLog::Open(FileSystem::Real(), options, [&replayed](uint64_t, absl::string_view payload) {
      replayed.emplace_back(payload);
      return absl::OkStatus();
    });
    ASSERT_THAT(log, IsOk());
    EXPECT_EQ(replayed.size(), static_cast<size_t>(life) * 10);
    for (int i = 0; i < 10; ++i) ASSERT_THAT((*log)->AppendAndWait("some record", kPatience), IsOk());
  }
}

TEST(TrajectoryLogTest, AcknowledgesOnlyWhatSurvivesAPowerCut) {
  FaultyFileSystem files;
  auto log = MustOpen(&files);
  EXPECT_EQ(log->AppendAndWait("a", kPatience).value(), 1u);
  EXPECT_EQ(log->AppendAndWait("b", kPatience).value(), 2u);
  files.Restart(Survives::kSynced);
  log.reset();
  EXPECT_THAT(Records(&files), ElementsAre("a", "b"));
}

TEST(TrajectoryLogTest, SyncsOnceForAllRecordsThatCameWhileItWasSyncing) {
  FaultyFileSystem disk;
  GatedFileSystem files(&disk);
  auto log = MustOpen(&files);
  files.Close();
  std::atomic<int> answered = 0;
  auto count = [&answered](absl::Status status, uint64_t) {
    EXPECT_THAT(status, IsOk());
    ++answered;
  };
  ASSERT_THAT(log->Append("first", count), IsOk());
  ASSERT_TRUE(files.WaitForSync());
  for (int i = 0; i < 50; ++i) ASSERT_THAT(log->Append("waits", count), IsOk());
  EXPECT_EQ(answered, 0) << "answered before it was durable";
  files.Open();
  log->Stop();
  EXPECT_EQ(answered, 51);
  EXPECT_EQ(log->stats().commits, 2);
}

TEST(TrajectoryLogTest, GivesUpWaitingAtTheDeadlineAndWritesTheRecordAllTheSame) {
  FaultyFileSystem disk;
  GatedFileSystem files(&disk);
  auto log = MustOpen(&files);
  files.Close();
  EXPECT_THAT(log->AppendAndWait("slow", absl::Milliseconds(1)), HasReason("LOG_SLOW"));
  files.Open();
  log->Stop();
  EXPECT_THAT(Records(&disk), ElementsAre("slow"));
}

TEST(TrajectoryLogTest, RefusesWhatWouldNotFitItsMemory) {
  FaultyFileSystem disk;
  GatedFileSystem files(&disk);
  TrajectoryLog::Options options = Options();
  options.max_pending_bytes = 10;
  auto log = MustOpen(&files, options);
  files.Close();
  ASSERT_THAT(log->Append("12345678", [](absl::Status, uint64_t) {}), IsOk());
  EXPECT_THAT(log->Append("123", [](absl::Status, uint64_t) { FAIL() << "the append was refused"; }),
              HasReason("LOG_FULL"));
  files.Open();
  log->Stop();
  EXPECT_THAT(Records(&disk), ElementsAre("12345678"));
}

TEST(TrajectoryLogTest, FailsOnlyWhatDoesNotFitAFullDiskAndGoesOnWhenThereIsSpace) {
  FaultyFileSystem files;
  auto log = MustOpen(&files);
  ASSERT_THAT(log->AppendAndWait("before", kPatience), IsOk());
  files.SetCapacity(100);
  EXPECT_THAT(log->AppendAndWait(std::string(1000, 'x'), kPatience), HasReason("NO_SPACE"));
  EXPECT_EQ(log->AppendAndWait("small", kPatience).value(), 2u);
  files.SetCapacity(1 << 20);
  EXPECT_EQ(log->AppendAndWait("after", kPatience).value(), 3u);
  EXPECT_EQ(log->stats().failed_records, 1);
  log->Stop();
  files.Restart(Survives::kSynced);
  EXPECT_THAT(Records(&files), ElementsAre("before", "small", "after"));
}

TEST(TrajectoryLogTest, FailsTheWholeBatchWhenItsSyncFails) {
  FaultyFileSystem files;
  auto log = MustOpen(&files);
  files.FailOperations(files.operations() + 1, 1, Fault::kIoError);  // an append, then the sync
  EXPECT_THAT(log->AppendAndWait("lost", kPatience), HasReason("IO_ERROR"));
  EXPECT_EQ(log->AppendAndWait("kept", kPatience).value(), 1u);
  log->Stop();
  EXPECT_THAT(Records(&files), ElementsAre("kept"));
}

TEST(TrajectoryLogTest, PrunesBeforeItWritesWhatCameLater) {
  FaultyFileSystem files;
  TrajectoryLog::Options options = Options();
  options.segments.segment_bytes = 50;
  auto log = MustOpen(&files, options);
  for (int i = 0; i < 20; ++i) ASSERT_THAT(log->AppendAndWait("some record", kPatience), IsOk());
  size_t before = files.List(kFolder)->size();
  log->PruneBefore(21);
  ASSERT_THAT(log->AppendAndWait("one more", kPatience), IsOk());
  EXPECT_LT(files.List(kFolder)->size(), before);
  EXPECT_EQ(log->stats().next_sequence, 22u);
}

TEST(TrajectoryLogTest, RefusesRecordsAfterStopAndStopsTwice) {
  FaultyFileSystem files;
  auto log = MustOpen(&files);
  log->Stop();
  log->Stop();
  EXPECT_THAT(log->AppendAndWait("late", kPatience), HasReason("LOG_STOPPED"));
}

TEST(TrajectoryLogTest, AnswersEveryRecordOfManyThreadsExactlyOnceThoughStoppedInBetween) {
  FaultyFileSystem files;
  auto log = MustOpen(&files);
  constexpr int kThreads = 4, kRecords = 300;
  std::atomic<int> durable = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kRecords; ++i) {
        absl::Status handed_in = log->Append("payload", [&durable](absl::Status status, uint64_t) {
          if (status.ok()) ++durable;
        });
        if (!handed_in.ok()) ++refused;
        if (thread == 0 && i == kRecords / 2) log->Stop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(durable + refused, kThreads * kRecords);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(Records(&files).size(), static_cast<size_t>(durable));
}

}  // namespace
}  // namespace syncopate::trainer
