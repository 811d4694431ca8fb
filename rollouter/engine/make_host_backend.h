#pragma once

#include <memory>

#include "base/manifest.h"
#include "base/status.h"
#include "model/model_config.h"

// Makes an engine's backend without libtorch's headers.
namespace syncopate::rollouter {

class EngineBackend;

// The CPU with one weight set, for whoever loads weights once: an install is in place. `manifest` is the manifest of
// `config`. RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY) saying how much is needed.
absl::StatusOr<std::shared_ptr<EngineBackend>> MakeInPlaceHostBackend(const model::ModelConfig& config,
                                                                      const Manifest& manifest);

}  // namespace syncopate::rollouter
