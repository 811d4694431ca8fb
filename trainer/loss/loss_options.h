#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

// The loss of a policy as plain options: its parts and their constants. No libtorch. Notation, per
// token: b, o, n are log-probs under the behaviour, proximal and current policy, ref under the reference policy;
// rho = exp(o - b), u = exp(n - o), v = exp(n - b); A is the advantage, r a reward, sg() stops the gradient.
namespace syncopate::loss {

// How rewards become advantages. G samples of one prompt are a group; mean and std are the group's (std unbiased).
enum class AdvantageEstimator {
  kGrpo,                       // (r - mean) / (std + eps)                                   arXiv 2402.03300
  kDrGrpo,                     // r - mean; goes with kSeqMeanTokenSumNorm                    arXiv 2503.20783
  kRloo,                       // r - mean of the others                                      arXiv 2402.14740
  kReinforcePlusPlus,          // discounted returns, whitened over the batch's tokens        arXiv 2501.03262
  kReinforcePlusPlusBaseline,  // r - mean, whitened over the batch's tokens                arXiv 2501.03262
  kMaxRl,                      // (r - mean) / mean                                           arXiv 2602.02710
  kGdpo,                       // GRPO on each part of the reward, weighted sum, whitened over the batch's samples
                               //                                                             arXiv 2601.05242
  kBatchStd,                   // (r - mean) / (std of all rewards of the batch + eps)        arXiv 2510.13786
};

// The loss of a token, to be minimised. "ratio" is u, or v where the proximal policy is bypassed.
enum class Surrogate {
  kPpo,        // max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)); DAPO's clip-higher    arXiv 2503.14476
  kGspo,       // the same with the ratio's geometric mean over the answer                   arXiv 2507.18071
  kCispo,      // -sg(clip(ratio)) A n                                                       arXiv 2506.13585
  kReinforce,  // -A n
  kAipo,       // -sg(min(v, tis_cap)) A n                                                   arXiv 2505.24034
  kSapo,       // -(4 / tau) sigmoid(tau (ratio - 1)) A, tau by the sign of A                arXiv 2511.20347
  kDppo,       // -A v, but 0 where A > 0 and p_n - p_b > clip_high, or A < 0 and p_n - p_b < -clip_low
               //                                                                            arXiv 2602.04879
};

// The source of o, the log-prob that the ratio compares with.
enum class Proximal {
  kAuto,        // kBypass with Correction::kNone, kAipo and kDppo, else kRecompute
  kRecompute,   // log-probs of the weights at the start of the step: one more forward pass if it makes several updates
  kA3po,        // o = b + alpha (n - b), alpha = age / (age + 1) for the token's age in steps; no pass
  kA3poLinear,  // the same between probabilities instead of their logarithms
  kBypass,      // o = b for the ratio, which then is v; masks and figures compare with the current policy instead
};

// How the mismatch between behaviour and proximal policy changes a token's loss: by a weight or a mask.
enum class Correction {
  kMis,         // weight rho where mis_low <= rho <= mis_high, else 0 (IcePop)
  kTis,         // weight min(rho, tis_cap), at least tis_floor
  kNone,        // none
  kSeqTis,      // weight min(prod rho of the answer, seq_tis_cap)
  kSeqMis,      // answers outside mis_low <= prod rho <= mis_high are masked
  kGeometric,   // answers outside geometric_low <= geometric mean of rho <= geometric_high are masked: a trust region
  kSeqMaskTis,  // both kGeometric and kTis
};

// A second mask by an estimate of the divergence of behaviour and proximal policy: k1 = -log rho, k2 = (log rho)^2 / 2,
// k3 = rho - 1 - log rho. Bounds are inclusive. Of k1 they are for the inverse ratio.
enum class Rejection { kNone, kK1, kK2, kK3 };
// Each token by itself, or whole answers by a figure over their tokens.
enum class RejectionLevel { kToken, kSum, kMean, kMax };

// From losses of tokens to that of an update. Counts are those of the whole update over all micro-batches and ranks, of
// tokens before any rejection, or rejecting would raise the learning rate of what is left.
enum class Aggregation {
  kAuto,                 // kSeqMeanTokenSumNorm with kDrGrpo, kSeqMeanTokenMean with kGspo, else kTokenMean
  kTokenMean,            // sum / tokens
  kTokenSum,             // sum
  kSeqMeanTokenSum,      // mean over answers of their sums
  kSeqMeanTokenMean,     // mean over answers of their means
  kSeqMeanTokenSumNorm,  // sum / (answers x max_response_tokens)
  kPromptMean,           // mean over groups of their token means
};

// Estimates of KL(current || reference), x = n - ref (J. Schulman, "Approximating KL divergence").
enum class KlEstimator {
  kAuto,    // kK1 in the reward, kK3Plus in the loss
  kK1,      // x
  kK2,      // x^2 / 2: on policy its gradient is the true one
  kK3,      // exp(-x) - 1 + x: the least variance, another gradient
  kK3Plus,  // the value of kK3 with the gradient of kK2
};

// How answers that reach, or come near, the length limit are treated.
enum class Overlong {
  kNone,
  kDapo,    // reward - factor x share of the last `overlong_cache` tokens that it uses                arXiv 2503.14476
  kMask,    // an answer that was cut off counts in its group's mean, and is not trained on
  kLinear,  // reward - factor x length / longest
};

struct RewardWeight {
  std::string part;
  double weight = 1;
  friend bool operator==(const RewardWeight&, const RewardWeight&) = default;
};

struct AdvantageOptions {
  AdvantageEstimator estimator = AdvantageEstimator::kGrpo;
  double eps = 1e-6;    // kGrpo, kGdpo, kBatchStd
  double discount = 1;  // kReinforcePlusPlus: of the reward per token that lies between
  // kGdpo: parts that count, by their names; empty: all that there are, with weight 1.
  std::vector<RewardWeight> reward_weights = {};

  // Batch statistics enter: ranks must add up their moments.
  bool needs_batch_moments() const;
  // The figure of a sample depends on the others of its group.
  bool compares_samples() const { return estimator != AdvantageEstimator::kReinforcePlusPlus; }
};

// Why options are invalid, in words of the configuration.
struct LossProblem {
  std::vector<std::string>
      keys;              // that take part, below `train` unless they name a section; the likeliest culprit first
  std::string value;     // of the first of them
  std::string expected;  // what it should be, and why
};

struct LossOptions {
  AdvantageOptions advantage;

  Surrogate surrogate = Surrogate::kPpo;
  double clip_low = 0.2;    // of kPpo, kGspo (usual 3e-4), kCispo (usual 1: no lower bound), kDppo
  double clip_high = 0.28;  // usual: kGspo 4e-4, kCispo 4, kDppo 0.2
  double dual_clip = 0;     // with A < 0 a loss is at most -A dual_clip (arXiv 1912.09729), usual 3; 0: off
  double sapo_tau_positive = 1.0;
  double sapo_tau_negative = 1.05;
  double opsm_delta = 0;  // answers with A < 0 and mean(-log ratio) over it are masked (DeepSeek V3.2); 0: off

  Proximal proximal = Proximal::kAuto;
  Correction correction = Correction::kMis;
  double mis_low = 0.5;
  double mis_high = 2.0;
  double tis_cap = 2.0;
  double tis_floor = 0.0;
  double seq_tis_cap = 5.0;
  double geometric_low = 0.99;
  double geometric_high = 1.01;
  double veto = 0;  // an answer with any rho under it is masked, usual 1e-4; 0: off
  Rejection rejection = Rejection::kNone;
  RejectionLevel rejection_level = RejectionLevel::kToken;
  double rejection_low = 0;
  double rejection_high = 1;

  // Tokens that are older, in steps, have no loss; they stay in the denominators, and their answers in the advantages
  // of their groups. -1: no limit.
  int64_t max_token_age = -1;

  Aggregation aggregation = Aggregation::kAuto;
  int64_t max_response_tokens = 0;  // the longest answer there may be, for kSeqMeanTokenSumNorm and Overlong

  double kl_coefficient = 0;  // of the divergence from the reference policy; 0: off, and no reference is needed
  bool kl_in_reward = false;  // taken off each token's reward instead of added to its loss
  KlEstimator kl_estimator = KlEstimator::kAuto;
  // The estimate is multiplied by the ratio, whose gradient counts: unbiased off policy (DeepSeek V3.2).
  bool kl_importance = false;
  double kl_tau = 0;               // adds kl_tau (n - b)^2, in Kimi K2.5's form of the KL; usual with kDppo: 1e-3
  double entropy_coefficient = 0;  // adds -entropy_coefficient x entropy

  Overlong overlong = Overlong::kNone;
  int64_t overlong_cache = 0;
  double overlong_factor = 1;

  // Returns values outside their range, and combinations that count importance twice or in which one part has no
  // effect.
  std::vector<LossProblem> FindProblems() const;
  // INVALID_ARGUMENT (reason BAD_STEP_OPTIONS) with the first of them.
  absl::Status Validate() const;

  // The parts that kAuto stands for with these options.
  Proximal chosen_proximal() const;
  Aggregation chosen_aggregation() const;
  KlEstimator chosen_kl_estimator() const;
  // The caller must give TokenBatch::proximal when the weights have moved since the start of the step.
  bool needs_proximal() const { return chosen_proximal() == Proximal::kRecompute; }
  bool needs_reference() const { return kl_coefficient != 0; }
  // Terms of the loss have a gradient where all advantages are 0.
  bool has_penalties() const {
    return (kl_coefficient != 0 && !kl_in_reward) || kl_tau != 0 || entropy_coefficient != 0;
  }
  // The loss of a token depends on other tokens of its answer, which must be in the same TokenBatch.
  bool needs_whole_answers() const;
};

// Names as the configuration has them: "dr_grpo", "seq_mean_token_sum_norm". Nothing if there is no such name.
template <typename Part>
std::optional<Part> FindPart(absl::string_view name);
// The name of a part.
template <typename Part>
std::string GetName(Part part);

// "accuracy=1,format=0.5" -> the parts and their weights; "" -> none. INVALID_ARGUMENT (reason BAD_STEP_OPTIONS) saying
// which word is not of that form.
absl::StatusOr<std::vector<RewardWeight>> ParseRewardWeights(absl::string_view text);

}  // namespace syncopate::loss
