#include "tools/run/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "tests/support/status_matchers.h"

namespace syncopate::run {
namespace {

namespace fs = std::filesystem;
using syncopate::testing::HasMessage;
using syncopate::testing::HasReason;
using syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RunDirectoryTest : public ::testing::Test {
 protected:
  RunDirectoryTest() : base_(fs::path(::testing::TempDir()) / "run_directory") {
    fs::remove_all(base_);
    fs::create_directories(base_);
  }
  v1::RunSection Section(const std::string& dir, bool resume = false) const {
    v1::RunSection run;
    run.set_name("test");
    run.set_dir((base_ / dir).string());
    run.set_resume(resume);
    return run;
  }
  void Write(const std::string& path) const {
    fs::create_directories((base_ / path).parent_path());
    std::ofstream(base_ / path) << "x";
  }

  const fs::path base_;
};

TEST_F(RunDirectoryTest, MakesItWithItsParents) {
  auto directory = RunDirectory::Claim(Section("a/b"), "now");
  ASSERT_THAT(directory, IsOk());
  EXPECT_TRUE(fs::is_directory(base_ / "a" / "b" / "logs"));
  EXPECT_EQ(directory->Path("summary.json"), (base_ / "a" / "b" / "summary.json").string());
}

TEST_F(RunDirectoryTest, RefusesALinkToItselfAndSaysWhatIsWrongWithIt) {
  fs::create_symlink("loop", base_ / "loop");
  for (const bool resume : {false, true}) {
    for (const char* dir : {"loop", "loop/run"}) {
      const auto directory = RunDirectory::Claim(Section(dir, resume), "now");
      EXPECT_THAT(directory, HasReason("BAD_RUN_DIR")) << dir;
      EXPECT_THAT(directory, HasMessage(HasSubstr("symbolic links"))) << dir;
    }
  }
  // A folder whose config.resolved.yaml is a symbolic link inside the folder is no run.
  fs::create_directories(base_ / "odd");
  fs::create_symlink("config.resolved.yaml", base_ / "odd" / "config.resolved.yaml");
  EXPECT_THAT(RunDirectory::Claim(Section("odd"), "now"), HasReason("RUN_DIR_TAKEN"));
}

TEST_F(RunDirectoryTest, TakesAnEmptyOne) {
  fs::create_directories(base_ / "empty");
  EXPECT_THAT(RunDirectory::Claim(Section("empty"), "now"), IsOk());
}

TEST_F(RunDirectoryTest, RefusesTheDirectoryOfAnotherRunAndSaysHowToGoOn) {
  Write("taken/config.resolved.yaml");
  auto directory = RunDirectory::Claim(Section("taken"), "now");
  EXPECT_THAT(directory, HasReason("RUN_DIR_TAKEN"));
  EXPECT_THAT(directory, HasMessage(HasSubstr("syncopate run --resume")));
}

TEST_F(RunDirectoryTest, NobodyIsToldToResumeWhatIsNoRun) {
  Write("home/letter.txt");
  auto directory = RunDirectory::Claim(Section("home"), "now");
  EXPECT_THAT(directory, HasReason("RUN_DIR_TAKEN"));
  EXPECT_THAT(directory, HasMessage(AllOf(HasSubstr("is no run"), Not(HasSubstr("--resume")))));
}

TEST_F(RunDirectoryTest, RefusesADirectoryInWhichAnotherProcessRuns) {
  auto first = RunDirectory::Claim(Section("busy"), "now");
  ASSERT_THAT(first, IsOk());
  Write("busy/config.resolved.yaml");
  EXPECT_THAT(RunDirectory::Claim(Section("busy", /*resume=*/true), "now"), HasReason("RUN_DIR_BUSY"));
  { RunDirectory moved = *std::move(first); }
  EXPECT_THAT(RunDirectory::Claim(Section("busy", /*resume=*/true), "now"), IsOk());
}

TEST_F(RunDirectoryTest, ResumeOfNothingBeginsARun) {
  EXPECT_THAT(RunDirectory::Claim(Section("nothing", /*resume=*/true), "now"), IsOk());
  fs::create_directories(base_ / "empty");
  EXPECT_THAT(RunDirectory::Claim(Section("empty", /*resume=*/true), "now"), IsOk());
}

TEST_F(RunDirectoryTest, ResumeRefusesAFolderOfOtherThings) {
  Write("home/letter.txt");
  EXPECT_THAT(RunDirectory::Claim(Section("home", /*resume=*/true), "now"), HasReason("NOT_A_RUN"));
}

TEST_F(RunDirectoryTest, ResumeForgetsWhereItsDaemonsWere) {
  for (const char* name : {"config.resolved.yaml", "config.next.yaml", "endpoints/trainer-0.json", "endpoints.json",
                           "metrics.jsonl", "summary.json"}) {
    Write(std::string("old/") + name);
  }
  ASSERT_THAT(RunDirectory::Claim(Section("old", /*resume=*/true), "now"), IsOk());
  EXPECT_FALSE(fs::exists(base_ / "old" / "endpoints"));
  EXPECT_FALSE(fs::exists(base_ / "old" / "endpoints.json"));
  EXPECT_FALSE(fs::exists(base_ / "old" / "config.next.yaml")) << "left by a resume that was killed on trial";
  EXPECT_TRUE(fs::exists(base_ / "old" / "metrics.jsonl"));
  EXPECT_TRUE(fs::exists(base_ / "old" / "summary.json"));
}

TEST_F(RunDirectoryTest, APlaceThatCannotBeWrittenIsNamed) {
  Write("file");
  auto directory = RunDirectory::Claim(Section("file/run"), "now");
  ASSERT_FALSE(directory.ok());
  EXPECT_THAT(directory, HasMessage(HasSubstr((base_ / "file").string())));
}

TEST_F(RunDirectoryTest, TheDefaultIsANewOneNamedAfterRunAndTime) {
  fs::current_path(base_);
  v1::RunSection run;
  run.set_name("reverse");
  auto first = RunDirectory::Claim(run, "20260131-120000");
  auto second = RunDirectory::Claim(run, "20260131-120000");
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(first->path(), "runs/reverse-20260131-120000");
  EXPECT_EQ(second->path(), "runs/reverse-20260131-120000-2");
}

}  // namespace
}  // namespace syncopate::run
