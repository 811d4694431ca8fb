#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/digest.h"
#include "base/philox.h"
#include "model/device.h"
#include "model/transformer.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/small_model.h"
#include "trainer/cuda/cuda_stager.h"
#include "trainer/staging/host_stager.h"
#include "trainer/step/packed_batch.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {
namespace {

std::vector<TrajectoryGroup> RandomGroups(int groups, int samples, uint64_t seed) {
  std::vector<TrajectoryGroup> made(groups);
  uint64_t counter = 0;
  auto draw = [&](uint32_t bound) { return Philox4x32(seed, counter++)[0] % bound; };
  for (TrajectoryGroup& group : made) {
    for (uint32_t i = 0, n = 2 + draw(5); i < n; ++i) group.prompt_ids.push_back(static_cast<int32_t>(draw(11)));
    for (int s = 0; s < samples; ++s) {
      Trajectory& sample = group.samples.emplace_back();
      for (uint32_t i = 0, n = 1 + draw(8); i < n; ++i) {
        sample.tokens.push_back(static_cast<int32_t>(draw(11)));
        sample.logprobs.push_back(-2.4f + 0.001f * static_cast<float>(draw(400)));
      }
      sample.reward = 0.2f * static_cast<float>(draw(6));
    }
  }
  return made;
}

absl::StatusOr<TrainStepMetrics> StepOn(PolicyTrainer& trainer, uint64_t seed) {
  const std::vector<TrajectoryGroup> groups = RandomGroups(8, 4, seed);
  std::vector<const TrajectoryGroup*> pointers;
  for (const TrajectoryGroup& group : groups) pointers.push_back(&group);
  return trainer.Step(pointers);
}

std::unique_ptr<PolicyTrainer> MakeTrainer(const std::string& device) {
  PolicyTrainer::Options options;
  options.model = testing::SmallModel();
  options.seed = 3;
  options.device = device;
  return PolicyTrainer::Create(options).value();
}

double LargestDifference(const PolicyTrainer& a, const PolicyTrainer& b) {
  const auto* x = static_cast<const float*>(a.parameters().value());
  const auto* y = static_cast<const float*>(b.parameters().value());
  double largest = 0;
  for (int64_t i = 0; i < a.manifest().arena_bytes() / 4; ++i)
    largest = std::max(largest, std::abs(double{x[i]} - y[i]));
  return largest;
}

TEST(CudaPolicyTrainerTest, StartsFromTheBitsOfTheCpu) {
  SYNCOPATE_NEED_GPUS(1);
  EXPECT_EQ(LargestDifference(*MakeTrainer("cpu"), *MakeTrainer("cuda:0")), 0);
}

TEST(TransformerGpuTest, ForwardOnAGpuEqualsTheCpu) {
  SYNCOPATE_NEED_GPUS(1);
  for (const model::ModelConfig& config : {testing::SmallModel(), testing::GroupedQueryModel()}) {
    const Manifest manifest = model::MakeManifest(config, DType::kFloat32).value();
    at::Tensor arena = at::zeros({manifest.arena_bytes() / 4}, at::kFloat);
    model::InitialiseWeights(config, manifest, 7, arena.data_ptr<float>());
    std::vector<int64_t> ids, positions;
    for (int64_t i = 0; i < 25; ++i) {
      ids.push_back(Philox4x32(5, static_cast<uint64_t>(i))[0] % config.vocab_size);
      positions.push_back(i % 12);
    }
    std::vector<at::Tensor> logits;
    for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kCUDA, 0)}) {
      const at::Tensor weights = arena.to(device);
      const model::Transformer transformer(config, device);
      const auto views = model::ViewWeights(config, manifest, weights);
      PackedAttention attention({12, 12, 1}, device);
      const at::Tensor hidden = transformer.Forward(views, at::tensor(at::ArrayRef<int64_t>(ids)).to(device),
                                                    at::tensor(at::ArrayRef<int64_t>(positions)).to(device), attention);
      logits.push_back(transformer.Logits(views, hidden).to(at::kCPU));
    }
    EXPECT_LE((logits[0] - logits[1]).abs().max().item<double>(), 1e-4);
  }
}

TEST(CudaPolicyTrainerTest, AStepIsThatOfTheCpuButForRounding) {
  SYNCOPATE_NEED_GPUS(1);
  auto cpu = MakeTrainer("cpu"), gpu = MakeTrainer("cuda:0");
  for (uint64_t step = 0; step < 3; ++step) {
    const auto expected = StepOn(*cpu, step), found = StepOn(*gpu, step);
    ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
    EXPECT_NEAR(expected->loss, found->loss, 1e-3);
    EXPECT_NEAR(expected->gradient_norm, found->gradient_norm, 1e-3 * (1 + expected->gradient_norm));
    EXPECT_NEAR(expected->entropy, found->entropy, 1e-3);
    EXPECT_EQ(expected->tokens, found->tokens);
  }
  // AdamW's first steps go by the sign of the gradient: an element that is nearly zero may differ by whole steps.
  EXPECT_LE(LargestDifference(*cpu, *gpu), 3 * 2 * 2e-3);
}

TEST(CudaPolicyTrainerTest, ACheckpointMovesBetweenDevicesBitForBit) {
  SYNCOPATE_NEED_GPUS(1);
  auto gpu = MakeTrainer("cuda:0"), cpu = MakeTrainer("cpu"), again = MakeTrainer("cuda:0");
  ASSERT_TRUE(StepOn(*gpu, 1).ok());
  ASSERT_TRUE(cpu->Restore(gpu->state().value()).ok());
  ASSERT_TRUE(again->Restore(cpu->state().value()).ok());
  const auto expected = gpu->state().value(), found = again->state().value();
  const auto bytes = static_cast<size_t>(gpu->manifest().arena_bytes());
  EXPECT_EQ(std::memcmp(expected.parameters, found.parameters, bytes), 0);
  EXPECT_EQ(std::memcmp(expected.first_moment, found.first_moment, bytes), 0);
  EXPECT_EQ(std::memcmp(expected.second_moment, found.second_moment, bytes), 0);
  EXPECT_EQ(expected.updates, found.updates);
}

TEST(CudaStagerTest, StagesWhatTheHostStages) {
  SYNCOPATE_NEED_GPUS(1);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Manifest wire = model::MakeManifest(testing::SmallModel(), dtype).value();
    auto trainer = MakeTrainer("cuda:0");
    auto on_gpu = CudaStager::Create(trainer.get(), wire, /*device=*/0, /*slots=*/1).value();
    auto on_host = HostStager::Create(trainer.get(), wire, /*slots=*/1).value();
    for (int64_t step = 0; step < 3; ++step) {
      const auto expected = on_host->Stage({1, step}), found = on_gpu->Stage({1, step});
      ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
      EXPECT_EQ(expected->bucket_digests, found->bucket_digests) << DTypeName(dtype) << " step " << step;
      EXPECT_EQ(expected->digest, found->digest);
      std::vector<char> a(static_cast<size_t>(wire.arena_bytes())), b(a.size());
      ASSERT_TRUE(on_host->store()->Open({1, step}).value()->Read({0, wire.arena_bytes()}, a.data()).ok());
      ASSERT_TRUE(on_gpu->store()->Open({1, step}).value()->Read({0, wire.arena_bytes()}, b.data()).ok());
      EXPECT_EQ(a, b);
      ASSERT_TRUE(StepOn(*trainer, static_cast<uint64_t>(step)).ok());
    }
  }
}

}  // namespace
}  // namespace syncopate::trainer
