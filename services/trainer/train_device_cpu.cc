#include "services/config/model_options.h"
#include "services/trainer/train_device.h"

namespace syncopate::services {

absl::StatusOr<TrainDevice> OpenTrainDevice(const v1::RunConfig& config) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string name,
                             model::ChooseDevice(TrainDeviceRequest(config), model::Hardware()));
  SYNCOPATE_RETURN_IF_ERROR(CheckTrainDevice(config, name));
  return HostTrainDevice(config);
}

}  // namespace syncopate::services
