#include "trainer/loss/loss_options.h"

#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"

namespace syncopate::loss {
namespace {

absl::Status Bad(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_STEP_OPTIONS", message);
}

template <typename Part>
struct Named {
  Part part;
  const char* name;
};

// The one table of names for each kind of part.
template <typename Part>
absl::Span<const Named<Part>> Names();

template <>
absl::Span<const Named<AdvantageEstimator>> Names() {
  static constexpr Named<AdvantageEstimator> kNames[] = {
      {AdvantageEstimator::kGrpo, "grpo"},
      {AdvantageEstimator::kDrGrpo, "dr_grpo"},
      {AdvantageEstimator::kRloo, "rloo"},
      {AdvantageEstimator::kReinforcePlusPlus, "reinforce_pp"},
      {AdvantageEstimator::kReinforcePlusPlusBaseline, "reinforce_pp_baseline"},
      {AdvantageEstimator::kMaxRl, "maxrl"},
      {AdvantageEstimator::kGdpo, "gdpo"},
      {AdvantageEstimator::kBatchStd, "batch_std"}};
  return kNames;
}

template <>
absl::Span<const Named<Surrogate>> Names() {
  static constexpr Named<Surrogate> kNames[] = {{Surrogate::kPpo, "ppo"},     {Surrogate::kGspo, "gspo"},
                                                {Surrogate::kCispo, "cispo"}, {Surrogate::kReinforce, "reinforce"},
                                                {Surrogate::kAipo, "aipo"},   {Surrogate::kSapo, "sapo"},
                                                {Surrogate::kDppo, "dppo"}};
  return kNames;
}

template <>
absl::Span<const Named<Proximal>> Names() {
  static constexpr Named<Proximal> kNames[] = {{Proximal::kAuto, "auto"},
                                               {Proximal::kRecompute, "recompute"},
                                               {Proximal::kA3po, "a3po"},
                                               {Proximal::kA3poLinear, "a3po_linear"},
                                               {Proximal::kBypass, "bypass"}};
  return kNames;
}

template <>
absl::Span<const Named<Correction>> Names() {
  static constexpr Named<Correction> kNames[] = {{Correction::kMis, "mis"},
                                                 {Correction::kTis, "tis"},
                                                 {Correction::kNone, "none"},
                                                 {Correction::kSeqTis, "seq_tis"},
                                                 {Correction::kSeqMis, "seq_mis"},
                                                 {Correction::kGeometric, "geometric"},
                                                 {Correction::kSeqMaskTis, "seq_mask_tis"}};
  return kNames;
}

template <>
absl::Span<const Named<Rejection>> Names() {
  static constexpr Named<Rejection> kNames[] = {
      {Rejection::kNone, "none"}, {Rejection::kK1, "k1"}, {Rejection::kK2, "k2"}, {Rejection::kK3, "k3"}};
  return kNames;
}

template <>
absl::Span<const Named<RejectionLevel>> Names() {
  static constexpr Named<RejectionLevel> kNames[] = {{RejectionLevel::kToken, "token"},
                                                     {RejectionLevel::kSum, "sum"},
                                                     {RejectionLevel::kMean, "mean"},
                                                     {RejectionLevel::kMax, "max"}};
  return kNames;
}

template <>
absl::Span<const Named<Aggregation>> Names() {
  static constexpr Named<Aggregation> kNames[] = {{Aggregation::kAuto, "auto"},
                                                  {Aggregation::kTokenMean, "token_mean"},
                                                  {Aggregation::kTokenSum, "token_sum"},
                                                  {Aggregation::kSeqMeanTokenSum, "seq_mean_token_sum"},
                                                  {Aggregation::kSeqMeanTokenMean, "seq_mean_token_mean"},
                                                  {Aggregation::kSeqMeanTokenSumNorm, "seq_mean_token_sum_norm"},
                                                  {Aggregation::kPromptMean, "prompt_mean"}};
  return kNames;
}

template <>
absl::Span<const Named<KlEstimator>> Names() {
  static constexpr Named<KlEstimator> kNames[] = {{KlEstimator::kAuto, "auto"},
                                                  {KlEstimator::kK1, "k1"},
                                                  {KlEstimator::kK2, "k2"},
                                                  {KlEstimator::kK3, "k3"},
                                                  {KlEstimator::kK3Plus, "k3_plus"}};
  return kNames;
}

template <>
absl::Span<const Named<Overlong>> Names() {
  static constexpr Named<Overlong> kNames[] = {
      {Overlong::kNone, "none"}, {Overlong::kDapo, "dapo"}, {Overlong::kMask, "mask"}, {Overlong::kLinear, "linear"}};
  return kNames;
}

// The surrogate contains v = exp(n - b) itself, whatever the proximal policy is.
bool ContainsBehaviourRatio(Surrogate surrogate) {
  return surrogate == Surrogate::kAipo || surrogate == Surrogate::kDppo;
}

bool HasClip(Surrogate surrogate) { return surrogate == Surrogate::kPpo || surrogate == Surrogate::kGspo; }

// The correction multiplies losses with importance weights, and does not only mask.
bool HasWeight(Correction correction) {
  return correction == Correction::kMis || correction == Correction::kTis || correction == Correction::kSeqTis ||
         correction == Correction::kSeqMaskTis;
}

class Problems {
 public:
  // `value` is that of the first of `keys`, which should be as `expected` says.
  template <typename Value>
  void Expect(bool is_met, std::vector<std::string> keys, const Value& value, const std::string& expected) {
    if (!is_met) problems_.push_back({std::move(keys), absl::StrCat(value), expected});
  }
  std::vector<LossProblem> Take() { return std::move(problems_); }

 private:
  std::vector<LossProblem> problems_;
};

void CheckSurrogate(const LossOptions& options, Problems* problems) {
  const std::string surrogate = GetName(options.surrogate);
  problems->Expect(options.clip_low > 0 && options.clip_low <= 1, {"clip_low"}, options.clip_low, "in (0, 1]");
  problems->Expect(options.clip_high > 0, {"clip_high"}, options.clip_high, "more than 0");
  problems->Expect(options.dual_clip == 0 || options.dual_clip > 1, {"dual_clip"}, options.dual_clip,
                   "more than 1, or 0 for off");
  problems->Expect(options.dual_clip == 0 || HasClip(options.surrogate), {"dual_clip", "policy_loss"},
                   options.dual_clip,
                   absl::StrCat("0, as it bounds the clipped ratio of ppo and gspo, and ", surrogate, " has none"));
  for (const auto& [key, tau] : {std::pair{"sapo_tau_positive", options.sapo_tau_positive},
                                 std::pair{"sapo_tau_negative", options.sapo_tau_negative}}) {
    problems->Expect(tau > 0, {key}, tau, "more than 0");
  }
  problems->Expect(options.opsm_delta >= 0, {"opsm_delta"}, options.opsm_delta, "at least 0");
}

void CheckCorrectionRanges(const LossOptions& options, Problems* problems) {
  problems->Expect(options.mis_low >= 0 && options.mis_low <= 1, {"mis_low"}, options.mis_low, "in [0, 1]");
  problems->Expect(options.mis_high >= 1, {"mis_high"}, options.mis_high, "at least 1");
  problems->Expect(options.geometric_low >= 0 && options.geometric_low <= 1, {"geometric_low"}, options.geometric_low,
                   "in [0, 1]");
  problems->Expect(options.geometric_high >= 1, {"geometric_high"}, options.geometric_high, "at least 1");
  problems->Expect(options.tis_cap >= 1, {"tis_cap"}, options.tis_cap, "at least 1");
  problems->Expect(options.tis_floor >= 0 && options.tis_floor <= 1, {"tis_floor"}, options.tis_floor, "in [0, 1]");
  problems->Expect(options.seq_tis_cap >= 1, {"seq_tis_cap"}, options.seq_tis_cap, "at least 1");
  problems->Expect(options.veto >= 0 && options.veto < 1, {"veto"}, options.veto, "in [0, 1)");
  if (options.rejection == Rejection::kNone) return;
  // All three estimates are 0 where the policies agree: bounds without it would reject what is on policy.
  problems->Expect(options.rejection_low <= 0, {"reject_low", "reject"}, options.rejection_low,
                   "at most 0, which is the estimate where the policies agree");
  problems->Expect(options.rejection_high >= 0, {"reject_high", "reject"}, options.rejection_high,
                   "at least 0, which is the estimate where the policies agree");
}

void CheckImportance(const LossOptions& options, Problems* problems) {
  const std::string surrogate = GetName(options.surrogate), correction = GetName(options.correction);
  constexpr char kMasks[] = "none, seq_mis or geometric, which only mask";
  if (ContainsBehaviourRatio(options.surrogate)) {
    problems->Expect(options.proximal == Proximal::kAuto || options.proximal == Proximal::kBypass,
                     {"proximal", "policy_loss"}, GetName(options.proximal),
                     absl::StrCat("auto, as ", surrogate,
                                  " compares the current policy with the behaviour policy "
                                  "itself, and another would do nothing"));
    problems->Expect(!HasWeight(options.correction), {"correction", "policy_loss"}, correction,
                     absl::StrCat(kMasks, ", as ", surrogate, " contains the ratio current/behaviour already, and ",
                                  correction, " would count importance twice"));
    return;
  }
  // REINFORCE has no ratio of its own: a weight counts once wherever the proximal policy comes from.
  const bool holds_ratio = options.proximal == Proximal::kBypass && options.surrogate != Surrogate::kReinforce;
  problems->Expect(!holds_ratio || !HasWeight(options.correction), {"correction", "proximal", "policy_loss"},
                   correction,
                   absl::StrCat(kMasks, ", as with proximal bypass the ratio of ", surrogate,
                                " is current/behaviour, and ", correction,
                                " would count importance twice; or "
                                "proximal auto, where the ratio is current/proximal"));
}

void CheckAdvantage(const LossOptions& options, Problems* problems) {
  const AdvantageOptions& advantage = options.advantage;
  const std::string name = GetName(advantage.estimator);
  problems->Expect(advantage.eps > 0, {"advantage_eps"}, advantage.eps, "more than 0");
  problems->Expect(advantage.discount > 0 && advantage.discount <= 1, {"return_discount"}, advantage.discount,
                   "in (0, 1]");
  problems->Expect(advantage.discount == 1 || advantage.estimator == AdvantageEstimator::kReinforcePlusPlus,
                   {"return_discount", "advantage"}, advantage.discount,
                   absl::StrCat("1, as reinforce_pp alone has returns by token, and advantage is ", name));
  problems->Expect(advantage.reward_weights.empty() || advantage.estimator == AdvantageEstimator::kGdpo,
                   {"reward_weights", "advantage"}, "set",
                   absl::StrCat("nothing, as gdpo alone sees the parts of a reward, and advantage is ", name));
  // Dr. GRPO (arXiv 2503.20783) removes two biases, that of the standard deviation and that of the length; with another
  // aggregation only one of them would be gone.
  problems->Expect(advantage.estimator != AdvantageEstimator::kDrGrpo ||
                       options.chosen_aggregation() == Aggregation::kSeqMeanTokenSumNorm,
                   {"aggregation", "advantage"}, GetName(options.aggregation),
                   "auto or seq_mean_token_sum_norm, the other half of dr_grpo; rloo has the same baseline and goes "
                   "with any aggregation");
  if (advantage.estimator != AdvantageEstimator::kGdpo) return;
  problems->Expect(options.overlong == Overlong::kNone || options.overlong == Overlong::kMask,
                   {"overlong", "advantage"}, GetName(options.overlong),
                   "none or mask, as gdpo reads the parts of a reward, and a penalty is none of them");
  problems->Expect(!options.kl_in_reward || options.kl_coefficient == 0, {"kl_in", "advantage"}, "reward",
                   "loss, as gdpo reads the parts of a reward, and the KL is none of them");
}

void CheckDivergence(const LossOptions& options, Problems* problems) {
  for (const auto& [key, coefficient] :
       {std::pair{"kl_coef", options.kl_coefficient}, std::pair{"kl_tau", options.kl_tau},
        std::pair{"entropy_coef", options.entropy_coefficient}}) {
    problems->Expect(coefficient >= 0, {key}, coefficient, "at least 0");
  }
  problems->Expect(!options.kl_importance || options.kl_coefficient != 0, {"kl_importance", "kl_coef"}, "true",
                   "false, as without kl_coef there is nothing to correct");
  if (options.kl_coefficient == 0) return;
  const KlEstimator estimator = options.chosen_kl_estimator();
  if (options.kl_in_reward) {
    problems->Expect(estimator == KlEstimator::kK1, {"kl_estimator", "kl_in"}, GetName(estimator),
                     "auto or k1 with kl_in reward: its expectation is the KL, and no gradient goes through it");
    problems->Expect(!options.kl_importance, {"kl_importance", "kl_in"}, "true",
                     "false with kl_in reward, which is corrected with the rest of the reward");
    return;
  }
  problems->Expect(estimator != KlEstimator::kK1 || options.kl_importance, {"kl_estimator", "kl_in", "kl_importance"},
                   "k1",
                   "k3_plus or k2, as the gradient of k1 in the loss has a mean of 0; or kl_in reward, or "
                   "kl_importance true");
}

void CheckLengths(const LossOptions& options, Problems* problems) {
  const bool has_norm = options.chosen_aggregation() == Aggregation::kSeqMeanTokenSumNorm;
  const bool has_penalty = options.overlong == Overlong::kDapo || options.overlong == Overlong::kLinear;
  problems->Expect(!(has_norm || has_penalty) || options.max_response_tokens >= 1, {"rollout.max_new_tokens"},
                   options.max_response_tokens, "at least 1, as the length of answers counts");
  problems->Expect(options.overlong_factor > 0, {"overlong_factor"}, options.overlong_factor, "more than 0");
  const bool has_room = options.overlong_cache >= 1 && options.overlong_cache <= options.max_response_tokens;
  problems->Expect(options.overlong != Overlong::kDapo || has_room,
                   {"overlong_cache", "rollout.max_new_tokens", "overlong"}, options.overlong_cache,
                   absl::StrCat("from 1 to the longest answer, ", options.max_response_tokens,
                                ": the last tokens, over which the penalty grows"));
}

}  // namespace

bool AdvantageOptions::needs_batch_moments() const {
  return estimator == AdvantageEstimator::kReinforcePlusPlus ||
         estimator == AdvantageEstimator::kReinforcePlusPlusBaseline || estimator == AdvantageEstimator::kGdpo ||
         estimator == AdvantageEstimator::kBatchStd;
}

std::vector<LossProblem> LossOptions::FindProblems() const {
  Problems problems;
  CheckSurrogate(*this, &problems);
  CheckCorrectionRanges(*this, &problems);
  CheckImportance(*this, &problems);
  CheckAdvantage(*this, &problems);
  CheckDivergence(*this, &problems);
  CheckLengths(*this, &problems);
  return problems.Take();
}

absl::Status LossOptions::Validate() const {
  const std::vector<LossProblem> problems = FindProblems();
  if (problems.empty()) return absl::OkStatus();
  const LossProblem& first = problems.front();
  return Bad(absl::StrCat(first.keys.front(), " is ", first.value, "; it must be ", first.expected));
}

Proximal LossOptions::chosen_proximal() const {
  if (proximal != Proximal::kAuto) return proximal;
  if (ContainsBehaviourRatio(surrogate)) return Proximal::kBypass;
  // REINFORCE without a weight has neither ratio: there is nothing to compare with, and no pass to make.
  return correction == Correction::kNone ? Proximal::kBypass : Proximal::kRecompute;
}

Aggregation LossOptions::chosen_aggregation() const {
  if (aggregation != Aggregation::kAuto) return aggregation;
  if (advantage.estimator == AdvantageEstimator::kDrGrpo) return Aggregation::kSeqMeanTokenSumNorm;
  return surrogate == Surrogate::kGspo ? Aggregation::kSeqMeanTokenMean : Aggregation::kTokenMean;
}

KlEstimator LossOptions::chosen_kl_estimator() const {
  if (kl_estimator != KlEstimator::kAuto) return kl_estimator;
  return kl_in_reward ? KlEstimator::kK1 : KlEstimator::kK3Plus;
}

bool LossOptions::needs_whole_answers() const {
  const bool masks_answers = correction == Correction::kSeqTis || correction == Correction::kSeqMis ||
                             correction == Correction::kGeometric || correction == Correction::kSeqMaskTis;
  return surrogate == Surrogate::kGspo || masks_answers || veto > 0 || opsm_delta > 0 ||
         (rejection != Rejection::kNone && rejection_level != RejectionLevel::kToken);
}

template <typename Part>
std::optional<Part> FindPart(absl::string_view name) {
  for (const Named<Part>& named : Names<Part>()) {
    if (name == named.name) return named.part;
  }
  return std::nullopt;
}

template <typename Part>
std::string GetName(Part part) {
  for (const Named<Part>& named : Names<Part>()) {
    if (part == named.part) return named.name;
  }
  return "?";
}

template std::optional<AdvantageEstimator> FindPart(absl::string_view);
template std::optional<Surrogate> FindPart(absl::string_view);
template std::optional<Proximal> FindPart(absl::string_view);
template std::optional<Correction> FindPart(absl::string_view);
template std::optional<Rejection> FindPart(absl::string_view);
template std::optional<RejectionLevel> FindPart(absl::string_view);
template std::optional<Aggregation> FindPart(absl::string_view);
template std::optional<KlEstimator> FindPart(absl::string_view);
template std::optional<Overlong> FindPart(absl::string_view);
template std::string GetName(AdvantageEstimator);
template std::string GetName(Surrogate);
template std::string GetName(Proximal);
template std::string GetName(Correction);
template std::string GetName(Rejection);
template std::string GetName(RejectionLevel);
template std::string GetName(Aggregation);
template std::string GetName(KlEstimator);
template std::string GetName(Overlong);

absl::StatusOr<std::vector<RewardWeight>> ParseRewardWeights(absl::string_view text) {
  std::vector<RewardWeight> weights;
  for (absl::string_view word : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> halves = absl::StrSplit(word, absl::MaxSplits('=', 1));
    RewardWeight weight;
    weight.part = std::string(absl::StripAsciiWhitespace(halves.first));
    const bool is_number = absl::SimpleAtod(halves.second, &weight.weight) && std::isfinite(weight.weight);
    if (weight.part.empty() || !is_number) {
      return Bad(absl::StrCat("reward_weights: '", word, "' is not of the form part=weight, such as accuracy=1"));
    }
    for (const RewardWeight& other : weights) {
      if (other.part == weight.part) return Bad(absl::StrCat("reward_weights names ", weight.part, " twice"));
    }
    weights.push_back(std::move(weight));
  }
  return weights;
}

}  // namespace syncopate::loss
