#pragma once

#include <string>

#include "model/model_config.h"
#include "services/telemetry/trainer_metrics.h"
#include "services/trainer/prompt_sources.h"
#include "syncopate/v1/config.pb.h"
#include "trainer/data/training_data.h"
#include "trainer/loop/step_loop.h"

// From a checked configuration to the options of the trainer's parts. Pure functions.
namespace syncopate::trainerd {

// `sources` must outlive the objects made with these options; `log_folder` is where the log is.
trainer::TrainingData::Options MakeDataOptions(const v1::RunConfig& config, const model::ModelConfig& shape,
                                               const PromptSources& sources, const std::string& log_folder);
// The training groups whose samples are written to samples.jsonl.
trainer::SampleChoice TrainingSamples(const v1::RunConfig& config);
trainer::StepLoop::Options MakeLoopOptions(const v1::RunConfig& config, const PromptSources& sources,
                                           bool exit_on_completion);
// Limits as the gate counts between steps: trainer/data/staleness_gate.h.
telemetry::TrainerMetrics::Limits MakeMetricLimits(const v1::RunConfig& config);

}  // namespace syncopate::trainerd
