#include "trainer/step/train_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/digest.h"
#include "tests/support/policy_copy.h"
#include "tests/support/small_model.h"
#include "tests/support/training_groups.h"
#include "trainer/actor/actor.h"
#include "trainer/step/policy_trainer.h"

namespace syncopate::trainer {
namespace {

using testing::Pointers;

std::vector<TrajectoryGroup> RandomGroups(const model::ModelConfig& config, int groups, int samples, uint64_t seed) {
  return testing::RandomGroups(config.vocab_size, groups, samples, seed,
                               [](Trajectory& sample, const testing::Draw& draw) {
                                 sample.spans = {{{1, 0}, 0, static_cast<int32_t>(sample.tokens.size())}};
                                 sample.reward = 0.2f * draw(6);
                               });
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
  return *trainer->Digest();
}

std::vector<float> ComputeGradient(int64_t micro_batch_tokens, const std::vector<TrajectoryGroup>& groups) {
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
  const std::vector<float> whole = ComputeGradient(1 << 20, groups);
  for (int64_t tokens : {14, 17, 40, 100})
    EXPECT_LT(LargestDifference(whole, ComputeGradient(tokens, groups)), 1e-6) << tokens;
  EXPECT_GT(*std::max_element(whole.begin(), whole.end()), 1e-3);
}

TEST(TrainStepTest, TokensThatWereGivenFirstAreAsIfTheyHadBeenInThePrompt) {
  const auto groups = RandomGroups(testing::SmallModel(), 8, 4, 7);
  auto given = groups;
  for (TrajectoryGroup& group : given) {
    const int32_t last = group.prompt_ids.back();
    group.prompt_ids.pop_back();
    for (Trajectory& sample : group.samples) {
      sample.tokens.insert(sample.tokens.begin(), last);
      sample.logprobs.insert(sample.logprobs.begin(), 0);
      sample.given = {{0, 1}};
      sample.spans = {{{1, 0}, 1, static_cast<int32_t>(sample.tokens.size())}};
    }
  }
  EXPECT_EQ(ComputeGradient(1 << 20, groups), ComputeGradient(1 << 20, given));
  EXPECT_EQ(ComputeGradient(40, groups), ComputeGradient(40, given));
}

// A tool's answer changes the context of the policy's later tokens, and is not trained.
TEST(TrainStepTest, TokensThatWereGivenAreReadAndNotLearned) {
  auto groups = RandomGroups(testing::SmallModel(), 4, 4, 8);
  for (TrajectoryGroup& group : groups) {
    for (Trajectory& sample : group.samples) {
      const int32_t written = static_cast<int32_t>(sample.tokens.size());
      sample.tokens.insert(sample.tokens.begin() + 1, {1, 2});
      sample.logprobs.insert(sample.logprobs.begin() + 1, {0, 0});
      // An answer with one written token has the given tokens before it.
      if (written == 1) std::rotate(sample.tokens.begin(), sample.tokens.begin() + 1, sample.tokens.end());
      if (written == 1) std::rotate(sample.logprobs.begin(), sample.logprobs.begin() + 1, sample.logprobs.end());
      sample.given = {written == 1 ? TokenRange{0, 2} : TokenRange{1, 3}};
      sample.spans.clear();
      if (written > 1) sample.spans.push_back({{1, 0}, 0, 1});
      sample.spans.push_back({{1, 0}, sample.given[0].end, written + 2});
    }
  }
  const std::vector<float> gradient = ComputeGradient(1 << 20, groups);
  auto others = groups;
  for (TrajectoryGroup& group : others) {
    for (Trajectory& sample : group.samples) sample.tokens[static_cast<size_t>(sample.given[0].begin)] = 3;
  }
  EXPECT_NE(gradient, ComputeGradient(1 << 20, others)) << "the given tokens were not read";
  EXPECT_LT(LargestDifference(gradient, ComputeGradient(30, groups)), 1e-6);
}

TEST(TrainStepTest, TheGradientDoesNotDependOnTheOrderOfGroups) {
  auto groups = RandomGroups(testing::SmallModel(), 8, 4, 6);
  const std::vector<float> forwards = ComputeGradient(1 << 20, groups);
  std::reverse(groups.begin(), groups.end());
  EXPECT_LT(LargestDifference(forwards, ComputeGradient(1 << 20, groups)), 1e-6);
}

TEST(TrainStepTest, OneUpdatePerBatchNeedsNoProximalPassAndSeveralDo) {
  PolicyTrainer::Options options = SmallOptions();
  const auto groups = RandomGroups(options.model, 6, 4, 7);
  auto single = PolicyTrainer::Create(options).value()->Step(Pointers(groups));
  ASSERT_TRUE(single.ok());
  EXPECT_EQ(single->proximal_seconds, 0.0);
  EXPECT_NEAR(single->ratio_max, 1.0, 1e-12);  // the current and the proximal policy are one
  options.step.updates_per_batch = 3;
  auto several = PolicyTrainer::Create(options).value()->Step(Pointers(groups));
  ASSERT_TRUE(several.ok());
  EXPECT_GT(several->proximal_seconds, 0.0);
  EXPECT_GT(several->ratio_max, 1.0);
  EXPECT_EQ(several->trained_tokens, single->trained_tokens);
}

TEST(TrainStepTest, GroupsWithoutSignalCountInTheDenominatorOnly) {
  auto groups = RandomGroups(testing::SmallModel(), 4, 4, 8);
  const std::vector<float> alone = ComputeGradient(1 << 20, groups);
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
  std::vector<float> diluted = ComputeGradient(1 << 20, groups);
  const float scale = static_cast<float>(tokens + flat_tokens) / static_cast<float>(tokens);
  for (float& value : diluted) value *= scale;
  EXPECT_LT(LargestDifference(alone, diluted), 2e-6);
}

// All answers of each group get the same reward.
std::vector<TrajectoryGroup> WithoutSignal(std::vector<TrajectoryGroup> groups) {
  for (TrajectoryGroup& group : groups) {
    for (Trajectory& sample : group.samples) sample.reward = 0.5f;
  }
  return groups;
}

TEST(TrainStepTest, AnUpdateWithoutSignalIsMeasuredAndNotMade) {
  PolicyTrainer::Options options = SmallOptions();
  options.optimizer.weight_decay = 0.1;
  auto trainer = PolicyTrainer::Create(options).value();
  const auto groups = RandomGroups(options.model, 4, 4, 12);
  auto made = trainer->Step(Pointers(groups));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->updates, 1);
  const testing::PolicyCopy before(*trainer);
  const auto flat = WithoutSignal(groups);
  auto not_made = trainer->Step(Pointers(flat));
  ASSERT_TRUE(not_made.ok());
  EXPECT_EQ(testing::PolicyCopy(*trainer), before);
  EXPECT_EQ(not_made->updates, 0);
  EXPECT_EQ(not_made->gradient_norm, 0);
  EXPECT_EQ(not_made->loss, 0);
  EXPECT_EQ(not_made->zero_variance_ratio, 1);
  EXPECT_EQ(not_made->trained_tokens, made->trained_tokens);
  EXPECT_NEAR(not_made->entropy, made->entropy, 0.1);
}

TEST(TrainStepTest, OfSeveralUpdatesThoseWithSignalAreMade) {
  PolicyTrainer::Options options = SmallOptions();
  options.step.updates_per_batch = 2;
  auto groups = RandomGroups(options.model, 4, 4, 13);
  const auto flat = WithoutSignal(groups);
  groups[2] = flat[2];
  groups[3] = flat[3];
  auto trainer = PolicyTrainer::Create(options).value();
  auto metrics = trainer->Step(Pointers(groups));
  ASSERT_TRUE(metrics.ok());
  EXPECT_EQ(metrics->updates, 1);
  EXPECT_EQ(trainer->updates(), 1);
  EXPECT_GT(metrics->gradient_norm, 0);
}

TEST(TrainStepTest, ReportsWhatTheBatchWas) {
  const auto groups = RandomGroups(testing::SmallModel(), 5, 4, 9);
  auto metrics = PolicyTrainer::Create(SmallOptions()).value()->Step(Pointers(groups));
  ASSERT_TRUE(metrics.ok());
  double reward = 0, least = 1e9;
  int64_t tokens = 0;
  for (const auto& group : groups) {
    for (const auto& sample : group.samples) {
      reward += sample.reward / 20;
      least = std::min(least, double{sample.reward});
      tokens += sample.tokens.size();
    }
  }
  EXPECT_NEAR(metrics->reward_mean, reward, 1e-6);
  EXPECT_EQ(metrics->reward_min, least);
  EXPECT_EQ(metrics->learning_rate, SmallOptions().optimizer.learning_rate);
  EXPECT_EQ(metrics->trained_tokens, tokens);
  EXPECT_EQ(metrics->trained_samples, 20);
  EXPECT_GT(metrics->entropy, 1.0);
  // The most likely token is at least as likely as a token is on average.
  EXPECT_GE(metrics->top_probability, std::exp(-metrics->entropy));
  EXPECT_LT(metrics->top_probability, 1);
  EXPECT_GT(metrics->gradient_norm, 0);
  EXPECT_GT(metrics->update_norm, 0);
}

// A batch whose loss is not finite.
std::vector<TrajectoryGroup> Poisoned(const model::ModelConfig& config) {
  auto groups = RandomGroups(config, 2, 4, 10);
  groups[0].samples[0].reward = std::numeric_limits<float>::quiet_NaN();
  return groups;
}

TEST(TrainStepTest, SkipsAnUpdateThatIsNotFiniteAndGoesOnAsIfItHadNotBeen) {
  PolicyTrainer::Options options = SmallOptions();
  options.optimizer.weight_decay = 0.1;
  const auto groups = RandomGroups(options.model, 6, 4, 16), poisoned = Poisoned(options.model);
  auto trainer = PolicyTrainer::Create(options).value(), calm = PolicyTrainer::Create(options).value();
  const testing::PolicyCopy before(*trainer);
  auto skipped = trainer->Step(Pointers(poisoned));
  ASSERT_TRUE(skipped.ok()) << skipped.status();
  EXPECT_EQ(skipped->skipped_updates, 1);
  EXPECT_EQ(skipped->updates, 0);
  EXPECT_EQ(testing::PolicyCopy(*trainer), before);
  for (PolicyTrainer* one : {trainer.get(), calm.get()}) {
    auto made = one->Step(Pointers(groups));
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->skipped_updates, 0);
  }
  EXPECT_EQ(testing::PolicyCopy(*trainer), testing::PolicyCopy(*calm));
}

TEST(TrainStepTest, TenSkippedUpdatesInARowAreAnErrorAndOneThatIsMadeBeginsThemAnew) {
  PolicyTrainer::Options options = SmallOptions();
  auto trainer = PolicyTrainer::Create(options).value();
  const auto groups = RandomGroups(options.model, 6, 4, 16), poisoned = Poisoned(options.model);
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(trainer->Step(Pointers(poisoned)).ok());
  ASSERT_TRUE(trainer->Step(Pointers(groups)).ok());
  const testing::PolicyCopy before(*trainer);
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(trainer->Step(Pointers(poisoned)).ok());
  EXPECT_EQ(ErrorReason(trainer->Step(Pointers(poisoned)).status()), "NON_FINITE_GRADIENT");
  EXPECT_EQ(testing::PolicyCopy(*trainer), before);
}

TEST(TrainStepTest, ASequenceLongerThanAMicroBatchIsNamedAndNothingIsTrained) {
  PolicyTrainer::Options options = SmallOptions();
  options.step.micro_batch_tokens = 6;
  auto trainer = PolicyTrainer::Create(options).value();
  auto groups = RandomGroups(options.model, 2, 4, 17);
  groups[1].prompt_ids.assign(5, 1);
  groups[1].samples[0].tokens.assign(4, 1);
  groups[1].samples[0].logprobs.assign(4, -1);
  const testing::PolicyCopy before(*trainer);
  const absl::Status refused = trainer->Step(Pointers(groups)).status();
  EXPECT_EQ(ErrorReason(refused), "SEQUENCE_TOO_LONG");
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("tokens"));
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("train.micro_batch_tokens 6"));
  EXPECT_EQ(testing::PolicyCopy(*trainer), before);
}

TEST(TrainStepTest, WhatIsComputedAgainDoesNotChangeABit) {
  PolicyTrainer::Options options = SmallOptions();
  const uint64_t selective = DigestAfter(options, 2);
  options.step.recompute = Recompute::kNone;
  EXPECT_EQ(DigestAfter(options, 2), selective);
  options.step.recompute = Recompute::kFull;
  EXPECT_EQ(DigestAfter(options, 2), selective);
}

TEST(TrainStepTest, InBFloat16TheWeightsStayFloat32AndTheStepIsNearlyThatOfFloat32) {
  PolicyTrainer::Options options = SmallOptions();
  const auto groups = RandomGroups(options.model, 6, 4, 18);
  const auto expected = PolicyTrainer::Create(options).value()->Step(Pointers(groups));
  options.compute_dtype = DType::kBFloat16;
  for (bool float32_logits : {false, true}) {
    options.step.float32_logits = float32_logits;
    const auto found = PolicyTrainer::Create(options).value()->Step(Pointers(groups));
    ASSERT_TRUE(expected.ok() && found.ok()) << expected.status() << found.status();
    EXPECT_NEAR(found->loss, expected->loss, 0.02);
    EXPECT_NEAR(found->entropy, expected->entropy, 0.02);
    EXPECT_NEAR(found->gradient_norm, expected->gradient_norm, 0.05 * expected->gradient_norm);
  }
  // The float32 weights keep a change that bfloat16 would round away.
  options.optimizer.learning_rate = 1e-6;
  auto slow = PolicyTrainer::Create(options).value();
  const uint64_t before = *slow->Digest();
  ASSERT_TRUE(slow->Step(Pointers(groups)).ok());
  EXPECT_NE(*slow->Digest(), before);
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
  options.seed = 99;  // other initial weights, all of which are overwritten
  auto resumed = PolicyTrainer::Create(options).value();
  ASSERT_TRUE(resumed->Restore(testing::PolicyCopy(*original)).ok());
  for (int i = 0; i < 3; ++i) {
    const auto groups = RandomGroups(options.model, 6, 4, 20 + i);
    ASSERT_TRUE(original->Step(Pointers(groups)).ok());
    ASSERT_TRUE(resumed->Step(Pointers(groups)).ok());
    EXPECT_EQ(*original->Digest(), *resumed->Digest());
  }
}

}  // namespace
}  // namespace syncopate::trainer
