#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "rollouter/engine/engine_loop.h"
#include "services/auth/transport_security.h"
#include "synchronizer/messages.h"
#include "synchronizer/transport/transport.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::rollouterd {

// What a rollouter has because of where it computes.
struct RolloutDevice {
  std::shared_ptr<rollouter::EngineBackend> backend;  // null: the engine's own, on the CPU
  std::vector<std::shared_ptr<const void>> borrowed;  // by the transports
  // All that it can receive by; with a GPU they write to the backend's shadow arena.
  std::vector<std::unique_ptr<synchronizer::ReceiverTransport>> transports;
  synchronizer::DeviceFacts facts;
};

// The CPU, with the transport "grpc".
std::shared_ptr<RolloutDevice> HostRolloutDevice(std::shared_ptr<const auth::TransportSecurity> security = nullptr);

// What rollout.device, sync.transport and sync.install ask for. Allocates the weight sets of a GPU. Which
// implementation a binary has is decided by linking: syncopate_rollout_device_cpu, or syncopate_rollout_device_cuda,
// which knows both. FAILED_PRECONDITION reason NO_CUDA or NO_GPU as model::ChooseDevice; INVALID_ARGUMENT
// reason BAD_CONFIG as CheckRolloutDevice; RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY. `security` is of connections to
// sources that are reached by gRPC; null: plaintext.
absl::StatusOr<std::shared_ptr<RolloutDevice>> OpenRolloutDevice(
    const v1::RunConfig& config, const model::ModelConfig& shape,
    std::shared_ptr<const auth::TransportSecurity> security);

}  // namespace syncopate::rollouterd
