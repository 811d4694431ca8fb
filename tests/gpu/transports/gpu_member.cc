#include "tests/gpu/transports/gpu_member.h"
#include "tests/support/qwen_tensors.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/cuda/probe.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/nccl/nccl_comm.h"
#include "synchronizer/cuda/shard_bases.h"
#include "synchronizer/ipc/cuda_copy_engine.h"
#include "synchronizer/ipc/cuda_lending.h"
#include "synchronizer/ipc/ipc_receiver.h"
#include "synchronizer/ipc/ipc_source.h"
#include "synchronizer/nccl/nccl_device.h"
#include "synchronizer/plan/layout_text.h"

namespace syncopate::synchronizer {
namespace {

constexpr absl::Duration kStageDeadline = absl::Seconds(20);
constexpr int64_t kBucketBytes = 1 << 20;

absl::StatusOr<std::unique_ptr<SourceTransport>> GetTransport(GpuSource* source) {
  if (source->of->transport == "ipc") {
    SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<CudaLendingStore> made, CudaLendingStore::Create(source->arena.get()));
    std::shared_ptr<CudaLendingStore> store = std::move(made);
    source->borrowed = store;
    return IpcSource::Create(store.get(), {});
  }
  auto memory = std::make_shared<CudaStagedMemory>(source->arena.get());
  source->borrowed = memory;
  NcclSource::Options nccl;
  nccl.rank = source->id.rank;
  nccl.manifest = std::make_shared<const Manifest>(source->of->manifest);
  SYNCOPATE_ASSIGN_OR_RETURN(nccl.facts, ReadNcclFacts(source->device));
  return NcclSource::Create(nccl, memory.get(), NcclDevices({.device = source->device}), &cuda::NewNcclId);
}

absl::StatusOr<std::unique_ptr<ReceiverTransport>> GetTransport(GpuReceiver* receiver) {
  if (receiver->of->transport == "nccl") {
    NcclReceiver::Options nccl;
    SYNCOPATE_ASSIGN_OR_RETURN(nccl.facts, ReadNcclFacts(receiver->device));
    return NcclReceiver::Create(nccl, NcclDevices({.device = receiver->device}));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ipc::CudaCopyEngine> made, ipc::CudaCopyEngine::Create(receiver->device));
  std::shared_ptr<ipc::CudaCopyEngine> engine = std::move(made);
  receiver->borrowed = engine;
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::GpuFacts facts, cuda::ReadGpuFacts(receiver->device));
  IpcReceiver::Options ipc;
  ipc.engine = engine.get();
  ipc.chunk_bytes = receiver->of->chunk_bytes;
  ipc.shadow = [target = receiver->target.get(), gpu = facts.gpu_uuid]() -> absl::StatusOr<SharedMemory> {
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::ExportedMemory memory, target->ExportShadow());
    return LendGpuMemory(std::move(memory), gpu);
  };
  return IpcReceiver::Create(std::move(ipc));
}

}  // namespace

BetweenSteps NoDecodeLoop(int device) {
  return [device](const std::function<absl::Status()>& remap, absl::Duration) -> absl::StatusOr<absl::Duration> {
    cuda::DeviceScope scope(device);
    SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(cudaDeviceSynchronize(), "draining the device"));
    SYNCOPATE_RETURN_IF_ERROR(remap());
    return absl::ZeroDuration();
  };
}

Manifest GpuTestModel(int64_t width) {
  const int64_t hidden = 128 * width;
  const int64_t inner = 344 * width;
  std::vector<TensorSpec> tensors = {{"model.embed_tokens.weight", DType::kBFloat16, {1000 * width, hidden}}};
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    tensors.push_back({prefix + "self_attn.q_proj.weight", DType::kBFloat16, {hidden, hidden}});
    tensors.push_back({prefix + "self_attn.q_proj.bias", DType::kBFloat16, {hidden}});
    tensors.push_back({prefix + "mlp.gate_proj.weight", DType::kBFloat16, {inner, hidden}});
    tensors.push_back({prefix + "mlp.down_proj.weight", DType::kBFloat16, {hidden, inner}});
    tensors.push_back({prefix + "input_layernorm.weight", DType::kBFloat16, {hidden}});
  }
  tensors.push_back({"model.norm.weight", DType::kBFloat16, {hidden}});
  auto manifest = Manifest::Create(testing::AsQwen(std::move(tensors), /*head=*/32), kBucketBytes);
  SYNCOPATE_CHECK(manifest.ok());
  return *std::move(manifest);
}

absl::StatusOr<GpuCase> GpuCase::Create(const Manifest& manifest, const std::string& transport,
                                        const std::string& source_layout, const std::string& destination_layout) {
  SYNCOPATE_ASSIGN_OR_RETURN(Layout source, BuildLayout(manifest, source_layout));
  SYNCOPATE_ASSIGN_OR_RETURN(Layout destination, BuildLayout(manifest, destination_layout));
  SYNCOPATE_ASSIGN_OR_RETURN(SyncPlan plan, SyncPlan::Create(manifest, source, destination));
  return GpuCase{manifest,           transport,         source_layout,
                 destination_layout, std::move(source), std::move(destination),
                 std::move(plan)};
}

absl::Status WatchedReceiver::Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) {
  ReceiveRequest watched = request;
  int arrivals = 0;
  watched.on_arrived = [this, &request, &arrivals](ByteRange range, void* stream) {
    request.on_arrived(range, stream);
    if (on_arrival != nullptr) on_arrival(arrivals);
    ++arrivals;
  };
  return receiver_->Receive(watched, destination, std::move(stop));
}

absl::StatusOr<std::unique_ptr<GpuSource>> GpuSource::Create(const GpuCase* of, int32_t rank, int device,
                                                             const std::string& incarnation) {
  auto source = std::make_unique<GpuSource>();
  source->of = of;
  source->device = device;
  source->id = {kTrainerRole, "trainer", rank, of->plan.sources(), incarnation};
  SYNCOPATE_ASSIGN_OR_RETURN(source->stream, cuda::Stream::Create(device));
  const int64_t shard_bytes = std::max<int64_t>(of->source.arena_bytes(rank), 4);
  SYNCOPATE_ASSIGN_OR_RETURN(source->shard, cuda::DeviceBuffer::Create(device, shard_bytes, "a test's shard"));
  CudaSendArena::Options arena;
  arena.device = device;
  SYNCOPATE_ASSIGN_OR_RETURN(source->arena, CudaSendArena::Create(of->manifest, of->plan, rank, arena));
  SYNCOPATE_ASSIGN_OR_RETURN(source->transport, GetTransport(source.get()));
  source->source =
      std::make_unique<WeightSource>(source->arena.get(), std::vector<SourceTransport*>{source->transport.get()},
                                     WeightSource::Options{of->source_layout, of->destination_layout});
  return source;
}

GpuSource::~GpuSource() {
  if (transport != nullptr && source != nullptr) source->FinishAll();
  transport.reset();
}

absl::StatusOr<std::vector<uint64_t>> GpuSource::Stage(int64_t step) {
  SYNCOPATE_RETURN_IF_ERROR(
      bench::FillWithRandomWeights(shard.data(), shard.bytes() / 4 * 4, 1000 * step + id.rank, stream.get()));
  SYNCOPATE_ASSIGN_OR_RETURN(
      CudaSendArena::Staged staged,
      arena->Stage({1, step}, FlatShard(of->manifest, shard.data()), stream.get(), kStageDeadline));
  return staged.digests;
}

absl::StatusOr<std::unique_ptr<GpuReceiver>> GpuReceiver::Create(const GpuCase* of, int32_t index, int device,
                                                                 const std::string& incarnation) {
  const int32_t world = of->plan.destinations();
  auto receiver = std::make_unique<GpuReceiver>();
  receiver->of = of;
  receiver->device = device;
  receiver->id = {kRollouterRole, absl::StrCat("rollouter-", index / world), index % world, world, incarnation};
  CudaArenaPair::Options pair;
  pair.arenas.device = device;
  SYNCOPATE_ASSIGN_OR_RETURN(
      receiver->target, CudaArenaPair::Create(of->destination.arena_bytes(index % world), NoDecodeLoop(device), pair));
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ReceiverTransport> transport, GetTransport(receiver.get()));
  receiver->transport = std::make_unique<WatchedReceiver>(std::move(transport));
  receiver->receiver = std::make_unique<WeightReceiver>(
      WeightReceiver::Options{of->manifest, receiver->id, of->destination_layout}, receiver->target.get(),
      std::vector<ReceiverTransport*>{receiver->transport.get()});
  return receiver;
}

GpuReceiver::~GpuReceiver() {
  if (receiver != nullptr) receiver->FinishAny();
}

}  // namespace syncopate::synchronizer
