#include <utility>

#include "services/config/model_options.h"
#include "services/rollouter/rollout_device.h"

namespace syncopate::rollouterd {

absl::StatusOr<std::shared_ptr<RolloutDevice>> OpenRolloutDevice(
    const v1::RunConfig& config, const model::ModelConfig& shape,
    std::shared_ptr<const auth::TransportSecurity> security) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string name,
                             model::ChooseDevice(config::RolloutDeviceRequest(config), model::Hardware()));
  SYNCOPATE_RETURN_IF_ERROR(config::CheckRolloutDevice(config, name));
  return HostRolloutDevice(std::move(security));
}

}  // namespace syncopate::rollouterd
