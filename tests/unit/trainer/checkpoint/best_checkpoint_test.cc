#include "trainer/checkpoint/best_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/faulty_file_system.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using ::syncopate::testing::FaultyFileSystem;
using ::syncopate::testing::IsOk;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Survives = FaultyFileSystem::Survives;

constexpr char kRoot[] = "/run/checkpoints";

// A store with the best of its checkpoints, as one incarnation of a trainer sees them.
class Life {
 public:
  explicit Life(FaultyFileSystem* files) : files_(files), store_(CheckpointStore::Open(files, kRoot).value()) {
    best_.Load();
  }

  absl::Status Save(int64_t step) {
    CheckpointStore::SaveRequest request;
    request.version = {1, step};
    request.files["model.safetensors"] = "weights " + request.version.ToString();
    SYNCOPATE_RETURN_IF_ERROR(store_->Save(request));
    return best_.AddSaved(request.version);
  }
  absl::Status Score(int64_t step, double reward) { return best_.AddScore({{1, step}, reward, 0}); }
  absl::Status Prune() {
    return store_->Prune(2, best_.best().has_value() ? best_.best()->version : PolicyVersion()).status();
  }
  int64_t best_step() const { return best_.best().has_value() ? best_.best()->version.step : -1; }
  CheckpointStore& store() { return *store_; }
  std::vector<std::string> Names() { return files_->List(kRoot).value(); }
  // The weights in a folder of the store.
  std::string Weights(const std::string& folder) {
    return ReadFile(files_, JoinPath(JoinPath(kRoot, folder), "model.safetensors"), 100).value_or("");
  }
  std::string File() { return ReadFile(files_, JoinPath(kRoot, BestCheckpoint::kFile), 1000).value_or(""); }

 private:
  FaultyFileSystem* const files_;
  const std::unique_ptr<CheckpointStore> store_;
  BestCheckpoint best_{store_.get()};
};

TEST(BestCheckpointTest, TheHighestMeanRewardIsBestAndTheNewerOneOfTwoEqualOnes) {
  FaultyFileSystem files;
  Life life(&files);
  const std::vector<std::pair<double, int64_t>> cases = {{0.5, 1}, {0.9, 2}, {0.7, 2}, {0.9, 4}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    ASSERT_THAT(life.Save(step), IsOk());
    ASSERT_THAT(life.Score(step, cases[i].first), IsOk());
    EXPECT_EQ(life.best_step(), cases[i].second);
  }
  EXPECT_THAT(life.File(), HasSubstr(R"("checkpoint":"e1-s4")"));
  EXPECT_THAT(life.File(), HasSubstr(R"("reward_mean":0.9)"));
}

TEST(BestCheckpointTest, ACandidateIsBothSavedAndEvaluatedInEitherOrder) {
  FaultyFileSystem files;
  Life life(&files);
  ASSERT_THAT(life.Score(1, 1.0), IsOk());  // step 1 was never saved
  EXPECT_EQ(life.best_step(), -1);
  ASSERT_THAT(life.Score(2, 0.5), IsOk());
  ASSERT_THAT(life.Save(2), IsOk());
  EXPECT_EQ(life.best_step(), 2);
  ASSERT_THAT(life.Save(3), IsOk());  // step 3 is not evaluated yet
  EXPECT_EQ(life.best_step(), 2);
  ASSERT_THAT(life.Score(3, 0.6), IsOk());
  EXPECT_EQ(life.best_step(), 3);
}

TEST(BestCheckpointTest, PruningMovesItAsideWhereNobodyRestoresOrCountsIt) {
  FaultyFileSystem files;
  Life life(&files);
  ASSERT_THAT(life.Save(1), IsOk());
  ASSERT_THAT(life.Score(1, 0.9), IsOk());
  for (int64_t step = 2; step <= 4; ++step) {
    ASSERT_THAT(life.Save(step), IsOk());
    ASSERT_THAT(life.Score(step, 0.1), IsOk());
    ASSERT_THAT(life.Prune(), IsOk());
  }
  EXPECT_THAT(life.Names(), ElementsAre("best", "best.json", "e1-s3", "e1-s4"));
  EXPECT_EQ(life.Weights("best"), "weights e1-s1");
  EXPECT_THAT(life.store().List().value(), ElementsAre(PolicyVersion{1, 3}, PolicyVersion{1, 4}));
  EXPECT_EQ(life.store().LoadLatest()->checkpoint.version.step, 4);

  ASSERT_THAT(life.Save(5), IsOk());
  ASSERT_THAT(life.Score(5, 1.0), IsOk());
  EXPECT_THAT(life.Names(), Not(Contains("best"))) << "the best one is e1-s5, in its place";
}

TEST(BestCheckpointTest, ANewIncarnationGoesOnFromWhatIsWritten) {
  FaultyFileSystem files;
  {
    Life life(&files);
    ASSERT_THAT(life.Save(1), IsOk());
    ASSERT_THAT(life.Score(1, 0.9), IsOk());
  }
  Life life(&files);
  EXPECT_EQ(life.best_step(), 1);
  ASSERT_THAT(life.Save(2), IsOk());
  ASSERT_THAT(life.Score(2, 0.8), IsOk());
  EXPECT_EQ(life.best_step(), 1);
}

TEST(BestCheckpointTest, AFileThatCannotBeReadIsMadeAnew) {
  for (const char* text : {"", "{", R"({"checkpoint": 7})", R"({"checkpoint": "../e1-s1"})"}) {
    FaultyFileSystem files;
    ASSERT_THAT(files.CreateDirs(kRoot), IsOk());
    ASSERT_THAT(files.PutFile(JoinPath(kRoot, BestCheckpoint::kFile), text), IsOk());
    Life life(&files);
    EXPECT_EQ(life.best_step(), -1);
    ASSERT_THAT(life.Save(2), IsOk());
    ASSERT_THAT(life.Score(2, 0.1), IsOk());
    EXPECT_THAT(life.File(), HasSubstr("e1-s2")) << text;
  }
}

// Saves three checkpoints, the first of which is best, and prunes; then saves a better one. Dies at operation
// `crash_at`. Returns whether it died.
bool CrashOnce(int64_t crash_at, Survives survives) {
  FaultyFileSystem files;
  bool done = false;
  {
    Life life(&files);
    files.CrashAtOperation(files.operations() + crash_at);
    done = life.Save(1).ok() && life.Score(1, 0.9).ok() && life.Save(2).ok() && life.Save(3).ok() &&
           life.Prune().ok() && life.Save(4).ok() && life.Score(4, 1.0).ok() && life.Prune().ok();
  }
  files.Restart(survives, static_cast<uint64_t>(crash_at));
  Life life(&files);
  const int64_t best = life.best_step();
  if (best < 0) return !done;  // the first score was not written yet
  const std::string name = PolicyVersion{1, best}.ToString();
  const bool aside = life.Weights("best") == "weights " + name;
  EXPECT_TRUE(aside || life.Weights(name) == "weights " + name) << "crash at " << crash_at << " lost " << name;
  if (!aside) {
    EXPECT_THAT(life.Names(), Not(Contains("best"))) << "crash at " << crash_at << " left what is not the best";
  }
  return !done;
}

TEST(BestCheckpointTest, WhatTheFileNamesIsThereWholeAfterACrashAtAnyOperation) {
  for (Survives survives : {Survives::kEverything, Survives::kSynced, Survives::kSome}) {
    int64_t crash_at = 0;
    while (CrashOnce(crash_at, survives)) ++crash_at;
    EXPECT_GT(crash_at, 40) << "the crash points were not reached";
  }
}

}  // namespace
}  // namespace syncopate::trainer
