#include "trainer/checkpoint/policy_files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "tests/support/file_contents.h"
#include "tests/support/policy_copy.h"
#include "tests/support/rank_threads.h"
#include "tests/support/small_model.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {
namespace {

using testing::GetBytes;

TrajectoryGroup OneGroup() {
  TrajectoryGroup group;
  group.prompt_ids = {8, 1, 2, 3, 4, 9};
  for (int s = 0; s < 4; ++s) {
    Trajectory sample;
    for (int i = 0; i < 5; ++i) sample.tokens.push_back(static_cast<int32_t>(Philox4x32(7, s * 8 + i)[0] % 11));
    sample.logprobs.assign(5, -2.3f);
    sample.reward = 0.25f * static_cast<float>(s);
    group.samples.push_back(sample);
  }
  return group;
}

PolicyTrainer::Options SmallOptions(uint64_t seed) {
  PolicyTrainer::Options options;
  options.model = testing::SmallModel();
  options.seed = seed;
  return options;
}

TEST(PolicyFilesTest, APolicyReadBackGoesOnWithTheSameBits) {
  const TrajectoryGroup group = OneGroup();
  auto original = PolicyTrainer::Create(SmallOptions(1)).value();
  ASSERT_TRUE(original->Step({&group}).ok());
  auto files = PolicyFiles(original->TakeSnapshot("").value());
  const std::string model = GetBytes(files[ModelFileName(0, 1)]), optimizer = GetBytes(files[OptimizerFileName(0, 1)]);
  auto restored = SavedPolicy::Parse(original->manifest(), {{model, optimizer}});
  ASSERT_TRUE(restored.ok()) << restored.status();
  auto resumed = PolicyTrainer::Create(SmallOptions(2)).value();
  ASSERT_TRUE(resumed->Restore(*restored).ok());
  ASSERT_TRUE(original->Step({&group}).ok());
  ASSERT_TRUE(resumed->Step({&group}).ok());
  EXPECT_EQ(*original->Digest(), *resumed->Digest());
  EXPECT_EQ(testing::PolicyCopy(*original), testing::PolicyCopy(*resumed));
}

TEST(PolicyFilesTest, RefusesACheckpointOfAnotherModelByName) {
  auto original = PolicyTrainer::Create(SmallOptions(1)).value();
  auto files = PolicyFiles(original->TakeSnapshot("").value());
  const std::string model = GetBytes(files[ModelFileName(0, 1)]), optimizer = GetBytes(files[OptimizerFileName(0, 1)]);
  model::ModelConfig wider = testing::SmallModel();
  wider.intermediate_size = 128;
  const Manifest other = model::MakeManifest(wider, DType::kFloat32).value();
  auto refused = SavedPolicy::Parse(other, {{model, optimizer}});
  EXPECT_EQ(ErrorReason(refused.status()), "CHECKPOINT_MISMATCH");
  EXPECT_NE(refused.status().message().find("mlp.gate_proj.weight"), absl::string_view::npos) << refused.status();
}

TEST(PolicyFilesTest, RefusesFilesThatAreMissingTensorsOrNoSafetensors) {
  auto original = PolicyTrainer::Create(SmallOptions(1)).value();
  auto files = PolicyFiles(original->TakeSnapshot("").value());
  const std::string model = GetBytes(files[ModelFileName(0, 1)]);
  EXPECT_EQ(ErrorReason(SavedPolicy::Parse(original->manifest(), {{model, model}}).status()), "CHECKPOINT_MISMATCH");
  EXPECT_EQ(ErrorReason(SavedPolicy::Parse(original->manifest(), {{"garbage", model}}).status()), "BAD_SAFETENSORS");
}

TEST(PolicyFilesTest, RefusesParametersThatAreNotFiniteNamingTheTensor) {
  auto original = PolicyTrainer::Create(SmallOptions(1)).value();
  const Manifest& manifest = original->manifest();
  testing::PolicyCopy spoilt(*original);
  const size_t last = manifest.tensors().size() - 1;
  const auto first_number = static_cast<size_t>(manifest.ranges()[last].begin) / sizeof(float);
  spoilt.arena_of(PolicyPart::kParameters)[first_number] = std::nanf("");
  ASSERT_TRUE(original->Restore(spoilt).ok());
  EXPECT_EQ(ErrorReason(original->CheckFinite()), "NON_FINITE");
  auto files = PolicyFiles(original->TakeSnapshot("").value());
  const std::string model = GetBytes(files[ModelFileName(0, 1)]), optimizer = GetBytes(files[OptimizerFileName(0, 1)]);
  auto refused = SavedPolicy::Parse(manifest, {{model, optimizer}});
  EXPECT_EQ(ErrorReason(refused.status()), "NON_FINITE");
  EXPECT_NE(refused.status().message().find(manifest.tensors()[last].name), absl::string_view::npos)
      << refused.status();
}

PolicyTrainer::Options OptionsOn(Communicator& ranks, uint64_t seed) {
  PolicyTrainer::Options options = SmallOptions(seed);
  options.model = testing::GroupedQueryModel();
  options.mesh = ranks;
  return options;
}

// The part that each of several ranks saves, the whole state that rank 0 gathers, and the digest of the state.
struct SavedByRanks {
  std::map<std::string, CheckpointStore::Contents> files;
  std::shared_ptr<const testing::PolicyCopy> state;  // whole on rank 0 alone
  uint64_t digest = 0;
};

std::vector<SavedByRanks> SaveOnRanks(int32_t world) {
  const TrajectoryGroup group = OneGroup();
  return testing::OnRanks<SavedByRanks>(world, [&](Communicator& ranks) {
    auto trainer = PolicyTrainer::Create(OptionsOn(ranks, 1)).value();
    for (int step = 0; step < 2; ++step) EXPECT_TRUE(trainer->Step({&group}).ok());
    SavedByRanks saved;
    saved.files = PolicyFiles(trainer->TakeSnapshot("").value());
    saved.state = std::make_shared<testing::PolicyCopy>(*trainer);
    saved.digest = trainer->Digest().value();
    // The written file is the copy, whatever is trained meanwhile.
    EXPECT_TRUE(trainer->Step({&group}).ok());
    return saved;
  });
}

class FilesOfRanks {
 public:
  explicit FilesOfRanks(const std::vector<SavedByRanks>& ranks) {
    const auto world = static_cast<int32_t>(ranks.size());
    for (int32_t rank = 0; rank < world; ++rank) {
      const auto& files = ranks[static_cast<size_t>(rank)].files;
      bytes_.push_back(GetBytes(files.at(ModelFileName(rank, world))));
      bytes_.push_back(GetBytes(files.at(OptimizerFileName(rank, world))));
    }
  }
  std::vector<SavedPolicy::RankFiles> views() const {
    std::vector<SavedPolicy::RankFiles> views;
    for (size_t i = 0; i < bytes_.size(); i += 2) views.push_back({bytes_[i], bytes_[i + 1]});
    return views;
  }

 private:
  std::vector<std::string> bytes_;
};

TEST(PolicyFilesTest, WhatEachRankHasSavedIsRestoredBitForBitOnAnyNumberOfRanks) {
  for (int32_t before : {1, 2, 3, 4}) {
    const std::vector<SavedByRanks> saved = SaveOnRanks(before);
    const FilesOfRanks files(saved);
    for (int32_t after : {1, 2, 3, 4}) {
      testing::OnRanks<bool>(after, [&](Communicator& ranks) {
        auto trainer = PolicyTrainer::Create(OptionsOn(ranks, 9)).value();
        const auto source = SavedPolicy::Parse(trainer->manifest(), files.views());
        EXPECT_TRUE(source.ok()) << source.status();
        if (!source.ok()) return false;
        EXPECT_TRUE(trainer->Restore(*source).ok());
        EXPECT_EQ(trainer->Digest().value_or(0), saved[0].digest) << before << " to " << after;
        const testing::PolicyCopy again(*trainer);
        EXPECT_EQ(again.updates(), 2);
        EXPECT_TRUE(ranks.rank() != 0 || again == *saved[0].state) << before << " to " << after;
        return true;
      });
    }
  }
}

TEST(PolicyFilesTest, NamesOfRanksFilesSayWhichAndOfHowMany) {
  EXPECT_EQ(ModelFileName(0, 1), "model.safetensors");
  EXPECT_EQ(ModelFileName(2, 16), "model-2-of-16.safetensors");
  EXPECT_EQ(OptimizerFileName(0, 2), "optimizer-0-of-2.safetensors");
}

TEST(PolicyFilesTest, RefusesRanksFilesThatAreNotOneWhole) {
  SingleRank single;
  const Manifest manifest = PolicyTrainer::Create(OptionsOn(single, 1)).value()->manifest();
  const FilesOfRanks two(SaveOnRanks(2)), three(SaveOnRanks(3));
  auto reason = [&](const std::vector<SavedPolicy::RankFiles>& files) {
    return ErrorReason(SavedPolicy::Parse(manifest, files).status());
  };
  EXPECT_EQ(reason(two.views()), "");
  EXPECT_EQ(reason({two.views()[0], two.views()[0]}), "CHECKPOINT_MISMATCH");      // one shard twice
  EXPECT_EQ(reason({three.views()[0], three.views()[1]}), "CHECKPOINT_MISMATCH");  // one shard is missing
  EXPECT_EQ(reason({two.views()[0], three.views()[1]}), "CHECKPOINT_MISMATCH");
  EXPECT_EQ(reason({two.views()[0]}), "CHECKPOINT_MISMATCH");
}

TEST(PolicyFilesTest, AWriteThatIsGivenUpEndsBetweenTwoPieces) {
  auto original = PolicyTrainer::Create(SmallOptions(1)).value();
  int asked = 0;
  auto files = PolicyFiles(original->TakeSnapshot("").value(),
                           [&asked] { return ++asked < 3 ? absl::OkStatus() : absl::CancelledError("the rank ends"); });
  int64_t written = 0;
  const absl::Status status = std::get<1>(files[OptimizerFileName(0, 1)])([&written](absl::string_view piece) {
    written += static_cast<int64_t>(piece.size());
    return absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 3);
  EXPECT_LT(written, 2 * original->manifest().arena_bytes());
}

}  // namespace
}  // namespace syncopate::trainer
