#include "trainer/step/train_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/digest.h"
#include "base/philox.h"
#include "tests/support/small_model.h"
#include "trainer/actor/actor.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {
namespace {

// Groups of random prompts and answers with plausible log-probs; ragged lengths.
std::vector<TrajectoryGroup> RandomGroups(const model::ModelConfig& config, int groups, int samples, uint64_t seed) {
  std::vector<TrajectoryGroup> made(groups);
  uint64_t counter = 0;
  auto draw = [&](uint32_t bound) { return Philox4x32(seed, counter++)[0] % bound; };
  for (int g = 0; g < groups; ++g) {
    made[g].lease.group.ordinal = g;
    for (uint32_t i = 0, n = 2 + draw(5); i < n; ++i) made[g].prompt_ids.push_back(draw(config.vocab_size));
    for (int s = 0; s < samples; ++s) {
      Trajectory& sample = made[g].samples.emplace_back();
      for (uint32_t i = 0, n = 1 + draw(8); i < n; ++i) {
        sample.tokens.push_back(draw(config.vocab_size));
        sample.logprobs.push_back(-2.4f + 0.001f * draw(400));
      }
      sample.spans = {{{1, 0}, 0, static_cast<int32_t>(sample.tokens.size())}};
      sample.reward = 0.2f * draw(6);
    }
  }
  return made;
}

std::vector<const TrajectoryGroup*> Pointers(const std::vector<TrajectoryGroup>& groups) {
  std::vector<const TrajectoryGroup*> pointers;
  for (const TrajectoryGroup& group : groups) pointers.push_back(&group);
  return pointers;
}

PolicyTrainer::Options SmallOptions() {
  PolicyTrainer::Options options;
  options.model = testing::SmallModel();
  options.seed = 3;
  return options;
}

uint64_t DigestAfter(const PolicyTrainer::Options& options, int steps) {
  auto trainer = PolicyTrainer::Create(options).value();
  for (int i = 0; i < steps; ++i) {
    const auto groups = RandomGroups(options.model, 6, 4, 100 + i);
    EXPECT_TRUE(trainer->Step(Pointers(groups)).ok());
  }
  return CombineDigests(DigestBuckets(trainer->manifest(), *trainer->parameters()));
}

std::vector<float> GradientOf(int64_t micro_batch_tokens, const std::vector<TrajectoryGroup>& groups) {
  const model::ModelConfig config = testing::SmallModel();
  Actor actor(config, *model::MakeManifest(config, DType::kFloat32), {}, 3);
  SingleRank ranks;
  TrainStepOptions options;
  options.micro_batch_tokens = micro_batch_tokens;
  EXPECT_TRUE(TrainStep(actor, ranks, options).Run(Pointers(groups)).ok());
  return {actor.gradients().begin(), actor.gradients().end()};
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

TEST(TrainStepTest, GivesTheSameBitsForTheSameGroups) {
  EXPECT_EQ(DigestAfter(SmallOptions(), 3), DigestAfter(SmallOptions(), 3));
  PolicyTrainer::Options other = SmallOptions();
  other.seed = 4;
  EXPECT_NE(DigestAfter(SmallOptions(), 3), DigestAfter(other, 3));
}

TEST(TrainStepTest, TheGradientDoesNotDependOnMicroBatches) {
  const auto groups = RandomGroups(testing::SmallModel(), 8, 4, 5);
  const std::vector<float> whole = GradientOf(1 << 20, groups);
  for (int64_t tokens : {1, 17, 40, 100})
    EXPECT_LT(LargestDifference(whole, GradientOf(tokens, groups)), 1e-6) << tokens;
  EXPECT_GT(*std::max_element(whole.begin(), whole.end()), 1e-3);
}

TEST(TrainStepTest, TheGradientDoesNotDependOnTheOrderOfGroups) {
  auto groups = RandomGroups(testing::SmallModel(), 8, 4, 6);
  const std::vector<float> forwards = GradientOf(1 << 20, groups);
  std::reverse(groups.begin(), groups.end());
  EXPECT_LT(LargestDifference(forwards, GradientOf(1 << 20, groups)), 1e-6);
}

TEST(TrainStepTest, OneUpdatePerBatchNeedsNoProximalPassAndSeveralDo) {
  PolicyTrainer::Options options = SmallOptions();
  const auto groups = RandomGroups(options.model, 6, 4, 7);
  auto single = PolicyTrainer::Create(options).value()->Step(Pointers(groups));
  ASSERT_TRUE(single.ok());
  EXPECT_EQ(single->proximal_seconds, 0.0);
  EXPECT_NEAR(single->ratio_max, 1.0, 1e-12);  // current and proximal are one
  options.step.updates_per_batch = 3;
  auto several = PolicyTrainer::Create(options).value()->Step(Pointers(groups));
  ASSERT_TRUE(several.ok());
  EXPECT_GT(several->proximal_seconds, 0.0);
  EXPECT_GT(several->ratio_max, 1.0);
  EXPECT_EQ(several->tokens, single->tokens);
}

TEST(TrainStepTest, GroupsWithoutSignalCountInTheDenominatorOnly) {
  auto groups = RandomGroups(testing::SmallModel(), 4, 4, 8);
  const std::vector<float> alone = GradientOf(1 << 20, groups);
  int64_t tokens = 0, flat_tokens = 0;
  for (const auto& group : groups) {
    for (const auto& sample : group.samples) tokens += sample.tokens.size();
  }
  TrajectoryGroup flat = groups[0];
  for (Trajectory& sample : flat.samples) {
    sample.reward = 0.5f;
    flat_tokens += sample.tokens.size();
  }
  groups.push_back(flat);
  std::vector<float> diluted = GradientOf(1 << 20, groups);
  const float scale = static_cast<float>(tokens + flat_tokens) / static_cast<float>(tokens);
  for (float& value : diluted) value *= scale;
  EXPECT_LT(LargestDifference(alone, diluted), 2e-6);
}

TEST(TrainStepTest, ReportsWhatTheBatchWas) {
  const auto groups = RandomGroups(testing::SmallModel(), 5, 4, 9);
  auto metrics = PolicyTrainer::Create(SmallOptions()).value()->Step(Pointers(groups));
  ASSERT_TRUE(metrics.ok());
  double reward = 0;
  int64_t tokens = 0;
  for (const auto& group : groups) {
    for (const auto& sample : group.samples) {
      reward += sample.reward / 20;
      tokens += sample.tokens.size();
    }
  }
  EXPECT_NEAR(metrics->reward_mean, reward, 1e-6);
  EXPECT_EQ(metrics->tokens, tokens);
  EXPECT_EQ(metrics->sequences, 20);
  EXPECT_GT(metrics->entropy, 1.0);
  EXPECT_GT(metrics->gradient_norm, 0);
}

TEST(TrainStepTest, RefusesANonFiniteGradientAndLeavesTheWeights) {
  PolicyTrainer::Options options = SmallOptions();
  auto trainer = PolicyTrainer::Create(options).value();
  auto groups = RandomGroups(options.model, 2, 4, 10);
  groups[0].samples[0].reward = std::numeric_limits<float>::quiet_NaN();
  const uint64_t before = CombineDigests(DigestBuckets(trainer->manifest(), *trainer->parameters()));
  EXPECT_EQ(ErrorReason(trainer->Step(Pointers(groups)).status()), "NON_FINITE_GRADIENT");
  EXPECT_EQ(CombineDigests(DigestBuckets(trainer->manifest(), *trainer->parameters())), before);
}

TEST(PolicyTrainerTest, AnErrorOfTheTensorLibraryIsAStatusNotACrash) {
  PolicyTrainer::Options options = SmallOptions();
  auto trainer = PolicyTrainer::Create(options).value();
  auto groups = RandomGroups(options.model, 1, 2, 10);
  groups[0].samples[0].tokens.back() = 1000000;
  EXPECT_EQ(ErrorReason(trainer->Step(Pointers(groups)).status()), "TORCH");
}

TEST(PolicyTrainerTest, ARestoredStateGoesOnWithTheSameBits) {
  PolicyTrainer::Options options = SmallOptions();
  auto original = PolicyTrainer::Create(options).value();
  const auto first = RandomGroups(options.model, 6, 4, 1);
  ASSERT_TRUE(original->Step(Pointers(first)).ok());
  options.seed = 99;  // other initial weights, all to be overwritten
  auto resumed = PolicyTrainer::Create(options).value();
  ASSERT_TRUE(resumed->Restore(*original->state()).ok());
  for (int i = 0; i < 3; ++i) {
    const auto groups = RandomGroups(options.model, 6, 4, 20 + i);
    ASSERT_TRUE(original->Step(Pointers(groups)).ok());
    ASSERT_TRUE(resumed->Step(Pointers(groups)).ok());
    EXPECT_EQ(DigestBuckets(original->manifest(), *original->parameters()),
              DigestBuckets(resumed->manifest(), *resumed->parameters()));
  }
}

TEST(PackedBatchTest, CutsInOrderByTokens) {
  const auto groups = RandomGroups(testing::SmallModel(), 1, 6, 11);
  std::vector<TrainingSequence> sequences;
  for (const Trajectory& sample : groups[0].samples) sequences.push_back({&groups[0].prompt_ids, &sample, 0});
  const auto runs = SplitByTokens(sequences, 15);
  std::vector<const Trajectory*> order;
  for (const auto& run : runs) {
    int64_t tokens = 0;
    for (const TrainingSequence& sequence : run) {
      tokens += sequence.input_length();
      order.push_back(sequence.trajectory);
    }
    EXPECT_TRUE(tokens <= 15 || run.size() == 1);
  }
  ASSERT_EQ(order.size(), 6u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(order[i], &groups[0].samples[i]);
}

}  // namespace
}  // namespace syncopate::trainer
