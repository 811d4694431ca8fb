#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "model/model_config.h"
#include "rollouter/engine/engine_loop.h"

namespace syncopate::bench {

// Microseconds on the clock that all processes of a host share, modulo 2^31: what a paced token's id says.
int32_t NowStamp();

// The smallest model there is, with a context of `context` tokens: its weights are never read.
model::ModelConfig PacedModel(int64_t context);

// An engine's backend that computes nothing: a step's tokens are known `interval` after those of the step before (at once,
// if that is zero), and each token's id is the NowStamp() of that moment. So what surrounds an engine can be measured
// at the pace of a GPU, on a CPU.
std::shared_ptr<rollouter::EngineBackend> MakePacedBackend(const model::ModelConfig& model, absl::Duration interval);

}  // namespace syncopate::bench
