#include "services/rollouter/rollout_device.h"

#include <utility>

#include "base/log.h"
#include "services/member/grpc_transport.h"

namespace syncopate::rollouterd {

std::shared_ptr<RolloutDevice> HostRolloutDevice(std::shared_ptr<const auth::TransportSecurity> security) {
  auto device = std::make_shared<RolloutDevice>();
  device->transports.push_back(std::make_unique<member::GrpcReceiver>(std::move(security)));
  return device;
}

absl::StatusOr<std::shared_ptr<RolloutDevice>> OpenHostDevice(config::WeightMemory memory,
                                                              const model::ModelConfig& shape, const Manifest& wire,
                                                              std::shared_ptr<const auth::TransportSecurity> security,
                                                              const ReplicaPart* part) {
  std::shared_ptr<RolloutDevice> device = HostRolloutDevice(std::move(security));
  const bool in_place = memory == config::WeightMemory::kInPlace;
  if (part != nullptr) {
    SYNCOPATE_ASSIGN_OR_RETURN(device->backend,
                               rollouter::MakeHostRankBackend(part->slice.config, part->slice.manifest,
                                                              /*weight_sets=*/in_place ? 1 : 2, part->ranks.get()));
  } else if (in_place) {
    SYNCOPATE_ASSIGN_OR_RETURN(device->backend, rollouter::MakeInPlaceHostBackend(shape, wire));
  } else if (memory == config::WeightMemory::kMappedBase) {
    SYNCOPATE_ASSIGN_OR_RETURN(device->backend, rollouter::MakeMappingHostBackend(shape, wire));
  } else if (memory == config::WeightMemory::kBorrowed) {
    SYNCOPATE_ASSIGN_OR_RETURN(device->backend, rollouter::MakeBorrowingHostBackend(shape, wire));
  }
  if (memory == config::WeightMemory::kAuto) {
    SYNCOPATE_LOG(
        kInfo,
        "sync.install auto: swap, two weight sets of %d MiB each, as keys and values take host memory only as "
        "they use it",
        wire.arena_bytes() >> 20);
  }
  return device;
}

}  // namespace syncopate::rollouterd
