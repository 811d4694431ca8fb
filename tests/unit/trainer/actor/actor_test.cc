#include "trainer/actor/actor.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/policy_copy.h"
#include "tests/support/small_model.h"

namespace syncopate::trainer {
namespace {

// An actor that gets gradients whose elements are all equal, and reports how far its weights move.
class MovedActor {
 public:
  explicit MovedActor(const AdamWOptions& options)
      : options_(options), actor_(config_, *model::MakeManifest(config_, DType::kFloat32), options, 3) {
    at::set_num_threads(1);  // two threads on tensors this small would wait for each other
  }

  // Makes `updates` updates with gradients of the norm `norm`.
  void Update(double norm, int updates = 1) {
    for (int i = 0; i < updates; ++i) {
      absl::Span<float> gradients = actor_.gradients();
      const double element = norm / std::sqrt(static_cast<double>(gradients.size()));
      for (float& gradient : gradients) gradient = static_cast<float>(element);
      EXPECT_TRUE(actor_.QueueUpdate(at::zeros({})).ok());
      actor_.CountUpdate();
    }
  }
  // The mean distance of the weights since the last call, in learning rates.
  double TakeWay() {
    const at::Tensor now = actor_.parameters().detach().clone();
    const double way = before_.defined() ? (now - before_).abs().mean().item<double>() : 0;
    before_ = now;
    return way / options_.learning_rate;
  }
  double remembered_norm() const {
    const double correction = 1 - std::pow(options_.beta2, static_cast<double>(actor_.updates()));
    return std::sqrt(actor_.second_moment().sum().item<double>() / correction);
  }

 private:
  const AdamWOptions options_;
  const model::ModelConfig config_ = testing::SmallModel();
  Actor actor_;
  at::Tensor before_;
};

AdamWOptions Plain() {
  AdamWOptions options;
  options.max_grad_growth = 0;
  return options;
}

// The total distance that one gradient of norm 1 moves the weights, after `silence` updates with gradients of 0.
double WayAfterSilence(const AdamWOptions& options, int silence) {
  MovedActor actor(options);
  actor.Update(1, 50);
  actor.Update(0, silence);
  actor.TakeWay();
  actor.Update(1);
  actor.Update(0, 40);
  return actor.TakeWay();
}

TEST(ActorTest, OneGradientAfterSilenceMovesAPlainAdamWFarAndOursNoFurtherThanAnyOther) {
  // The distance is (1 - beta1) / sqrt(1 - beta2) / (1 - beta1 / sqrt(beta2)) = 5.8 for any `silence`.
  EXPECT_GT(WayAfterSilence(Plain(), 100), 5);
  EXPECT_LT(WayAfterSilence(AdamWOptions(), 100), 2.6);
  EXPECT_NEAR(WayAfterSilence(AdamWOptions(), 0), WayAfterSilence(Plain(), 0), 1e-6);
}

TEST(ActorTest, GradientsThatStayAsTheyWereAreNotClipped) {
  MovedActor plain(Plain()), ours{AdamWOptions()};
  for (MovedActor* actor : {&plain, &ours}) {
    actor->TakeWay();
    for (double norm : {0.5, 0.4, 0.8, 0.3, 0.6}) actor->Update(norm);
  }
  EXPECT_EQ(plain.TakeWay(), ours.TakeWay());
}

TEST(ActorTest, AGradientThatHasGrownForGoodIsFollowed) {
  MovedActor actor{AdamWOptions()};
  actor.Update(1e-4, 50);
  actor.Update(0.5, 200);
  EXPECT_GT(actor.remembered_norm(), 0.4);
}

TEST(ActorTest, GradientsThatWereAllZeroDoNotStopTheNextOne) {
  MovedActor actor{AdamWOptions()};
  actor.Update(0, 5);
  actor.TakeWay();
  actor.Update(1);
  EXPECT_GT(actor.TakeWay(), 0.1);
}

TEST(ActorTest, TheNormOfAnUpdateIsHowFarTheWeightsMoved) {
  const model::ModelConfig config = testing::SmallModel();
  AdamWOptions options;
  options.weight_decay = 0.5;
  options.learning_rate = 0.1;
  options.decay_all = false;  // makes several ranges
  Actor actor(config, *model::MakeManifest(config, DType::kFloat32), options, 3);
  std::fill(actor.gradients().begin(), actor.gradients().end(), 0.01f);
  const at::Tensor before = actor.parameters().clone();
  const double moved = actor.QueueUpdate(at::zeros({}))->update.item<double>();
  EXPECT_GT(moved, 0);
  EXPECT_NEAR(moved, at::norm(actor.parameters() - before, 2, at::kDouble).item<double>(), 1e-5 * moved);
}

TEST(ActorTest, NothingChangesWhenTheGuardIsNotFinite) {
  const model::ModelConfig config = testing::SmallModel();
  Actor actor(config, *model::MakeManifest(config, DType::kFloat32), {}, 3);
  std::fill(actor.gradients().begin(), actor.gradients().end(), 0.01f);
  const at::Tensor before = actor.parameters().clone();
  for (double guard : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const auto norms = actor.QueueUpdate(at::scalar_tensor(guard));
    EXPECT_GT(norms->gradient.item<double>(), 0);
    EXPECT_EQ(norms->update.item<double>(), 0);
    EXPECT_TRUE(at::equal(actor.parameters(), before));
    EXPECT_EQ(actor.second_moment().abs().max().item<double>(), 0);
  }
  EXPECT_TRUE(actor.QueueUpdate(at::zeros({})).ok());
  EXPECT_FALSE(at::equal(actor.parameters(), before));
}

TEST(ActorTest, TheCopyThatComputesIsTheRoundedWeightsAfterEachUpdateAndRestore) {
  const model::ModelConfig config = testing::SmallModel();
  const Manifest manifest = *model::MakeManifest(config, DType::kFloat32);
  Actor actor(config, manifest, {}, 3, at::kCPU, nullptr, at::kBFloat16);
  auto is_renewed = [&] {
    const auto rounded = model::ViewWeights(config, manifest, actor.parameters().to(at::kBFloat16)).Distinct();
    const auto copies = actor.weights().Distinct();
    for (size_t i = 0; i < copies.size(); ++i) {
      if (!at::equal(copies[i], rounded[i])) return false;
    }
    return copies.size() == rounded.size();
  };
  EXPECT_TRUE(is_renewed());
  std::fill(actor.gradients().begin(), actor.gradients().end(), 0.01f);
  EXPECT_TRUE(actor.QueueUpdate(at::zeros({})).ok());
  EXPECT_TRUE(is_renewed());
  const at::Tensor ones = at::ones_like(actor.parameters()), zeros = at::zeros_like(ones);
  actor.Restore(testing::ArenaSource(actor.manifest(), ones.data_ptr(), zeros.data_ptr(), zeros.data_ptr(), 1));
  EXPECT_TRUE(is_renewed());
  EXPECT_EQ(actor.weights().norm.min().item<double>(), 1);
}

TEST(ActorTest, WeightDecayLeavesNormsAndBiasesAloneWhereItIsToldTo) {
  const model::ModelConfig config = testing::BiasedModel();
  const Manifest manifest = *model::MakeManifest(config, DType::kFloat32);
  for (bool decay_all : {true, false}) {
    AdamWOptions options;
    options.weight_decay = 0.5;
    options.learning_rate = 0.5;
    options.decay_all = decay_all;
    Actor actor(config, manifest, options, 3);
    const at::Tensor ones = at::ones_like(actor.parameters()), zeros = at::zeros_like(ones);
    actor.Restore(testing::ArenaSource(actor.manifest(), ones.data_ptr(), zeros.data_ptr(), zeros.data_ptr(), 0));
    // The gradients are 0, so only weight decay changes the weights.
    EXPECT_TRUE(actor.QueueUpdate(at::zeros({})).ok());
    int matrices = 0, vectors = 0;
    for (const at::Tensor& tensor : actor.weights().Distinct()) {
      const bool decays = decay_all || tensor.dim() > 1;
      EXPECT_TRUE(at::equal(tensor, at::full_like(tensor, decays ? 0.75 : 1))) << tensor.dim();
      ++(tensor.dim() > 1 ? matrices : vectors);
    }
    EXPECT_GT(matrices, 0);
    EXPECT_GT(vectors, 0);
  }
}

TEST(LearningRateTest, RisesOverTheWarmUpAndStaysOrFalls) {
  AdamWOptions options;
  options.learning_rate = 8;
  options.warmup_updates = 4;
  options.schedule_updates = 12;
  options.final_fraction = 0.25;
  auto rates = [&options](std::vector<int64_t> updates) {
    std::vector<double> found;
    for (int64_t update : updates) found.push_back(LearningRateAt(options, update));
    return found;
  };
  using Rates = std::vector<double>;
  EXPECT_EQ(rates({1, 2, 4, 5, 12, 1000}), (Rates{2, 4, 8, 8, 8, 8}));
  options.schedule = Schedule::kLinear;
  EXPECT_EQ(rates({1, 4, 5, 7, 9, 13, 1000}), (Rates{2, 8, 8, 6.5, 5, 2, 2}));
  options.schedule = Schedule::kCosine;
  const Rates cosine = rates({4, 5, 9, 13, 14});
  EXPECT_EQ(cosine[0], 8);
  EXPECT_EQ(cosine[1], 8);
  EXPECT_NEAR(cosine[2], 5, 1e-12);
  EXPECT_NEAR(cosine[3], 2, 1e-12);
  EXPECT_NEAR(cosine[4], 2, 1e-12);
}

TEST(LearningRateTest, OfSupervisedUpdatesFallsToThatOfTheOthersWhoseScheduleBeginsAfterThem) {
  AdamWOptions options;
  options.learning_rate = 2;
  options.supervised_rate = 10;
  options.supervised_updates = 6;
  options.warmup_updates = 2;
  options.schedule = Schedule::kLinear;
  options.schedule_updates = 4;
  options.final_fraction = 0.5;
  EXPECT_TRUE(options.Validate().ok());
  std::vector<double> rates;
  for (const int64_t update : {1, 2, 3, 5, 6, 7, 9, 11, 1000}) rates.push_back(LearningRateAt(options, update));
  EXPECT_EQ(rates, (std::vector<double>{5, 10, 8, 4, 2, 2, 1.5, 1, 1}));
}

TEST(ActorTest, UpdatesGoByTheScheduleAlsoAfterARestore) {
  AdamWOptions options = Plain();
  options.schedule = Schedule::kLinear;
  options.schedule_updates = 10;
  const model::ModelConfig config = testing::SmallModel();
  const Manifest manifest = *model::MakeManifest(config, DType::kFloat32);
  auto way = [&](int64_t made) {
    Actor actor(config, manifest, options, 3);
    const at::Tensor zeros = at::zeros_like(actor.parameters()), start = actor.parameters().clone();
    actor.Restore(testing::ArenaSource(actor.manifest(), start.data_ptr(), zeros.data_ptr(), zeros.data_ptr(), made));
    std::fill(actor.gradients().begin(), actor.gradients().end(), 0.01f);
    EXPECT_TRUE(actor.QueueUpdate(at::zeros({})).ok());
    return (actor.parameters() - start).abs().max().item<double>();
  };
  EXPECT_GT(way(0), 0);
  EXPECT_EQ(way(10), 0);  // the schedule has ended at 0
}

TEST(AdamWOptionsTest, AScheduleThatEndsBeforeItsWarmUpIsRefused) {
  AdamWOptions options;
  options.schedule = Schedule::kCosine;
  options.warmup_updates = 10;
  options.schedule_updates = 10;
  EXPECT_EQ(ErrorReason(options.Validate()), "BAD_STEP_OPTIONS");
  options.schedule_updates = 11;
  EXPECT_TRUE(options.Validate().ok());
}

TEST(AdamWOptionsTest, SupervisedUpdatesNeedARateAndMoreOfThemThanTheWarmUp) {
  AdamWOptions options;
  options.supervised_updates = 5;
  EXPECT_EQ(ErrorReason(options.Validate()), "BAD_STEP_OPTIONS");
  options.supervised_rate = 0.1;
  EXPECT_TRUE(options.Validate().ok());
  options.warmup_updates = 5;
  EXPECT_EQ(ErrorReason(options.Validate()), "BAD_STEP_OPTIONS");
}

TEST(AdamWOptionsTest, AGrowthThatWouldHoldGradientsDownForEverIsRefused) {
  AdamWOptions options;
  options.max_grad_growth = 1;
  EXPECT_EQ(ErrorReason(options.Validate()), "BAD_STEP_OPTIONS");
  options.max_grad_growth = 0;
  EXPECT_TRUE(options.Validate().ok());
}

}  // namespace
}  // namespace syncopate::trainer
