#include "services/config/trainer_options.h"

namespace syncopate::config {
namespace {

trainer::PolicyLossOptions LossOptionsOf(const v1::TrainSection& train) {
  trainer::PolicyLossOptions loss;
  loss.clip_low = train.clip_low();
  loss.clip_high = train.clip_high();
  loss.mis_low = train.mis_low();
  loss.mis_high = train.mis_high();
  loss.tis_cap = train.tis_cap();
  loss.correction = train.correction() == "mis"   ? trainer::Correction::kMis
                    : train.correction() == "tis" ? trainer::Correction::kTis
                                                  : trainer::Correction::kNone;
  return loss;
}

trainer::AdamWOptions OptimizerOptionsOf(const v1::TrainSection& train) {
  trainer::AdamWOptions optimizer;
  optimizer.learning_rate = train.learning_rate();
  optimizer.beta1 = train.beta1();
  optimizer.beta2 = train.beta2();
  optimizer.eps = train.adam_eps();
  optimizer.weight_decay = train.weight_decay();
  optimizer.max_grad_norm = train.max_grad_norm();
  optimizer.max_grad_growth = train.max_grad_growth();
  return optimizer;
}

}  // namespace

trainer::TaskOptions TaskOptionsOf(const v1::RunConfig& config) {
  return {.name = config.data().task(),
          .length = config.data().length(),
          .alphabet = config.data().alphabet(),
          .seed = static_cast<uint64_t>(config.run().seed())};
}

trainer::PolicyTrainer::Options PolicyTrainerOptionsOf(const v1::RunConfig& config, const model::ModelConfig& shape) {
  trainer::PolicyTrainer::Options options;
  options.model = shape;
  options.optimizer = OptimizerOptionsOf(config.train());
  options.step.loss = LossOptionsOf(config.train());
  options.step.temperature = config.rollout().temperature();
  options.step.updates_per_batch = config.train().updates_per_batch();
  options.step.micro_batch_tokens = config.train().micro_batch_tokens();
  options.seed = static_cast<uint64_t>(config.run().seed());
  options.bucket_bytes = config.sync().bucket_bytes();
  options.threads = static_cast<int>(config.run().threads());
  return options;
}

SamplingParams SamplingOf(const v1::RunConfig& config, const trainer::PromptSource& prompts) {
  SamplingParams sampling;
  sampling.temperature = static_cast<float>(config.rollout().temperature());
  sampling.top_p = static_cast<float>(config.rollout().top_p());
  sampling.top_k = static_cast<int32_t>(config.rollout().top_k());
  sampling.max_new_tokens = static_cast<int32_t>(config.rollout().max_new_tokens());
  sampling.stop_token_ids = prompts.stop_token_ids();
  return sampling;
}

SamplingParams EvaluationSamplingOf(const v1::RunConfig& config, const trainer::PromptSource& prompts) {
  SamplingParams sampling = SamplingOf(config, prompts);
  sampling.temperature = 0;
  return sampling;
}

}  // namespace syncopate::config
