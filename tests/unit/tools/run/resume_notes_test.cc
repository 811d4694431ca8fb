#include "tools/run/resume_notes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace syncopate::run {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ResumeNotesTest : public ::testing::Test {
 protected:
  ResumeNotesTest() : dir_(::testing::TempDir() + "/resume_notes") {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_ + "/checkpoints");
  }
  void Reach(int64_t step) const {
    std::ofstream lines(dir_ + "/metrics.jsonl");
    lines << absl::StrCat(R"({"kind":"step","step":)", step, "}\n", R"({"kind":"eval","step":)", step, "}\n");
  }
  void Save(const std::string& folder) const {
    std::filesystem::create_directories(folder + "/e1-s5");
    std::ofstream(folder + "/e1-s5/manifest.json") << "{}";
  }
  std::vector<std::string> Notes(int64_t steps, const std::string& checkpoints = "") const {
    v1::RunConfig config;
    config.mutable_run()->set_steps(steps);
    config.mutable_checkpoint()->set_dir(checkpoints);
    return ResumeNotes(config, dir_);
  }

  const std::string dir_;
};

TEST_F(ResumeNotesTest, ARunThatGoesOnFromACheckpointNeedsNone) {
  Reach(7);
  Save(dir_ + "/checkpoints");
  EXPECT_THAT(Notes(10), IsEmpty());
  EXPECT_THAT(Notes(7), IsEmpty()) << "complete";
}

TEST_F(ResumeNotesTest, WhereNoStepWasMadeNothingIsRepeated) { EXPECT_THAT(Notes(10), IsEmpty()); }

TEST_F(ResumeNotesTest, WithoutACheckpointTheStepsAreRepeated) {
  Reach(7);
  EXPECT_THAT(Notes(10), ElementsAre("there is no checkpoint in " + dir_ +
                                     "/checkpoints: the steps so far, 7, are repeated from the trainer's log"));
  Save(dir_ + "/checkpoints");
  EXPECT_THAT(Notes(10, "/elsewhere"), ElementsAre(HasSubstr("no checkpoint in /elsewhere:")));
  Save(dir_ + "/other");
  EXPECT_THAT(Notes(10, dir_ + "/other"), IsEmpty());
}

TEST_F(ResumeNotesTest, StepsBelowTheOneReachedAreSaid) {
  Reach(7);
  Save(dir_ + "/checkpoints");
  EXPECT_THAT(Notes(6), ElementsAre("run.steps is 6, and the run has reached step 7 already: no further step is made; "
                                    "set a higher one to go on"));
}

}  // namespace
}  // namespace syncopate::run
