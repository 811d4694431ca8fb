#include "tools/run/worker_announcement.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace syncopate::run {
namespace {

namespace fs = std::filesystem;

class WorkerAnnouncementTest : public ::testing::Test {
 protected:
  WorkerAnnouncementTest() {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  ~WorkerAnnouncementTest() override { fs::remove_all(folder_); }

  // As syncopate-worker does: another file takes the old one's place.
  void Announce(const std::string& content) const {
    std::ofstream(path_ + ".new") << content;
    // Later than the old one, whatever the resolution of the file system's clock.
    fs::last_write_time(path_ + ".new", fs::file_time_type::clock::now() + std::chrono::seconds(++announced_));
    fs::rename(path_ + ".new", path_);
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) / absl::StrCat("announcement-", ::getpid());
  const std::string path_ = folder_ / "environment.json";
  mutable int announced_ = 0;
  WorkerAnnouncement announcement_{path_};
};

// Takes from this process, while it lives, the right to remove files from the folder.
class WithoutRights {
 public:
  explicit WithoutRights(const fs::path& folder) : folder_(folder) {
    fs::permissions(folder_,
                    fs::perms::owner_read | fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec);
    is_root_ = ::geteuid() == 0;
    if (is_root_) Become(65534);
  }
  ~WithoutRights() {
    if (is_root_) Become(0);
    fs::permissions(folder_, fs::perms::owner_all | fs::perms::others_exec);
  }

 private:
  static void Become(uid_t user) { EXPECT_EQ(::seteuid(user), 0); }

  const fs::path folder_;
  bool is_root_ = false;
};

TEST_F(WorkerAnnouncementTest, IsThatOfTheWorkerThatWasStartedLast) {
  Announce(R"({"digest": "d1"})");
  announcement_.Forget();
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_EQ(announcement_.ReadDigest(), std::nullopt);
  Announce(R"({"digest": "d2"})");
  EXPECT_EQ(announcement_.ReadDigest(), "d2");
}

TEST_F(WorkerAnnouncementTest, AnEarlierWorkersThatMayNotBeRemovedIsNotBelievedUntilItIsReplaced) {
  Announce(R"({"digest": "d1"})");
  {
    const WithoutRights without(folder_);
    announcement_.Forget();
  }
  ASSERT_TRUE(fs::exists(path_)) << "the test is about a file that stays";
  EXPECT_EQ(announcement_.ReadDigest(), std::nullopt);
  Announce(R"({"digest": "d2"})");
  EXPECT_EQ(announcement_.ReadDigest(), "d2");
}

TEST_F(WorkerAnnouncementTest, WhatIsNoAnnouncementIsNone) {
  announcement_.Forget();
  for (const char* content : {"", "{", "[]", R"({"grpc": "unix:/w.sock"})", R"({"digest": 7})"}) {
    Announce(content);
    EXPECT_EQ(announcement_.ReadDigest(), std::nullopt) << content;
  }
}

}  // namespace
}  // namespace syncopate::run
