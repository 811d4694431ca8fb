#pragma once

#include <cstdint>
#include <string>

#include "base/manifest.h"
#include "model/device.h"
#include "model/model_config.h"
#include "rollouter/engine/engine_loop.h"
#include "services/config/run_model.h"
#include "syncopate/v1/config.pb.h"

// From a run configuration that has passed its checks to the options that trainer and rollouter share. Pure.
namespace syncopate::config {

// The number of multiprocessors (CTAs) that a message of a weight sync over NCCL may occupy on either side; 0: NCCL's
// choice. With several trainer ranks, a sync and the collectives of a step must both find room on a GPU. Members with
// different numbers cannot exchange anything, so all call this function.
int SyncMaxCtas(const v1::RunConfig& config);

// The argument of model::ChooseDevice: where this process of the run computes. `rank` is the trainer's.
model::DeviceRequest TrainDeviceRequest(const v1::RunConfig& config, int32_t rank = 0);
model::DeviceRequest RolloutDeviceRequest(const v1::RunConfig& config);

// Checks what the rules of a configuration cannot know while a device is "auto": OK if sync.transport and, for a
// rollouter, sync.install work on `device`, else INVALID_ARGUMENT (reason BAD_CONFIG) that names the keys.
absl::Status CheckTrainDevice(const v1::RunConfig& config, const std::string& device);
absl::Status CheckRolloutDevice(const v1::RunConfig& config, const std::string& device);

// Where a rollouter of this configuration receives a version. kAuto: two sets, or borrowed if the device has too
// little memory for them. kMappedBase: adapter sets, whose base is the trainer's memory where that can be mapped.
// With LoRA there is nothing to borrow: versions are small.
enum class WeightMemory : uint8_t { kTwoSets, kInPlace, kBorrowed, kAuto, kMappedBase };
WeightMemory ChooseWeightMemory(const v1::RunConfig& config, const model::ModelConfig& shape);

// Whether a rollouter on a GPU may map the base of adapters from the trainer's memory. By grpc alone a trainer stages
// in host memory, which no rollouter on a GPU maps.
bool MapsBaseOnGpu(const v1::RunConfig& config, const model::ModelConfig& shape);

// Bytes that are in use on a rollouter's GPU at times, and may not be there when its engine is made: the trainer's
// send slots, in a run that shares it; and the rollouter's own base of adapters, if it begins without one
// (MapsBaseOnGpu) and may have to receive it. A base that the trainer lends is there from the trainer's start on,
// once for both. `wire` is the manifest of the whole model, also for one rank of several: the send slots of a trainer
// rank are for all of them. Errors of layouts that do not fit the model.
absl::StatusOr<int64_t> CountLateGpuBytes(const v1::RunConfig& config, const model::ModelConfig& shape,
                                          const Manifest& wire);

// Options of an engine on the CPU; the caller sets the backend of a GPU.
rollouter::EngineLoop::Options MakeEngineOptions(const v1::RunConfig& config, const model::ModelConfig& shape);

}  // namespace syncopate::config
