// A disk that fills up during a run: saved checkpoints and acknowledged groups stay, and the run goes on once there is
// room.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::disk_full_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A folder on a disk of its own of `megabytes`; the disk is unmounted with the object.
class SmallDisk {
 public:
  SmallDisk(std::string path, int megabytes) : path_(std::move(path)) {
    fs::create_directories(path_);
    const std::string options = absl::StrCat("size=", megabytes, "m,mode=0700");
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, options.c_str()) == 0;
    if (!mounted_) why_not_ = std::strerror(errno);
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& why_not() const { return why_not_; }
  const std::string& path() const { return path_; }

  // Fills the disk to its last byte.
  void Fill() {
    std::ofstream file(Filler(), std::ios::binary | std::ios::app);
    const std::string block(4096, 'x');
    while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }
  void Free() { fs::remove(Filler()); }

 private:
  std::string Filler() const { return path_ + "/filler"; }

  const std::string path_;
  bool mounted_ = false;
  std::string why_not_;
};

constexpr int64_t kSavedEvery = 4;

int64_t Step(const std::string& checkpoint) {
  const size_t at = checkpoint.find("-s");
  return at == std::string::npos ? -1 : std::stoll(checkpoint.substr(at + 2));
}

class DiskFullTest : public ::testing::Test {
 protected:
  // The newest checkpoint that this incarnation of the trainer has saved; "" if none.
  std::string LastCheckpoint() const {
    auto status = watch_->Trainer();
    return status.ok() ? status->last_checkpoint() : "";
  }

  void Start(bool resume = false) {
    auto process = resume ? run_->Resume() : run_->Run();
    ASSERT_THAT(process, IsOk());
    process_ = *std::move(process);
    ASSERT_THAT(watch_->AwaitMoreSteps(3), IsOk()) << process_->Log();
  }

  template <typename Method, typename Request>
  void Ask(Method method, const Request& request) {
    auto endpoint = run_->Endpoint("trainer");
    ASSERT_THAT(endpoint, IsOk());
    ASSERT_THAT(Call<v1::TrainerService>(endpoint->grpc, method, request), IsOk());
  }

  // Fills the disk while nothing is saved: a save in progress gives room back when it fails.
  void FillWhilePaused(SmallDisk& disk) {
    ASSERT_NO_FATAL_FAILURE(Ask(&v1::TrainerService::Stub::Pause, v1::TrainerServicePauseRequest()));
    ASSERT_TRUE(Eventually(kPatience, [&] {
      auto status = watch_->Trainer();
      if (!status.ok() || status->state() != "paused") return false;
      return Step(status->last_checkpoint()) == status->version().step() / kSavedEvery * kSavedEvery;
    }));
    disk.Fill();
  }
  void GoOn() { Ask(&v1::TrainerService::Stub::Resume, v1::TrainerServiceResumeRequest()); }

  void Use(const std::vector<std::string>& more) {
    run_ = std::make_unique<RunHarness>(EndlessRun(more));
    watch_ = std::make_unique<RunWatch>(run_.get());
  }

  int Exit() {
    auto exit = process_->WaitExit(kPatience);
    EXPECT_THAT(exit, IsOk());
    return exit.ok() ? exit->code : -1;
  }

  RunFindings JudgeAll(const std::string& checkpoints = "") const {
    auto history = ReadRunHistory(run_->run_dir(), checkpoints);
    if (!history.ok()) return RunFindings{.violations = {history.status().ToString()}};
    RunRules rules = RulesOfEndlessRun();
    rules.reports_may_be_lost = true;
    const RunFindings findings = CheckRun(*history, rules);
    EXPECT_FALSE(history->checkpoints.empty());
    return findings;
  }

  TempDir temp_;
  std::unique_ptr<RunHarness> run_;
  std::unique_ptr<RunWatch> watch_;
  std::unique_ptr<Process> process_;
};

TEST_F(DiskFullTest, WhatTwoRanksCannotSaveCostsNothingButItself) {
  SmallDisk disk(temp_.path() + "/checkpoints", 6);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a tmpfs here: " << disk.why_not();
  Use({"trainer.world=2", "checkpoint.every_steps=4", "checkpoint.keep=2", "checkpoint.dir=" + disk.path()});
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually(kPatience, [&] { return Step(LastCheckpoint()) >= 8; }));
  ASSERT_NO_FATAL_FAILURE(FillWhilePaused(disk));
  const std::string last_good = LastCheckpoint();
  ASSERT_NO_FATAL_FAILURE(GoOn());
  EXPECT_TRUE(Eventually(kPatience, [&] {
    return absl::StrContains(run_->Log("trainer-0"), "no checkpoint at") &&
           absl::StrContains(run_->Log("trainer-1"), "this rank's part of .tmp-");
  }));
  EXPECT_THAT(run_->Log("trainer-1"), HasSubstr("free space on that disk"));
  ASSERT_THAT(watch_->AwaitMoreSteps(8), IsOk()) << "training must go on";
  EXPECT_EQ(LastCheckpoint(), last_good);
  EXPECT_THAT(JudgeAll(disk.path()), IsClean());
  disk.Free();
  EXPECT_TRUE(Eventually(kPatience, [&] { return Step(LastCheckpoint()) > Step(last_good); }));
  ASSERT_THAT(watch_->Stop(), IsOk());
  EXPECT_EQ(Exit(), 0) << process_->Log();
  EXPECT_THAT(JudgeAll(disk.path()), IsClean());
}

TEST_F(DiskFullTest, CheckpointsThatDoNotFitCostNothingButThemselves) {
  SmallDisk disk(temp_.path() + "/checkpoints", 6);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a tmpfs here: " << disk.why_not();
  Use({"checkpoint.every_steps=4", "checkpoint.keep=2", "checkpoint.dir=" + disk.path()});
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually(kPatience, [&] { return Step(LastCheckpoint()) >= 8; }));
  ASSERT_NO_FATAL_FAILURE(FillWhilePaused(disk));
  const std::string last_good = LastCheckpoint();
  ASSERT_NO_FATAL_FAILURE(GoOn());
  EXPECT_TRUE(Eventually(kPatience,
                         [&] { return run_->Log("trainer-0").find("free space on that disk") != std::string::npos; }));
  EXPECT_THAT(run_->Log("trainer-0"), HasSubstr(disk.path()));
  ASSERT_THAT(watch_->AwaitMoreSteps(8), IsOk()) << "training must go on";
  EXPECT_THAT(JudgeAll(disk.path()), IsClean());
  EXPECT_EQ(LastCheckpoint(), last_good);

  disk.Free();
  EXPECT_TRUE(Eventually(kPatience, [&] { return Step(LastCheckpoint()) > Step(last_good); }));
  ASSERT_NO_FATAL_FAILURE(FillWhilePaused(disk));
  ASSERT_NO_FATAL_FAILURE(GoOn());
  ASSERT_THAT(watch_->AwaitMoreSteps(1), IsOk()) << "otherwise there may be nothing to save";
  ASSERT_THAT(watch_->Stop(), IsOk());
  EXPECT_EQ(Exit(), 1) << "the last checkpoint is missing without an error";
  EXPECT_THAT(process_->Log(), HasSubstr("the last checkpoint could not be saved"));
  EXPECT_THAT(process_->Log(), HasSubstr(disk.path()));

  disk.Free();
  ASSERT_NO_FATAL_FAILURE(Start(/*resume=*/true));
  ASSERT_THAT(watch_->Stop(), IsOk());
  EXPECT_EQ(Exit(), 0) << process_->Log();
  EXPECT_THAT(JudgeAll(disk.path()), IsClean());
}

TEST_F(DiskFullTest, ARunDirectoryWithoutRoomHoldsTheRunUpInWordsAndLosesNothing) {
  Use({"checkpoint.every_steps=4"});
  SmallDisk disk(run_->run_dir(), 24);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a tmpfs here: " << disk.why_not();
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually(kPatience, [&] { return Step(LastCheckpoint()) >= 4; }));
  ASSERT_NO_FATAL_FAILURE(FillWhilePaused(disk));
  ASSERT_NO_FATAL_FAILURE(GoOn());
  // Trainer and synchronizer wait until there is room. The reason reaches the terminal, since no log on that disk can
  // have it.
  EXPECT_TRUE(Eventually(kPatience, [&] { return absl::StrContains(process_->Log(), "free space on that disk"); }));
  EXPECT_THAT(process_->Log(), HasSubstr(disk.path()));
  auto trainer = watch_->Trainer();
  const int64_t acknowledged = trainer.ok() ? trainer->groups().at("accepted") : 0;
  disk.Free();

  ASSERT_THAT(watch_->AwaitMoreSteps(5), IsOk()) << process_->Log();
  ASSERT_THAT(watch_->Stop(), IsOk());
  EXPECT_EQ(Exit(), 0) << process_->Log();
  const RunFindings findings = JudgeAll();
  EXPECT_THAT(findings, IsClean());
  EXPECT_GE(findings.accepted, acknowledged);
}

// Only the disk of the synchronizer's state is full: training goes on as long as the staleness bound allows.
TEST_F(DiskFullTest, ASynchronizerWithoutRoomSaysSoAtItsStartAndLaterHoldsTheRunUpAndNobodyIsLost) {
  Use({"run.rollouters=1", "checkpoint.every_steps=4"});
  SmallDisk disk(run_->run_dir() + "/state/synchronizer", 1);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a tmpfs here: " << disk.why_not();
  disk.Fill();
  auto too_early = run_->LaunchDaemon("synchronizer");
  ASSERT_THAT(too_early, IsOk());
  auto refused = (*too_early)->WaitExit(kPatience);
  ASSERT_THAT(refused, IsOk());
  EXPECT_EQ(refused->code, 5) << (*too_early)->Log();
  EXPECT_THAT((*too_early)->Log(), HasSubstr("free space on that disk"));

  disk.Free();
  auto synchronizer = run_->StartDaemon("synchronizer");
  ASSERT_THAT(synchronizer, IsOk());
  auto rollouter = run_->LaunchDaemon("rollouter");
  ASSERT_THAT(rollouter, IsOk());
  auto trainer = run_->StartDaemon("trainer");
  ASSERT_THAT(trainer, IsOk());
  ASSERT_THAT(watch_->AwaitMoreSteps(3), IsOk()) << (*trainer)->Log();
  disk.Fill();
  ASSERT_TRUE(Eventually(kPatience, [&] { return ErrorReason(watch_->Synchronizer().status()) == "NO_SPACE"; }))
      << (*synchronizer)->Log();
  EXPECT_THAT(std::string(watch_->Synchronizer().status().message()), HasSubstr(disk.path()));
  // The wait is longer than the time after which a silent member is declared dead.
  EXPECT_FALSE(Eventually(absl::Seconds(6), [&] {
    return ErrorReason(watch_->Synchronizer().status()) != "NO_SPACE" || !(*synchronizer)->Running();
  }));
  disk.Free();
  ASSERT_THAT(watch_->AwaitMoreSteps(8), IsOk()) << (*synchronizer)->Log();
  EXPECT_THAT((*synchronizer)->Log(), ::testing::Not(HasSubstr("DECLARED_DEAD")));
  auto members = watch_->Members();
  ASSERT_THAT(members, IsOk());
  EXPECT_EQ(members->size(), 2u);
  for (const v1::MemberStatus& member : *members) EXPECT_EQ(member.state(), v1::MEMBER_STATE_ALIVE);
  ASSERT_THAT(watch_->Stop(), IsOk());
  auto exit = (*trainer)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*trainer)->Log();
  EXPECT_THAT(JudgeAll(), IsClean());
}

}  // namespace
}  // namespace syncopate::testing::disk_full_test
