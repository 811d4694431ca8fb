#pragma once

#include "base/trajectory.h"
#include "services/config/evaluation_sets.h"
#include "syncopate/v1/config.pb.h"
#include "trainer/data/prompts.h"
#include "trainer/data/tasks.h"
#include "trainer/step/policy_trainer.h"

// From a run configuration that has passed its checks to the options of the trainer's parts. Pure.
namespace syncopate::config {

trainer::TaskOptions MakeTaskOptions(const v1::RunConfig& config);

// The text of adapter_config.json beside the run's adapters; "" if it trains all weights.
std::string MakeAdapterConfig(const v1::RunConfig& config, const model::ModelConfig& shape);

// The initial weights are random unless the caller sets some.
trainer::PolicyTrainer::Options MakePolicyTrainerOptions(const v1::RunConfig& config, const model::ModelConfig& shape);

// OK unless `adapters` (null: none) say that they were trained on another base than that of `policy`:
// FAILED_PRECONDITION (reason BASE_MISMATCH).
absl::Status CheckBase(const trainer::Policy& policy, const model::AdapterFiles* adapters);

// The number of supervised steps at the beginning of the run. If all steps are supervised: more than any run has.
int64_t CountSupervisedSteps(const v1::RunConfig& config);

// The sampling of training leases; they stop at the task's stop tokens.
SamplingParams MakeSampling(const v1::RunConfig& config, const trainer::PromptSource& prompts);
// The sampling of evaluation leases: greedy, with the same stop tokens.
SamplingParams MakeEvaluationSampling(const v1::RunConfig& config, const trainer::PromptSource& prompts);
// The sampling of a set of eval.sets.
SamplingParams MakeSetSampling(const v1::RunConfig& config, const EvaluationSetText& set,
                               const trainer::PromptSource& prompts);

}  // namespace syncopate::config
