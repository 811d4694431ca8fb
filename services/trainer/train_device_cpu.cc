#include "services/options/model_options.h"
#include "services/trainer/train_device.h"

namespace syncopate::services {

absl::StatusOr<TrainDevice> OpenTrainDevice(const v1::RunConfig& config) {
  SYNCOPATE_RETURN_IF_ERROR(model::ChooseDevice(TrainDeviceRequest(config), model::Hardware()).status());
  return HostTrainDevice(config);
}

}  // namespace syncopate::services
