#include "services/trainer/train_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/host_memory.h"
#include "base/log.h"
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

// The options with which the policy of a run begins.
absl::StatusOr<trainer::PolicyTrainer::Options> InitialPolicyOptions(const v1::RunConfig& config,
                                                                     const config::RunModel& model,
                                                                     const RankDevice& device) {
  trainer::PolicyTrainer::Options options = config::MakePolicyTrainerOptions(config, model.shape);
  options.device = device.place.name;
  options.arenas = device.arenas;
  options.device_bytes = device.state_bytes > 0 ? device.state_bytes : ReadHostMemory().bytes;
  // No checkpoint contains the base of adapters, or a reference policy that is the policy at the start of the run.
  const bool begins_with_reference = options.step.loss.needs_reference() && !options.reference_after_supervised;
  if (!WillRestore(config) || begins_with_reference || model.shape.lora.enabled()) {
    SYNCOPATE_ASSIGN_OR_RETURN(options.weights, config::OpenInitialWeights(config, model));
  }
  if (!WillRestore(config)) {
    SYNCOPATE_ASSIGN_OR_RETURN(options.adapters, config::OpenInitialAdapters(config, model));
  }
  return options;
}

// Waits for room on a device that rollouters share, who may still have it from before this trainer was started.
absl::StatusOr<std::unique_ptr<trainer::PolicyTrainer>> CreateWithRoom(const v1::RunConfig& config,
                                                                       const RankDevice& device,
                                                                       trainer::PolicyTrainer::Options options) {
  constexpr absl::Duration kLook = absl::Milliseconds(200);
  if (config.run().share_gpu() && device.total_bytes > 0) {
    trainer::PolicyTrainer::Options alone = options;
    alone.device_bytes = device.total_bytes;
    SYNCOPATE_RETURN_IF_ERROR(trainer::PolicyTrainer::CheckFits(alone));  // nobody's leaving would help
  }
  const absl::Time deadline = Clock::Real()->Now() + device.leave_within;
  for (bool said = false;; said = true) {
    absl::StatusOr<std::unique_ptr<trainer::PolicyTrainer>> policy = trainer::PolicyTrainer::Create(options);
    const bool waits = config.run().share_gpu() && device.read_free_bytes != nullptr;
    if (policy.ok() || !waits || !absl::IsResourceExhausted(policy.status())) return policy;
    if (Clock::Real()->Now() >= deadline) {
      return Error(absl::StatusCode::kFailedPrecondition, "TURN_STUCK",
                   absl::StrCat("rollouters that share ", options.device, " have not left it within ",
                                absl::FormatDuration(device.leave_within),
                                "; end them, or whatever else uses it: ", std::string(policy.status().message())));
    }
    if (!said) {
      SYNCOPATE_LOG(kInfo, "waits until rollouters have left %s: %s", options.device,
                    std::string(policy.status().message()));
    }
    absl::SleepFor(kLook);
    SYNCOPATE_ASSIGN_OR_RETURN(options.device_bytes, device.read_free_bytes());
  }
}

int CountHostSlots(const v1::RunConfig& config) {
  constexpr int kDefaultSlots = 2;
  return config.sync().send_slots() == 0 ? kDefaultSlots : static_cast<int>(config.sync().send_slots());
}

// Memory of the send slots.
int64_t CountSendBytes(const v1::RunConfig& config, const Manifest& wire, const synchronizer::SyncPlan& plan,
                       const TrainDevice& device) {
  const int64_t slots = CountHostSlots(config);
  const int64_t shared =
      config::LendsBase(config, device.model.shape) ? synchronizer::SendArena::LendableBytes(wire, plan) : 0;
  return slots * plan.send_bytes(device.rank) - (slots - 1) * shared;
}

}  // namespace

daemon::CardOwners ListOwnParts(const trainer::PolicyMemory& policy, int64_t send_bytes) {
  daemon::CardOwners parts = {{"weights", policy.parameter_bytes},
                              {"moments", policy.optimizer_bytes},
                              {"gradients", policy.gradient_bytes},
                              {"reference policy", policy.reference_bytes}};
  // Activations, and what the allocator keeps for the next ones.
  parts.emplace_back("allocator", policy.reserved_bytes - daemon::SumOwners(parts));
  parts.emplace_back("send slots", send_bytes);
  return parts;
}

daemon::CardOwners ListOwnParts(const TrainDevice& device) {
  return ListOwnParts(device.policy->memory(), device.arena_bytes == 0 ? 0 : device.stager->bytes());
}

std::string TrainDevice::LendBase() const {
  if (base_lender == nullptr) return "";
  absl::StatusOr<synchronizer::SharedMemory> memory = stager->LendBase();
  if (memory.ok()) return base_lender->Lend(*std::move(memory));
  SYNCOPATE_LOG(kWarning, "the base weights are sent, because they cannot be lent: %s", memory.status().ToString());
  return "";
}

absl::Status MakePolicy(const v1::RunConfig& config, int64_t send_bytes, TrainDevice* device) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto options, InitialPolicyOptions(config, device->model, device->device));
  options.send_bytes = send_bytes;
  options.base_memory = device->base_memory;
  const auto world = static_cast<int32_t>(config.trainer().world());
  if (world > 1) device->ranks = std::make_shared<LateRanks>(device->rank, world);
  if (world > 1) options.mesh = *device->ranks;
  SYNCOPATE_ASSIGN_OR_RETURN(device->policy, CreateWithRoom(config, device->device, options));
  SYNCOPATE_RETURN_IF_ERROR(config::CheckBase(*device->policy, options.adapters.get()));
  if (world > 1 && device->rank == 0) {
    device->leading = std::make_unique<trainer::LeadingPolicy>(device->policy.get());
  }
  return absl::OkStatus();
}

int64_t CountTurnBytes(const TrainDevice& device) {
  return device.policy->memory().update_bytes + device.stager->bytes();
}

absl::Status CheckTurnRoom(const TrainDevice& device, int64_t turn_bytes) {
  if (device.device.read_free_bytes == nullptr) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t free, device.device.read_free_bytes());
  // What stays on the device in the rollouters' turn need not be had again.
  const trainer::PolicyMemory memory = device.policy->memory();
  const int64_t there = memory.parameter_bytes + memory.optimizer_bytes + memory.gradient_bytes +
                        memory.reference_bytes + device.stager->bytes();
  const int64_t needed = std::max<int64_t>(turn_bytes - there, 0);
  if (free >= needed) return absl::OkStatus();
  return Error(absl::StatusCode::kResourceExhausted, "NO_ROOM",
               absl::StrCat(free >> 20, " MiB are free, and it needs ", needed >> 20, " MiB"));
}

trainer::StagedPart PartOf(const v1::RunConfig& config, const TrainDevice& device) {
  return {.rank = device.rank,
          .world = static_cast<int32_t>(config.trainer().world()),
          .destination = config::MakeRolloutLayout(config, device.model.shape)};
}

void SetStager(std::unique_ptr<trainer::WeightStager> stager, TrainDevice* device) {
  if (device->leading == nullptr) {
    device->stager = std::move(stager);
    return;
  }
  auto group = std::make_unique<trainer::GroupStager>(std::move(stager));
  device->staging_group = group.get();
  device->stager = std::move(group);
}

void OpenBaseLender(uint64_t fingerprint, TrainDevice* device) {
  auto lender = synchronizer::ipc::BaseLender::Create(fingerprint);
  if (lender.ok()) {
    device->base_lender = *std::move(lender);
  } else {
    SYNCOPATE_LOG(kWarning, "the base weights are sent to all rollouters, because they cannot be lent: %s",
                  lender.status().ToString());
  }
}

absl::Status StageOnHost(const v1::RunConfig& config, Manifest wire, TrainDevice* device) {
  const uint64_t fingerprint = wire.fingerprint();
  // Rollouters on a GPU map no host memory.
  const bool lends = config::LendsBase(config, device->model.shape) && device->device.total_bytes == 0;
  SYNCOPATE_ASSIGN_OR_RETURN(auto stager,
                             trainer::HostStager::Create(device->policy.get(), std::move(wire), CountHostSlots(config),
                                                         PartOf(config, *device), lends));
  if (lends) OpenBaseLender(fingerprint, device);
  SetStager(std::move(stager), device);
  return absl::OkStatus();
}

absl::StatusOr<TrainDevice> HostTrainDevice(const v1::RunConfig& config, config::RunModel model, int32_t rank) {
  TrainDevice device;
  device.rank = rank;
  device.model = std::move(model);
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest wire, config::MakeWireManifest(config, device.model.shape));
  const trainer::StagedPart part = PartOf(config, device);
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::SyncPlan plan, trainer::PlanStaging(wire, part, DType::kFloat32));
  SYNCOPATE_RETURN_IF_ERROR(MakePolicy(config, CountSendBytes(config, wire, plan, device), &device));
  SYNCOPATE_RETURN_IF_ERROR(StageOnHost(config, std::move(wire), &device));
  return device;
}

}  // namespace syncopate::trainerd
