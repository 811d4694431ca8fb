// Faults hit every daemon in random order, the next one before all daemons have recovered.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/wire/codec.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::nemesis_test {
namespace {

constexpr int kBlows = 14;
constexpr absl::Duration kHealsWithin = absl::Seconds(30);

struct Daemon {
  std::string role;
  int64_t index = 0;
  bool resumes = false;  // true for a trainer after its first start
  std::unique_ptr<Process> process = nullptr;
  std::string Name() const { return absl::StrCat(role, "-", index); }
};

class NemesisTest : public ::testing::Test {
 protected:
  // Starts the daemon without waiting until it is ready: the next fault may come before.
  void Start(Daemon& daemon) {
    std::vector<std::string> more;
    if (daemon.role == "trainer") more.push_back(daemon.resumes ? "run.resume=true" : "run.resume=false");
    auto process = run_.LaunchDaemon(daemon.role, daemon.index, more);
    ASSERT_THAT(process, IsOk());
    daemon.process = *std::move(process);
    daemon.resumes = true;
  }

  // Waits for a while: some steps if the trainer makes any, some round trips otherwise.
  void LetRun() {
    const int64_t until = watch_.Step() + dice_.Between(0, 4);
    Eventually(absl::Milliseconds(dice_.Between(1, 800)), [&] { return watch_.Step() > until; });
  }

  void Hit(Daemon& daemon) {
    const int64_t blow = dice_.Between(0, 2);
    std::printf("%s is %s\n", daemon.Name().c_str(), blow == 0 ? "stopped for a while" : "killed");
    if (blow == 0) {
      daemon.process->Stop();
      LetRun();
      daemon.process->Continue();
      return;
    }
    daemon.process->Kill();
    ASSERT_THAT(daemon.process->WaitExit(kPatience), IsOk());
    if (blow == 1) LetRun();
    Start(daemon);
  }

  bool IsCurrent(int64_t rollouter) const {
    auto status = watch_.Synchronizer();
    auto member = watch_.Member(rollouter);
    return status.ok() && member.ok() && member->state() == v1::MEMBER_STATE_ALIVE &&
           wire::FromProto(status->newest()) == wire::FromProto(member->serving());
  }

  // The deadline is so short that a pause is often long enough to be taken for a death.
  RunHarness run_{EndlessRun(
      {"checkpoint.every_steps=6", "sync.heartbeat=100ms", "sync.suspect_after=250ms", "sync.dead_after=400ms"})};
  RunWatch watch_{&run_};
  Dice dice_{8};
  std::array<Daemon, 4> daemons_ = {Daemon{"synchronizer"}, {"trainer"}, {"rollouter", 0}, {"rollouter", 1}};
};

TEST_F(NemesisTest, AfterTheLastBlowAllServeTheCurrentVersionAndWorkAndNothingWasLost) {
  for (Daemon& daemon : daemons_) ASSERT_NO_FATAL_FAILURE(Start(daemon));
  ASSERT_THAT(watch_.AwaitMoreSteps(3), IsOk());
  for (int i = 0; i < kBlows; ++i) {
    ASSERT_NO_FATAL_FAILURE(Hit(daemons_[static_cast<size_t>(dice_.Between(0, 3))]));
    LetRun();
  }
  Stopwatch since_last_blow;
  EXPECT_THAT(watch_.AwaitMoreSteps(1), IsOk());
  for (int64_t rollouter : {0, 1}) {
    EXPECT_THAT(watch_.AwaitWork(rollouter), IsOk());
    EXPECT_TRUE(Eventually(kPatience, [&] { return IsCurrent(rollouter); }));
  }
  Report("everybody current and at work after the last blow", since_last_blow.Elapsed());
  EXPECT_LE(since_last_blow.Elapsed(), kHealsWithin);
  for (const Daemon& daemon : daemons_) EXPECT_TRUE(daemon.process->Running()) << daemon.process->Log();

  ASSERT_THAT(watch_.AwaitMoreSteps(5), IsOk());
  ASSERT_THAT(watch_.Stop(), IsOk());
  auto exit = daemons_[1].process->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << daemons_[1].process->Log();
  EXPECT_THAT(Judge(run_), IsClean());
}

}  // namespace
}  // namespace syncopate::testing::nemesis_test
