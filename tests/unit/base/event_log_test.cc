#include "base/event_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"

namespace syncopate {
namespace {

using ::syncopate::testing::FaultyFileSystem;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;

constexpr char kPath[] = "/run/events/trainer-0.binlog";

std::vector<std::string> ReadAll(FileSystem* files) {
  std::vector<std::string> records;
  auto reader = RecordReader::Open(files, kPath);
  EXPECT_THAT(reader, IsOk());
  while (auto record = reader->Next().value()) records.push_back(*record);
  return records;
}

TEST(EventLogTest, HasItsFileBelowTheRunDirectory) { EXPECT_EQ(EventLogPath("/run", "trainer-0"), kPath); }

TEST(EventLogTest, WritesEverythingInOrderBeforeStopReturns) {
  FaultyFileSystem files;
  auto log = EventLog::Open(&files, kPath);
  ASSERT_THAT(log, IsOk());
  std::vector<std::string> sent;
  for (int i = 0; i < 1000; ++i) {
    sent.push_back(std::to_string(i));
    (*log)->Append(sent.back());
  }
  EXPECT_THAT((*log)->Stop(), IsOk());
  EXPECT_EQ((*log)->dropped(), 0);
  EXPECT_EQ(ReadAll(&files), sent);
}

TEST(EventLogTest, CountsWhatComesAfterStopAsDropped) {
  FaultyFileSystem files;
  auto log = EventLog::Open(&files, kPath);
  ASSERT_THAT(log, IsOk());
  (*log)->Append("before");
  EXPECT_THAT((*log)->Stop(), IsOk());
  (*log)->Append("after");
  EXPECT_THAT((*log)->Stop(), IsOk());
  EXPECT_EQ((*log)->dropped(), 1);
  EXPECT_THAT(ReadAll(&files), ElementsAre("before"));
}

TEST(EventLogTest, DropsARecordThatDoesNotFitTheBuffer) {
  FaultyFileSystem files;
  auto log = EventLog::Open(&files, kPath, {.max_buffer_bytes = 100});
  ASSERT_THAT(log, IsOk());
  (*log)->Append(std::string(101, 'x'));
  (*log)->Append("fits");
  EXPECT_THAT((*log)->Stop(), IsOk());
  EXPECT_EQ((*log)->dropped(), 1);
  EXPECT_THAT(ReadAll(&files), ElementsAre("fits"));
}

TEST(EventLogTest, CountsWhatAFullDiskRefusesAndReportsTheError) {
  FaultyFileSystem files;
  auto log = EventLog::Open(&files, kPath);
  ASSERT_THAT(log, IsOk());
  files.SetCapacity(kRecordLogHeaderBytes + kRecordFrameBytes + 4);
  (*log)->Append("fits");
  (*log)->Append("does not");
  EXPECT_THAT((*log)->Stop(), HasReason("NO_SPACE"));
  EXPECT_EQ((*log)->dropped(), 1);
  EXPECT_THAT(ReadAll(&files), ElementsAre("fits"));
}

TEST(EventLogTest, LosesAndInventsNothingUnderConcurrentAppendsAndStops) {
  FaultyFileSystem files;
  auto log = EventLog::Open(&files, kPath, {.max_buffer_bytes = 500});
  ASSERT_THAT(log, IsOk());
  constexpr int kThreads = 4, kRecords = 500;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&log, thread] {
      for (int i = 0; i < kRecords; ++i) (*log)->Append("payload");
      if (thread < 2) {
        EXPECT_THAT((*log)->Stop(), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT((*log)->Stop(), IsOk());
  EXPECT_EQ(static_cast<int64_t>(ReadAll(&files).size()) + (*log)->dropped(), kThreads * kRecords);
}

}  // namespace
}  // namespace syncopate
