#include "services/trainer/train_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/file_system.h"
#include "base/host_memory.h"
#include "services/config/model_options.h"
#include "services/config/trainer_options.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/staging/host_stager.h"

namespace syncopate::trainerd {

namespace {

// Whether the run will restore a checkpoint, and so needs no weights from model.path. A damaged checkpoint is found
// later.
bool WillRestore(const v1::RunConfig& config) {
  if (!config.run().resume()) return false;
  const std::string& dir = config.checkpoint().dir();
  const auto names = FileSystem::Real()->List(dir.empty() ? JoinPath(config.run().dir(), "checkpoints") : dir);
  return names.ok() && std::any_of(names->begin(), names->end(), [](const std::string& name) {
           return trainer::ParseCheckpointName(name).has_value();
         });
}

}  // namespace

absl::StatusOr<trainer::PolicyTrainer::Options> InitialPolicyOptions(const v1::RunConfig& config,
                                                                     const config::RunModel& model,
                                                                     const RankDevice& device) {
  trainer::PolicyTrainer::Options options = config::MakePolicyTrainerOptions(config, model.shape);
  options.device = device.place.name;
  options.arenas = device.arenas;
  options.device_bytes = device.state_bytes > 0 ? device.state_bytes : ReadHostMemory().bytes;
  // The reference policy is the policy at the start of the run, which no checkpoint contains.
  if (!WillRestore(config) || options.step.loss.needs_reference()) {
    SYNCOPATE_ASSIGN_OR_RETURN(options.weights, config::OpenInitialWeights(config, model));
  }
  return options;
}

absl::Status MakePolicy(const v1::RunConfig& config, TrainDevice* device) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto options, InitialPolicyOptions(config, device->model, device->rank0));
  const auto world = static_cast<int32_t>(config.trainer().world());
  if (world > 1) device->ranks = std::make_unique<LateRanks>(0, world);
  if (world > 1) options.mesh = *device->ranks;
  SYNCOPATE_ASSIGN_OR_RETURN(device->policy, trainer::PolicyTrainer::Create(options));
  if (world > 1) device->leading = std::make_unique<trainer::LeadingPolicy>(device->policy.get());
  return absl::OkStatus();
}

absl::StatusOr<TrainDevice> HostTrainDevice(const v1::RunConfig& config, config::RunModel model) {
  constexpr int kDefaultSlots = 2;  // a reader of the last version continues while the next one is staged
  const int slots = static_cast<int>(config.sync().send_slots());
  TrainDevice device;
  device.model = std::move(model);
  SYNCOPATE_RETURN_IF_ERROR(MakePolicy(config, &device));
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest wire, config::MakeWireManifest(config, device.model.shape));
  SYNCOPATE_ASSIGN_OR_RETURN(
      device.stager,
      trainer::HostStager::Create(device.shared_policy(), std::move(wire), slots == 0 ? kDefaultSlots : slots,
                                  config::MakeRolloutLayout(config, device.model.shape)));
  return device;
}

}  // namespace syncopate::trainerd
