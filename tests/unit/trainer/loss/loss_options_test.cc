#include "trainer/loss/loss_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace syncopate::loss {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The refusal of the default options after `change`: "" if they are accepted.
std::string Refusal(const std::function<void(LossOptions&)>& change) {
  LossOptions options;
  options.max_response_tokens = 16;
  change(options);
  const absl::Status status = options.Validate();
  if (status.ok()) return "";
  EXPECT_EQ(ErrorReason(status), "BAD_STEP_OPTIONS");
  return std::string(status.message());
}

TEST(LossOptionsTest, TheDefaultsAreDecoupledPpoWithTheIcePopBand) {
  const LossOptions options;
  EXPECT_TRUE(options.Validate().ok());
  EXPECT_EQ(options.chosen_proximal(), Proximal::kRecompute);
  EXPECT_EQ(options.chosen_aggregation(), Aggregation::kTokenMean);
  EXPECT_FALSE(options.needs_reference());
  EXPECT_FALSE(options.needs_whole_answers());
}

TEST(LossOptionsTest, EveryPartHasANameThatFindsIt) {
  for (int i = 0; i <= static_cast<int>(AdvantageEstimator::kBatchStd); ++i) {
    const auto part = static_cast<AdvantageEstimator>(i);
    EXPECT_EQ(FindPart<AdvantageEstimator>(GetName(part)), part);
  }
  for (int i = 0; i <= static_cast<int>(Surrogate::kDppo); ++i) {
    const auto part = static_cast<Surrogate>(i);
    EXPECT_EQ(FindPart<Surrogate>(GetName(part)), part);
  }
  EXPECT_EQ(FindPart<Correction>("seq_mask_tis"), Correction::kSeqMaskTis);
  EXPECT_EQ(FindPart<Surrogate>("topr"), std::nullopt);
}

TEST(LossOptionsTest, AutoFollowsTheParts) {
  LossOptions options;
  options.correction = Correction::kNone;
  EXPECT_EQ(options.chosen_proximal(), Proximal::kBypass);
  options.surrogate = Surrogate::kGspo;
  EXPECT_EQ(options.chosen_aggregation(), Aggregation::kSeqMeanTokenMean);
  EXPECT_TRUE(options.needs_whole_answers());
  options.advantage.estimator = AdvantageEstimator::kDrGrpo;
  EXPECT_EQ(options.chosen_aggregation(), Aggregation::kSeqMeanTokenSumNorm);
  options.surrogate = Surrogate::kDppo;
  EXPECT_FALSE(options.needs_proximal());
  EXPECT_EQ(options.chosen_kl_estimator(), KlEstimator::kK3Plus);
  options.kl_in_reward = true;
  EXPECT_EQ(options.chosen_kl_estimator(), KlEstimator::kK1);
}

TEST(LossOptionsTest, RefusesToCountImportanceTwice) {
  for (Correction correction : {Correction::kMis, Correction::kTis, Correction::kSeqTis, Correction::kSeqMaskTis}) {
    EXPECT_THAT(
        Refusal([&](LossOptions& o) {
          o.proximal = Proximal::kBypass;
          o.correction = correction;
        }),
        AllOf(HasSubstr("twice"), HasSubstr(GetName(correction)), HasSubstr("must be none, seq_mis or geometric")));
    for (Surrogate surrogate : {Surrogate::kAipo, Surrogate::kDppo}) {
      EXPECT_THAT(
          Refusal([&](LossOptions& o) {
            o.surrogate = surrogate;
            o.correction = correction;
          }),
          AllOf(HasSubstr("twice"), HasSubstr(GetName(surrogate)), HasSubstr("must be none, seq_mis or geometric")));
    }
  }
  // Masks are no weights, and REINFORCE has no ratio beside which a weight would count.
  EXPECT_EQ(Refusal([](LossOptions& o) {
              o.proximal = Proximal::kBypass;
              o.correction = Correction::kGeometric;
            }),
            "");
  EXPECT_EQ(Refusal([](LossOptions& o) {
              o.surrogate = Surrogate::kAipo;
              o.correction = Correction::kSeqMis;
            }),
            "");
  EXPECT_EQ(Refusal([](LossOptions& o) {
              o.surrogate = Surrogate::kReinforce;
              o.proximal = Proximal::kBypass;
              o.correction = Correction::kTis;
            }),
            "");
}

TEST(LossOptionsTest, RefusesAProximalPolicyThatNothingLooksAt) {
  for (Proximal proximal : {Proximal::kRecompute, Proximal::kA3po, Proximal::kA3poLinear}) {
    EXPECT_THAT(Refusal([&](LossOptions& o) {
                  o.surrogate = Surrogate::kAipo;
                  o.correction = Correction::kNone;
                  o.proximal = proximal;
                }),
                AllOf(HasSubstr("would do nothing"), HasSubstr("must be auto")));
  }
}

TEST(LossOptionsTest, RefusesADualClipWithoutAClip) {
  for (Surrogate surrogate : {Surrogate::kCispo, Surrogate::kReinforce, Surrogate::kSapo}) {
    EXPECT_THAT(Refusal([&](LossOptions& o) {
                  o.surrogate = surrogate;
                  o.dual_clip = 3;
                }),
                AllOf(HasSubstr("dual_clip"), HasSubstr("must be 0")));
  }
  EXPECT_THAT(Refusal([](LossOptions& o) { o.dual_clip = 1; }), HasSubstr("more than 1"));
}

TEST(LossOptionsTest, RefusesHalfOfDrGrpo) {
  EXPECT_EQ(Refusal([](LossOptions& o) { o.advantage.estimator = AdvantageEstimator::kDrGrpo; }), "");
  EXPECT_THAT(Refusal([](LossOptions& o) {
                o.advantage.estimator = AdvantageEstimator::kDrGrpo;
                o.aggregation = Aggregation::kTokenMean;
              }),
              AllOf(HasSubstr("seq_mean_token_sum_norm"), HasSubstr("rloo")));
  EXPECT_THAT(Refusal([](LossOptions& o) {
                o.advantage.estimator = AdvantageEstimator::kDrGrpo;
                o.max_response_tokens = 0;
              }),
              HasSubstr("rollout.max_new_tokens"));
}

TEST(LossOptionsTest, RefusesWhatOneEstimatorAloneHas) {
  EXPECT_THAT(Refusal([](LossOptions& o) { o.advantage.discount = .9; }), HasSubstr("reinforce_pp"));
  EXPECT_THAT(Refusal([](LossOptions& o) { o.advantage.reward_weights = {{"right", 1}}; }), HasSubstr("gdpo"));
  EXPECT_THAT(Refusal([](LossOptions& o) {
                o.advantage.estimator = AdvantageEstimator::kGdpo;
                o.overlong = Overlong::kLinear;
              }),
              HasSubstr("parts of a reward"));
}

TEST(LossOptionsTest, RefusesEstimatesOfTheKlThatTeachNothing) {
  EXPECT_THAT(Refusal([](LossOptions& o) {
                o.kl_coefficient = .1;
                o.kl_estimator = KlEstimator::kK1;
              }),
              AllOf(HasSubstr("mean of 0"), HasSubstr("k3_plus")));
  EXPECT_THAT(Refusal([](LossOptions& o) {
                o.kl_coefficient = .1;
                o.kl_estimator = KlEstimator::kK3;
                o.kl_in_reward = true;
              }),
              HasSubstr("must be auto or k1"));
  EXPECT_THAT(Refusal([](LossOptions& o) { o.kl_importance = true; }), HasSubstr("kl_coef"));
  EXPECT_THAT(Refusal([](LossOptions& o) {
                o.kl_coefficient = .1;
                o.kl_in_reward = o.kl_importance = true;
              }),
              HasSubstr("kl_importance"));
  EXPECT_EQ(Refusal([](LossOptions& o) {  // with the ratio, the gradient of this estimator is the true one
              o.kl_coefficient = .1;
              o.kl_estimator = KlEstimator::kK1;
              o.kl_importance = true;
            }),
            "");
}

TEST(LossOptionsTest, RefusesValuesOutOfRange) {
  const std::pair<const char*, std::function<void(LossOptions&)>> cases[] = {
      {"clip_low", [](LossOptions& o) { o.clip_low = 1.5; }},
      {"clip_high", [](LossOptions& o) { o.clip_high = 0; }},
      {"mis_low", [](LossOptions& o) { o.mis_low = 1.5; }},
      {"geometric_high", [](LossOptions& o) { o.geometric_high = .9; }},
      {"tis_cap", [](LossOptions& o) { o.tis_cap = .9; }},
      {"tis_floor", [](LossOptions& o) { o.tis_floor = 1.1; }},
      {"seq_tis_cap", [](LossOptions& o) { o.seq_tis_cap = .5; }},
      {"veto", [](LossOptions& o) { o.veto = 1; }},
      {"opsm_delta", [](LossOptions& o) { o.opsm_delta = -1; }},
      {"sapo_tau", [](LossOptions& o) { o.sapo_tau_negative = 0; }},
      {"advantage_eps", [](LossOptions& o) { o.advantage.eps = 0; }},
      {"entropy_coef", [](LossOptions& o) { o.entropy_coefficient = -1; }},
      {"kl_coef", [](LossOptions& o) { o.kl_coefficient = -1; }},
      {"overlong_factor", [](LossOptions& o) { o.overlong_factor = 0; }},
      {"overlong_cache", [](LossOptions& o) { o.overlong = Overlong::kDapo; }},
      {"reject_low", [](LossOptions& o) {
         o.rejection = Rejection::kK2;
         o.rejection_low = .1;
       }}};
  for (const auto& [word, change] : cases) EXPECT_THAT(Refusal(change), HasSubstr(word));
}

TEST(LossOptionsTest, EveryProblemIsFoundAtOnce) {
  LossOptions options;
  options.proximal = Proximal::kBypass;
  options.dual_clip = 0.5;
  options.kl_importance = true;
  const std::vector<LossProblem> problems = options.FindProblems();
  ASSERT_EQ(problems.size(), 3u);
  EXPECT_EQ(problems[0].keys, (std::vector<std::string>{"dual_clip"}));
  EXPECT_EQ(problems[1].keys, (std::vector<std::string>{"correction", "proximal", "policy_loss"}));
  EXPECT_EQ(problems[1].value, "mis");
  EXPECT_EQ(problems[2].keys.front(), "kl_importance");
}

TEST(RewardWeightsTest, AreReadFromWords) {
  EXPECT_TRUE(ParseRewardWeights("")->empty());
  EXPECT_EQ(*ParseRewardWeights("accuracy=1, format=0.5"),
            (std::vector<RewardWeight>{{"accuracy", 1}, {"format", .5}}));
  for (const char* wrong : {"accuracy", "=1", "accuracy=one", "a=1,a=2"}) {
    EXPECT_EQ(ErrorReason(ParseRewardWeights(wrong).status()), "BAD_STEP_OPTIONS") << wrong;
  }
}

}  // namespace
}  // namespace syncopate::loss
