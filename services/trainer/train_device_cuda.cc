#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cuda/cuda_arena.h"
#include "cuda/device.h"
#include "cuda/nccl/nccl_comm.h"
#include "model/cuda/torch_stream.h"
#include "model/device.h"
#include "ranks/nccl/nccl_ranks.h"
#include "services/config/model_options.h"
#include "services/config/trainer_options.h"
#include "services/daemon/cuda_device.h"
#include "services/trainer/rank_service.h"
#include "services/trainer/train_device.h"
#include "synchronizer/ipc/cuda_lending.h"
#include "synchronizer/ipc/ipc_source.h"
#include "synchronizer/nccl/nccl_device.h"
#include "synchronizer/transport/send_arena.h"
#include "trainer/cuda/cuda_stager.h"
#include "trainer/cuda/cuda_state_arena.h"
#include "trainer/staging/weight_stager.h"

namespace syncopate::trainerd {
namespace {

int GetSlots(const v1::RunConfig& config, int otherwise) {
  return config.sync().send_slots() == 0 ? otherwise : static_cast<int>(config.sync().send_slots());
}

DType GetComputeDType(const v1::RunConfig& config, const TrainDevice& device) {
  return config::MakePolicyTrainerOptions(config, device.model.shape).compute_dtype.value_or(DType::kBFloat16);
}

// The memory of the base of adapters that policy and send slots have together; none before there is a policy, which owns
// it.
using SharedBase = std::weak_ptr<const cuda::CudaArena>;

// Lets the policy put its base where the send slots lend it, if it can compute with it there; else the result is null.
absl::StatusOr<std::shared_ptr<SharedBase>> ShareBase(const v1::RunConfig& config, const Manifest& wire, int index,
                                                      TrainDevice* device) {
  if (!config::LendsBase(config, device->model.shape) || config.sync().transport() == "grpc") return nullptr;
  const DType compute = GetComputeDType(config, *device);
  if (compute != DType::kBFloat16) return nullptr;
  SYNCOPATE_ASSIGN_OR_RETURN(
      const synchronizer::SyncPlan plan,
      trainer::PlanStaging(wire, PartOf(config, *device), trainer::CudaStager::ReadDType(compute, wire)));
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest policy, model::MakeManifest(device->model.shape, DType::kFloat32));
  const int64_t bytes = synchronizer::SendArena::LendableBytes(wire, plan);
  if (bytes == 0 || !trainer::CanHoldBase(policy, wire)) return nullptr;
  auto shared = std::make_shared<SharedBase>();
  const auto allocate = [shared, index, bytes]() -> absl::StatusOr<std::shared_ptr<char>> {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::shared_ptr<cuda::CudaArena> memory,
                               cuda::CudaArena::Create(bytes, {.device = index, .what = "the base weights"}));
    *shared = memory;
    return std::shared_ptr<char>(memory, memory->data());
  };
  device->base_memory = std::make_shared<const trainer::BaseMemory>(trainer::BaseMemory{wire, allocate});
  return shared;
}

// The GPU memory for this rank's send slots.
absl::StatusOr<int64_t> SendBytes(const v1::RunConfig& config, const Manifest& wire, const TrainDevice& device) {
  if (config.sync().transport() == "grpc") return 0;
  const DType compute = GetComputeDType(config, device);
  SYNCOPATE_ASSIGN_OR_RETURN(
      const synchronizer::SyncPlan plan,
      trainer::PlanStaging(wire, PartOf(config, device), trainer::CudaStager::ReadDType(compute, wire)));
  const int64_t shared =
      config::LendsBase(config, device.model.shape) ? synchronizer::SendArena::LendableBytes(wire, plan) : 0;
  return GetSlots(config, 1) * (plan.send_bytes(device.rank) - shared) + shared;
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

absl::Status AddNccl(const v1::RunConfig& config, int index, synchronizer::CudaSendArena* arena, TrainDevice* device) {
  const auto memory = std::make_shared<synchronizer::CudaStagedMemory>(arena);
  synchronizer::NcclSource::Options options;
  options.rank = device->rank;
  options.manifest = std::make_shared<const Manifest>(device->stager->manifest());
  SYNCOPATE_ASSIGN_OR_RETURN(options.facts, synchronizer::ReadNcclFacts(index));
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto source,
      synchronizer::NcclSource::Create(
          options, memory.get(), synchronizer::NcclDevices({.device = index, .max_ctas = config::SyncMaxCtas(config)}),
          cuda::NewNcclId));
  device->borrowed.push_back(memory);
  device->transports.push_back(std::move(source));
  return absl::OkStatus();
}

// Stages on the GPU, from which all transports can send.
absl::Status StageOnGpu(const v1::RunConfig& config, int index, Manifest wire,
                        std::shared_ptr<const cuda::CudaArena> base, TrainDevice* device) {
  const uint64_t fingerprint = wire.fingerprint();
  const bool lends = config::LendsBase(config, device->model.shape);
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto stager, trainer::CudaStager::Create(device->policy.get(), std::move(wire), index, GetSlots(config, 1),
                                               PartOf(config, *device), lends, std::move(base)));
  synchronizer::CudaSendArena* const arena = stager->arena();
  if (arena->base_bytes() > 0) {
    OpenBaseLender(fingerprint, device);
  } else if (lends) {
    SYNCOPATE_LOG(kWarning, "the base weights are sent to all rollouters: this model's send slots cannot lend them");
  }
  SetStager(std::move(stager), device);
  device->arena_bytes = device->stager->bytes();
  if (daemon::MayOffer(config, "ipc"))
    SYNCOPATE_RETURN_IF_ERROR(daemon::RequiredTransport(config, "ipc", AddIpc(arena, device)));
  if (daemon::MayOffer(config, "nccl")) SYNCOPATE_RETURN_IF_ERROR(AddNccl(config, index, arena, device));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankDevice> OpenRankDevice(const v1::RunConfig& config, int32_t rank) {
  RankDevice device;
  std::string& name = device.place.name;
  SYNCOPATE_ASSIGN_OR_RETURN(name,
                             model::ChooseDevice(config::TrainDeviceRequest(config, rank), model::ProbeHardware()));
  SYNCOPATE_RETURN_IF_ERROR(config::CheckTrainDevice(config, name));
  if (!model::IsCuda(name)) return device;
  const int index = daemon::CudaIndex(name);
  device.card = daemon::OpenCard(index);  // before anything makes a context
  device.arenas = trainer::CudaStateArenas(index);
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::GpuMemory memory, cuda::ReadGpuMemory(index));
  if (device.card != nullptr) daemon::EndMeasurement(device.card.get(), /*own=*/0);
  device.state_bytes = memory.free;
  device.total_bytes = memory.total;
  device.read_free_bytes = [index]() -> absl::StatusOr<int64_t> {
    SYNCOPATE_ASSIGN_OR_RETURN(const cuda::GpuMemory now, cuda::ReadGpuMemory(index));
    return now.free;
  };
  const auto world = static_cast<int32_t>(config.trainer().world());
  if (world == 1) return device;
  // Identifies the GPU as NCCL does: two ranks on one GPU are refused, unless NCCL_HOSTID gives each a host of its own.
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::NcclFacts facts, synchronizer::ReadNcclFacts(index));
  device.place = PlaceOnGpu(
      {.device = index, .world = world, .deadline = kRankCallDeadline, .stream = model::TorchStream(index)}, facts.gpu);
  return device;
}

absl::StatusOr<TrainDevice> OpenTrainDevice(const v1::RunConfig& config, config::RunModel model, int32_t rank) {
  TrainDevice device;
  device.rank = rank;
  SYNCOPATE_ASSIGN_OR_RETURN(device.device, OpenRankDevice(config, rank));
  const std::string& name = device.name = device.device.place.name;
  if (!model::IsCuda(name)) return HostTrainDevice(config, std::move(model), rank);
  const int index = daemon::CudaIndex(name);
  SYNCOPATE_ASSIGN_OR_RETURN(device.facts, daemon::ReadDeviceFacts(index));
  device.device.hold_card = [gpu_uuid = device.facts.gpu_uuid] { return daemon::HoldCard(gpu_uuid); };
  device.model = std::move(model);
  daemon::CardAccount* const card = device.device.card.get();
  if (card != nullptr) daemon::BeginMeasurement(card, device.facts.gpu_uuid, /*own=*/0);
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest wire, config::MakeWireManifest(config, device.model.shape));
  SYNCOPATE_ASSIGN_OR_RETURN(const int64_t send_bytes, SendBytes(config, wire, device));
  SYNCOPATE_ASSIGN_OR_RETURN(const std::shared_ptr<SharedBase> base, ShareBase(config, wire, index, &device));
  SYNCOPATE_RETURN_IF_ERROR(MakePolicy(config, send_bytes, &device));
  device.offers_grpc = daemon::MayOffer(config, "grpc");
  if (config.sync().transport() == "grpc") {
    // This transport sends through host memory anyway, and without a send arena the GPU has more room.
    SYNCOPATE_RETURN_IF_ERROR(StageOnHost(config, std::move(wire), &device));
  } else {
    SYNCOPATE_RETURN_IF_ERROR(
        StageOnGpu(config, index, std::move(wire), base == nullptr ? nullptr : base->lock(), &device));
  }
  if (card != nullptr) daemon::EndMeasurement(card, daemon::SumOwners(ListOwnParts(device)));
  SYNCOPATE_LOG(kInfo, "trains on %s (%s), computes in %s, sends %s weights", name, device.facts.gpu_uuid,
                DTypeName(device.policy->compute_dtype()), DTypeName(config::ToWireDType(config)));
  return device;
}

}  // namespace syncopate::trainerd
