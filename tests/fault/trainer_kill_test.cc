// A trainer that dies at any moment, and the run that continues from the files that the trainer left.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/fault/fault_support.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::trainer_kill_test {
namespace {

namespace fs = std::filesystem;

// The state of a trainer directly before it was killed.
struct Seen {
  int64_t epoch = 0;
  int64_t acknowledged = 0;  // groups acknowledged by this incarnation
  int64_t step = 0;
};

Seen Look(const RunWatch& watch) {
  auto status = watch.Trainer();
  if (!status.ok()) return {};
  return {status->version().epoch(), status->groups().at("accepted"), status->version().step()};
}

// Every acknowledged group and every reported step is in the files that the trainer left.
void ExpectKept(const RunHarness& run, const std::vector<Seen>& lives) {
  auto history = ReadRunHistory(run.run_dir());
  ASSERT_THAT(history, IsOk());
  const RunFindings findings = CheckRun(*history, RulesOfEndlessRun());
  const std::map<int64_t, std::string> digests = SurvivingDigests(*history);
  for (const Seen& life : lives) {
    auto kept = findings.accepted_by_epoch.find(life.epoch);
    EXPECT_GE(kept == findings.accepted_by_epoch.end() ? 0 : kept->second, life.acknowledged) << "epoch " << life.epoch;
    EXPECT_TRUE(life.step == 0 || digests.contains(life.step)) << "step " << life.step;
  }
}

void ExpectTwinsBits(const RunHarness& run) {
  auto history = ReadRunHistory(run.run_dir());
  ASSERT_THAT(history, IsOk());
  const std::map<int64_t, std::string> digests = SurvivingDigests(*history);
  ASSERT_FALSE(digests.empty());
  const int64_t steps = digests.rbegin()->first;
  auto twin = TwinDigests(run.config(), run.overrides(), steps);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(digests, *twin) << "of " << steps << " steps";
}

bool WritesACheckpoint(const RunHarness& run) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run.Path("checkpoints"), ignored)) {
    if (absl::StartsWith(entry.path().filename().string(), ".tmp-")) return true;
  }
  return false;
}

// The daemons are started by hand: synchronizer and rollouters go on while trainers come and go.
class TrainerKillTest : public ::testing::Test {
 protected:
  void StartOthers() {
    auto synchronizer = run_->StartDaemon("synchronizer");
    ASSERT_THAT(synchronizer, IsOk());
    others_.push_back(*std::move(synchronizer));
    for (int64_t index : {0, 1}) {
      auto rollouter = run_->LaunchDaemon("rollouter", index);
      ASSERT_THAT(rollouter, IsOk());
      others_.push_back(*std::move(rollouter));
    }
  }

  void StartTrainer(bool resume) {
    auto trainer = run_->StartDaemon("trainer", 0, {resume ? "run.resume=true" : "run.resume=false"});
    ASSERT_THAT(trainer, IsOk());
    trainer_ = *std::move(trainer);
  }

  void KillTrainer() {
    lives_.push_back(Look(*watch_));
    trainer_->Kill();
    ASSERT_THAT(trainer_->WaitExit(kPatience), IsOk());
  }

  void EndRun() {
    ASSERT_THAT(watch_->AwaitMoreSteps(5), IsOk());
    ASSERT_THAT(watch_->Stop(), IsOk());
    auto exit = trainer_->WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 0) << trainer_->Log();
    for (const auto& other : others_) EXPECT_TRUE(other->Running()) << other->Log();
    ExpectKept(*run_, lives_);
  }

  void Use(const std::vector<std::string>& more) {
    run_ = std::make_unique<RunHarness>(EndlessRun(more));
    watch_ = std::make_unique<RunWatch>(run_.get());
  }

  std::unique_ptr<RunHarness> run_;
  std::unique_ptr<RunWatch> watch_;
  std::vector<std::unique_ptr<Process>> others_;
  std::unique_ptr<Process> trainer_;
  std::vector<Seen> lives_;
};

TEST_F(TrainerKillTest, AtRandomMomentsLosesNothingAndRepeatsStepsWithTheirBits) {
  Use({"checkpoint.every_steps=7"});
  ASSERT_NO_FATAL_FAILURE(StartOthers());
  ASSERT_NO_FATAL_FAILURE(StartTrainer(/*resume=*/false));
  Dice dice(4);
  for (int kill = 0; kill < 4; ++kill) {
    SCOPED_TRACE(absl::StrCat("kill ", kill));
    ASSERT_THAT(watch_->AwaitRandomMoment(dice), IsOk());
    for (int64_t more = dice.Between(0, 2); more > 0; --more) ASSERT_THAT(watch_->AwaitRandomMoment(dice), IsOk());
    ASSERT_NO_FATAL_FAILURE(KillTrainer());
    Stopwatch since_start;
    ASSERT_NO_FATAL_FAILURE(StartTrainer(/*resume=*/true));
    Report("trainer started again and ready after", since_start.Elapsed());
    ASSERT_THAT(watch_->AwaitWork(dice.Between(0, 1)), IsOk());
    Report("and had a group accepted after", since_start.Elapsed());
  }
  ASSERT_NO_FATAL_FAILURE(EndRun());
  const RunFindings findings = Judge(*run_);
  EXPECT_THAT(findings, IsClean());
  EXPECT_GT(findings.replayed_lines, 0);
  EXPECT_GT(findings.epochs, 1);
}

TEST_F(TrainerKillTest, WhileItWritesACheckpointLeavesTheOneBeforeAndLosesNothing) {
  // The model has 3 MB with its optimizer state: writing it takes so long that the test can see it.
  Use({"checkpoint.every_steps=3", "model.hidden_size=128", "model.intermediate_size=512"});
  ASSERT_NO_FATAL_FAILURE(StartOthers());
  ASSERT_NO_FATAL_FAILURE(StartTrainer(/*resume=*/false));
  int hits = 0;
  for (int kill = 0; kill < 4; ++kill) {
    SCOPED_TRACE(absl::StrCat("kill ", kill));
    ASSERT_THAT(watch_->AwaitMoreSteps(4), IsOk());
    const int64_t deadline = 1'000'000;  // a number of polls, not a time: the loop does nothing else
    for (int64_t looks = 0; !WritesACheckpoint(*run_) && looks < deadline; ++looks) {
    }
    trainer_->Stop();  // stopped, so that the test looks and kills at one moment
    if (WritesACheckpoint(*run_)) ++hits;
    lives_.push_back({});  // a stopped trainer answers no call
    trainer_->Kill();
    ASSERT_THAT(trainer_->WaitExit(kPatience), IsOk());
    ASSERT_NO_FATAL_FAILURE(StartTrainer(/*resume=*/true));
  }
  EXPECT_GT(hits, 0) << "no kill came while a checkpoint was being written";
  ASSERT_NO_FATAL_FAILURE(EndRun());
  EXPECT_THAT(Judge(*run_), IsClean());
  EXPECT_FALSE(WritesACheckpoint(*run_)) << "files of a killed save were not removed";
}

TEST_F(TrainerKillTest, InSynchronousModeEveryStepHasTheTwinsBitsWhateverWasKilled) {
  Use({"staleness.max_staleness=0", "checkpoint.every_steps=5"});
  ASSERT_NO_FATAL_FAILURE(StartOthers());
  ASSERT_NO_FATAL_FAILURE(StartTrainer(/*resume=*/false));
  Dice dice(5);
  for (int kill = 0; kill < 3; ++kill) {
    SCOPED_TRACE(absl::StrCat("kill ", kill));
    ASSERT_THAT(watch_->AwaitRandomMoment(dice), IsOk());
    ASSERT_NO_FATAL_FAILURE(KillTrainer());
    ASSERT_NO_FATAL_FAILURE(StartTrainer(/*resume=*/true));
  }
  ASSERT_NO_FATAL_FAILURE(EndRun());
  RunRules rules = RulesOfEndlessRun();
  rules.max_staleness = 0;
  EXPECT_THAT(Judge(*run_, rules), IsClean());
  ExpectTwinsBits(*run_);
}

// The weights are sent in another dtype, in another order, and not at every step: a repeated step must show the digest
// of the policy itself.
TEST_F(TrainerKillTest, RepeatedStepsHaveTheirDigestsHoweverAndWheneverWeightsTravel) {
  Use({"model.dtype=bfloat16", "rollout.tensor_parallel=2", "sync.every_steps=3", "checkpoint.every_steps=25",
       "run.rollouters=1"});
  auto process = run_->Run();
  ASSERT_THAT(process, IsOk());
  auto endpoint = run_->Endpoint("trainer");
  ASSERT_THAT(endpoint, IsOk()) << (*process)->Log();
  ASSERT_THAT(watch_->AwaitMoreSteps(40), IsOk());
  lives_.push_back(Look(*watch_));
  ASSERT_EQ(::kill(static_cast<pid_t>(endpoint->pid), SIGKILL), 0);
  ASSERT_THAT((*process)->WaitExit(kPatience), IsOk());

  auto resumed = run_->Resume();
  ASSERT_THAT(resumed, IsOk());
  ASSERT_THAT(run_->Endpoint("trainer"), IsOk()) << (*resumed)->Log();
  ASSERT_THAT(watch_->AwaitMoreSteps(3), IsOk());
  ASSERT_THAT(watch_->Stop(), IsOk());
  ASSERT_THAT((*resumed)->WaitExit(kPatience), IsOk());
  const RunFindings findings = Judge(*run_);
  EXPECT_THAT(findings, IsClean());
  EXPECT_GE(findings.replayed_lines, lives_[0].step % 25);
  ExpectKept(*run_, lives_);
  int64_t published = 0;
  for (const Json& line : run_->Records("step")) {
    const int64_t step = line["step"];
    const bool is_due = !line["replay"] && step % 3 == 0;
    EXPECT_TRUE(line.contains("published_digest") || !is_due) << line;
    if (!line.contains("published_digest")) continue;
    ++published;
    EXPECT_NE(line["published_digest"], line["weights_digest"]) << line;
  }
  EXPECT_GT(published, 10);
}

TEST_F(TrainerKillTest, EndsTheWholeRunWhichResumeContinues) {
  Use({"staleness.max_staleness=0", "checkpoint.every_steps=5"});
  Dice dice(6);
  std::unique_ptr<Process> process;
  for (int life = 0; life < 3; ++life) {
    SCOPED_TRACE(absl::StrCat("life ", life));
    auto started = life == 0 ? run_->Run() : run_->Resume();
    ASSERT_THAT(started, IsOk());
    process = *std::move(started);
    auto endpoint = run_->Endpoint("trainer");
    ASSERT_THAT(endpoint, IsOk()) << process->Log();
    ASSERT_THAT(watch_->AwaitRandomMoment(dice), IsOk());
    if (life == 2) break;
    lives_.push_back(Look(*watch_));
    ASSERT_EQ(::kill(static_cast<pid_t>(endpoint->pid), SIGKILL), 0);
    auto exit = process->WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    EXPECT_EQ(exit->code, 1) << process->Log();
    EXPECT_THAT(ProcessesNaming(run_->run_dir()), ::testing::IsEmpty());
  }
  ASSERT_THAT(watch_->Stop(), IsOk());
  auto exit = process->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << process->Log();
  RunRules rules = RulesOfEndlessRun();
  rules.max_staleness = 0;
  EXPECT_THAT(Judge(*run_, rules), IsClean());
  ExpectKept(*run_, lives_);
  ExpectTwinsBits(*run_);
}

}  // namespace
}  // namespace syncopate::testing::trainer_kill_test
