#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "rollouter/engine/engine_loop.h"

namespace syncopate::generate {

struct FolderEngineOptions {
  std::string folder;        // a Hugging Face model directory
  std::string adapter = {};  // a directory of PEFT adapters for that model; "": none
  int64_t max_sequences = 1;
  int64_t kv_tokens = 0;  // see EngineLoop::Options
  int threads = 1;        // intra-op threads of libtorch
};

// `shape` with the adapters of the directory `adapter`; unchanged for "". Errors of model::ReadAdapterConfig.
absl::StatusOr<model::ModelConfig> WithAdapter(model::ModelConfig shape, const std::string& adapter);

// Starts an engine in float32 on the CPU, with one weight set, and loads the model's weights as version 1/0. `shape` is
// that of the folder, WithAdapter(). Blocks until the weights are there. Errors of WeightFiles, AdapterFiles and
// EngineLoop.
absl::StatusOr<std::unique_ptr<rollouter::EngineLoop>> StartFolderEngine(const FolderEngineOptions& options,
                                                                         const model::ModelConfig& shape);

}  // namespace syncopate::generate
