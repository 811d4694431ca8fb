#include <utility>

#include "base/daemon/card_name.h"
#include "services/config/model_options.h"
#include "services/rollouter/rollout_device.h"

namespace syncopate::rollouterd {

absl::StatusOr<RankPlace> FindRolloutPlace(const v1::RunConfig& config) {
  RankPlace place;
  SYNCOPATE_ASSIGN_OR_RETURN(place.name, model::ChooseDevice(config::RolloutDeviceRequest(config), model::Hardware()));
  SYNCOPATE_RETURN_IF_ERROR(config::CheckRolloutDevice(config, place.name));
  return place;
}

absl::StatusOr<std::string> FindRolloutCard(const v1::RunConfig& config) {
  SYNCOPATE_RETURN_IF_ERROR(FindRolloutPlace(config).status());
  return daemon::CardName("");
}

absl::StatusOr<std::shared_ptr<RolloutDevice>> OpenRolloutDevice(
    const v1::RunConfig& config, const model::ModelConfig& shape,
    std::shared_ptr<const auth::TransportSecurity> security, const ReplicaPart* part) {
  SYNCOPATE_RETURN_IF_ERROR(FindRolloutPlace(config).status());
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest wire, config::MakeWireManifest(config, shape));
  return OpenHostDevice(config::ChooseWeightMemory(config, shape), shape, wire, std::move(security), part);
}

}  // namespace syncopate::rollouterd
