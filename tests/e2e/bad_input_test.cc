// Invalid configurations, ports, folders and checkpoints are refused with a clear message, and nothing is lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/acceptor.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::bad_input_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Waits for the end of a run that must fail; returns what it printed.
std::string OutputOfFailed(const absl::StatusOr<std::unique_ptr<Process>>& process, int code) {
  EXPECT_THAT(process, IsOk());
  if (!process.ok()) return "";
  auto exit = (*process)->WaitExit(kPatience);
  EXPECT_THAT(exit, IsOk());
  EXPECT_EQ(exit.ok() ? exit->code : -1, code) << (*process)->Log();
  return (*process)->Log();
}

// Listens on a port, so that no other process can.
class PortHolder {
 public:
  PortHolder() : acceptor_(Acceptor::Listen({.host = "127.0.0.1", .port = 0}).value()) {}
  std::string address() const { return acceptor_->endpoint().ToString(); }

 private:
  const std::unique_ptr<Acceptor> acceptor_;
};

void FlipOneBit(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(middle);
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(middle);
  file.put(byte);
  ASSERT_TRUE(file.good()) << path;
}

TEST(BadConfigurationTest, EverythingThatIsWrongIsReportedAtOnceAndNothingStarts) {
  const std::vector<std::string> wrong = {"run.stepz=7", "data.length=many", "staleness.max_staleness=-3",
                                          "train.correction=hope", "sync.deadline=10"};
  RunHarness run(wrong);
  const std::string printed = OutputOfFailed(run.Run(), 2);
  EXPECT_THAT(printed,
              AllOf(HasSubstr("run.stepz"), HasSubstr("run.steps"), HasSubstr("data.length"),
                    HasSubstr("staleness.max_staleness"), HasSubstr("train.correction"), HasSubstr("sync.deadline")));
  EXPECT_FALSE(fs::exists(run.run_dir()));
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
    std::vector<std::string> args = {run.config(), "run.dir=" + run.run_dir()};
    args.insert(args.end(), wrong.begin(), wrong.end());
    auto daemon = RunCommand(absl::StrCat("syncopate-", role), args);
    ASSERT_THAT(daemon, IsOk());
    EXPECT_EQ(daemon->code, 2) << role;
    EXPECT_THAT(daemon->output, AllOf(HasSubstr("run.stepz"), HasSubstr("sync.deadline"))) << role;
  }
  EXPECT_FALSE(fs::exists(run.run_dir()));
  EXPECT_EQ(OutputOfFailed(RunHarness({"sync.every_steps=9"}).Run(), 2).empty(), false);  // max_staleness is 4
}

TEST(BadConfigurationTest, MoreTrainerRanksThanALayerHasBlocksAreRefusedWithTheMostThatMayBe) {
  RunHarness run({"run.steps=5", "trainer.world=64", "model.hidden_size=16", "model.intermediate_size=16",
                  "model.num_attention_heads=2", "model.num_key_value_heads=2", "model.head_dim=8"});
  const std::string printed = OutputOfFailed(run.Run(), 1);
  EXPECT_THAT(printed,
              AllOf(HasSubstr("trainer-0 exited with code 2"),
                    HasSubstr("trainer.world 64 ranks cannot share; have at most"), HasSubstr("TOO_MANY_RANKS")));
  EXPECT_THAT(ProcessesNaming(run.run_dir()), IsEmpty());
}

TEST(BadPlaceTest, ATakenPortIsNamedAndEndsTheRun) {
  const PortHolder holder;
  for (const char* key : {"synchronizer.address", "trainer.listen", "metrics.trainer_listen"}) {
    RunHarness run({"run.steps=5", absl::StrCat(key, "=", holder.address())});
    const std::string printed = OutputOfFailed(run.Run(), 1);
    EXPECT_THAT(printed, AllOf(HasSubstr("the run failed"), HasSubstr(holder.address()))) << key;
    EXPECT_THAT(ProcessesNaming(run.run_dir()), IsEmpty()) << key;
  }
}

TEST(BadPlaceTest, ARunDirectoryOfAnotherRunIsLeftAsItIs) {
  RunHarness run({"run.steps=1000000", "eval.every_steps=0"});
  auto first = run.Run();
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(run.AwaitStep(2), IsOk());
  // The second run starts while the first runs, through the same harness, so both share its log.
  EXPECT_THAT(OutputOfFailed(run.Run(), 2), HasSubstr("contains a run; resume it with"));
  EXPECT_THAT(OutputOfFailed(run.Resume(), 2), HasSubstr("another syncopate run works in"));
  EXPECT_THAT(run.AwaitStep(run.LastStep() + 3), IsOk());
  (*first)->Interrupt();
  ASSERT_THAT((*first)->WaitExit(kPatience), IsOk());
  EXPECT_EQ(run.Summary()["status"], "stopped");

  RunHarness other;
  EXPECT_THAT(OutputOfFailed(other.Resume(), 2), HasSubstr(other.run_dir()));
  EXPECT_FALSE(fs::exists(other.Path("logs")));
}

TEST(BadPlaceTest, AFolderThatCannotBeWrittenIsNamed) {
  // Not even root can make a folder under /proc.
  const std::string nowhere = "/proc/syncopate-run";
  auto run = RunCommand("syncopate", {"run", ExamplePath("reverse.yaml"), "run.dir=" + nowhere});
  ASSERT_THAT(run, IsOk());
  EXPECT_EQ(run->code, 2);
  EXPECT_THAT(run->output, HasSubstr(nowhere));
  for (const char* role : {"synchronizer", "trainer", "rollouter"}) {
    auto daemon = RunCommand(absl::StrCat("syncopate-", role),
                             {ExamplePath("reverse.yaml"), "run.dir=" + nowhere, "synchronizer.address=127.0.0.1:1"});
    ASSERT_THAT(daemon, IsOk());
    EXPECT_EQ(daemon->code, 1) << role;
    EXPECT_THAT(daemon->output, HasSubstr(nowhere)) << role;
  }
}

// A synchronous run of twelve steps with checkpoints at 4, 8 and 12.
class DamagedCheckpointTest : public ::testing::Test {
 protected:
  DamagedCheckpointTest()
      : run_({"staleness.max_staleness=0", "run.steps=12", "eval.every_steps=0", "checkpoint.every_steps=4",
              "checkpoint.keep=3"}) {}

  void SetUp() override {
    auto process = run_.Run();
    ASSERT_THAT(process, IsOk());
    auto exit = (*process)->WaitExit(kPatience);
    ASSERT_THAT(exit, IsOk());
    ASSERT_EQ(exit->code, 0) << (*process)->Log();
  }
  std::string GetFile(int step, const std::string& name) const {
    return run_.Path(absl::StrCat("checkpoints/e1-s", step, "/", name));
  }

  RunHarness run_;
};

TEST_F(DamagedCheckpointTest, TheOlderOneIsUsedItIsSaidAndTheLogBringsBackTheSteps) {
  FlipOneBit(GetFile(12, "optimizer.safetensors"));
  FlipOneBit(GetFile(8, "model.safetensors"));
  auto resumed = run_.Resume({"run.steps=18"});
  ASSERT_THAT(resumed, IsOk());
  auto exit = (*resumed)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*resumed)->Log();
  EXPECT_THAT(run_.Log("trainer-0"),
              AllOf(HasSubstr("e1-s12 is damaged and skipped"), HasSubstr("optimizer.safetensors"),
                    HasSubstr("e1-s8 is damaged and skipped"), HasSubstr("model.safetensors"),
                    HasSubstr("restored checkpoint e1-s4")));
  auto twin = TwinDigests(run_.config(), run_.overrides(), 18);
  ASSERT_THAT(twin, IsOk());
  EXPECT_EQ(run_.Digests(), *twin);
  EXPECT_EQ(run_.Summary()["status"], "completed");
}

TEST_F(DamagedCheckpointTest, IfNoneIsWholeTheResumeFailsSayingWhatIsWrongAndKeepsThem) {
  for (int step : {4, 8, 12}) FlipOneBit(GetFile(step, "data.pb"));
  const std::string printed = OutputOfFailed(run_.Resume({"run.steps=18"}), 1);
  EXPECT_THAT(printed, AllOf(HasSubstr("the run failed"), HasSubstr("data.pb"), HasSubstr("e1-s4")));
  for (int step : {4, 8, 12}) EXPECT_TRUE(fs::exists(GetFile(step, "model.safetensors"))) << step;
  EXPECT_EQ(run_.LastStep(), 12);
  // Once the damage is repaired, the run goes on.
  FlipOneBit(GetFile(12, "data.pb"));
  auto resumed = run_.Resume({"run.steps=14"});
  ASSERT_THAT(resumed, IsOk());
  auto exit = (*resumed)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(exit->code, 0) << (*resumed)->Log();
  EXPECT_EQ(run_.LastStep(), 14);
}

}  // namespace
}  // namespace syncopate::testing::bad_input_test
