#include "services/config/loss_options.h"

#include <string>

#include "services/config/rules.h"

namespace syncopate::config {
namespace {

template <typename Part>
void Read(const std::string& name, Part* part) {
  *part = loss::FindPart<Part>(name).value_or(*part);
}

void ReadAdvantage(const v1::TrainSection& train, loss::AdvantageOptions* advantage) {
  Read(train.advantage(), &advantage->estimator);
  advantage->eps = train.advantage_eps();
  advantage->discount = train.return_discount();
  // Text that cannot be parsed is reported by CheckRules; here it means no weights.
  auto weights = loss::ParseRewardWeights(train.reward_weights());
  if (weights.ok()) advantage->reward_weights = *weights;
}

void ReadSurrogate(const v1::TrainSection& train, loss::LossOptions* options) {
  Read(train.policy_loss(), &options->surrogate);
  options->clip_low = train.clip_low();
  options->clip_high = train.clip_high();
  options->dual_clip = train.dual_clip();
  options->sapo_tau_positive = train.sapo_tau_positive();
  options->sapo_tau_negative = train.sapo_tau_negative();
  options->opsm_delta = train.opsm_delta();
}

void ReadCorrection(const v1::TrainSection& train, loss::LossOptions* options) {
  Read(train.proximal(), &options->proximal);
  Read(train.correction(), &options->correction);
  options->mis_low = train.mis_low();
  options->mis_high = train.mis_high();
  options->tis_cap = train.tis_cap();
  options->tis_floor = train.tis_floor();
  options->seq_tis_cap = train.seq_tis_cap();
  options->geometric_low = train.geometric_low();
  options->geometric_high = train.geometric_high();
  options->veto = train.veto();
  Read(train.reject(), &options->rejection);
  Read(train.reject_over(), &options->rejection_level);
  options->rejection_low = train.reject_low();
  options->rejection_high = train.reject_high();
}

void ReadDivergence(const v1::TrainSection& train, loss::LossOptions* options) {
  options->kl_coefficient = train.kl_coef();
  options->kl_in_reward = train.kl_in() == "reward";
  Read(train.kl_estimator(), &options->kl_estimator);
  options->kl_importance = train.kl_importance();
  options->kl_tau = train.kl_tau();
  options->entropy_coefficient = train.entropy_coef();
}

}  // namespace

loss::LossOptions MakeLossOptions(const v1::RunConfig& config) {
  const v1::TrainSection& train = config.train();
  loss::LossOptions options;
  ReadAdvantage(train, &options.advantage);
  ReadSurrogate(train, &options);
  ReadCorrection(train, &options);
  ReadDivergence(train, &options);
  Read(train.aggregation(), &options.aggregation);
  Read(train.overlong(), &options.overlong);
  options.overlong_cache = train.overlong_cache();
  options.overlong_factor = train.overlong_factor();
  options.max_response_tokens = LongestAnswer(config);
  // With every on_deadline: the loss keeps the bound whatever the gate did.
  options.max_token_age = config.staleness().max_staleness();
  return options;
}

}  // namespace syncopate::config
