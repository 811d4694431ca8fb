#include "services/trainer/train_device.h"

#include "services/config/model_options.h"
#include "services/config/trainer_options.h"
#include "trainer/staging/host_stager.h"

namespace syncopate::trainerd {

absl::StatusOr<TrainDevice> HostTrainDevice(const v1::RunConfig& config) {
  constexpr int kDefaultSlots = 2;  // a reader of the last version goes on while the next one is staged
  const int slots = static_cast<int>(config.sync().send_slots());
  TrainDevice device;
  SYNCOPATE_ASSIGN_OR_RETURN(device.policy, trainer::PolicyTrainer::Create(config::PolicyTrainerOptionsOf(config)));
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest wire, config::WireManifestOf(config));
  SYNCOPATE_ASSIGN_OR_RETURN(device.stager, trainer::HostStager::Create(device.policy.get(), std::move(wire),
                                                                        slots == 0 ? kDefaultSlots : slots));
  return device;
}

}  // namespace syncopate::trainerd
