#include <utility>

#include "model/device.h"
#include "services/config/model_options.h"
#include "services/trainer/train_device.h"

namespace syncopate::trainerd {

absl::StatusOr<RankDevice> OpenRankDevice(const v1::RunConfig& config, int32_t rank) {
  RankDevice device;
  SYNCOPATE_ASSIGN_OR_RETURN(device.place.name,
                             model::ChooseDevice(config::TrainDeviceRequest(config, rank), model::Hardware()));
  SYNCOPATE_RETURN_IF_ERROR(config::CheckTrainDevice(config, device.place.name));
  return device;
}

absl::StatusOr<TrainDevice> OpenTrainDevice(const v1::RunConfig& config, config::RunModel model, int32_t rank) {
  SYNCOPATE_RETURN_IF_ERROR(OpenRankDevice(config, rank).status());
  return HostTrainDevice(config, std::move(model), rank);
}

}  // namespace syncopate::trainerd
