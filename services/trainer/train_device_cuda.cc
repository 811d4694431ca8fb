#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cuda/device.h"
#include "cuda/nccl/nccl_comm.h"
#include "model/device.h"
#include "services/config/model_options.h"
#include "services/config/trainer_options.h"
#include "services/daemon/cuda_device.h"
#include "services/trainer/train_device.h"
#include "synchronizer/ipc/cuda_lending.h"
#include "synchronizer/ipc/ipc_source.h"
#include "synchronizer/nccl/nccl_device.h"
#include "trainer/cuda/cuda_stager.h"
#include "trainer/cuda/cuda_state_arena.h"
#include "trainer/staging/host_stager.h"

namespace syncopate::trainerd {
namespace {

int SlotsOf(const v1::RunConfig& config, int otherwise) {
  return config.sync().send_slots() == 0 ? otherwise : static_cast<int>(config.sync().send_slots());
}

// What send slots will take of the GPU.
int64_t SendBytes(const v1::RunConfig& config, const Manifest& wire) {
  return config.sync().transport() == "grpc" ? 0 : SlotsOf(config, 1) * wire.arena_bytes();
}

absl::Status AddIpc(synchronizer::CudaSendArena* arena, TrainDevice* device) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<synchronizer::CudaLendingStore> made,
                             synchronizer::CudaLendingStore::Create(arena));
  const std::shared_ptr<synchronizer::CudaLendingStore> store = std::move(made);
  SYNCOPATE_ASSIGN_OR_RETURN(auto source, synchronizer::IpcSource::Create(store.get(), {}));
  device->borrowed.push_back(store);
  device->transports.push_back(std::move(source));
  return absl::OkStatus();
}

absl::Status AddNccl(int index, synchronizer::CudaSendArena* arena, TrainDevice* device) {
  const auto memory = std::make_shared<synchronizer::CudaStagedMemory>(arena);
  synchronizer::NcclSource::Options options;
  options.manifest = std::make_shared<const Manifest>(device->stager->manifest());
  SYNCOPATE_ASSIGN_OR_RETURN(options.facts, synchronizer::ReadNcclFacts(index));
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto source, synchronizer::NcclSource::Create(options, memory.get(), synchronizer::NcclDevices({.device = index}),
                                                    cuda::NewNcclId));
  device->borrowed.push_back(memory);
  device->transports.push_back(std::move(source));
  return absl::OkStatus();
}

// Staging on the GPU, which all transports can send from.
absl::Status StageOnGpu(const v1::RunConfig& config, int index, Manifest wire, TrainDevice* device) {
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto stager, trainer::CudaStager::Create(device->policy.get(), std::move(wire), index, SlotsOf(config, 1)));
  synchronizer::CudaSendArena* const arena = stager->arena();
  device->stager = std::move(stager);
  device->arena_bytes = device->stager->bytes();
  if (daemon::MayOffer(config, "ipc"))
    SYNCOPATE_RETURN_IF_ERROR(daemon::RequiredTransport(config, "ipc", AddIpc(arena, device)));
  if (daemon::MayOffer(config, "nccl")) SYNCOPATE_RETURN_IF_ERROR(AddNccl(index, arena, device));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainDevice> OpenTrainDevice(const v1::RunConfig& config, config::RunModel model) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string name,
                             model::ChooseDevice(config::TrainDeviceRequest(config), model::ProbeHardware()));
  SYNCOPATE_RETURN_IF_ERROR(config::CheckTrainDevice(config, name));
  if (!model::IsCuda(name)) return HostTrainDevice(config, std::move(model));
  const int index = daemon::CudaIndex(name);
  TrainDevice device;
  device.name = name;
  SYNCOPATE_ASSIGN_OR_RETURN(device.facts, daemon::ReadDeviceFacts(index));
  device.model = std::move(model);
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest wire, config::WireManifestOf(config, device.model.shape));
  SYNCOPATE_ASSIGN_OR_RETURN(trainer::PolicyTrainer::Options options, InitialPolicyOptions(config, device.model));
  options.device = name;
  options.arenas = trainer::CudaStateArenas(index);
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::GpuMemory memory, cuda::ReadGpuMemory(index));
  options.device_bytes = std::max<int64_t>(1, memory.free - SendBytes(config, wire));  // 0 is for nobody knows
  SYNCOPATE_ASSIGN_OR_RETURN(device.policy, trainer::PolicyTrainer::Create(options));
  device.offers_grpc = daemon::MayOffer(config, "grpc");
  if (config.sync().transport() == "grpc") {
    // What is sent goes through host memory anyhow, and the GPU has more room without a send arena.
    SYNCOPATE_ASSIGN_OR_RETURN(device.stager,
                               trainer::HostStager::Create(device.policy.get(), std::move(wire), SlotsOf(config, 2)));
  } else {
    SYNCOPATE_RETURN_IF_ERROR(StageOnGpu(config, index, std::move(wire), &device));
  }
  SYNCOPATE_LOG(kInfo, "trains on %s (%s), computes in %s, sends %s weights", name, device.facts.gpu_uuid,
                DTypeName(device.policy->compute_dtype()), DTypeName(config::WireDTypeOf(config)));
  return device;
}

}  // namespace syncopate::trainerd
