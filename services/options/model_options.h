#pragma once

#include "model/model_config.h"
#include "rollouter/engine/engine_loop.h"
#include "syncopate/v1/config.pb.h"

// From a run configuration that has passed its checks to the options of what trainer and rollouter both have. Pure.
namespace syncopate::services {

// model.vocab_size 0 becomes the task's vocabulary.
model::ModelConfig ModelConfigOf(const v1::RunConfig& config);

rollouter::EngineLoop::Options EngineOptionsOf(const v1::RunConfig& config);

}  // namespace syncopate::services
