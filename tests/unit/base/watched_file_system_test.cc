#include "base/watched_file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/hand_clock.h"
#include "tests/support/status_matchers.h"

namespace syncopate {
namespace {

using ::syncopate::testing::FaultyFileSystem;
using ::syncopate::testing::HandClock;
using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;
using Mode = FileSystem::OpenMode;

class WatchedFileSystemTest : public ::testing::Test {
 protected:
  // Waits until a call of another thread waits for the disk.
  bool AwaitUnderWay() const {
    return testing::Eventually(absl::Seconds(30), [this] { return !watched_.CheckCalls(absl::ZeroDuration()).ok(); });
  }

  FaultyFileSystem disk_;
  HandClock clock_;
  WatchedFileSystem watched_{&disk_, &clock_};
};

TEST_F(WatchedFileSystemTest, DoesWhatTheOtherDoes) {
  ASSERT_THAT(watched_.CreateDirs("/a"), IsOk());
  {
    auto file = watched_.OpenForAppend("/a/b", Mode::kCreateNew);
    ASSERT_THAT(file, IsOk());
    ASSERT_THAT((*file)->Append("hello"), IsOk());
    ASSERT_THAT((*file)->Truncate(4), IsOk());
    ASSERT_THAT((*file)->Sync(), IsOk());
    EXPECT_EQ((*file)->size(), 4);
  }
  ASSERT_THAT(watched_.Rename("/a/b", "/a/c"), IsOk());
  ASSERT_THAT(watched_.SyncDir("/a"), IsOk());
  EXPECT_EQ(ReadFile(&watched_, "/a/c", 100).value_or(""), "hell");
  EXPECT_EQ(watched_.FileBytes("/a/c").value_or(0), 4);
  EXPECT_EQ(watched_.List("/a").value(), std::vector<std::string>{"c"});
  ASSERT_THAT(watched_.RemoveTree("/a/c"), IsOk());
  EXPECT_THAT(watched_.FileBytes("/a/c"), HasReason("NO_SUCH_FILE"));
  disk_.FailOperations(disk_.operations(), 1, FaultyFileSystem::Fault::kNoSpace);
  EXPECT_THAT(watched_.CreateDirs("/b"), HasReason("NO_SPACE"));
}

TEST_F(WatchedFileSystemTest, TimeWithoutACallIsNobodysFault) {
  ASSERT_THAT(watched_.CreateDirs("/a"), IsOk());
  clock_.Set(absl::UnixEpoch() + absl::Seconds(1000));
  EXPECT_THAT(watched_.CheckCalls(absl::Seconds(1)), IsOk());
}

TEST_F(WatchedFileSystemTest, ACallThatDoesNotComeBackIsNamedFromItsDeadlineOnUntilItDoes) {
  auto file = watched_.OpenForAppend("/model.safetensors", Mode::kCreateNew);
  ASSERT_THAT(file, IsOk());
  disk_.HoldOperations(true);
  auto writing = std::async(std::launch::async, [&] { return (*file)->Append("bytes"); });
  ASSERT_TRUE(AwaitUnderWay());
  clock_.Set(absl::UnixEpoch() + absl::Seconds(299));
  EXPECT_THAT(watched_.CheckCalls(absl::Minutes(5)), IsOk());
  clock_.Set(absl::UnixEpoch() + absl::Seconds(300));
  const absl::Status stuck = watched_.CheckCalls(absl::Minutes(5));
  EXPECT_THAT(stuck, HasReason("DISK_STUCK"));
  EXPECT_THAT(stuck, HasMessage(HasSubstr("writing /model.safetensors has not come back for 5m")));
  disk_.HoldOperations(false);
  EXPECT_THAT(writing.get(), IsOk());
  EXPECT_THAT(watched_.CheckCalls(absl::Minutes(5)), IsOk());
}

}  // namespace
}  // namespace syncopate
