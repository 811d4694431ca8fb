// Every algorithm with a real model: the step does not depend on how its answers are dealt to micro-batches and ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/support/policy_copy.h"
#include "tests/support/rank_threads.h"
#include "tests/support/small_model.h"
#include "tests/support/training_groups.h"
#include "trainer/actor/actor.h"
#include "trainer/step/policy_trainer.h"
#include "trainer/step/train_step.h"
#include "trainer/step/training_sequences.h"

namespace syncopate::trainer {
namespace {

using testing::Pointers;

std::vector<TrajectoryGroup> RandomGroups(int groups, int samples, uint64_t seed) {
  return testing::RandomGroups(testing::SmallModel().vocab_size, groups, samples, seed,
                               [](Trajectory& sample, const testing::Draw& draw) {
                                 sample.spans = {{{1, draw(4)}, 0, static_cast<int32_t>(sample.tokens.size())}};
                                 if (draw(4) == 0) sample.finish = FinishReason::kLength;
                                 const float right = 0.25f * draw(5), form = 0.5f * draw(3);
                                 sample.reward_parts = {{"right", right}, {"form", form}};
                                 sample.reward = right + form;
                               });
}

struct Algorithm {
  const char* name;
  std::function<void(loss::LossOptions&)> choose;
};

const std::vector<Algorithm>& Algorithms() {
  using loss::Aggregation, loss::AdvantageEstimator, loss::Correction, loss::LossOptions, loss::Overlong,
      loss::Proximal, loss::Surrogate;
  static const std::vector<Algorithm> all = {
      {"defaults", [](LossOptions&) {}},
      {"dr_grpo", [](LossOptions& o) { o.advantage.estimator = AdvantageEstimator::kDrGrpo; }},
      {"rloo_gspo_seq_tis",
       [](LossOptions& o) {
         o.advantage.estimator = AdvantageEstimator::kRloo;
         o.surrogate = Surrogate::kGspo;
         o.correction = Correction::kSeqTis;
       }},
      {"reinforce_pp_reinforce_tis",
       [](LossOptions& o) {
         o.advantage.estimator = AdvantageEstimator::kReinforcePlusPlus;
         o.advantage.discount = 0.9;
         o.surrogate = Surrogate::kReinforce;
         o.correction = Correction::kTis;
       }},
      {"reinforce_pp_with_kl_in_the_reward",
       [](LossOptions& o) {
         o.advantage.estimator = AdvantageEstimator::kReinforcePlusPlus;
         o.kl_coefficient = 0.1;
         o.kl_in_reward = true;
       }},
      {"reinforce_pp_baseline_cispo_with_kl_and_entropy",
       [](LossOptions& o) {
         o.advantage.estimator = AdvantageEstimator::kReinforcePlusPlusBaseline;
         o.surrogate = Surrogate::kCispo;
         o.clip_low = 1;
         o.clip_high = 4;
         o.kl_coefficient = 0.1;
         o.kl_importance = true;
         o.entropy_coefficient = 0.01;
       }},
      {"maxrl_sapo_a3po",
       [](LossOptions& o) {
         o.advantage.estimator = AdvantageEstimator::kMaxRl;
         o.surrogate = Surrogate::kSapo;
         o.proximal = Proximal::kA3po;
       }},
      {"gdpo_aipo",
       [](LossOptions& o) {
         o.advantage.estimator = AdvantageEstimator::kGdpo;
         o.advantage.reward_weights = {{"form", 0.5}, {"right", 1}};
         o.surrogate = Surrogate::kAipo;
         o.correction = Correction::kNone;
       }},
      {"batch_std_dppo_prompt_mean",
       [](LossOptions& o) {
         o.advantage.estimator = AdvantageEstimator::kBatchStd;
         o.surrogate = Surrogate::kDppo;
         o.correction = Correction::kSeqMis;
         o.kl_tau = 1e-3;
         o.aggregation = Aggregation::kPromptMean;
       }},
      {"overlong_mask_with_opsm_and_veto", [](LossOptions& o) {
         o.overlong = Overlong::kMask;
         o.opsm_delta = 0.05;
         o.veto = 1e-4;
         o.proximal = Proximal::kBypass;
         o.correction = Correction::kGeometric;
         o.geometric_low = 0.5;
         o.geometric_high = 2;
       }}};
  return all;
}

TrainStepOptions MakeOptions(const Algorithm& algorithm, int64_t micro_batch_tokens) {
  TrainStepOptions options;
  options.loss.max_response_tokens = 8;
  options.micro_batch_tokens = micro_batch_tokens;
  algorithm.choose(options.loss);
  EXPECT_TRUE(options.Validate().ok()) << options.Validate();
  return options;
}

struct StepResult {
  std::vector<float> gradient;
  StepFigures metrics;
};

StepResult StepOnRank(const TrainStepOptions& options, const std::vector<TrajectoryGroup>& groups,
                      Communicator& ranks) {
  const model::ModelConfig config = testing::SmallModel();
  Actor actor(config, *model::MakeManifest(config, DType::kFloat32), {}, 3, at::kCPU, nullptr, at::kFloat, &ranks);
  const ReferencePolicy reference(actor, config, at::kFloat, &ranks);
  auto metrics = TrainStep(actor, ranks, options, &reference).Run(Pointers(groups), /*step=*/4);
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  return {testing::GatherGradient(actor, ranks), metrics.value_or(StepFigures())};
}

StepResult GetStep(const TrainStepOptions& options, const std::vector<TrajectoryGroup>& groups, int updates = 1) {
  SingleRank single;
  TrainStepOptions several = options;
  several.updates_per_batch = updates;
  return StepOnRank(several, groups, single);
}

class AlgorithmsStepTest : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(All, AlgorithmsStepTest, ::testing::Range<size_t>(0, Algorithms().size()),
                         [](const auto& info) { return Algorithms()[info.param].name; });

TEST_P(AlgorithmsStepTest, TheGradientDoesNotDependOnRanks) {
  const Algorithm& algorithm = Algorithms()[GetParam()];
  const auto groups = RandomGroups(8, 4, 5);
  for (int updates : {1, 2}) {
    const StepResult whole = GetStep(MakeOptions(algorithm, 1 << 20), groups, updates);
    TrainStepOptions options = MakeOptions(algorithm, 40);
    options.updates_per_batch = updates;
    for (int32_t world : {2, 3}) {
      const std::vector<StepResult> ranks = testing::OnRanks<StepResult>(
          world, [&](Communicator& communicator) { return StepOnRank(options, groups, communicator); });
      EXPECT_NEAR(ranks[0].metrics.loss, whole.metrics.loss, 1e-6);
      EXPECT_NEAR(ranks[0].metrics.chi2_answer, whole.metrics.chi2_answer, 1e-6);
      EXPECT_NEAR(ranks[0].metrics.ratio_max, whole.metrics.ratio_max, 1e-5);
      EXPECT_EQ(ranks[0].metrics.trained_tokens, whole.metrics.trained_tokens);
      // The gradient of the second update is at weights that AdamW has moved, by a whole step even for tiny gradients.
      if (updates == 1) {
        EXPECT_LT(testing::LargestDifference(ranks[0].gradient, whole.gradient), 1e-6) << world;
      }
      for (const StepResult& other : ranks) EXPECT_EQ(other.metrics.loss, ranks[0].metrics.loss);
    }
  }
}

TEST_P(AlgorithmsStepTest, TheGradientDoesNotDependOnMicroBatches) {
  const Algorithm& algorithm = Algorithms()[GetParam()];
  const auto groups = RandomGroups(8, 4, 5);
  const StepResult whole = GetStep(MakeOptions(algorithm, 1 << 20), groups);
  float largest = 0;
  for (float value : whole.gradient) largest = std::max(largest, std::abs(value));
  EXPECT_GT(largest, 1e-3);
  for (int64_t tokens : {14, 40}) {
    const StepResult cut = GetStep(MakeOptions(algorithm, tokens), groups);
    for (size_t i = 0; i < cut.gradient.size(); ++i) {
      ASSERT_NEAR(cut.gradient[i], whole.gradient[i], 2e-6 * std::max(1.0f, largest)) << tokens;
    }
    EXPECT_NEAR(cut.metrics.loss, whole.metrics.loss, 1e-6);
    EXPECT_NEAR(cut.metrics.chi2_answer, whole.metrics.chi2_answer, 1e-6);
  }
}

TEST_P(AlgorithmsStepTest, SeveralUpdatesAreMadeOfOneBatch) {
  const Algorithm& algorithm = Algorithms()[GetParam()];
  const StepResult made = GetStep(MakeOptions(algorithm, 1 << 20), RandomGroups(6, 4, 7), /*updates=*/3);
  EXPECT_EQ(made.metrics.updates, 3);
  const bool makes_a_pass = MakeOptions(algorithm, 1).loss.needs_proximal();
  EXPECT_EQ(made.metrics.proximal_seconds > 0, makes_a_pass);
  EXPECT_TRUE(std::isfinite(made.metrics.loss));
}

TEST(AlgorithmsMetricsTest, TokensAreOfTheAgesThatTheirVersionsSay) {
  const auto groups = RandomGroups(6, 4, 9);
  const StepFigures metrics = GetStep(MakeOptions(Algorithms()[0], 40), groups).metrics;
  double counts[loss::kLossAges] = {};
  for (const TrajectoryGroup& group : groups) {
    for (const Trajectory& sample : group.samples) {
      counts[4 - sample.spans[0].version.step] += static_cast<double>(sample.tokens.size());
    }
  }
  for (int age = 0; age < loss::kLossAges; ++age) EXPECT_EQ(metrics.ages[age].tokens, counts[age]) << age;
  EXPECT_EQ(metrics.trained_samples, 24);
}

TEST(AlgorithmsMetricsTest, TheReferencePolicyIsWhereTheRunBegan) {
  PolicyTrainer::Options options;
  options.model = testing::SmallModel();
  options.seed = 3;
  options.step.loss.kl_coefficient = 0.1;
  auto trainer = PolicyTrainer::Create(options).value();
  const auto groups = RandomGroups(6, 4, 7);
  EXPECT_NEAR(trainer->Step(Pointers(groups), 4)->reference_kl, 0, 1e-12);
  const double moved = trainer->Step(Pointers(groups), 4)->reference_kl;
  EXPECT_GT(moved, 1e-6);
  auto resumed = PolicyTrainer::Create(options).value();
  ASSERT_TRUE(resumed->Restore(testing::PolicyCopy(*trainer)).ok());
  EXPECT_GT(resumed->Step(Pointers(groups), 4)->reference_kl, moved);
}

TEST(AlgorithmsMetricsTest, AnUpdateWithoutSignalIsMadeForItsOtherTerms) {
  auto groups = RandomGroups(4, 4, 8);
  for (TrajectoryGroup& group : groups) {
    for (Trajectory& sample : group.samples) sample.reward = 0.5f;
  }
  EXPECT_EQ(GetStep(MakeOptions(Algorithms()[0], 100), groups).metrics.updates, 0);
  EXPECT_EQ(GetStep(MakeOptions({"", [](loss::LossOptions& o) { o.entropy_coefficient = 0.01; }}, 100), groups)
                .metrics.updates,
            1);
}

TEST(AlgorithmsMetricsTest, ABatchOfMaskedAnswersIsNoUpdate) {
  auto groups = RandomGroups(3, 4, 8);
  for (TrajectoryGroup& group : groups) {
    for (Trajectory& sample : group.samples) sample.finish = FinishReason::kLength;
  }
  const StepResult made =
      GetStep(MakeOptions({"", [](loss::LossOptions& o) { o.overlong = loss::Overlong::kMask; }}, 100), groups);
  EXPECT_EQ(made.metrics.updates, 0);
  EXPECT_EQ(made.metrics.trained_tokens, 0);
  EXPECT_EQ(made.metrics.masked_samples, 12);
  EXPECT_EQ(made.metrics.loss, 0);
}

TEST(AlgorithmsMetricsTest, RejectedAnswersChangeNothingButTheirCount) {
  auto with = RandomGroups(3, 4, 8), without = with;
  for (TrajectoryGroup& group : with) group.samples[2].rejected = true;
  for (TrajectoryGroup& group : without) group.samples.erase(group.samples.begin() + 2);
  const StepResult made = GetStep(MakeOptions(Algorithms()[0], 100), with);
  const StepResult expected = GetStep(MakeOptions(Algorithms()[0], 100), without);
  EXPECT_EQ(made.metrics.rejected_samples, 3);
  EXPECT_EQ(made.metrics.loss, expected.metrics.loss);
  EXPECT_EQ(made.metrics.gradient_norm, expected.metrics.gradient_norm);
  EXPECT_EQ(made.metrics.reward_mean, expected.metrics.reward_mean);
  for (TrajectoryGroup& group : with) {
    for (Trajectory& sample : group.samples) sample.rejected = true;
  }
  const StepResult none = GetStep(MakeOptions(Algorithms()[0], 100), with);
  EXPECT_EQ(none.metrics.updates, 0);
  EXPECT_EQ(none.metrics.reward_mean, 0);
  EXPECT_EQ(none.metrics.zero_variance_ratio, 1);
}

TEST(TrainingSequencesTest, ExtentsLeaveOutWhatIsMasked) {
  auto groups = RandomGroups(2, 3, 12);
  for (Trajectory& sample : groups[1].samples) sample.finish = FinishReason::kLength;
  for (Trajectory& sample : groups[0].samples) sample.finish = FinishReason::kStop;
  loss::LossOptions options;
  options.overlong = loss::Overlong::kMask;
  const auto sequences = SequencesByGroup(Pointers(groups), options, 4, {}).value();
  ASSERT_EQ(sequences.size(), 2u);
  EXPECT_TRUE(sequences[1].empty());
  double tokens = 0;
  for (const Trajectory& sample : groups[0].samples) tokens += static_cast<double>(sample.tokens.size());
  const UpdateExtent extent = MeasureExtent(sequences);
  EXPECT_EQ(extent.batch.tokens, tokens);
  EXPECT_EQ(extent.batch.answers, 3);
  EXPECT_EQ(extent.batch.groups, 1);
  EXPECT_LE(extent.with_signal, 3);
  EXPECT_EQ(sequences[0][0].group_tokens, tokens);
}

TEST(TrainingSequencesTest, GdpoWithoutPartsSaysWhatToDo) {
  auto groups = RandomGroups(1, 2, 13);
  for (Trajectory& sample : groups[0].samples) sample.reward_parts.clear();
  loss::LossOptions options;
  options.advantage.estimator = loss::AdvantageEstimator::kGdpo;
  EXPECT_EQ(ErrorReason(SequencesByGroup(Pointers(groups), options, 0, {}).status()), "NO_REWARD_PARTS");
}

}  // namespace
}  // namespace syncopate::trainer
