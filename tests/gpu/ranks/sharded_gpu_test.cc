#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <vector>

#include "tests/gpu/gpu_support.h"
#include "tests/gpu/ranks/gpu_ranks.h"
#include "tests/support/policy_copy.h"
#include "tests/support/rank_threads.h"
#include "tests/support/small_model.h"
#include "tests/support/training_groups.h"
#include "trainer/actor/actor.h"
#include "trainer/cuda/cuda_stager.h"
#include "trainer/ranks/leading_policy.h"
#include "trainer/staging/host_stager.h"
#include "trainer/step/policy_trainer.h"
#include "trainer/step/train_step.h"

namespace syncopate::trainer {
namespace {

using testing::LargestDifference;
using testing::Pointers;
using testing::PolicyCopy;

std::vector<TrajectoryGroup> RandomGroups(const model::ModelConfig& config, uint64_t seed) {
  return testing::RandomGroups(config.vocab_size, 8, 4, seed, [](Trajectory& sample, const testing::Draw& draw) {
    sample.spans = {{{1, 0}, 0, static_cast<int32_t>(sample.tokens.size())}};
    sample.reward = 0.2f * draw(6);
  });
}

// The loss weights that stay above 0 for the drawn log-probs, which are far from those of a model.
TrainStepOptions StepOptions(Recompute recompute) {
  TrainStepOptions options;
  options.loss.correction = loss::Correction::kTis;
  options.micro_batch_tokens = 60;
  options.recompute = recompute;
  return options;
}

struct Outcome {
  std::vector<float> gradient;
  StepFigures metrics;
};

Outcome StepOnRank(const model::ModelConfig& config, at::ScalarType compute, Recompute recompute,
                   const std::vector<TrajectoryGroup>& groups, Communicator& ranks,
                   at::ScalarType reduce = at::kFloat) {
  const Manifest manifest = *model::MakeManifest(config, DType::kFloat32);
  Actor actor(config, manifest, {}, 3, GetGpu(ranks), nullptr, compute, &ranks, {}, reduce);
  TrainStep step(actor, ranks, StepOptions(recompute));
  auto metrics = step.Run(Pointers(groups));
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  Outcome outcome;
  outcome.metrics = metrics.value_or(StepFigures());
  const at::Tensor mine = at::from_blob(actor.gradients().data(), {actor.shards().local_elements()},
                                        at::TensorOptions(at::kFloat).device(GetGpu(ranks)));
  for (int unit = 0; unit < actor.shards().units(); ++unit) {
    auto numbers = ranks.world() == 1 ? mine.narrow(0, actor.shards().unit(unit).begin, actor.shards().unit(unit).count)
                                      : GatherUnit(actor.shards(), unit, mine, ranks).value();
    EXPECT_TRUE(ranks.Finish().ok());
    const at::Tensor host = numbers.cpu();
    outcome.gradient.insert(outcome.gradient.end(), host.data_ptr<float>(),
                            host.data_ptr<float>() + actor.shards().unit(unit).count);
  }
  return outcome;
}

TEST(ShardedGpuTest, LossAndGradientOfTwoGpusAreThoseOfOne) {
  SYNCOPATE_NEED_GPUS(2);
  for (const model::ModelConfig& config : {testing::SmallModel(), testing::WideModel(), testing::UntiedWideModel()}) {
    const auto groups = RandomGroups(config, 19);
    for (at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      for (Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
        SingleRank single;
        const Outcome one = StepOnRank(config, compute, recompute, groups, single);
        std::vector<Outcome> two(2);
        OnGpus(2, [&](Communicator& ranks) {
          two[static_cast<size_t>(ranks.rank())] = StepOnRank(config, compute, recompute, groups, ranks);
        });
        const double difference = LargestDifference(two[0].gradient, one.gradient);
        std::cout << "gradient of 2 GPUs against 1, hidden " << config.hidden_size << ", "
                  << (compute == at::kFloat ? "float32" : "bfloat16") << ": " << difference << ", loss "
                  << std::abs(two[0].metrics.loss - one.metrics.loss) << std::endl;
        // The same rows are rounded to bfloat16; sums over them are in float32, in another order.
        EXPECT_LT(difference, compute == at::kFloat ? 1e-5 : 5e-3);
        for (const Outcome& rank : two) {
          EXPECT_EQ(rank.gradient, two[0].gradient);
          EXPECT_EQ(rank.metrics.loss, two[0].metrics.loss);
          EXPECT_NEAR(rank.metrics.loss, one.metrics.loss, compute == at::kFloat ? 1e-6 : 2e-3);
          EXPECT_NEAR(rank.metrics.gradient_norm, one.metrics.gradient_norm,
                      (compute == at::kFloat ? 1e-5 : 5e-3) * one.metrics.gradient_norm);
          EXPECT_EQ(rank.metrics.trained_tokens, one.metrics.trained_tokens);
          EXPECT_EQ(rank.metrics.updates, 1);
        }
      }
    }
  }
}

TEST(ShardedGpuTest, GradientsThatAreSummedInBFloat16AreThoseOfFloat32ButForItsRounding) {
  SYNCOPATE_NEED_GPUS(2);
  const auto groups = RandomGroups(testing::WideModel(), 19);
  std::vector<Outcome> exact(2), rounded(2);
  OnGpus(2, [&](Communicator& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    exact[rank] = StepOnRank(testing::WideModel(), at::kFloat, Recompute::kSelective, groups, ranks);
    rounded[rank] = StepOnRank(testing::WideModel(), at::kFloat, Recompute::kSelective, groups, ranks, at::kBFloat16);
  });
  const double difference = LargestDifference(rounded[0].gradient, exact[0].gradient);
  std::cout << "gradient of 2 GPUs summed in bfloat16 against float32: " << difference << std::endl;
  EXPECT_LT(difference, 0.01);
  EXPECT_GT(difference, 1e-5);
  EXPECT_EQ(rounded[1].gradient, rounded[0].gradient);
  EXPECT_NEAR(rounded[0].metrics.gradient_norm, exact[0].metrics.gradient_norm, 0.01 * exact[0].metrics.gradient_norm);
}

PolicyTrainer::Options OptionsOn(Communicator& ranks, DType compute) {
  PolicyTrainer::Options options;
  options.model = testing::WideModel();
  options.seed = 3;
  options.mesh = ranks;
  options.device = "cuda:" + std::to_string(ranks.rank());
  options.compute_dtype = compute;
  return options;
}

TEST(ShardedGpuTest, AStateMovesBetweenOneGpuTwoAndTheCpuBitForBit) {
  SYNCOPATE_NEED_GPUS(2);
  SingleRank single;
  auto alone = PolicyTrainer::Create(OptionsOn(single, DType::kBFloat16)).value();
  ASSERT_TRUE(alone->Step(Pointers(RandomGroups(testing::WideModel(), 1))).ok());
  const PolicyCopy state(*alone);
  auto on_cpu_options = OptionsOn(single, DType::kFloat32);
  on_cpu_options.device = "cpu";
  auto on_cpu = PolicyTrainer::Create(on_cpu_options).value();
  OnGpus(2, [&](Communicator& ranks) {
    auto trainer = PolicyTrainer::Create(OptionsOn(ranks, DType::kBFloat16)).value();
    ASSERT_TRUE(trainer->Restore(state).ok());
    const PolicyCopy again(*trainer);
    const auto digest = trainer->Digest();
    ASSERT_TRUE(digest.ok()) << digest.status();
    EXPECT_EQ(*digest, *alone->Digest());
    EXPECT_TRUE(trainer->CheckFinite().ok());
    if (ranks.rank() != 0) return;
    EXPECT_TRUE(again == state);
    ASSERT_TRUE(on_cpu->Restore(again).ok());
    EXPECT_EQ(*on_cpu->Digest(), *digest);
  });
}

TEST(ShardedGpuTest, EachRankStagesOnItsGpuWhatTheHostStagesOfItsShard) {
  SYNCOPATE_NEED_GPUS(2);
  for (const auto& [wire_dtype, compute] : {std::pair(DType::kBFloat16, DType::kBFloat16),
                                            {DType::kFloat32, DType::kBFloat16},
                                            {DType::kFloat32, DType::kFloat32}}) {
    const Manifest wire = model::MakeManifest(testing::WideModel(), wire_dtype).value();
    OnGpus(2, [&, compute = compute](Communicator& ranks) {
      auto trainer = PolicyTrainer::Create(OptionsOn(ranks, compute)).value();
      const StagedPart part{.rank = ranks.rank(), .world = 2};
      auto on_gpu = CudaStager::Create(trainer.get(), wire, /*device=*/ranks.rank(), /*slots=*/1, part).value();
      auto on_host = HostStager::Create(trainer.get(), wire, /*slots=*/1, part).value();
      for (int64_t step = 0; step < 4; ++step) {
        const auto found = on_gpu->Stage({1, step});
        ASSERT_TRUE(found.ok()) << found.status();
        const auto expected = on_host->Stage({1, step});
        ASSERT_TRUE(expected.ok()) << expected.status();
        EXPECT_EQ(expected->digest, found->digest) << "step " << step;
        auto metrics = trainer->Step(Pointers(RandomGroups(testing::WideModel(), static_cast<uint64_t>(step))));
        ASSERT_TRUE(metrics.ok()) << metrics.status();
      }
    });
  }
}

}  // namespace
}  // namespace syncopate::trainer
