#include "trainer/actor/actor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/small_model.h"

namespace syncopate::trainer {
namespace {

// An actor that is given gradients all of whose elements are alike, and says how far they move its weights.
class MovedActor {
 public:
  explicit MovedActor(const AdamWOptions& options)
      : options_(options), actor_(config_, *model::MakeManifest(config_, DType::kFloat32), options, 3) {}

  // Makes `updates` updates with gradients of the norm `norm`.
  void Update(double norm, int updates = 1) {
    for (int i = 0; i < updates; ++i) {
      absl::Span<float> gradients = actor_.gradients();
      const double element = norm / std::sqrt(static_cast<double>(gradients.size()));
      for (float& gradient : gradients) gradient = static_cast<float>(element);
      EXPECT_TRUE(actor_.OptimizerStep().ok());
    }
  }
  // How far the weights have gone since the last call: the mean of their ways, in learning rates.
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

// How far one gradient of norm 1 moves the weights in all, after `silence` updates with gradients of 0.
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
  // (1 - beta1) / sqrt(1 - beta2) / (1 - beta1 / sqrt(beta2)) = 5.8 after a silence of any length.
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

TEST(AdamWOptionsTest, AGrowthThatWouldHoldGradientsDownForEverIsRefused) {
  AdamWOptions options;
  options.max_grad_growth = 1;
  EXPECT_EQ(ErrorReason(options.Validate()), "BAD_STEP_OPTIONS");
  options.max_grad_growth = 0;
  EXPECT_TRUE(options.Validate().ok());
}

}  // namespace
}  // namespace syncopate::trainer
