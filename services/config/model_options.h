#pragma once

#include <string>

#include "model/device.h"
#include "model/model_config.h"
#include "rollouter/engine/engine_loop.h"
#include "syncopate/v1/config.pb.h"

// From a run configuration that has passed its checks to the options of what trainer and rollouter both have. Pure.
namespace syncopate::config {

// Numbers of the weights that travel and that rollouters hold: model.dtype, with auto resolved by the configuration
// alone, so that every daemon resolves it alike.
DType WireDTypeOf(const v1::RunConfig& config);

// Of the weights as they travel and as rollouters hold them. Errors as model::MakeManifest.
absl::StatusOr<Manifest> WireManifestOf(const v1::RunConfig& config, const model::ModelConfig& shape);

// Multiprocessors that a message of a weight sync over NCCL may occupy on either side; 0: NCCL's choice. Beside a trainer
// of several ranks a sync and the calls of a step must both find room on a GPU. Members whose numbers differ cannot
// exchange anything, so all ask here.
int SyncMaxCtas(const v1::RunConfig& config);

// What weight syncs call the layout of a rollouter's ranks; "" if there is one. On both sides of them.
std::string RolloutLayoutOf(const v1::RunConfig& config, const model::ModelConfig& shape);

// For model::ChooseDevice: where this process of the run is to compute. `rank` is the trainer's.
model::DeviceRequest TrainDeviceRequest(const v1::RunConfig& config, int32_t rank = 0);
model::DeviceRequest RolloutDeviceRequest(const v1::RunConfig& config);

// What the checks of a configuration cannot know while a device is "auto": OK if sync.transport and, for a rollouter,
// sync.install can be had on `device`, else INVALID_ARGUMENT (reason BAD_CONFIG) naming the keys.
absl::Status CheckTrainDevice(const v1::RunConfig& config, const std::string& device);
absl::Status CheckRolloutDevice(const v1::RunConfig& config, const std::string& device);

// The engine on the CPU; a GPU's backend is for the caller to set.
rollouter::EngineLoop::Options EngineOptionsOf(const v1::RunConfig& config, const model::ModelConfig& shape);

}  // namespace syncopate::config
