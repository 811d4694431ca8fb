#include "services/options/model_options.h"
#include "services/rollouter/rollout_device.h"

namespace syncopate::services {

absl::StatusOr<std::shared_ptr<RolloutDevice>> OpenRolloutDevice(const v1::RunConfig& config) {
  SYNCOPATE_RETURN_IF_ERROR(model::ChooseDevice(RolloutDeviceRequest(config), model::Hardware()).status());
  return HostRolloutDevice();
}

}  // namespace syncopate::services
