#include "tests/support/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

class ProcessTest : public ::testing::Test {
 protected:
  std::unique_ptr<Process> Shell(const std::string& script) {
    auto process = Process::Start({.program = "/bin/sh", .args = {"-c", script}, .log_path = folder_.path() + "/log"});
    EXPECT_THAT(process, IsOk());
    return process.ok() ? *std::move(process) : nullptr;
  }

  TempDir folder_;
};

TEST_F(ProcessTest, TellsHowAProcessEnded) {
  EXPECT_EQ(Shell("exit 7")->WaitExit(kPatience).value(), (ExitStatus{7, 0}));
  EXPECT_EQ(Shell("kill -9 $$")->WaitExit(kPatience).value(), (ExitStatus{0, SIGKILL}));
}

TEST_F(ProcessTest, CollectsBothOutputsInTheLog) {
  auto process = Shell("echo out; echo err >&2");
  ASSERT_THAT(process->WaitExit(kPatience), IsOk());
  EXPECT_EQ(process->Log(), "out\nerr\n");
}

TEST_F(ProcessTest, FindsLinesOneAfterTheOther) {
  auto process = Shell("echo port 1; echo noise; echo port 2; exec sleep 100");
  EXPECT_EQ(process->WaitForLogLine("port [0-9]", kPatience).value(), "port 1");
  EXPECT_EQ(process->WaitForLogLine("port [0-9]", kPatience).value(), "port 2");
  EXPECT_EQ(process->WaitForLogLine("port", absl::Milliseconds(1)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(process->Running());
}

TEST_F(ProcessTest, DoesNotFindWhatAnEarlierProcessLogged) {
  ASSERT_THAT(Shell("echo ready")->WaitExit(kPatience), IsOk());
  auto process = Shell("echo ended");
  EXPECT_EQ(process->WaitForLogLine("ready", kPatience).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ProcessTest, ShowsTheLogOfAProcessThatEndedTooEarly) {
  auto process = Shell("echo cannot bind; exit 1");
  EXPECT_THAT(process->WaitForLogLine("ready", kPatience), HasMessage(HasSubstr("cannot bind")));
}

TEST_F(ProcessTest, StopsAndContinuesAndTerminates) {
  auto process = Shell("trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done");
  ASSERT_THAT(process->WaitForLogLine("ready", kPatience), IsOk());
  process->Stop();
  process->Terminate();  // the signal is not delivered while the process is stopped
  EXPECT_EQ(process->WaitExit(absl::Milliseconds(50)).status().code(), absl::StatusCode::kDeadlineExceeded);
  process->Continue();
  EXPECT_EQ(process->WaitExit(kPatience).value(), (ExitStatus{3, 0}));
  EXPECT_THAT(process->Log(), HasSubstr("caught"));
}

TEST_F(ProcessTest, KillsAlsoAStoppedProcess) {
  auto process = Shell("echo ready; exec sleep 100");
  ASSERT_THAT(process->WaitForLogLine("ready", kPatience), IsOk());
  process->Stop();
  process->Kill();
  EXPECT_EQ(process->WaitExit(kPatience).value(), (ExitStatus{0, SIGKILL}));
  process->Kill();  // this has no effect
}

TEST_F(ProcessTest, LeavesNoDescendantBehind) {
  auto process = Shell("sleep 100 & echo child $!; wait");
  std::string line = process->WaitForLogLine("child", kPatience).value();
  int child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(line.substr(6), &child));
  // Readable once the process has ended.
  pollfd watched{static_cast<int>(::syscall(SYS_pidfd_open, child, 0)), POLLIN, 0};
  ASSERT_GE(watched.fd, 0);
  EXPECT_EQ(::poll(&watched, 1, 0), 0);
  process.reset();
  EXPECT_EQ(::poll(&watched, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1);
  ::close(watched.fd);
}

TEST_F(ProcessTest, SaysThatAProgramCannotBeExecuted) {
  auto process = Process::Start({.program = "/no/such/program", .args = {}, .log_path = folder_.path() + "/log"});
  EXPECT_THAT(process, HasMessage(HasSubstr("/no/such/program: No such file")));
}

TEST_F(ProcessTest, RunsInTheFolderAsked) {
  auto process = Process::Start(
      {.program = "/bin/pwd", .args = {}, .log_path = folder_.path() + "/log", .working_folder = folder_.path()});
  ASSERT_THAT(process, IsOk());
  EXPECT_EQ((*process)->WaitForLogLine(".", kPatience).value(), folder_.path());
}

TEST(TempDirTest, IsGoneWithAllItHoldsAfterwards) {
  std::string path;
  {
    TempDir folder;
    path = folder.path();
    std::filesystem::create_directories(path + "/a/b");
    EXPECT_TRUE(std::filesystem::exists(path + "/a/b"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(FreePortTest, GivesAPortThatCanBeUsed) {
  auto port = FreePort();
  ASSERT_THAT(port, IsOk());
  EXPECT_GT(*port, 1023);
  EXPECT_LT(*port, 65536);
}

}  // namespace
}  // namespace syncopate::testing
