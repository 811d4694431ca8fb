#include <utility>

#include "model/device.h"
#include "services/config/model_options.h"
#include "services/trainer/train_device.h"

namespace syncopate::trainerd {

absl::StatusOr<TrainDevice> OpenTrainDevice(const v1::RunConfig& config, config::RunModel model) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string name,
                             model::ChooseDevice(config::TrainDeviceRequest(config), model::Hardware()));
  SYNCOPATE_RETURN_IF_ERROR(config::CheckTrainDevice(config, name));
  return HostTrainDevice(config, std::move(model));
}

}  // namespace syncopate::trainerd
