#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/digest.h"
#include "tests/support/packed_attention.h"
#include "tests/support/rank_threads.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/training_groups.h"
#include "trainer/actor/actor.h"
#include "trainer/step/policy_trainer.h"
#include "trainer/step/train_step.h"

// Supervised steps: TrainStep::RunSupervised() and PolicyTrainer::SupervisedStep().
namespace syncopate::trainer {
namespace {

using syncopate::testing::IsOk;
using testing::Pointers;

constexpr uint64_t kSeed = 3;

// One answer to each prompt, as the data have it: only tokens.
std::vector<TrajectoryGroup> Answers(const model::ModelConfig& config, int groups, uint64_t seed) {
  return testing::RandomGroups(config.vocab_size, groups, /*samples=*/1, seed,
                               [](Trajectory& sample, const testing::Draw&) { sample.logprobs.clear(); });
}

AdamWOptions Unclipped() {
  AdamWOptions options;
  options.max_grad_norm = 0;
  options.max_grad_growth = 0;
  return options;
}

struct Taught {
  double loss = 0;
  std::vector<float> gradient;
};

Taught ByStep(const model::ModelConfig& config, const std::vector<TrajectoryGroup>& groups,
              TrainStepOptions options = {}) {
  at::set_num_threads(1);  // two threads on products this small would wait for each other
  Actor actor(config, *model::MakeManifest(config, DType::kFloat32), Unclipped(), kSeed);
  SingleRank ranks;
  const auto metrics = TrainStep(actor, ranks, options.Supervised()).RunSupervised(Pointers(groups));
  EXPECT_THAT(metrics, IsOk());
  return {metrics->loss, {actor.gradients().begin(), actor.gradients().end()}};
}

// Computes the expected step by autograd over the transformer and torch's own cross-entropy, sequence by sequence.
Taught ByTorch(const model::ModelConfig& config, const std::vector<TrajectoryGroup>& groups) {
  at::set_num_threads(1);
  const Manifest manifest = model::MakeManifest(config, DType::kFloat32).value();
  Actor actor(config, manifest, Unclipped(), kSeed);
  const at::Tensor arena = actor.parameters().clone();
  const at::Tensor gradient = at::zeros_like(arena);
  const model::TransformerWeights weights = model::ViewWeights(config, manifest, arena);
  std::vector<at::Tensor> leaves = weights.Distinct();
  std::vector<at::Tensor> places = model::ViewWeights(config, manifest, gradient).Distinct();
  for (size_t i = 0; i < leaves.size(); ++i) leaves[i].set_requires_grad(true).mutable_grad() = places[i];
  const model::Transformer transformer(config, at::kCPU);
  std::vector<at::Tensor> losses;
  int64_t tokens = 0;
  for (const TrajectoryGroup& group : groups) {
    const std::vector<int32_t>& prompt = group.prompt_ids;
    const std::vector<int32_t>& answer = group.samples.front().tokens;
    std::vector<int64_t> ids(prompt.begin(), prompt.end());
    ids.insert(ids.end(), answer.begin(), answer.end());
    const auto length = static_cast<int64_t>(ids.size());
    const auto count = static_cast<int64_t>(answer.size());
    const at::Tensor all = at::tensor(ids, at::kLong);
    const model::PackedSequences sequences({length - 1});
    testing::PackedAttention attention(sequences);
    const at::Tensor hidden =
        transformer.Forward(weights, all.narrow(0, 0, length - 1), sequences.positions(), attention);
    const at::Tensor logits = transformer.Logits(weights, hidden).narrow(0, length - 1 - count, count);
    losses.push_back(
        at::cross_entropy_loss(logits, all.narrow(0, length - count, count), /*weight=*/{}, at::Reduction::Sum));
    tokens += count;
  }
  const at::Tensor loss = at::stack(losses).sum() / static_cast<double>(tokens);
  loss.backward();
  const float* const values = gradient.data_ptr<float>();
  return {loss.item<double>(), {values, values + gradient.numel()}};
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

double Largest(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

TEST(SupervisedStepTest, LossAndGradientAreThoseOfTorchsCrossEntropyOverTheAnswersTokens) {
  for (const model::ModelConfig& config : {testing::SmallModel(), testing::GroupedQueryModel()}) {
    const auto groups = Answers(config, 7, 11);
    const Taught step = ByStep(config, groups), torch = ByTorch(config, groups);
    EXPECT_NEAR(step.loss, torch.loss, 1e-6);
    EXPECT_LT(LargestDifference(step.gradient, torch.gradient), 1e-5 * Largest(torch.gradient));
    EXPECT_GT(Largest(torch.gradient), 1e-3);
  }
}

TEST(SupervisedStepTest, TheResultDoesNotDependOnMicroBatchesAndNotOnTheTemperatureOfRollouts) {
  const model::ModelConfig config = testing::SmallModel();
  const auto groups = Answers(config, 8, 5);
  const Taught whole = ByStep(config, groups);
  for (const int64_t tokens : {14, 20, 40}) {
    TrainStepOptions options;
    options.micro_batch_tokens = tokens;
    options.temperature = 0.5;
    options.updates_per_batch = 4;
    const Taught parts = ByStep(config, groups, options);
    EXPECT_NEAR(parts.loss, whole.loss, 1e-6);
    EXPECT_LT(LargestDifference(parts.gradient, whole.gradient), 1e-6);
  }
}

TEST(SupervisedStepTest, TheMeasuredLossIsTorchsCrossEntropyOnAnyNumberOfRanksAndChangesNothing) {
  const model::ModelConfig config = testing::GroupedQueryModel();
  const auto groups = Answers(config, 7, 11);
  const double expected = ByTorch(config, groups).loss;
  int64_t tokens = 0;
  for (const TrajectoryGroup& group : groups) tokens += static_cast<int64_t>(group.samples[0].tokens.size());
  for (const int32_t world : {1, 2, 3}) {
    testing::OnRanks<bool>(world, [&](Communicator& ranks) {
      at::set_num_threads(1);
      PolicyTrainer::Options options;
      options.model = config;
      options.seed = kSeed;
      options.mesh = ranks;
      options.step.micro_batch_tokens = 20;
      auto trainer = PolicyTrainer::Create(options).value();
      const uint64_t before = trainer->Digest().value();
      const auto measured = trainer->MeasureSupervised(Pointers(groups));
      EXPECT_THAT(measured, IsOk());
      if (!measured.ok()) return false;
      EXPECT_NEAR(measured->loss, expected, 1e-6) << world << " ranks";
      EXPECT_EQ(measured->tokens, tokens);
      EXPECT_EQ(trainer->Digest().value(), before);
      EXPECT_EQ(trainer->updates(), 0);
      return true;
    });
  }
}

TEST(SupervisedStepTest, ALossThatIsMeasuredBetweenStepsLeavesTheBitsOfTraining) {
  PolicyTrainer::Options options;
  options.model = testing::SmallModel();
  options.seed = kSeed;
  const auto taught = Answers(options.model, 6, 21), held_out = Answers(options.model, 5, 22);
  auto plain = PolicyTrainer::Create(options).value(), measuring = PolicyTrainer::Create(options).value();
  for (int i = 0; i < 5; ++i) {
    ASSERT_THAT(plain->SupervisedStep(Pointers(taught)), IsOk());
    ASSERT_THAT(measuring->MeasureSupervised(Pointers(held_out)), IsOk());
    const auto now = measuring->MeasureSupervised(Pointers(taught));
    const auto step = measuring->SupervisedStep(Pointers(taught));
    ASSERT_THAT(now, IsOk());
    ASSERT_THAT(step, IsOk());
    EXPECT_EQ(now->loss, step->loss) << "a step's loss is that of the weights that it begins with";
  }
  EXPECT_EQ(*plain->Digest(), *measuring->Digest());
}

TEST(SupervisedStepTest, RepeatedStepsOnTheSameAnswersLearnThemAndGiveTheSameBitsAgain) {
  PolicyTrainer::Options options;
  options.model = testing::SmallModel();
  options.seed = kSeed;
  const auto groups = Answers(options.model, 6, 21);
  uint64_t digests[2] = {};
  for (uint64_t& digest : digests) {
    auto trainer = PolicyTrainer::Create(options).value();
    double first = 0, last = 0;
    for (int i = 0; i < 40; ++i) {
      const auto metrics = trainer->SupervisedStep(Pointers(groups));
      ASSERT_THAT(metrics, IsOk());
      EXPECT_EQ(metrics->updates, 1);
      (i == 0 ? first : last) = metrics->loss;
    }
    EXPECT_LT(last, 0.5 * first);
    digest = *trainer->Digest();
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST(SupervisedStepTest, MetricsSayNothingOfAPolicyThatDrewTheTokens) {
  PolicyTrainer::Options options;
  options.model = testing::SmallModel();
  const auto groups = Answers(options.model, 4, 2);
  auto trainer = PolicyTrainer::Create(options).value();
  const auto metrics = trainer->SupervisedStep(Pointers(groups));
  ASSERT_THAT(metrics, IsOk());
  EXPECT_EQ(metrics->trained_samples, 4);
  int64_t tokens = 0;
  for (const TrajectoryGroup& group : groups) tokens += static_cast<int64_t>(group.samples[0].tokens.size());
  EXPECT_EQ(metrics->trained_tokens, tokens);
  EXPECT_EQ(metrics->kl, 0);
  EXPECT_EQ(metrics->reward_mean, 0);
  EXPECT_GT(metrics->entropy, 0);
  EXPECT_GT(metrics->top_probability, 0);
  EXPECT_GT(metrics->loss, 0);
}

}  // namespace
}  // namespace syncopate::trainer
