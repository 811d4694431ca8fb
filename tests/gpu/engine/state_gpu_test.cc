// The state of a policy on a GPU that is offloaded and loaded again.
#include <ATen/ATen.h>
#include <c10/core/AllocatorConfig.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/cuda_arena.h"
#include "model/device.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/policy_copy.h"
#include "tests/support/small_model.h"
#include "tests/support/state_arena_conformance.h"
#include "tests/support/training_groups.h"
#include "trainer/actor/base_memory.h"
#include "trainer/cuda/cuda_stager.h"
#include "trainer/cuda/cuda_state_arena.h"
#include "trainer/memory/cache_rule.h"
#include "trainer/staging/host_stager.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {
namespace {

using testing::Pointers;
using testing::PolicyCopy;

testing::ArenaRig GpuRig() {
  return {.make = CudaStateArenas(/*device=*/0),
          .write =
              [](char* data, const std::vector<char>& bytes) {
                synchronizer::ToDevice(0, data, bytes.data(), static_cast<int64_t>(bytes.size()));
              },
          .read = [](const char* data, int64_t bytes) { return synchronizer::ToHost(0, data, bytes); },
          .taken =
              [] {
                const cuda::GpuMemory memory = cuda::ReadGpuMemory(0).value();
                return memory.total - memory.free;
              }};
}

TEST(CudaStateArenaTest, KeepsItsAddressAndWhatItHeld) {
  SYNCOPATE_NEED_GPUS(1);
  testing::KeepsItsAddressAndWhatItHeld(GpuRig());
}
TEST(CudaStateArenaTest, GivesItsMemoryBackWhileItIsAway) {
  SYNCOPATE_NEED_GPUS(1);
  testing::GivesItsMemoryBackWhileItIsAway(GpuRig());
}
TEST(CudaStateArenaTest, HandsOutCopiesThatStay) {
  SYNCOPATE_NEED_GPUS(1);
  testing::HandsOutCopiesThatStay(GpuRig());
}
TEST(CudaStateArenaTest, LendsItsCopyWhileItIsAway) {
  SYNCOPATE_NEED_GPUS(1);
  testing::LendsItsCopyWhileItIsAway(GpuRig());
}
TEST(CudaStateArenaTest, ACopyHoldsWhatWasThereWhenItBegan) {
  SYNCOPATE_NEED_GPUS(1);
  testing::ACopyHoldsWhatWasThereWhenItBegan(GpuRig(), 512 << 20);
}
TEST(CudaStateArenaTest, MovesOnlyWhatItsKindNeeds) {
  SYNCOPATE_NEED_GPUS(1);
  testing::MovesOnlyWhatItsKindNeeds(GpuRig());
}
TEST(CudaStateArenaTest, APartsDurationsAreExact) {
  SYNCOPATE_NEED_GPUS(1);
  testing::APartsDurationsAreExact(GpuRig());
}

std::vector<TrajectoryGroup> RandomGroups(uint64_t seed) {
  return testing::RandomGroups(testing::GroupedQueryModel().vocab_size, 6, 4, seed,
                               [](Trajectory& sample, const testing::Draw& draw) {
                                 sample.spans = {{{1, 0}, 0, static_cast<int32_t>(sample.tokens.size())}};
                                 sample.reward = 0.2f * static_cast<float>(draw(6));
                               });
}

std::unique_ptr<PolicyTrainer> MakePolicy(const MemoryOptions& memory) {
  PolicyTrainer::Options options;
  options.model = testing::GroupedQueryModel();
  options.seed = 3;
  options.device = "cuda:0";
  // float32, in which sums over rows have one order: the test compares bits.
  options.compute_dtype = DType::kFloat32;
  options.step.loss.correction = loss::Correction::kTis;
  options.step.loss.kl_coefficient = 0.1;
  options.step.loss.kl_in_reward = true;
  options.step.updates_per_batch = 2;
  options.memory = memory;
  options.arenas = CudaStateArenas(0);
  return PolicyTrainer::Create(options).value();
}

double LargestDifference(const PolicyTrainer& a, const PolicyTrainer& b) {
  const PolicyCopy x(a), y(b);
  double largest = 0;
  for (size_t i = 0; i < x.parameters().size(); ++i) {
    largest = std::max(largest, std::abs(double{x.parameters()[i]} - y.parameters()[i]));
  }
  return largest;
}

TEST(CudaOffloadTest, StepsWithEverythingAwayInBetweenTrainTheSameAndDurationsAreExact) {
  SYNCOPATE_NEED_GPUS(1);
  auto stays = MakePolicy({});
  auto leaves = MakePolicy({.offload_params = true,
                            .offload_optimizer_for_logprob = true,
                            .offload_reference = true,
                            .empty_cache = EmptyCache::kAlways});
  const void* const address = leaves->device_shard(DType::kFloat32);
  for (int i = 0; i < 4; ++i) {
    const auto groups = RandomGroups(static_cast<uint64_t>(i));
    for (auto* one : {stays.get(), leaves.get()}) {
      const auto made = one->Step(Pointers(groups), i);
      ASSERT_TRUE(made.ok()) << made.status();
    }
    EXPECT_EQ(leaves->device_shard(DType::kFloat32), address);
    const PolicyMemory rest = leaves->memory();
    EXPECT_EQ(rest.parameter_bytes, 0);
    EXPECT_EQ(rest.reference_bytes, 0);
    const PolicyMoves moved = leaves->TakeMoves(), none = stays->TakeMoves();
    EXPECT_EQ(moved.parameters.bytes, 2 * stays->memory().parameter_bytes);
    EXPECT_EQ(moved.optimizer.bytes, 2 * rest.optimizer_bytes);
    EXPECT_EQ(moved.reference.bytes, stays->memory().reference_bytes);
    EXPECT_EQ(none.parameters.load_seconds + none.parameters.offload_seconds, 0.0);
    EXPECT_EQ(none.optimizer.load_seconds + none.optimizer.offload_seconds, 0.0);
    EXPECT_GT(moved.parameters.load_seconds, 0.0);
    EXPECT_GT(moved.parameters.offload_seconds, 0.0);
  }
  // Atomic sums of a GPU may round differently from run to run; a bug in a move would cause a far larger difference.
  EXPECT_LT(LargestDifference(*stays, *leaves), 1e-4);
}

TEST(CudaOffloadTest, AStagerFindsTheWeightsOfAUseAtTheirAddress) {
  SYNCOPATE_NEED_GPUS(1);
  auto policy = MakePolicy({.offload_params = true});
  const Manifest wire = model::MakeManifest(testing::GroupedQueryModel(), DType::kBFloat16).value();
  auto stager = CudaStager::Create(policy.get(), wire, /*device=*/0, /*slots=*/1).value();
  auto host = HostStager::Create(policy.get(), wire, /*slots=*/1).value();
  for (int64_t step = 0; step < 3; ++step) {
    const auto staged = InUse(*policy, [&] { return stager->Stage({1, step}); });
    ASSERT_TRUE(staged.ok()) << staged.status();
    const auto expected = InUse(*policy, [&] { return host->Stage({1, step}); });
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_EQ(staged->digest, expected->digest);
    EXPECT_EQ(policy->memory().parameter_bytes, 0);
    ASSERT_TRUE(policy->Step(Pointers(RandomGroups(5)), step).ok());
  }
}

TEST(CudaOffloadTest, RolloutModeGivesTheGpuItsMemoryAndTrainerModeTakesItBack) {
  SYNCOPATE_NEED_GPUS(1);
  auto policy = MakePolicy({});
  ASSERT_TRUE(policy->Step(Pointers(RandomGroups(1)), 0).ok());
  const uint64_t digest = policy->Digest().value();
  const PolicyCopy before(*policy);
  const PolicyMemory there = policy->memory();
  const StateMoves away = policy->EnterRolloutMode().value();
  EXPECT_GT(away.offload_seconds, 0.0);
  EXPECT_EQ(away.bytes, there.parameter_bytes + there.optimizer_bytes + there.reference_bytes);
  const PolicyMemory rest = policy->memory();
  EXPECT_EQ(rest.parameter_bytes + rest.optimizer_bytes + rest.gradient_bytes + rest.reference_bytes, 0);
  EXPECT_LT(rest.reserved_bytes, there.reserved_bytes);
  EXPECT_EQ(policy->EnterRolloutMode().value().offload_seconds, 0.0);
  EXPECT_EQ(policy->Digest().value(), digest);
  EXPECT_GT(policy->EnterTrainerMode().value().load_seconds, 0.0);
  EXPECT_TRUE(PolicyCopy(*policy) == before);
  EXPECT_TRUE(policy->Step(Pointers(RandomGroups(2)), 1).ok());
}

TEST(CudaOffloadTest, ACheckpointInRolloutModeIsOfTheHostsCopyAndBringsNothingToTheGpu) {
  SYNCOPATE_NEED_GPUS(1);
  auto policy = MakePolicy({});
  ASSERT_TRUE(policy->Step(Pointers(RandomGroups(1)), 0).ok());
  const PolicyCopy before(*policy);
  ASSERT_TRUE(policy->EnterRolloutMode().ok());
  policy->TakeMoves();
  const auto snapshot = policy->TakeSnapshot("").value();
  EXPECT_TRUE(policy->CheckFinite().ok());
  EXPECT_EQ(policy->TakeMoves().parameters.bytes, 0);
  EXPECT_EQ(policy->memory().parameter_bytes + policy->memory().optimizer_bytes, 0);
  ASSERT_TRUE(policy->EnterTrainerMode().ok());
  ASSERT_TRUE(policy->Step(Pointers(RandomGroups(2)), 1).ok());
  ASSERT_TRUE(policy->EnterRolloutMode().ok());
  EXPECT_TRUE(before.IsHeldBy(*snapshot));
}

TEST(CudaOffloadTest, AStateThatTheGpuCannotHoldIsSaidWithItsSum) {
  SYNCOPATE_NEED_GPUS(1);
  PolicyTrainer::Options options;
  options.model = testing::GroupedQueryModel();
  options.model.hidden_size = 48 * 2048;
  options.model.intermediate_size = 64 * 4096;
  options.device = "cuda:0";
  options.device_bytes = cuda::ReadGpuMemory(0).value().free;
  EXPECT_EQ(ErrorReason(PolicyTrainer::Create(options).status()), "STATE_TOO_LARGE");
}

// A snapshot has one version, whichever thread makes the copy: a thread beside the step, or the step's thread before
// its update. Otherwise parts of the snapshot would have the next version.
TEST(CudaOffloadTest, SnapshotsHoldTheStateOfTheirStepWhileTheNextOneRuns) {
  SYNCOPATE_NEED_GPUS(1);
  for (const bool leaves : {false, true}) {
    auto policy = MakePolicy({.offload_params = leaves});
    for (int64_t step = 0; step < 6; ++step) {
      const PolicyCopy before(*policy);
      const auto snapshot = policy->TakeSnapshot("").value();
      std::future<absl::Status> copied;
      if (step % 2 == 0) copied = std::async(std::launch::async, [&] { return snapshot->FinishCopy(); });
      ASSERT_TRUE(policy->Step(Pointers(RandomGroups(static_cast<uint64_t>(step))), step).ok());
      ASSERT_TRUE((copied.valid() ? copied.get() : snapshot->FinishCopy()).ok());
      EXPECT_TRUE(before.IsHeldBy(*snapshot)) << "step " << step;
      EXPECT_FALSE(PolicyCopy(*policy).IsHeldBy(*snapshot)) << "nothing was trained";
    }
  }
}

TEST(CudaOffloadTest, WithoutArenasNothingCanBeAskedToLeave) {
  SYNCOPATE_NEED_GPUS(1);
  PolicyTrainer::Options options;
  options.model = testing::GroupedQueryModel();
  options.device = "cuda:0";
  options.memory.offload_params = true;
  EXPECT_EQ(ErrorReason(PolicyTrainer::Create(options).status()), "NOT_MOVABLE");
  options.memory.offload_params = false;
  auto policy = PolicyTrainer::Create(options).value();
  EXPECT_EQ(ErrorReason(policy->EnterRolloutMode().status()), "NOT_MOVABLE");
  EXPECT_TRUE(policy->Step(Pointers(RandomGroups(2)), 0).ok());
}

// libtorch's allocator, set to split no block above 64 MiB, for the length of a test.
class FragmentingAllocator {
 public:
  FragmentingAllocator() {
    at::empty({1}, at::TensorOptions(at::kByte).device(kGpu));  // makes the allocator exist
    Begin("max_split_size_mb:64");
  }
  ~FragmentingAllocator() { Begin(""); }

  at::Tensor Take(int64_t bytes) {
    at::Tensor taken = at::empty({bytes}, at::TensorOptions(at::kByte).device(kGpu));
    const model::MemoryUse use = model::ReadMemoryUse(kGpu);
    most_reserved = std::max(most_reserved, use.reserved_bytes);
    peak = use.peak_bytes;
    return taken;
  }

  int64_t most_reserved = 0, peak = 0;

 private:
  static constexpr char kGpu[] = "cuda:0";
  static void Begin(const std::string& settings) {
    c10::CachingAllocator::setAllocatorSettings(settings);
    model::EmptyAllocator(kGpu);
    model::ResetMemoryPeak(kGpu);
  }
};

// Allocates like a step of one micro-batch: each layer leaves blocks that its backward frees, and the backward
// allocates others.
void TakeAsAStep(FragmentingAllocator& allocator, int64_t tokens) {
  std::vector<std::vector<at::Tensor>> left(16);
  for (auto& layer : left) {
    for (int64_t bytes : {1792, 5376, 7168, 9728, 19456}) layer.push_back(allocator.Take(bytes * tokens));
  }
  for (; !left.empty(); left.pop_back()) {
    std::vector<at::Tensor> taken;
    for (int64_t bytes : {3584, 14336, 24320}) taken.push_back(allocator.Take(bytes * tokens));
  }
}

// The largest number of bytes reserved at any moment after the second step, as a share of the largest number in use at
// once.
double MostReservedOverUse(bool looks_before) {
  FragmentingAllocator allocator;
  CacheRule rule(EmptyCache::kOnPressure);
  std::mt19937_64 random(5);
  std::uniform_int_distribution<int64_t> tokens(16384, 32768);
  double most = 0;
  auto empty = [](bool should) {
    if (should) model::EmptyAllocator("cuda:0");
  };
  for (int step = 0; step < 50; ++step) {
    const model::MemoryUse before = model::ReadMemoryUse("cuda:0");
    if (looks_before) {
      empty(rule.ShouldEmptyBefore(before.reserved_bytes, before.allocated_bytes, before.peak_bytes));
    }
    allocator.most_reserved = 0;
    TakeAsAStep(allocator, tokens(random));
    if (step > 1) {
      most = std::max(most, static_cast<double>(allocator.most_reserved) / static_cast<double>(allocator.peak));
    }
    const model::MemoryUse use = model::ReadMemoryUse("cuda:0");
    empty(rule.ShouldEmpty(use.reserved_bytes, use.peak_bytes));
  }
  return most;
}

TEST(CudaCacheTest, AFragmentingAllocatorStaysWithinATenthOfWhatIsInUseDuringStepsToo) {
  SYNCOPATE_NEED_GPUS(1);
  if (cuda::ReadGpuMemory(0).value().free < int64_t{60} << 30) GTEST_SKIP() << "needs 60 GiB of free memory on a GPU";
  const double before = MostReservedOverUse(true), late = MostReservedOverUse(false);
  std::cout << "| reserved over in use, at most: " << before << "; where the rule looks after steps alone: " << late
            << std::endl;
  EXPECT_LE(before, 1.1);
  EXPECT_GT(late, 1.3);
}

// The base of adapters is in memory that the send slots lend, and is there once for the trainer and who maps it.
TEST(LentBaseTest, APolicyThatComputesWithTheBaseThatItLendsTakesTheSameStepsAndStagesTheSameVersions) {
  SYNCOPATE_NEED_GPUS(1);
  PolicyTrainer::Options options;
  options.model = testing::GroupedQueryModel();
  options.model.hidden_size = 128;
  options.model.intermediate_size = 256;
  options.model.num_attention_heads = 4;
  options.model.num_key_value_heads = 2;
  options.model.head_dim = 64;
  options.model = testing::WithAdapters(options.model, /*rank=*/8);
  options.device = "cuda:0";
  options.seed = 3;
  options.step.deterministic = true;
  options.step.loss.kl_coefficient = 0.01;  // the reference is the base
  options.arenas = CudaStateArenas(/*device=*/0);
  const Manifest wire = model::MakeWireManifest(options.model, DType::kBFloat16).value();
  const int64_t base_bytes = wire.adapters_begin();

  auto own = PolicyTrainer::Create(options).value();
  auto own_stager = CudaStager::Create(own.get(), wire, /*device=*/0, /*slots=*/1).value();
  ASSERT_TRUE(CanHoldBase(own->manifest(), wire));
  std::shared_ptr<const cuda::CudaArena> memory;
  options.base_memory = std::make_shared<const BaseMemory>(BaseMemory{
      wire, [&]() -> absl::StatusOr<std::shared_ptr<char>> {
        std::shared_ptr<cuda::CudaArena> made = cuda::CudaArena::Create(base_bytes, {.what = "the base"}).value();
        memory = made;
        return std::shared_ptr<char>(made, made->data());
      }});
  auto policy = PolicyTrainer::Create(options).value();
  auto stager =
      CudaStager::Create(policy.get(), wire, /*device=*/0, /*slots=*/1, {}, /*lends_base=*/true, memory).value();
  ASSERT_EQ(stager->arena()->base_bytes(), base_bytes);
  EXPECT_EQ(stager->arena()->send_bytes(), own_stager->arena()->send_bytes());
  EXPECT_LT(policy->memory().parameter_bytes, own->memory().parameter_bytes);
  EXPECT_EQ(policy->BaseDigest().value(), own->BaseDigest().value());
  EXPECT_EQ(PolicyCopy(*policy), PolicyCopy(*own));

  std::vector<ByteRange> free_rows;
  for (size_t i = 0; i < wire.tensors().size(); ++i) {
    const TensorSpec& spec = wire.tensors()[i];
    if (!spec.adapter && spec.shape.size() > 1) {
      free_rows.push_back({wire.ranges()[i].end, wire.ranges()[i].end + spec.SpareBytes()});
    }
  }
  for (int64_t step = 0; step < 4; ++step) {
    const auto expected = own_stager->Stage({1, step}), found = stager->Stage({1, step});
    ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
    EXPECT_EQ(found->bucket_digests, expected->bucket_digests) << "step " << step;
    const auto lent = stager->LendBase();
    ASSERT_TRUE(lent.ok()) << lent.status();
    EXPECT_EQ((*lent)->info.id, memory->id()) << "what is lent is where the policy computes";

    // A turn of the rollouters, one of which writes to the free rows.
    ASSERT_TRUE(own->EnterRolloutMode().ok() && policy->EnterRolloutMode().ok());
    ASSERT_TRUE(stager->LeaveDevice().value() && own_stager->LeaveDevice().value());
    EXPECT_EQ(policy->memory().parameter_bytes, 0);
    EXPECT_EQ(stager->arena()->device_bytes(), base_bytes);
    for (const ByteRange& rows : free_rows) {
      ASSERT_EQ(cudaMemset(memory->data() + rows.begin, static_cast<int>(step) + 1, static_cast<size_t>(rows.size())),
                cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_TRUE(own->EnterTrainerMode().ok() && policy->EnterTrainerMode().ok());

    const auto groups = RandomGroups(7 + static_cast<uint64_t>(step));
    const auto a = own->Step(Pointers(groups), step), b = policy->Step(Pointers(groups), step);
    ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
    EXPECT_EQ(policy->Digest().value(), own->Digest().value()) << "step " << step;
    EXPECT_TRUE(policy->CheckFinite().ok());
  }
  EXPECT_EQ(PolicyCopy(*policy), PolicyCopy(*own));
}

}  // namespace
}  // namespace syncopate::trainer
