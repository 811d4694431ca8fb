#include <utility>

#include "services/config/model_options.h"
#include "services/rollouter/rollout_device.h"

namespace syncopate::services {

absl::StatusOr<std::shared_ptr<RolloutDevice>> OpenRolloutDevice(const v1::RunConfig& config,
                                                                 std::shared_ptr<const TransportSecurity> security) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string name,
                             model::ChooseDevice(RolloutDeviceRequest(config), model::Hardware()));
  SYNCOPATE_RETURN_IF_ERROR(CheckRolloutDevice(config, name));
  return HostRolloutDevice(std::move(security));
}

}  // namespace syncopate::services
