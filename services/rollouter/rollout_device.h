#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "ranks/communicator.h"
#include "ranks/meeting.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/engine/rank_slice.h"
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

// Where this rank of a rollouter computes, before anything is allocated there: what rollout.device asks for, "cuda" being
// another GPU of this host for each rank, as long as there are any. Which
// implementation a binary has is decided by linking, as that of OpenRolloutDevice, whose errors it has.
absl::StatusOr<RankPlace> FindRolloutPlace(const v1::RunConfig& config);

// One rank's part of a replica of several.
struct ReplicaPart {
  rollouter::RankSlice slice;
  std::unique_ptr<Communicator> ranks;  // what the place's `join` gave, or ranks over TCP
};

// For a call of ranks that compute a step: none of them waits for anything else.
inline constexpr absl::Duration kRankStepDeadline = absl::Seconds(30);

// The CPU, with the transport "grpc".
std::shared_ptr<RolloutDevice> HostRolloutDevice(std::shared_ptr<const auth::TransportSecurity> security = nullptr);
// The same for one rank of a replica, with its weights, which `part` must outlive. RESOURCE_EXHAUSTED reason
// OUT_OF_MEMORY.
absl::StatusOr<std::shared_ptr<RolloutDevice>> HostRankDevice(const ReplicaPart& part,
                                                              std::shared_ptr<const auth::TransportSecurity> security);

// What rollout.device, sync.transport and sync.install ask for. Allocates the weight sets of a GPU. Which
// implementation a binary has is decided by linking: syncopate_rollout_device_cpu, or syncopate_rollout_device_cuda,
// which knows both. FAILED_PRECONDITION reason NO_CUDA or NO_GPU as model::ChooseDevice; INVALID_ARGUMENT
// reason BAD_CONFIG as CheckRolloutDevice; RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY. `security` is of connections to
// sources that are reached by gRPC; null: plaintext. With `part` it is for that rank of a replica, and `part` must outlive
// it.
absl::StatusOr<std::shared_ptr<RolloutDevice>> OpenRolloutDevice(
    const v1::RunConfig& config, const model::ModelConfig& shape,
    std::shared_ptr<const auth::TransportSecurity> security, const ReplicaPart* part = nullptr);

}  // namespace syncopate::rollouterd
