#include "services/trainer/loop_options.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "services/config/duration.h"
#include "services/config/model_options.h"
#include "services/config/rules.h"
#include "services/config/run_config.h"
#include "services/config/trainer_options.h"

namespace syncopate::trainerd {
namespace {

trainer::OnDeadline ToOnDeadline(const std::string& name) {
  if (name == "mask") return trainer::OnDeadline::kMask;
  return name == "drop" ? trainer::OnDeadline::kDrop : trainer::OnDeadline::kStall;
}

}  // namespace

trainer::TrainingData::Options MakeDataOptions(const v1::RunConfig& config, const model::ModelConfig& shape,
                                               const PromptSources& sources, const std::string& log_folder) {
  const trainer::PromptSource& prompts = *sources.training;
  trainer::TrainingData::Options options;
  options.ledger.gate = {.batch_groups = config.data().batch_groups(),
                         .target_staleness = config::TargetStaleness(config),
                         .max_staleness = config.staleness().max_staleness(),
                         .on_deadline = ToOnDeadline(config.staleness().on_deadline())};
  options.ledger.max_groups = config.data().max_groups();
  options.ledger.vocab_size = static_cast<int32_t>(shape.vocab_size);
  options.ledger.max_total_tokens = config::Plays(config) ? config::LongestAnswer(config) : 0;
  options.ledger.context = shape.max_position_embeddings;  // the run's context, which the model was cut to
  options.ledger.samples = static_cast<int32_t>(config.rollout().samples());
  options.ledger.reward = config.reward().name();
  options.ledger.sampling = config::MakeSampling(config, prompts);
  options.ledger.run_seed = static_cast<uint64_t>(config.run().seed());
  options.ledger.supervised_steps = config::CountSupervisedSteps(config);
  options.ledger.refill_zero_variance = config.data().refill_zero_variance();
  options.ledger.max_reward_failures = config.reward().max_failures();
  options.ledger.lease_limits = {.stall = config::CheckedDuration(config.data().lease_stall()),
                                 .timeout = config::CheckedDuration(config.data().lease_timeout())};
  // An episode's state is not in its tokens alone.
  options.ledger.recorded = TrainingSamples(config);
  options.ledger.partial_bytes = config::Plays(config) ? 0 : config.data().partial_bytes();
  options.log.segments.folder = log_folder;
  options.evaluation.prompts = sources.evaluation_prompts;
  options.evaluation.samples_shown = config.eval().show_samples();
  options.evaluation.seed = static_cast<uint64_t>(config.eval().seed());
  options.evaluation.sampling = config::MakeEvaluationSampling(config, prompts);
  for (const EvaluationSetSource& one : sources.evaluation_sets) {
    options.evaluation.sets.push_back({.name = one.set.name,
                                       .source = one.prompts.get(),
                                       .prompts = one.count,
                                       .samples = one.set.samples,
                                       .reward = one.set.reward.empty() ? config.reward().name() : one.set.reward,
                                       .sampling = config::MakeSetSampling(config, one.set, *one.prompts)});
  }
  options.evaluation.deadline = config::CheckedDuration(config.eval().deadline());
  options.evaluation.recorded = {.share = config.metrics().eval_samples(),
                                 .seed = static_cast<uint64_t>(config.run().seed())};
  options.evaluation_only = config.eval().only();
  options.judge_tokens = config.reward().judge_tokens();
  return options;
}

trainer::SampleChoice TrainingSamples(const v1::RunConfig& config) {
  return {.share = config.metrics().train_samples(), .seed = static_cast<uint64_t>(config.run().seed())};
}

trainer::StepLoop::Options MakeLoopOptions(const v1::RunConfig& config, const PromptSources& sources,
                                           bool exit_on_completion) {
  trainer::StepLoop::Options options;
  options.steps = config.run().steps();
  options.duration = config::CheckedDuration(config.run().duration());
  options.supervised_steps = config::CountSupervisedSteps(config);
  // Without data.eval_files the evaluation prompts of files are rows that are trained on.
  const bool are_apart = config.data().files().empty() || !config.data().eval_files().empty();
  if (options.supervised_steps > 0 && are_apart) options.held_out_prompts = sources.evaluation_prompts;
  options.publish_every_steps = config.sync().every_steps();
  options.evaluate_every_steps = config.eval().every_steps();
  // The evaluation ends by itself at its deadline; this wait is for the one that never began.
  const absl::Duration deadline = config::CheckedDuration(config.eval().deadline());
  const bool has_deadline = deadline < absl::InfiniteDuration();
  if (has_deadline) options.last_evaluation_deadline = deadline + absl::Seconds(5);
  options.checkpoint_every_steps = config.checkpoint().every_steps();
  options.checkpoint_at_end = config.checkpoint().at_end();
  // The store keeps at least two, because the newest one may turn out to be damaged.
  options.keep_checkpoints = static_cast<int>(std::max<int64_t>(2, config.checkpoint().keep()));
  options.serve_complete = !exit_on_completion;
  // Rollouters cannot answer for the next step before they serve the version that it begins with.
  options.publishes_at_once = config.staleness().max_staleness() == 0;
  if (config.eval().only()) {
    options.steps = 0;
    options.evaluate_only = true;
    options.checkpoint_at_end = false;
    if (!has_deadline) options.last_evaluation_deadline = absl::InfiniteDuration();
  }
  return options;
}

telemetry::TrainerMetrics::Limits MakeMetricLimits(const v1::RunConfig& config) {
  const auto batch = static_cast<double>(config.data().batch_groups());
  return {.max_staleness = config.staleness().max_staleness(),
          .outstanding_groups = static_cast<int64_t>(std::ceil((config::TargetStaleness(config) + 1) * batch))};
}

}  // namespace syncopate::trainerd
