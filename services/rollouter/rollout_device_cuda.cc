#include <algorithm>
#include <utility>

#include "base/daemon/card_name.h"
#include "base/log.h"
#include "model/cuda/torch_stream.h"
#include "ranks/nccl/nccl_ranks.h"
#include "rollouter/cuda/host_bounce.h"
#include "rollouter/cuda/make_cuda_backend.h"
#include "services/config/model_options.h"
#include "services/daemon/cuda_device.h"
#include "services/member/grpc_transport.h"
#include "services/rollouter/rollout_device.h"
#include "synchronizer/ipc/cuda_copy_engine.h"
#include "synchronizer/ipc/cuda_lending.h"
#include "synchronizer/ipc/ipc_receiver.h"
#include "synchronizer/nccl/nccl_device.h"

namespace syncopate::rollouterd {
namespace {

using synchronizer::ipc::CudaCopyEngine;

// `relays`: the receiver has a shadow that other processes can map.
absl::Status AddIpc(const v1::RunConfig& config, int index, const rollouter::CudaEngine& engine, bool relays,
                    RolloutDevice* device) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<CudaCopyEngine> made, CudaCopyEngine::Create(index));
  const std::shared_ptr<CudaCopyEngine> copies = std::move(made);
  synchronizer::IpcReceiver::Options options;
  // The address is exported again at each Prepare: an install exchanges the memory behind the shadow's address, and a
  // repeated attempt must not write to the memory that serves by then.
  options.engine = copies.get();
  // The trainer gives its send slots back after each sync, which a mapping would keep there.
  if (config.run().share_gpu()) options.mapped_memories = 0;
  if (relays)
    options.shadow = [export_shadow = engine.export_shadow,
                      gpu = device->facts.gpu_uuid]() -> absl::StatusOr<synchronizer::SharedMemory> {
      SYNCOPATE_ASSIGN_OR_RETURN(cuda::ExportedMemory memory, export_shadow());
      return synchronizer::LendGpuMemory(std::move(memory), gpu);
    };
  SYNCOPATE_ASSIGN_OR_RETURN(auto receiver, synchronizer::IpcReceiver::Create(std::move(options)));
  device->borrowed.push_back(copies);  // destroyed after the transports, which use it
  device->transports.push_back(std::move(receiver));
  return absl::OkStatus();
}

absl::Status AddNccl(const v1::RunConfig& config, int index, RolloutDevice* device) {
  synchronizer::NcclReceiver::Options options;
  SYNCOPATE_ASSIGN_OR_RETURN(options.facts, synchronizer::ReadNcclFacts(index));
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto receiver,
      synchronizer::NcclReceiver::Create(
          options, synchronizer::NcclDevices({.device = index, .max_ctas = config::SyncMaxCtas(config)})));
  device->transports.push_back(std::move(receiver));
  return absl::OkStatus();
}

absl::Status AddGrpc(int index, int64_t arena_bytes, std::shared_ptr<const auth::TransportSecurity> security,
                     RolloutDevice* device) {
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto receiver,
      rollouter::HostBounce::Create(std::make_unique<member::GrpcReceiver>(std::move(security)), index, arena_bytes));
  device->transports.push_back(std::move(receiver));
  return absl::OkStatus();
}

rollouter::CudaInstall ToCudaInstall(config::WeightMemory memory, bool maps_base) {
  switch (memory) {
    case config::WeightMemory::kMappedBase:
      return maps_base ? rollouter::CudaInstall::kMappedBase : rollouter::CudaInstall::kRemap;
    case config::WeightMemory::kTwoSets:
      return rollouter::CudaInstall::kRemap;
    case config::WeightMemory::kInPlace:
      return rollouter::CudaInstall::kInPlace;
    case config::WeightMemory::kBorrowed:
      return rollouter::CudaInstall::kBorrowed;
    case config::WeightMemory::kAuto:
      return rollouter::CudaInstall::kAuto;
  }
  return rollouter::CudaInstall::kRemap;
}

}  // namespace

absl::StatusOr<RankPlace> FindRolloutPlace(const v1::RunConfig& config) {
  RankPlace place;
  SYNCOPATE_ASSIGN_OR_RETURN(place.name,
                             model::ChooseDevice(config::RolloutDeviceRequest(config), model::ProbeHardware()));
  SYNCOPATE_RETURN_IF_ERROR(config::CheckRolloutDevice(config, place.name));
  if (!model::IsCuda(place.name)) return place;
  const int index = daemon::CudaIndex(place.name);
  // Identifies the GPU as NCCL does: two ranks on one GPU are refused, unless NCCL_HOSTID gives each a host of its own.
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::NcclFacts facts, synchronizer::ReadNcclFacts(index));
  return PlaceOnGpu({.device = index,
                     .world = static_cast<int32_t>(config.rollout().tensor_parallel()),
                     .deadline = kRankStepDeadline,
                     .stream = model::TorchStream(index)},
                    facts.gpu);
}

absl::StatusOr<std::string> FindRolloutCard(const v1::RunConfig& config) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string name,
                             model::ChooseDevice(config::RolloutDeviceRequest(config), model::ProbeHardware()));
  SYNCOPATE_RETURN_IF_ERROR(config::CheckRolloutDevice(config, name));
  if (!model::IsCuda(name)) return daemon::CardName("");
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::DeviceFacts facts, daemon::ReadDeviceFacts(daemon::CudaIndex(name)));
  return daemon::CardName(facts.gpu_uuid);
}

absl::StatusOr<std::shared_ptr<RolloutDevice>> OpenRolloutDevice(
    const v1::RunConfig& config, const model::ModelConfig& shape,
    std::shared_ptr<const auth::TransportSecurity> security, const ReplicaPart* part) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string name,
                             model::ChooseDevice(config::RolloutDeviceRequest(config), model::ProbeHardware()));
  SYNCOPATE_RETURN_IF_ERROR(config::CheckRolloutDevice(config, name));
  const config::WeightMemory sets = config::ChooseWeightMemory(config, shape);
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest wire, config::MakeWireManifest(config, shape));
  if (!model::IsCuda(name)) return OpenHostDevice(sets, shape, wire, std::move(security), part);
  const int index = daemon::CudaIndex(name);
  auto device = std::make_shared<RolloutDevice>();
  device->card = daemon::OpenCard(index);  // before anything makes a context
  SYNCOPATE_ASSIGN_OR_RETURN(device->facts, daemon::ReadDeviceFacts(index));
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t late_bytes, config::CountLateGpuBytes(config, shape, wire));
  if (part != nullptr) wire = part->slice.manifest;
  // On GPUs FindRolloutPlace() has joined an NcclGroup.
  auto* const ranks = part != nullptr ? static_cast<NcclGroup*>(part->ranks.get()) : nullptr;
  const bool maps_base = config::MapsBaseOnGpu(config, shape);
  const rollouter::CudaMemoryUse memory{.share = config.rollout().gpu_memory(), .others_bytes = late_bytes};
  // Made before the transports, which write to the backend's arenas.
  SYNCOPATE_ASSIGN_OR_RETURN(const rollouter::CudaEngine engine,
                             rollouter::MakeCudaBackend(part != nullptr ? part->slice.config : shape, wire, index,
                                                        ToCudaInstall(sets, maps_base), memory, ranks));
  device->backend = engine.backend;
  // A transport that is not available is an error only if the configuration asks for it by name; otherwise the others
  // are used.
  if (daemon::MayOffer(config, "ipc")) {
    const bool relays = sets != config::WeightMemory::kInPlace && !shape.lora.enabled();
    SYNCOPATE_RETURN_IF_ERROR(
        daemon::RequiredTransport(config, "ipc", AddIpc(config, index, engine, relays, device.get())));
  }
  if (daemon::MayOffer(config, "nccl")) SYNCOPATE_RETURN_IF_ERROR(AddNccl(config, index, device.get()));
  if (daemon::MayOffer(config, "grpc"))
    SYNCOPATE_RETURN_IF_ERROR(AddGrpc(index, wire.arena_bytes(), std::move(security), device.get()));
  SYNCOPATE_LOG(kInfo, "generates on %s (%s) with %s weights, installed by %s", name, device->facts.gpu_uuid,
                DTypeName(config::ToWireDType(config)),
                maps_base                                ? "adapter sets, whose base may be the trainer's memory"
                : shape.lora.enabled()                   ? "adapter sets"
                : sets == config::WeightMemory::kInPlace ? "transfer in place"
                                                         : "remap");
  return device;
}

}  // namespace syncopate::rollouterd
