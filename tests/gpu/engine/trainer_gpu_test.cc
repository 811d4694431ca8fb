#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/philox.h"
#include "model/device.h"
#include "model/transformer.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/packed_attention.h"
#include "tests/support/policy_copy.h"
#include "tests/support/small_model.h"
#include "trainer/cuda/cuda_stager.h"
#include "trainer/staging/host_stager.h"
#include "trainer/step/policy_trainer.h"
#include "trainer/step/train_step.h"

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

absl::StatusOr<StepFigures> StepOn(PolicyTrainer& trainer, uint64_t seed) {
  const std::vector<TrajectoryGroup> groups = RandomGroups(8, 4, seed);
  std::vector<const TrajectoryGroup*> pointers;
  for (const TrajectoryGroup& group : groups) pointers.push_back(&group);
  return trainer.Step(pointers);
}

PolicyTrainer::Options OptionsOn(const std::string& device, DType dtype) {
  PolicyTrainer::Options options;
  options.model = testing::SmallModel();
  options.seed = 3;
  options.device = device;
  options.compute_dtype = dtype;
  return options;
}

std::unique_ptr<PolicyTrainer> MakeTrainer(const std::string& device, DType dtype = DType::kFloat32) {
  return PolicyTrainer::Create(OptionsOn(device, dtype)).value();
}

double LargestDifference(const PolicyTrainer& a, const PolicyTrainer& b) {
  const testing::PolicyCopy copy_of_a(a), copy_of_b(b);
  const std::vector<float>&x = copy_of_a.parameters(), &y = copy_of_b.parameters();
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(double{x[i]} - y[i]));
  return largest;
}

TEST(CudaPolicyTrainerTest, StartsFromTheBitsOfTheCpu) {
  SYNCOPATE_NEED_GPUS(1);
  EXPECT_EQ(LargestDifference(*MakeTrainer("cpu"), *MakeTrainer("cuda:0")), 0);
}

TEST(CudaPolicyTrainerTest, FiftyDeterministicStepsRepeatTheirBits) {
  SYNCOPATE_NEED_GPUS(1);
  // FlashAttention-2 and cuDNN are tested.
  model::ModelConfig wide = testing::SmallModel();
  wide.head_dim = 64;
  for (const model::ModelConfig& config : {testing::SmallModel(), wide}) {
    std::vector<std::unique_ptr<PolicyTrainer>> trainers;
    for (int i = 0; i < 2; ++i) {
      PolicyTrainer::Options options = OptionsOn("cuda:0", DType::kBFloat16);
      options.model = config;
      options.step.deterministic = true;
      trainers.push_back(PolicyTrainer::Create(options).value());
      for (uint64_t step = 0; step < 50; ++step) ASSERT_TRUE(StepOn(*trainers.back(), step).ok());
    }
    EXPECT_EQ(LargestDifference(*trainers[0], *trainers[1]), 0) << "heads of " << config.head_dim;
  }
}

TEST(TransformerGpuTest, ForwardOnAGpuEqualsTheCpu) {
  SYNCOPATE_NEED_GPUS(1);
  for (const model::ModelConfig& config : {testing::SmallModel(), testing::GroupedQueryModel()}) {
    const Manifest manifest = model::MakeManifest(config, DType::kFloat32).value();
    at::Tensor arena = at::zeros({manifest.arena_bytes() / 4}, at::kFloat);
    model::InitialiseWeights(config, manifest, 7, arena.data_ptr<float>());
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 25; ++i) ids.push_back(Philox4x32(5, static_cast<uint64_t>(i))[0] % config.vocab_size);
    std::vector<at::Tensor> logits;
    for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kCUDA, 0)}) {
      const at::Tensor weights = arena.to(device);
      const model::Transformer transformer(config, device);
      const auto views = model::ViewWeights(config, manifest, weights);
      const model::PackedSequences sequences({12, 12, 1}, device);
      testing::PackedAttention attention(sequences);
      const at::Tensor hidden = transformer.Forward(views, at::tensor(at::ArrayRef<int64_t>(ids)).to(device),
                                                    sequences.positions(), attention);
      logits.push_back(transformer.Logits(views, hidden).to(at::kCPU));
    }
    EXPECT_LE((logits[0] - logits[1]).abs().max().item<double>(), 1e-4);
  }
}

// The distance that weights move in three steps of a trainer on the CPU, and their distance from a GPU's weights then.
struct Moved {
  double furthest = 0, on_average = 0;             // on the CPU, from the first weights
  double apart_at_most = 0, apart_on_average = 0;  // between the CPU and the GPU
};

Moved AfterThreeSteps(double eps, const model::ModelConfig& config = testing::SmallModel()) {
  PolicyTrainer::Options on_cpu = OptionsOn("cpu", DType::kFloat32), on_gpu = OptionsOn("cuda:0", DType::kFloat32);
  on_cpu.model = on_gpu.model = config;
  on_cpu.optimizer.eps = on_gpu.optimizer.eps = eps;
  auto cpu = PolicyTrainer::Create(on_cpu).value(), gpu = PolicyTrainer::Create(on_gpu).value();
  const testing::PolicyCopy before(*cpu);
  for (uint64_t step = 0; step < 3; ++step) {
    const auto expected = StepOn(*cpu, step), found = StepOn(*gpu, step);
    EXPECT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
    if (!expected.ok() || !found.ok()) break;
    EXPECT_NEAR(expected->loss, found->loss, 1e-3);
    EXPECT_NEAR(expected->gradient_norm, found->gradient_norm, 1e-3 * (1 + expected->gradient_norm));
    EXPECT_NEAR(expected->entropy, found->entropy, 1e-3);
    EXPECT_EQ(expected->trained_tokens, found->trained_tokens);
  }
  const testing::PolicyCopy cpus(*cpu), gpus(*gpu);
  Moved moved;
  const size_t count = cpus.parameters().size();
  for (size_t i = 0; i < count; ++i) {
    const double way = std::abs(double{cpus.parameters()[i]} - before.parameters()[i]);
    const double apart = std::abs(double{cpus.parameters()[i]} - gpus.parameters()[i]);
    moved.furthest = std::max(moved.furthest, way);
    moved.apart_at_most = std::max(moved.apart_at_most, apart);
    moved.on_average += way / static_cast<double>(count);
    moved.apart_on_average += apart / static_cast<double>(count);
  }
  std::cout << "| three AdamW steps, eps " << eps << ": weights moved by " << moved.on_average << ", at most "
            << moved.furthest << "; GPU and CPU are apart by " << moved.apart_on_average << ", at most "
            << moved.apart_at_most << std::endl;
  return moved;
}

// With an eps as large as the gradients, an update is proportional to its gradient, and so is the difference of two
// updates.
TEST(CudaPolicyTrainerTest, ThreeStepsOfAdamWAreThoseOfTheCpuForEveryWeight) {
  SYNCOPATE_NEED_GPUS(1);
  const Moved moved = AfterThreeSteps(1e-3);
  EXPECT_GT(moved.furthest, 1e-3);
  EXPECT_LE(moved.apart_at_most, 0.01 * moved.furthest);
}

// B begins with zeros, so A changes from the second step on.
TEST(CudaPolicyTrainerTest, ThreeStepsOfAdaptersAreThoseOfTheCpuAndLeaveTheBaseItsBits) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig config = testing::WithAdapters(testing::SmallModel(), /*rank=*/8);
  const Moved moved = AfterThreeSteps(1e-3, config);
  EXPECT_GT(moved.furthest, 1e-4);
  EXPECT_LE(moved.apart_at_most, 0.01 * moved.furthest);
  PolicyTrainer::Options options = OptionsOn("cuda:0", DType::kBFloat16);
  options.model = config;
  auto trainer = PolicyTrainer::Create(options).value();
  const uint64_t base = *trainer->BaseDigest();
  const Manifest& manifest = trainer->manifest();
  auto read = [&] {
    std::vector<char> arena(static_cast<size_t>(manifest.arena_bytes()));
    EXPECT_TRUE(trainer
                    ->ReadShard(DType::kFloat32,
                                [&](int64_t begin, absl::string_view bytes) {
                                  std::memcpy(arena.data() + begin, bytes.data(), bytes.size());
                                  return absl::OkStatus();
                                })
                    .ok());
    return arena;
  };
  const std::vector<char> before = read();
  for (uint64_t step = 0; step < 3; ++step) ASSERT_TRUE(StepOn(*trainer, step).ok());
  const std::vector<char> after = read();
  const auto first = manifest.tensors().size() - trainer->trained().tensors().size();
  const auto base_bytes = static_cast<size_t>(manifest.ranges()[first].begin);
  EXPECT_EQ(std::memcmp(before.data(), after.data(), base_bytes), 0);
  EXPECT_NE(before, after);
  EXPECT_EQ(PolicyTrainer::Create(options).value()->BaseDigest().value(), base);
}

// With the usual eps, AdamW's first steps follow the sign of the gradient: a weight whose gradient is zero except for
// rounding may differ by whole steps, so the test checks the average.
TEST(CudaPolicyTrainerTest, ThreeStepsWithTheUsualEpsAreThoseOfTheCpuOnAverage) {
  SYNCOPATE_NEED_GPUS(1);
  const Moved moved = AfterThreeSteps(AdamWOptions().eps);
  EXPECT_GT(moved.on_average, 1e-3);
  EXPECT_LE(moved.apart_on_average, 0.01 * moved.on_average);
}

TEST(CudaPolicyTrainerTest, AStepInBFloat16IsNearlyThatOfFloat32) {
  SYNCOPATE_NEED_GPUS(1);
  PolicyTrainer::Options options = OptionsOn("cuda:0", DType::kBFloat16);
  options.compute_dtype = std::nullopt;  // the default dtype of a GPU
  for (bool float32_logits : {false, true}) {
    options.step.float32_logits = float32_logits;
    auto trainer = PolicyTrainer::Create(options).value();
    EXPECT_EQ(trainer->compute_dtype(), DType::kBFloat16);
    const auto expected = StepOn(*MakeTrainer("cpu"), 1), found = StepOn(*trainer, 1);
    ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
    EXPECT_NEAR(expected->loss, found->loss, 0.02);
    EXPECT_NEAR(expected->gradient_norm, found->gradient_norm, 0.05 * expected->gradient_norm);
    EXPECT_NEAR(expected->entropy, found->entropy, 0.02);
    EXPECT_EQ(found->updates, 1);
  }
}

// Counts the warnings that libtorch gives for operations that wait for the device.
class SyncCounter final : public c10::WarningHandler {
 public:
  SyncCounter() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_WARN); }
  ~SyncCounter() override { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("synchroniz") != std::string::npos) ++count;
  }
  int count = 0;
};

TEST(CudaPolicyTrainerTest, AStepWaitsForTheDeviceOnceHoweverManyMicroBatches) {
  SYNCOPATE_NEED_GPUS(1);
  for (int64_t tokens : {16384, 40}) {
    PolicyTrainer::Options options = OptionsOn("cuda:0", DType::kBFloat16);
    options.step.micro_batch_tokens = tokens;
    auto trainer = PolicyTrainer::Create(options).value();
    ASSERT_TRUE(StepOn(*trainer, 1).ok());
    SyncCounter counter;
    const c10::WarningUtils::WarningHandlerGuard guard(&counter);
    ASSERT_TRUE(StepOn(*trainer, 2).ok());
    EXPECT_EQ(counter.count, 1) << tokens;
  }
}

TEST(CudaPolicyTrainerTest, AnUpdateThatIsNotFiniteIsSkippedOnTheDevice) {
  SYNCOPATE_NEED_GPUS(1);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    auto trainer = MakeTrainer("cuda:0", dtype), untouched = MakeTrainer("cuda:0", dtype);
    std::vector<TrajectoryGroup> groups = RandomGroups(2, 4, 5);
    groups[0].samples[0].reward = std::nanf("");
    const auto skipped = trainer->Step({&groups[0], &groups[1]});
    ASSERT_TRUE(skipped.ok()) << skipped.status();
    EXPECT_EQ(skipped->skipped_updates, 1);
    EXPECT_EQ(LargestDifference(*trainer, *untouched), 0);
    EXPECT_EQ(trainer->updates(), 0);
    const auto made = StepOn(*trainer, 1);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->updates, 1);
  }
}

// A rollouter computes the transformer's forward with the weights that it received; the trainer computes its program's.
TEST(CudaPolicyTrainerTest, LogProbsInBFloat16AreThoseOfTheRolloutersTransformer) {
  SYNCOPATE_NEED_GPUS(1);
  const at::NoGradGuard no_grad;
  const model::ModelConfig config = testing::GroupedQueryModel();
  const Manifest manifest = model::MakeManifest(config, DType::kFloat32).value();
  const at::Device gpu(at::kCUDA, 0);
  Actor actor(config, manifest, {}, 3, gpu, nullptr, at::kBFloat16);
  SingleRank ranks;
  const TrainStep step(actor, ranks, {});
  const std::vector<TrajectoryGroup> groups = RandomGroups(8, 4, 6);
  std::vector<TrainingSequence> sequences;
  for (const TrajectoryGroup& group : groups) {
    for (const Trajectory& sample : group.samples) sequences.push_back({&group.prompt_ids, &sample, 0});
  }
  const PackedBatch batch = Pack(sequences, gpu);
  testing::PackedAttention attention(batch.sequences);
  const at::Tensor hidden =
      actor.transformer().Forward(actor.weights(), batch.ids, batch.sequences.positions(), attention);
  const at::Tensor logits = actor.transformer().Logits(actor.weights(), hidden.index_select(0, batch.predicts));
  const at::Tensor expected =
      at::log_softmax(logits, -1).gather(1, batch.targets.unsqueeze(1)).squeeze(1).to(at::kDouble);
  const at::Tensor log_ratio = step.LogProbs(batch)->to(at::kDouble) - expected;
  const at::Tensor k3 = log_ratio.exp() - 1 - log_ratio;
  // bf16 has 8 bits of precision: logits of about 1 differ by some thousandths.
  EXPECT_LT(k3.mean().item<double>(), 1e-5);
  EXPECT_LT(log_ratio.abs().max().item<double>(), 0.03);
}

TEST(CudaPolicyTrainerTest, ACheckpointMovesBetweenDevicesBitForBit) {
  SYNCOPATE_NEED_GPUS(1);
  auto gpu = MakeTrainer("cuda:0", DType::kBFloat16), cpu = MakeTrainer("cpu"), again = MakeTrainer("cuda:0");
  ASSERT_TRUE(StepOn(*gpu, 1).ok());
  ASSERT_TRUE(cpu->Restore(testing::PolicyCopy(*gpu)).ok());
  ASSERT_TRUE(again->Restore(testing::PolicyCopy(*cpu)).ok());
  EXPECT_EQ(testing::PolicyCopy(*gpu), testing::PolicyCopy(*again));
  EXPECT_EQ(*gpu->Digest(), *cpu->Digest());
  EXPECT_TRUE(gpu->CheckFinite().ok());
}

TEST(CudaStagerTest, StagesWhatTheHostStages) {
  SYNCOPATE_NEED_GPUS(1);
  const model::ModelConfig adapted = testing::WithAdapters(testing::SmallModel(), /*rank=*/8);
  for (const auto& [config, dtype] :
       std::vector<std::pair<model::ModelConfig, DType>>{{testing::SmallModel(), DType::kFloat32},
                                                         {testing::SmallModel(), DType::kBFloat16},
                                                         {adapted, DType::kFloat32},
                                                         {adapted, DType::kBFloat16}}) {
    const Manifest wire = model::MakeManifest(config, dtype).value();
    PolicyTrainer::Options options = OptionsOn("cuda:0", dtype);
    options.model = config;
    auto trainer = PolicyTrainer::Create(options).value();
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

// The step's update is queued behind the read on the GPU. For a stager in host memory, the step's thread waits for the
// copy.
TEST(CudaStagerTest, AStagingBesideAStepIsOfTheWeightsBeforeIt) {
  SYNCOPATE_NEED_GPUS(1);
  const Manifest wire = model::MakeManifest(testing::SmallModel(), DType::kBFloat16).value();
  for (const bool on_gpu : {true, false}) {
    auto trainer = MakeTrainer("cuda:0", DType::kBFloat16);
    std::unique_ptr<WeightStager> stager;
    if (on_gpu) {
      stager = CudaStager::Create(trainer.get(), wire, /*device=*/0, /*slots=*/1).value();
    } else {
      stager = HostStager::Create(trainer.get(), wire, /*slots=*/1).value();
    }
    for (int64_t step = 0; step < 10; ++step) {
      const auto alone = stager->Stage({1, 2 * step});
      ASSERT_TRUE(alone.ok()) << alone.status();
      ASSERT_TRUE(stager->Launch({1, 2 * step + 1}).ok());
      absl::StatusOr<WeightStager::Staged> beside;
      std::thread other([&] { beside = stager->Await(); });
      EXPECT_TRUE(StepOn(*trainer, static_cast<uint64_t>(step)).ok());
      other.join();
      ASSERT_TRUE(beside.ok()) << beside.status();
      EXPECT_EQ(beside->bucket_digests, alone->bucket_digests) << "step " << step << (on_gpu ? " on the GPU" : "");
    }
  }
}

}  // namespace
}  // namespace syncopate::trainer
