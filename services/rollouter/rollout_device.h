#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/daemon/card_account.h"
#include "base/status.h"
#include "ranks/communicator.h"
#include "ranks/meeting.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/engine/rank_slice.h"
#include "services/auth/transport_security.h"
#include "services/config/model_options.h"
#include "synchronizer/messages.h"
#include "synchronizer/transport/transport.h"
#include "syncopate/v1/config.pb.h"

namespace syncopate::rollouterd {

// The parts of a rollouter that depend on the device it computes on.
struct RolloutDevice {
  std::shared_ptr<rollouter::EngineBackend> backend;  // null: the engine's own, on the CPU
  std::vector<std::shared_ptr<const void>> borrowed;  // used by the transports
  // All transports that it can receive with; on a GPU they write to the backend's shadow arena.
  std::vector<std::unique_ptr<synchronizer::ReceiverTransport>> transports;
  synchronizer::DeviceFacts facts;
  // Who owns the GPU's memory, with a measurement that ends when the engine is made; null: there is no GPU, or its
  // driver does not say.
  std::shared_ptr<daemon::CardAccount> card;
};

// The place where this rank of a rollouter computes, before anything is allocated there: rollout.device, where "cuda"
// is a different GPU of this host for each rank, as long as there are enough. The linked library decides which
// implementation a binary has, as for OpenRolloutDevice. Errors of OpenRolloutDevice.
absl::StatusOr<RankPlace> FindRolloutPlace(const v1::RunConfig& config);

// The name of the device that rollout.device asks for, by which trainer and rollouter know that they share one
// (run.share_gpu; base/daemon/card_name.h). Allocates nothing there. The linked library decides, and errors are as for
// FindRolloutPlace.
absl::StatusOr<std::string> FindRolloutCard(const v1::RunConfig& config);

// One rank's part of a replica with several ranks.
struct ReplicaPart {
  rollouter::RankSlice slice;
  std::unique_ptr<Communicator> ranks;  // made by the place's `join`, or ranks over TCP
};

// Deadline of a collective between ranks that compute a step: no rank waits for anything else.
inline constexpr absl::Duration kRankStepDeadline = absl::Seconds(30);

// A rollouter on the CPU, with the transport "grpc".
std::shared_ptr<RolloutDevice> HostRolloutDevice(std::shared_ptr<const auth::TransportSecurity> security = nullptr);
// What OpenRolloutDevice opens on the CPU; `wire` is the manifest of `shape`.
absl::StatusOr<std::shared_ptr<RolloutDevice>> OpenHostDevice(config::WeightMemory memory,
                                                              const model::ModelConfig& shape, const Manifest& wire,
                                                              std::shared_ptr<const auth::TransportSecurity> security,
                                                              const ReplicaPart* part);

// The device that rollout.device, sync.transport and sync.install ask for. Allocates the weight sets of a GPU. The
// linked library decides which implementation a binary has: syncopate_rollout_device_cpu, or
// syncopate_rollout_device_cuda, which supports both. FAILED_PRECONDITION reason NO_CUDA or NO_GPU as
// model::ChooseDevice; INVALID_ARGUMENT reason BAD_CONFIG as CheckRolloutDevice; RESOURCE_EXHAUSTED reason
// OUT_OF_GPU_MEMORY. `security` is for connections to sources over gRPC; null: plaintext. With `part` the device is for
// that rank of a replica, and `part` must outlive it.
absl::StatusOr<std::shared_ptr<RolloutDevice>> OpenRolloutDevice(
    const v1::RunConfig& config, const model::ModelConfig& shape,
    std::shared_ptr<const auth::TransportSecurity> security, const ReplicaPart* part = nullptr);

}  // namespace syncopate::rollouterd
