// Two trainers in one run, by mistake or because one was declared dead: only the newer epoch writes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/wire/codec.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::zombie_trainer_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int kFenced = 3;
constexpr int kBadConfig = 2;

std::vector<std::string> CheckpointsOfEpoch(const RunHarness& run, int64_t epoch) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run.Path("checkpoints"))) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, absl::StrCat("e", epoch, "-"))) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

class ZombieTrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Start("synchronizer", 0, {}, &synchronizer_);
    // The first trainer saves after every step, so it will try to save as soon as it continues.
    Start("trainer", 0, {"checkpoint.every_steps=1"}, &first_);
    for (int64_t index : {0, 1}) Start("rollouter", index, {}, &rollouters_[index]);
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_THAT(watch_.AwaitMoreSteps(8), IsOk());
  }

  void Start(const std::string& role, int64_t index, const std::vector<std::string>& more,
             std::unique_ptr<Process>* process) {
    auto started = run_.StartDaemon(role, index, more);
    ASSERT_THAT(started, IsOk());
    *process = *std::move(started);
  }

  // The second trainer takes over. It saves only at the end, so that nothing but its epoch stops the first trainer.
  void TakeOver() {
    ASSERT_NO_FATAL_FAILURE(Start("trainer", 0, {"run.resume=true", "checkpoint.every_steps=0"}, &second_));
    ASSERT_THAT(watch_.AwaitMoreSteps(8), IsOk());
  }

  void KillSynchronizer() {
    synchronizer_->Kill();
    ASSERT_THAT(synchronizer_->WaitExit(kPatience), IsOk());
  }

  std::vector<PolicyVersion> VersionsOfEpoch(int64_t epoch) {
    auto endpoint = run_.Endpoint("synchronizer");
    std::vector<PolicyVersion> versions;
    auto response = Call<v1::SynchronizerService>(endpoint->grpc, &v1::SynchronizerService::Stub::ListVersions,
                                                  v1::ListVersionsRequest());
    EXPECT_THAT(response, IsOk());
    if (!response.ok()) return versions;
    for (const auto& version : response->versions()) {
      if (version.version().epoch() == epoch) versions.push_back(wire::FromProto(version.version()));
    }
    return versions;
  }

  // The run goes on with the second trainer to an end in order, and none of its files comes from the first trainer.
  void EndWithTheSecond() {
    ASSERT_THAT(watch_.AwaitMoreSteps(5), IsOk());
    EXPECT_FALSE(fs::exists(run_.Path("summary.json"))) << "the first trainer has written the second one's summary";
    ASSERT_THAT(watch_.Stop(), IsOk());
    auto exit = second_->WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 0) << second_->Log();
    EXPECT_EQ(run_.Summary()["status"], "stopped");
    for (const auto& rollouter : rollouters_) EXPECT_TRUE(rollouter->Running());
    EXPECT_THAT(Judge(run_), IsClean());
  }

  // The queues are full, so that a trainer that continues has a batch to train on.
  RunHarness run_{EndlessRun({"staleness.target_staleness=4"})};
  RunWatch watch_{&run_};
  std::unique_ptr<Process> synchronizer_, first_, second_;
  std::unique_ptr<Process> rollouters_[2];
};

TEST_F(ZombieTrainerTest, OneThatSleptThroughItsReplacementExitsFencedAndSavesAndPublishesNothing) {
  first_->Stop();
  ASSERT_NO_FATAL_FAILURE(TakeOver());
  const std::vector<std::string> saved = CheckpointsOfEpoch(run_, 1);
  const std::vector<PolicyVersion> published = VersionsOfEpoch(1);
  first_->Continue();
  Stopwatch since_continue;
  auto exit = first_->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  Report("fenced trainer has exited after", since_continue.Elapsed());
  EXPECT_EQ(exit->code, kFenced) << first_->Log();
  EXPECT_EQ(CheckpointsOfEpoch(run_, 1), saved);
  EXPECT_EQ(VersionsOfEpoch(1), published);
  EndWithTheSecond();
}

TEST_F(ZombieTrainerTest, OneThatNobodyCanTellOfItsReplacementLearnsItFromTheDiskBeforeItSaves) {
  first_->Stop();
  // The synchronizer starts anew: the sockets of the first trainer contain only the end of the old incarnation's
  // stream.
  KillSynchronizer();
  ASSERT_NO_FATAL_FAILURE(Start("synchronizer", 0, {}, &synchronizer_));
  ASSERT_NO_FATAL_FAILURE(TakeOver());
  const std::vector<std::string> saved = CheckpointsOfEpoch(run_, 1);
  KillSynchronizer();
  first_->Continue();
  auto exit = first_->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, kFenced) << first_->Log();
  EXPECT_THAT(run_.Log("trainer-0"), HasSubstr("this one must not save"));
  EXPECT_EQ(CheckpointsOfEpoch(run_, 1), saved);
  ASSERT_NO_FATAL_FAILURE(Start("synchronizer", 0, {}, &synchronizer_));
  EndWithTheSecond();
}

TEST_F(ZombieTrainerTest, OneThatIsWideAwakeIsFencedAtOnceByASecondThatResumes) {
  ASSERT_NO_FATAL_FAILURE(Start("trainer", 0, {"run.resume=true", "checkpoint.every_steps=0"}, &second_));
  auto exit = first_->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, kFenced) << first_->Log();
  EndWithTheSecond();
}

TEST_F(ZombieTrainerTest, ASecondThatDoesNotResumeIsRefusedAndTheFirstGoesOn) {
  auto refused = run_.LaunchDaemon("trainer");
  ASSERT_THAT(refused, IsOk());
  auto exit = (*refused)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, kBadConfig);
  EXPECT_THAT(run_.Log("trainer-0"), HasSubstr("RUN_DIR_TAKEN"));
  ASSERT_THAT(watch_.AwaitMoreSteps(5), IsOk());
  ASSERT_THAT(watch_.Stop(), IsOk());
  auto stopped = first_->WaitExit(kPatience);
  ASSERT_THAT(stopped, IsOk());
  EXPECT_EQ(stopped->code, 0) << first_->Log();
  EXPECT_THAT(Judge(run_), IsClean());
}

}  // namespace
}  // namespace syncopate::testing::zombie_trainer_test
