#include "base/file_system.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"

namespace syncopate {
namespace {

using ::syncopate::testing::FaultyFileSystem;
using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Mode = FileSystem::OpenMode;

// The real disk, below a folder that is removed with the test.
class PosixFileSystemTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/syncopate-files-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { EXPECT_THAT(files_->RemoveTree(root_), IsOk()); }

  void Write(const std::string& path, const std::string& contents) {
    auto file = files_->OpenForAppend(path, Mode::kCreateNew);
    ASSERT_THAT(file, IsOk());
    ASSERT_THAT((*file)->Append(contents), IsOk());
    ASSERT_THAT((*file)->Sync(), IsOk());
  }

  FileSystem* files_ = FileSystem::Real();
  std::string root_;
};

TEST_F(PosixFileSystemTest, AppendsToWhatAFileAlreadyHolds) {
  std::string path = root_ + "/file";
  Write(path, "one ");
  auto file = files_->OpenForAppend(path, Mode::kOpenOrCreate);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ((*file)->size(), 4);
  ASSERT_THAT((*file)->Append("two"), IsOk());
  EXPECT_EQ((*file)->size(), 7);
  EXPECT_EQ(ReadFile(files_, path, 100).value(), "one two");
}

TEST_F(PosixFileSystemTest, AppendsAfterTheCutOfATruncatedFile) {
  std::string path = root_ + "/file";
  auto file = files_->OpenForAppend(path, Mode::kCreateNew);
  ASSERT_THAT(file, IsOk());
  ASSERT_THAT((*file)->Append("keep-drop"), IsOk());
  ASSERT_THAT((*file)->Truncate(5), IsOk());
  ASSERT_THAT((*file)->Append("new"), IsOk());
  EXPECT_EQ(ReadFile(files_, path, 100).value(), "keep-new");
}

TEST_F(PosixFileSystemTest, MakesFilesAndFoldersThatOnlyTheirOwnerReads) {
  ASSERT_THAT(files_->CreateDirs(root_ + "/a/b/c"), IsOk());
  Write(root_ + "/a/b/c/file", "x");
  struct stat found {};
  ASSERT_EQ(::stat((root_ + "/a/b/c/file").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat((root_ + "/a/b").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
}

TEST_F(PosixFileSystemTest, MakesAFolderTwiceWithoutComplaint) {
  EXPECT_THAT(files_->CreateDirs(root_ + "/a/b"), IsOk());
  EXPECT_THAT(files_->CreateDirs(root_ + "/a/b"), IsOk());
  Write(root_ + "/file", "x");
  EXPECT_THAT(files_->CreateDirs(root_ + "/file"), HasReason("FILE_EXISTS"));
}

TEST_F(PosixFileSystemTest, ListsNamesInOrder) {
  Write(root_ + "/b", "");
  Write(root_ + "/a", "");
  ASSERT_THAT(files_->CreateDirs(root_ + "/c"), IsOk());
  EXPECT_THAT(files_->List(root_).value(), ElementsAre("a", "b", "c"));
}

TEST_F(PosixFileSystemTest, RefusesToCreateAFileThatExists) {
  Write(root_ + "/file", "old");
  EXPECT_THAT(files_->OpenForAppend(root_ + "/file", Mode::kCreateNew), HasReason("FILE_EXISTS"));
}

TEST_F(PosixFileSystemTest, FollowsNoSymbolicLink) {
  Write(root_ + "/secret", "x");
  ASSERT_EQ(::symlink((root_ + "/secret").c_str(), (root_ + "/link").c_str()), 0);
  EXPECT_THAT(files_->OpenForRead(root_ + "/link"), HasReason("SYMLINK"));
  EXPECT_THAT(files_->OpenForAppend(root_ + "/link", Mode::kOpenOrCreate), HasReason("SYMLINK"));
  EXPECT_THAT(files_->FileBytes(root_ + "/link"), HasReason("SYMLINK"));
}

TEST_F(PosixFileSystemTest, RemovesALinkAndNotWhatItPointsTo) {
  ASSERT_THAT(files_->CreateDirs(root_ + "/outside"), IsOk());
  Write(root_ + "/outside/file", "x");
  ASSERT_THAT(files_->CreateDirs(root_ + "/tree"), IsOk());
  ASSERT_EQ(::symlink((root_ + "/outside").c_str(), (root_ + "/tree/link").c_str()), 0);
  ASSERT_THAT(files_->RemoveTree(root_ + "/tree"), IsOk());
  EXPECT_EQ(files_->FileBytes(root_ + "/outside/file").value(), 1);
  EXPECT_THAT(files_->RemoveTree(root_ + "/tree"), IsOk()) << "a second time there is nothing to do";
}

TEST_F(PosixFileSystemTest, SaysWhatToDoWhenTheDiskIsFull) {
  auto full = files_->OpenForAppend("/dev/full", Mode::kOpenOrCreate);
  ASSERT_THAT(full, IsOk());
  absl::Status status = (*full)->Append("x");
  EXPECT_THAT(status, HasReason("NO_SPACE"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status, HasMessage(HasSubstr("/dev/full")));
}

TEST_F(PosixFileSystemTest, NamesTheFileThatIsNotThere) {
  EXPECT_THAT(files_->OpenForRead(root_ + "/none"), HasReason("NO_SUCH_FILE"));
  EXPECT_THAT(files_->OpenForRead(root_ + "/none"), HasMessage(HasSubstr(root_ + "/none")));
  EXPECT_THAT(files_->List(root_ + "/none"), HasReason("NO_SUCH_FILE"));
  EXPECT_THAT(files_->FileBytes(root_), HasReason("NO_SUCH_FILE")) << "a folder is not a file";
}

TEST_F(PosixFileSystemTest, RefusesToRenameOverAFolderThatHoldsSomething) {
  ASSERT_THAT(files_->CreateDirs(root_ + "/new"), IsOk());
  ASSERT_THAT(files_->CreateDirs(root_ + "/old"), IsOk());
  Write(root_ + "/old/file", "x");
  EXPECT_THAT(files_->Rename(root_ + "/new", root_ + "/old"), HasReason("FILE_EXISTS"));
}

TEST_F(PosixFileSystemTest, ReadsNoMoreThanAllowed) {
  Write(root_ + "/file", "12345");
  EXPECT_EQ(ReadFile(files_, root_ + "/file", 5).value(), "12345");
  EXPECT_THAT(ReadFile(files_, root_ + "/file", 4), HasReason("FILE_TOO_LARGE"));
}

TEST_F(PosixFileSystemTest, ReplacesAFileAtomically) {
  Write(root_ + "/file", "old");
  ASSERT_THAT(WriteFileAtomically(files_, root_ + "/file", "new contents"), IsOk());
  EXPECT_EQ(ReadFile(files_, root_ + "/file", 100).value(), "new contents");
  EXPECT_THAT(files_->List(root_).value(), ElementsAre("file")) << "nothing temporary is left";
}

TEST(WriteFileAtomicallyTest, LeavesTheOldOrTheNewContentsAfterACrashAtAnyOperation) {
  bool completed = false;
  for (int64_t crash_after = 0; !completed; ++crash_after) {
    for (auto survives : {FaultyFileSystem::Survives::kEverything, FaultyFileSystem::Survives::kSynced,
                          FaultyFileSystem::Survives::kSome}) {
      FaultyFileSystem files;
      ASSERT_THAT(files.CreateDirs("/run"), IsOk());
      ASSERT_THAT(WriteFileAtomically(&files, "/run/file", "old"), IsOk());
      files.CrashAtOperation(files.operations() + crash_after);
      bool acknowledged = WriteFileAtomically(&files, "/run/file", "new").ok();
      files.Restart(survives, static_cast<uint64_t>(crash_after));
      std::string found = ReadFile(&files, "/run/file", 100).value();
      EXPECT_TRUE(found == "new" || (found == "old" && !acknowledged)) << crash_after << ": " << found;
      completed = acknowledged;
    }
    ASSERT_LT(crash_after, 20);
  }
}

TEST(WriteFileAtomicallyTest, LeavesTheOldContentsAndNoRubbishWhenTheDiskIsFull) {
  FaultyFileSystem files;
  ASSERT_THAT(files.CreateDirs("/run"), IsOk());
  ASSERT_THAT(WriteFileAtomically(&files, "/run/file", "old"), IsOk());
  files.SetCapacity(5);
  EXPECT_THAT(WriteFileAtomically(&files, "/run/file", "new and longer"), HasReason("NO_SPACE"));
  EXPECT_EQ(ReadFile(&files, "/run/file", 100).value(), "old");
  EXPECT_THAT(files.List("/run").value(), ElementsAre("file"));
}

TEST(FileNamesTest, AllowsOnlyPlainNames) {
  EXPECT_THAT(CheckFileName("model-00001.safetensors"), IsOk());
  EXPECT_THAT(CheckFileName(std::string(128, 'a')), IsOk());
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), std::string("a/b"), std::string("a b"),
        std::string("\xc3\xa4"), std::string("a\0b", 3), std::string(129, 'a')}) {
    EXPECT_THAT(CheckFileName(bad), HasReason("BAD_NAME")) << bad;
  }
}

TEST(FileNamesTest, FindsTheFolderOfAPath) {
  EXPECT_EQ(ParentPath("a/b"), "a");
  EXPECT_EQ(ParentPath("/a/b/"), "/a");
  EXPECT_EQ(ParentPath("b"), ".");
  EXPECT_EQ(ParentPath("/b"), "/");
  EXPECT_EQ(ParentPath("/"), "/");
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("/", "b"), "/b");
}

}  // namespace
}  // namespace syncopate
