#include "trainer/checkpoint/policy_files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/philox.h"
#include "tests/support/policy_copy.h"
#include "tests/support/small_model.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {
namespace {

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

// The bytes that a checkpoint file would hold.
std::string BytesOf(const CheckpointStore::Contents& contents) {
  std::string bytes;
  auto sink = [&bytes](absl::string_view piece) {
    bytes.append(piece.data(), piece.size());
    return absl::OkStatus();
  };
  EXPECT_TRUE(std::get<1>(contents)(sink).ok());
  return bytes;
}

TEST(PolicyFilesTest, APolicyReadBackGoesOnWithTheSameBits) {
  const TrajectoryGroup group = OneGroup();
  auto original = PolicyTrainer::Create(SmallOptions(1)).value();
  ASSERT_TRUE(original->Step({&group}).ok());
  auto files = PolicyFiles(*original);
  const std::string model = BytesOf(files[kModelFile]), optimizer = BytesOf(files[kOptimizerFile]);
  auto restored = SavedPolicy::Parse(original->manifest(), model, optimizer);
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
  auto files = PolicyFiles(*original);
  model::ModelConfig wider = testing::SmallModel();
  wider.intermediate_size = 128;
  const Manifest other = model::MakeManifest(wider, DType::kFloat32).value();
  auto refused = SavedPolicy::Parse(other, BytesOf(files[kModelFile]), BytesOf(files[kOptimizerFile]));
  EXPECT_EQ(ErrorReason(refused.status()), "CHECKPOINT_MISMATCH");
  EXPECT_NE(refused.status().message().find("mlp.gate_proj.weight"), absl::string_view::npos) << refused.status();
}

TEST(PolicyFilesTest, RefusesFilesThatAreMissingTensorsOrNoSafetensors) {
  auto original = PolicyTrainer::Create(SmallOptions(1)).value();
  auto files = PolicyFiles(*original);
  const std::string model = BytesOf(files[kModelFile]);
  EXPECT_EQ(ErrorReason(SavedPolicy::Parse(original->manifest(), model, model).status()), "CHECKPOINT_MISMATCH");
  EXPECT_EQ(ErrorReason(SavedPolicy::Parse(original->manifest(), "garbage", model).status()), "BAD_SAFETENSORS");
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
  auto files = PolicyFiles(*original);
  auto refused = SavedPolicy::Parse(manifest, BytesOf(files[kModelFile]), BytesOf(files[kOptimizerFile]));
  EXPECT_EQ(ErrorReason(refused.status()), "NON_FINITE");
  EXPECT_NE(refused.status().message().find(manifest.tensors()[last].name), absl::string_view::npos)
      << refused.status();
}

}  // namespace
}  // namespace syncopate::trainer
