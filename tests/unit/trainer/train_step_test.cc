#include "trainer/step/train_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "base/digest.h"
#include "base/mutex.h"
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

// All answers of each group get the same reward.
std::vector<TrajectoryGroup> WithoutSignal(std::vector<TrajectoryGroup> groups) {
  for (TrajectoryGroup& group : groups) {
    for (Trajectory& sample : group.samples) sample.reward = 0.5f;
  }
  return groups;
}

// The digests of weights and moments, and the number of updates.
std::vector<uint64_t> StateOf(const PolicyTrainer& trainer) {
  const Policy::State state = *trainer.state();
  std::vector<uint64_t> digests = {static_cast<uint64_t>(state.updates)};
  for (const void* arena : {state.parameters, state.first_moment, state.second_moment}) {
    digests.push_back(CombineDigests(DigestBuckets(trainer.manifest(), arena)));
  }
  return digests;
}

TEST(TrainStepTest, AnUpdateWithoutSignalIsMeasuredAndNotMade) {
  PolicyTrainer::Options options = SmallOptions();
  options.optimizer.weight_decay = 0.1;
  auto trainer = PolicyTrainer::Create(options).value();
  const auto groups = RandomGroups(options.model, 4, 4, 12);
  auto made = trainer->Step(Pointers(groups));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->updates, 1);
  const std::vector<uint64_t> before = StateOf(*trainer);
  const auto flat = WithoutSignal(groups);
  auto not_made = trainer->Step(Pointers(flat));
  ASSERT_TRUE(not_made.ok());
  EXPECT_EQ(StateOf(*trainer), before);
  EXPECT_EQ(not_made->updates, 0);
  EXPECT_EQ(not_made->gradient_norm, 0);
  EXPECT_EQ(not_made->loss, 0);
  EXPECT_EQ(not_made->zero_variance_fraction, 1);
  EXPECT_EQ(not_made->tokens, made->tokens);
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
  EXPECT_EQ(trainer->state()->updates, 1);
  EXPECT_GT(metrics->gradient_norm, 0);
}

// Two ranks in two threads: a sum is there when both have called.
class Pair {
 public:
  class Rank final : public RankGroup {
   public:
    Rank(Pair* pair, int32_t rank) : pair_(pair), rank_(rank) {}
    int32_t rank() const override { return rank_; }
    int32_t world() const override { return 2; }
    absl::Status AllReduceSum(absl::Span<double> values) override { return pair_->Sum(values); }
    absl::Status AllReduceSum(absl::Span<float> values) override { return pair_->Sum(values); }

   private:
    Pair* const pair_;
    const int32_t rank_;
  };

 private:
  template <typename Number>
  absl::Status Sum(absl::Span<Number> values) {
    MutexLock lock(&mutex_);
    auto last_is_taken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return taken_ == 0; };
    mutex_.Await(Condition(&last_is_taken));
    const int64_t round = rounds_;
    if (sums_.empty()) {
      sums_.assign(values.begin(), values.end());
      auto summed = [this, round]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return rounds_ > round; };
      if (!mutex_.AwaitWithTimeout(Condition(&summed), absl::Seconds(30))) {
        return absl::DeadlineExceededError("the other rank does not make this call");
      }
    } else {
      for (size_t i = 0; i < values.size(); ++i) sums_[i] += values[i];
      ++rounds_;
    }
    if (sums_.size() != values.size()) return absl::InternalError("the ranks make different calls");
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Number>(sums_[i]);
    if (++taken_ == 2) {
      sums_.clear();
      taken_ = 0;
    }
    return absl::OkStatus();
  }

  Mutex mutex_;
  std::vector<double> sums_ ABSL_GUARDED_BY(mutex_);
  int64_t rounds_ ABSL_GUARDED_BY(mutex_) = 0;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(TrainStepTest, ARankWithoutSignalMakesTheUpdateOfOneThatHasIt) {
  const model::ModelConfig config = testing::SmallModel();
  const auto with_signal = RandomGroups(config, 3, 4, 14);
  const auto without = WithoutSignal(RandomGroups(config, 3, 4, 15));
  Pair pair;
  auto run = [&](int32_t rank, const std::vector<TrajectoryGroup>& groups) {
    Pair::Rank ranks(&pair, rank);
    Actor actor(config, *model::MakeManifest(config, DType::kFloat32), {}, 3);
    auto metrics = TrainStep(actor, ranks, {}).Run(Pointers(groups));
    EXPECT_TRUE(metrics.ok()) << metrics.status();
    EXPECT_EQ(actor.updates(), 1);
    return CombineDigests(DigestBuckets(actor.manifest(), actor.parameters().data_ptr()));
  };
  auto other = std::async(std::launch::async, [&] { return run(1, without); });
  const uint64_t weights = run(0, with_signal);
  EXPECT_EQ(other.get(), weights);
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
