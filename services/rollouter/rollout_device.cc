#include "services/rollouter/rollout_device.h"

#include "services/weights/grpc_transport.h"

namespace syncopate::services {

std::shared_ptr<RolloutDevice> HostRolloutDevice() {
  auto device = std::make_shared<RolloutDevice>();
  device->transports.push_back(std::make_unique<GrpcReceiver>());
  return device;
}

}  // namespace syncopate::services
