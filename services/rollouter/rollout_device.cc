#include "services/rollouter/rollout_device.h"

#include <utility>

#include "services/member/grpc_transport.h"

namespace syncopate::rollouterd {

std::shared_ptr<RolloutDevice> HostRolloutDevice(std::shared_ptr<const auth::TransportSecurity> security) {
  auto device = std::make_shared<RolloutDevice>();
  device->transports.push_back(std::make_unique<member::GrpcReceiver>(std::move(security)));
  return device;
}

bool InstallsInPlace(const v1::RunConfig& config) {
  const std::string& install = config.sync().install();
  return install == "in_place" || (install == "auto" && config.run().share_gpu());
}

absl::StatusOr<std::shared_ptr<RolloutDevice>> OpenHostDevice(bool in_place, const model::ModelConfig& shape,
                                                              const Manifest& wire,
                                                              std::shared_ptr<const auth::TransportSecurity> security,
                                                              const ReplicaPart* part) {
  std::shared_ptr<RolloutDevice> device = HostRolloutDevice(std::move(security));
  if (part != nullptr) {
    SYNCOPATE_ASSIGN_OR_RETURN(device->backend,
                               rollouter::MakeHostRankBackend(part->slice.config, part->slice.manifest,
                                                              /*weight_sets=*/in_place ? 1 : 2, part->ranks.get()));
  } else if (in_place) {
    SYNCOPATE_ASSIGN_OR_RETURN(device->backend, rollouter::MakeInPlaceHostBackend(shape, wire));
  }
  return device;
}

}  // namespace syncopate::rollouterd
