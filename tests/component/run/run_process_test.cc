#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/daemon/daemon_endpoints.h"
#include "tests/support/status_matchers.h"

namespace syncopate::run {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kDeadline = absl::Seconds(30);  // for events that must happen

int PollMs(absl::Time until) {
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(until - Clock::Real()->Now())));
}

// For states of other processes that send no notification.
bool Eventually(const std::function<bool()>& done) {
  const absl::Time until = Clock::Real()->Now() + kDeadline;
  while (!done()) {
    if (Clock::Real()->Now() > until) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

// Returns true once the process has ended, reaped or not.
bool EndsWithin(pid_t pid, absl::Duration time) {
  int descriptor = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (descriptor < 0) return errno == ESRCH;
  pollfd ended{descriptor, POLLIN, 0};
  int ready = ::poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(time)));
  ::close(descriptor);
  return ready == 1;
}

// `syncopate run --json ...` as a child process.
class RunProcess {
 public:
  RunProcess(const fs::path& binary, std::vector<std::string> words, const fs::path& error_file) {
    words.insert(words.begin(), binary.string());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    int errors = ::open(error_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(errors, STDERR_FILENO);
      ::execv(binary.c_str(), arguments.data());
      ::_exit(126);
    }
    ::close(ends[1]);
    ::close(errors);
    out_ = ends[0];
  }
  ~RunProcess() {
    ::close(out_);
    if (exit_.has_value()) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  void Signal(int signal) const { ::kill(pid_, signal); }

  // The next event that `wanted` accepts; null if the output ends or no such event comes in time.
  template <typename Wanted>
  json NextEvent(const Wanted& wanted) {
    absl::Time until = Clock::Real()->Now() + kDeadline;
    while (true) {
      size_t end = text_.find('\n');
      if (end != std::string::npos) {
        json event = json::parse(text_.substr(0, end), nullptr, false);
        text_.erase(0, end + 1);
        if (event.is_object() && wanted(event)) return event;
      } else if (!ReadMore(until)) {
        return nullptr;
      }
    }
  }
  json Started() {
    return NextEvent([](const json& event) { return event["event"] == "started"; });
  }
  // The event of the daemon whose text contains `what`.
  json Daemon(const std::string& name, const std::string& what) {
    return NextEvent([&](const json& event) {
      return event["event"] == "daemon" && event["daemon"] == name &&
             absl::StrContains(event["what"].get<std::string>(), what);
    });
  }
  json AStep() {
    return NextEvent([](const json& event) { return event["event"] == "step" && event["metrics"]["kind"] == "step"; });
  }
  bool WaitForText(const std::string& wanted) {
    absl::Time until = Clock::Real()->Now() + kDeadline;
    while (!absl::StrContains(text_, wanted)) {
      if (!ReadMore(until)) return false;
    }
    return true;
  }
  // Reads the rest of the output, as text.
  std::string Rest() {
    absl::Time until = Clock::Real()->Now() + kDeadline;
    while (ReadMore(until)) {
    }
    return text_;
  }

  // The exit code, or -signal; nullopt if the process does not end.
  std::optional<int> Exit() {
    Rest();
    if (!EndsWithin(pid_, kDeadline)) return std::nullopt;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return exit_;
  }

 private:
  bool ReadMore(absl::Time until) {
    pollfd readable{out_, POLLIN, 0};
    if (::poll(&readable, 1, PollMs(until)) != 1) return false;
    char buffer[4096];
    ssize_t bytes = ::read(out_, buffer, sizeof(buffer));
    if (bytes <= 0) return false;
    text_.append(buffer, static_cast<size_t>(bytes));
    return true;
  }

  pid_t pid_ = 0;
  int out_ = -1;
  std::string text_;
  std::optional<int> exit_;
};

class RunProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(::testing::TempDir()) / "run_process" / test->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "bin");
    Install(SYNCOPATE_BINARY, "syncopate");
    for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
      Install(SYNCOPATE_FAKE_DAEMON, absl::StrCat("syncopate-", role));
    }
    std::ofstream(dir_ / "config.yaml") << "run:\n  name: fake\n  steps: 5\n";
    run_dir_ = (dir_ / "run").string();
  }

  // Makes a hard link where the file system allows it: the binary looks for the daemons beside itself.
  void Install(const fs::path& from, const std::string& name) const {
    std::error_code error;
    fs::create_hard_link(from, dir_ / "bin" / name, error);
    if (error) fs::copy_file(from, dir_ / "bin" / name);
  }
  void Behave(const std::string& daemon, const std::string& how) const {
    std::ofstream(dir_ / "bin" / ("behaviour." + daemon)) << how;
  }
  RunProcess Start(std::vector<std::string> words = {}) const {
    std::vector<std::string> all = {"run", (dir_ / "config.yaml").string(), "--json", "run.dir=" + run_dir_};
    all.insert(all.end(), words.begin(), words.end());
    return StartWith(std::move(all));
  }
  RunProcess StartWith(std::vector<std::string> words) const {
    return RunProcess(dir_ / "bin" / "syncopate", std::move(words), dir_ / "errors");
  }
  static std::map<std::string, pid_t> Pids(const json& started) {
    std::map<std::string, pid_t> pids;
    for (const json& daemon : started["daemons"]) pids[daemon["name"].get<std::string>()] = daemon["pid"].get<pid_t>();
    return pids;
  }
  static std::string Text(const fs::path& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string Errors() const { return Text(dir_ / "errors"); }
  json Summary() const { return json::parse(Text(fs::path(run_dir_) / "summary.json"), nullptr, false); }
  static void ExpectGone(const std::map<std::string, pid_t>& pids, absl::Duration within = absl::ZeroDuration()) {
    for (const auto& [name, pid] : pids) EXPECT_TRUE(EndsWithin(pid, within)) << name << " " << pid;
  }

  fs::path dir_;
  std::string run_dir_;
};

TEST_F(RunProcessTest, ARunThatFinishesLeavesItsDirectoryAndNoProcess) {
  RunProcess run = Start();
  auto pids = Pids(run.Started());
  EXPECT_EQ(pids.size(), 4u);
  EXPECT_EQ(run.Exit(), 0) << Errors();
  ExpectGone(pids);
  EXPECT_EQ(Summary()["status"], "completed");
  EXPECT_EQ(Summary()["steps"], 5);
  EXPECT_EQ(Summary()["run"]["restarts"]["rollouter-1"], 0);
  for (const char* name : {"config.resolved.yaml", "endpoints.json", "logs/synchronizer-0.log", "logs/trainer-0.log",
                           "logs/rollouter-0.log", "logs/rollouter-1.log", "metrics.jsonl"}) {
    EXPECT_TRUE(fs::exists(fs::path(run_dir_) / name)) << name;
  }
}

TEST_F(RunProcessTest, AKilledRollouterIsStartedAgain) {
  Behave("trainer-0", "endless");
  RunProcess run = Start();
  auto pids = Pids(run.Started());
  ::kill(pids["rollouter-1"], SIGKILL);
  EXPECT_FALSE(run.Daemon("rollouter-1", "was killed by signal 9; it is started again").is_null());
  EXPECT_FALSE(run.Daemon("rollouter-1", "is ready again").is_null());
  auto endpoints = daemon::ReadRunEndpoints(run_dir_);
  ASSERT_THAT(endpoints, IsOk());
  ASSERT_EQ(endpoints->size(), 4u);
  EXPECT_EQ((*endpoints)[1].Name(), "rollouter-1");
  EXPECT_NE((*endpoints)[1].pid, pids["rollouter-1"]);
  run.Signal(SIGINT);
  EXPECT_EQ(run.Exit(), 130);
  EXPECT_EQ(Summary()["run"]["restarts"]["rollouter-1"], 1);
  EXPECT_EQ(Summary()["run"]["restarts"]["rollouter-0"], 0);
}

TEST_F(RunProcessTest, AWorkerOfUsersPythonIsThereBeforeAnybodyTrainsAndComesBackWhenItDies) {
  Behave("trainer-0", "endless");
  // Announces its address as syncopate-worker does; each start is a new incarnation.
  std::ofstream(dir_ / "worker.sh") << "echo $$ > " << (dir_ / "worker.pid").string()
                                    << "\n"
                                       "[ \"$1 $3\" = '--listen --announce' ] || exit 1\n"
                                       "echo \"{\\\"grpc\\\": \\\"$2\\\", \\\"digest\\\": \\\"d1\\\"}\" > $4.new\n"
                                       "mv $4.new $4\n"
                                       "exec sleep 600\n";
  RunProcess run = Start({absl::StrCat("environment.command=sh ", (dir_ / "worker.sh").string())});
  auto pids = Pids(run.Started());
  EXPECT_EQ(pids.size(), 4u) << "the worker is no daemon that ctl can call";
  EXPECT_THAT(Text(fs::path(run_dir_) / "config.resolved.yaml"),
              HasSubstr(absl::StrCat("address: \"unix:", run_dir_, "/environment.sock\"")));
  EXPECT_THAT(Text(absl::StrCat("/proc/", pids["trainer-0"], "/cmdline")), HasSubstr("environment.digest=d1"));
  const pid_t worker = std::stoi(Text(dir_ / "worker.pid"));
  ::kill(worker, SIGKILL);
  EXPECT_FALSE(run.Daemon("environment-0", "was killed by signal 9; it is started again").is_null());
  EXPECT_FALSE(run.Daemon("environment-0", "is ready again").is_null());
  pids["worker"] = std::stoi(Text(dir_ / "worker.pid"));
  EXPECT_NE(pids["worker"], worker);
  run.Signal(SIGINT);
  EXPECT_EQ(run.Exit(), 130);
  ExpectGone(pids, absl::Seconds(5));
  EXPECT_EQ(Summary()["run"]["restarts"]["environment-0"], 1);
}

TEST_F(RunProcessTest, AKilledSynchronizerComesBackWhereItWas) {
  Behave("trainer-0", "endless");
  RunProcess run = Start();
  auto pids = Pids(run.Started());
  auto before = daemon::ReadDaemonEndpoint(daemon::EndpointPath(run_dir_, "synchronizer", 0));
  ::kill(pids["synchronizer-0"], SIGKILL);
  EXPECT_FALSE(run.Daemon("synchronizer-0", "is ready again").is_null());
  auto after = daemon::ReadDaemonEndpoint(daemon::EndpointPath(run_dir_, "synchronizer", 0));
  ASSERT_THAT(before, IsOk());
  ASSERT_THAT(after, IsOk());
  EXPECT_EQ(after->grpc, before->grpc);
  EXPECT_NE(after->pid, before->pid);
}

TEST_F(RunProcessTest, TheTrainersDeathEndsTheRunWithItsLogAndTheLineThatResumesIt) {
  Behave("trainer-0", "endless");
  // The output is plain lines.
  RunProcess run = StartWith({"run", (dir_ / "config.yaml").string(), "run.dir=" + run_dir_});
  ASSERT_TRUE(run.WaitForText("kill -9"));  // the announcement, which comes once all daemons are ready
  auto trainer = daemon::ReadDaemonEndpoint(daemon::EndpointPath(run_dir_, "trainer", 0));
  ASSERT_THAT(trainer, IsOk());
  ::kill(static_cast<pid_t>(trainer->pid), SIGKILL);
  std::string printed = run.Rest();
  EXPECT_EQ(run.Exit(), 1);
  EXPECT_THAT(printed, HasSubstr("syncopate run --resume " + run_dir_));
  EXPECT_THAT(Errors(),
              AllOf(HasSubstr("the run failed: trainer-0 was killed by signal 9"), HasSubstr("trainer-0.log")));
  EXPECT_EQ(Summary()["status"], "failed");
}

TEST_F(RunProcessTest, CtrlCStopsEverybodyInOrder) {
  Behave("trainer-0", "endless");
  RunProcess run = Start();
  auto pids = Pids(run.Started());
  run.AStep();
  absl::Time asked = Clock::Real()->Now();
  run.Signal(SIGINT);
  EXPECT_EQ(run.Exit(), 130);
  EXPECT_LT(Clock::Real()->Now() - asked, absl::Seconds(5));
  ExpectGone(pids);
  EXPECT_EQ(Summary()["status"], "stopped");
  EXPECT_EQ(Summary()["run"]["outcome"], "interrupted");
}

TEST_F(RunProcessTest, DaemonsThatDoNotStopAreKilledWithinTheGrace) {
  for (const char* daemon : {"synchronizer-0", "trainer-0", "rollouter-0", "rollouter-1"})
    Behave(daemon, "ignore-term");
  RunProcess run = Start({"run.grace=1s"});
  auto pids = Pids(run.Started());
  absl::Time asked = Clock::Real()->Now();
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Exit(), 130);
  EXPECT_LT(Clock::Real()->Now() - asked, absl::Seconds(3));
  ExpectGone(pids);
}

TEST_F(RunProcessTest, ASecondCtrlCStopsAtOnce) {
  for (const char* daemon : {"synchronizer-0", "trainer-0", "rollouter-0", "rollouter-1"})
    Behave(daemon, "ignore-term");
  RunProcess run = Start({"run.grace=1h"});
  auto pids = Pids(run.Started());
  run.Signal(SIGINT);
  EXPECT_FALSE(run.Daemon("run", "drains and stops").is_null());
  EXPECT_FALSE(EndsWithin(run.pid(), absl::Milliseconds(300)));
  run.Signal(SIGINT);
  EXPECT_EQ(run.Exit(), 130);
  ExpectGone(pids);
}

TEST_F(RunProcessTest, NoDaemonOutlivesASupervisorThatIsKilled) {
  Behave("trainer-0", "endless");
  Behave("rollouter-0", "ignore-term");
  RunProcess run = Start();
  auto pids = Pids(run.Started());
  run.Signal(SIGKILL);
  EXPECT_EQ(run.Exit(), -SIGKILL);
  ExpectGone(pids, kDeadline);
}

TEST_F(RunProcessTest, ADaemonThatNeverStartsEndsTheRunWithTheEndOfItsLog) {
  Behave("trainer-0", "endless");
  Behave("rollouter-0", "fail");
  RunProcess run = Start({"run.rollouters=1", "run.grace=1s"});
  EXPECT_EQ(run.Exit(), 1);
  EXPECT_THAT(Errors(), AllOf(HasSubstr("rollouter-0 failed to start 5 times; the last time it exited with code 3"),
                              HasSubstr("rollouter-0 fails as it was told to")));
}

TEST_F(RunProcessTest, ADaemonThatRefusesItsConfigurationIsNotTriedAgain) {
  Behave("trainer-0", "endless");
  Behave("rollouter-1", "refuse");
  RunProcess run = Start();
  EXPECT_EQ(run.Exit(), 1);
  EXPECT_THAT(Errors(), HasSubstr("rollouter-1 refuses its configuration"));
}

TEST_F(RunProcessTest, AResumeContinuesInTheSameDirectory) {
  EXPECT_EQ(Start().Exit(), 0);
  EXPECT_EQ(StartWith({"run", "--resume", run_dir_, "run.steps=7", "--json"}).Exit(), 0) << Errors();
  EXPECT_EQ(Summary()["steps"], 7);
  EXPECT_THAT(Text(fs::path(run_dir_) / "config.resolved.yaml"),
              AllOf(HasSubstr("resume: true"), HasSubstr("steps: 7")));
}

TEST_F(RunProcessTest, AResumeThatNeverComesToStandLeavesTheRunAsItWas) {
  ASSERT_EQ(Start({"run.rollouters=1"}).Exit(), 0) << Errors();
  const std::string config = Text(fs::path(run_dir_) / "config.resolved.yaml");
  const std::string summary = Text(fs::path(run_dir_) / "summary.json");
  Behave("rollouter-0", "fail");
  EXPECT_EQ(StartWith({"run", "--resume", run_dir_, "run.steps=9", "run.log_level=debug"}).Exit(), 1);
  EXPECT_THAT(Errors(), AllOf(HasSubstr("rollouter-0 failed to start 5 times"),
                              HasSubstr("the run is as it was, with the configuration that it had")));
  EXPECT_EQ(Text(fs::path(run_dir_) / "config.resolved.yaml"), config);
  EXPECT_EQ(Text(fs::path(run_dir_) / "summary.json"), summary);
  EXPECT_FALSE(fs::exists(fs::path(run_dir_) / "config.next.yaml"));

  fs::remove(dir_ / "bin" / "behaviour.rollouter-0");
  EXPECT_EQ(StartWith({"run", "--resume", run_dir_, "--quiet"}).Exit(), 0) << Errors();
  EXPECT_THAT(Text(fs::path(run_dir_) / "config.resolved.yaml"), AllOf(HasSubstr("steps: 5\n"), HasSubstr("\"info\"")));
  EXPECT_FALSE(fs::exists(fs::path(run_dir_) / "config.next.yaml"));
}

TEST_F(RunProcessTest, AConfigurationOnTrialIsTheRunsOnceTrainerAndARollouterAreReady) {
  ASSERT_EQ(Start().Exit(), 0) << Errors();
  const std::string config = Text(fs::path(run_dir_) / "config.resolved.yaml");
  Behave("trainer-0", "endless");
  Behave("rollouter-0", "hold");
  Behave("rollouter-1", "hold");
  RunProcess run = StartWith({"run", "--resume", run_dir_, "--json", "run.steps=9"});
  // The endpoint file of an earlier incarnation still exists when the run begins.
  ASSERT_TRUE(Eventually([&] { return fs::exists(fs::path(run_dir_) / "config.next.yaml"); }))
      << "no rollouter is ready";
  EXPECT_EQ(Text(fs::path(run_dir_) / "config.resolved.yaml"), config);
  fs::remove(dir_ / "bin" / "behaviour.rollouter-1");
  ASSERT_TRUE(Eventually([&] { return !fs::exists(fs::path(run_dir_) / "config.next.yaml"); }));
  EXPECT_THAT(Text(fs::path(run_dir_) / "config.resolved.yaml"), HasSubstr("steps: 9\n"));
  fs::remove(dir_ / "bin" / "behaviour.rollouter-0");
  EXPECT_EQ(run.Started()["daemons"].size(), 4u) << "this rollouter was late too";
  run.Signal(SIGINT);
  EXPECT_EQ(run.Exit(), 130);
}

TEST_F(RunProcessTest, ADeviceThatIsNotThereIsSaidBeforeADirectoryIsMade) {
  for (const char* key : {"train.device", "rollout.device"}) {
    EXPECT_EQ(Start({absl::StrCat(key, "=cuda:99")}).Exit(), 2);
    EXPECT_THAT(Errors(), AllOf(HasSubstr(absl::StrCat(key, " is cuda:99, but ")), HasSubstr("=cpu")));
    EXPECT_FALSE(fs::exists(run_dir_));
  }
}

TEST_F(RunProcessTest, WhatIsLeftOpenIsResolvedBeforeItIsWritten) {
  // The fake daemons open no model.
  EXPECT_EQ(Start({"model.path=/models/none"}).Exit(), 0) << Errors();
  EXPECT_THAT(Text(fs::path(run_dir_) / "config.resolved.yaml"),
              AllOf(HasSubstr("learning_rate: 1.0e-06\n"), HasSubstr("max_new_tokens: 1024\n"),
                    HasSubstr("  device: \"cpu\"\n"), Not(HasSubstr("  device: \"auto\"\n"))));
}

TEST_F(RunProcessTest, WhatCannotBeRunIsRefusedBeforeAnythingStarts) {
  EXPECT_EQ(Start({"run.stepz=7", "data.length=x"}).Exit(), 2);
  EXPECT_THAT(Errors(),
              AllOf(HasSubstr("run.stepz"), HasSubstr("nearest known key: run.steps"), HasSubstr("data.length")));
  EXPECT_FALSE(fs::exists(run_dir_));

  EXPECT_EQ(Start({"run.dir=" + (dir_ / "config.yaml" / "x").string()}).Exit(), 2);
  EXPECT_THAT(Errors(), HasSubstr((dir_ / "config.yaml").string()));

  fs::create_directories(run_dir_);
  std::ofstream(fs::path(run_dir_) / "somebody.else") << "x";
  EXPECT_EQ(Start().Exit(), 2);
  EXPECT_THAT(Errors(), HasSubstr("is not empty, and what it contains is no run"));
  EXPECT_FALSE(fs::exists(fs::path(run_dir_) / "logs"));

  EXPECT_EQ(StartWith({"run"}).Exit(), 2);
  fs::remove(dir_ / "bin" / "syncopate-trainer");
  EXPECT_EQ(Start({"run.dir=" + (dir_ / "other").string()}).Exit(), 2);
  EXPECT_THAT(Errors(), HasSubstr("syncopate-trainer"));
}

}  // namespace
}  // namespace syncopate::run

// Daemons whose supervisor was killed become children of the test, so that the test can see their end.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // hides GPUs, so that the test is the same on every machine
  return RUN_ALL_TESTS();
}
