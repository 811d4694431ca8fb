// Weights in the memory of one GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "bench/cuda/in_place_arena.h"
#include "bench/cuda/probe.h"
#include "bench/cuda/probe_kernels.h"
#include "bench/sync/fill_kernel.h"
#include "bench/sync/peer_device.h"
#include "cuda/cuda_arena.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/nccl/nccl_comm.h"
#include "cuda/stream.h"
#include "services/daemon/cuda_device.h"
#include "synchronizer/cuda/cuda_arena_pair.h"
#include "synchronizer/cuda/cuda_send_arena.h"
#include "synchronizer/cuda/kernels.h"
#include "synchronizer/cuda/shard_bases.h"
#include "synchronizer/ipc/cuda_copy_engine.h"
#include "synchronizer/ipc/cuda_lending.h"
#include "synchronizer/ipc/ipc_receiver.h"
#include "synchronizer/ipc/ipc_source.h"
#include "synchronizer/nccl/nccl_device.h"
#include "synchronizer/nccl/nccl_receiver.h"
#include "synchronizer/nccl/nccl_source.h"

namespace syncopate::bench {
namespace {

using cuda::CudaStatus;
using cuda::DeviceScope;
using synchronizer::Piece;

constexpr absl::Duration kStageLimit = absl::Seconds(30);
constexpr int kKernelsAStep = 28;  // in decoding: as many as layers, each reads its share

bool Wanted(const PeerOptions& options, const std::string& transport) {
  return options.transport == "auto" || options.transport == transport;
}

class CudaSource final : public SourceWeights {
 public:
  static absl::StatusOr<std::unique_ptr<CudaSource>> Create(const PeerOptions& options, const PeerPlan& plan) {
    std::unique_ptr<CudaSource> source(new CudaSource(options, plan));
    SYNCOPATE_RETURN_IF_ERROR(source->Allocate());
    if (Wanted(options, "ipc")) SYNCOPATE_RETURN_IF_ERROR(source->OpenIpc());
    if (Wanted(options, "nccl")) SYNCOPATE_RETURN_IF_ERROR(source->OpenNccl());
    return source;
  }

  absl::Status Fill(int64_t step) override {
    DeviceScope scope(options_.device);
    for (const Piece& piece : plan_.source.pieces()) {
      if (piece.rank != options_.rank) continue;
      const DType dtype = plan_.source.ToDType(plan_.manifest.tensors()[piece.tensor]);
      // A function of tensor, element and step, so that a receiver can check every number.
      const FillPiece fill{static_cast<uint64_t>(piece.tensor),
                           piece.begin,
                           piece.stride,
                           piece.row_elements(),
                           piece.elements(),
                           shard_->data() + piece.offset,
                           dtype == DType::kFloat32};
      SYNCOPATE_RETURN_IF_ERROR(CudaStatus(LaunchFill(fill, static_cast<uint64_t>(step), stream_.get()), "filling"));
    }
    return CudaStatus(cudaStreamSynchronize(stream_.get()), "filling the shards");
  }

  absl::StatusOr<Staged> Stage(PolicyVersion version) override {
    const absl::Time begin = Clock::Real()->Now();
    SYNCOPATE_ASSIGN_OR_RETURN(auto staged, arena_->Stage(version, bases_, stream_.get(), kStageLimit));
    return Staged{std::move(staged.digests), absl::ToDoubleSeconds(Clock::Real()->Now() - begin)};
  }

  synchronizer::WeightStore* store() override { return arena_.get(); }
  std::vector<synchronizer::SourceTransport*> transports() override {
    std::vector<synchronizer::SourceTransport*> all;
    if (ipc_ != nullptr) all.push_back(ipc_.get());
    if (nccl_ != nullptr) all.push_back(nccl_.get());
    return all;
  }

 private:
  CudaSource(const PeerOptions& options, const PeerPlan& plan) : options_(options), plan_(plan) {}

  absl::Status Allocate() {
    // A late rank of an uneven layout may have no shard, and an arena is never empty.
    const int64_t bytes = std::max<int64_t>(plan_.source.arena_bytes(options_.rank), Manifest::kAlignment);
    SYNCOPATE_ASSIGN_OR_RETURN(shard_,
                               cuda::CudaArena::Create(bytes, {.device = options_.device, .what = "the shards"}));
    bases_ = synchronizer::FlatShard(plan_.manifest, shard_->data());
    SYNCOPATE_ASSIGN_OR_RETURN(stream_, cuda::Stream::Create(options_.device));
    SYNCOPATE_ASSIGN_OR_RETURN(arena_, synchronizer::CudaSendArena::Create(plan_.manifest, plan_.plan, options_.rank,
                                                                           {.device = options_.device}));
    return absl::OkStatus();
  }

  absl::Status OpenIpc() {
    SYNCOPATE_ASSIGN_OR_RETURN(lending_, synchronizer::CudaLendingStore::Create(arena_.get()));
    SYNCOPATE_ASSIGN_OR_RETURN(ipc_, synchronizer::IpcSource::Create(lending_.get(), {.folder = options_.run_dir}));
    return absl::OkStatus();
  }

  absl::Status OpenNccl() {
    staged_ = std::make_unique<synchronizer::CudaStagedMemory>(arena_.get());
    synchronizer::NcclSource::Options options;
    options.rank = options_.rank;
    options.manifest = std::make_shared<Manifest>(plan_.manifest);
    SYNCOPATE_ASSIGN_OR_RETURN(options.facts, synchronizer::ReadNcclFacts(options_.device));
    SYNCOPATE_ASSIGN_OR_RETURN(
        nccl_,
        synchronizer::NcclSource::Create(options, staged_.get(), synchronizer::NcclDevices({.device = options_.device}),
                                         [] { return cuda::NewNcclId(); }));
    return absl::OkStatus();
  }

  const PeerOptions options_;
  const PeerPlan& plan_;
  std::unique_ptr<cuda::CudaArena> shard_;
  synchronizer::ShardBases bases_;
  cuda::Stream stream_;
  std::unique_ptr<synchronizer::CudaSendArena> arena_;
  // These members read the arena, so they are declared after it and destroyed before it.
  std::unique_ptr<synchronizer::CudaLendingStore> lending_;
  std::unique_ptr<synchronizer::IpcSource> ipc_;
  std::unique_ptr<synchronizer::CudaStagedMemory> staged_;
  std::unique_ptr<synchronizer::NcclSource> nccl_;
};

// The memory traffic of a decode step: every byte of the weights is read once.
class WeightReading {
 public:
  static absl::StatusOr<std::unique_ptr<WeightReading>> Create(int device, const char* weights, int64_t bytes) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto stream, cuda::Stream::Create(device));
    SYNCOPATE_ASSIGN_OR_RETURN(auto sum, cuda::DeviceBuffer::Create(device, sizeof(uint64_t), "a sum"));
    return std::unique_ptr<WeightReading>(new WeightReading(device, weights, bytes, std::move(stream), std::move(sum)));
  }

  absl::Status Step() {
    DeviceScope scope(device_);
    const int64_t share = bytes_ / kKernelsAStep / Manifest::kAlignment * Manifest::kAlignment;
    for (int kernel = 0; kernel < kKernelsAStep; ++kernel) {
      const int64_t begin = kernel * share;
      const int64_t end = kernel + 1 == kKernelsAStep ? bytes_ : begin + share;
      if (begin == end) continue;
      SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
          bench::LaunchReadWeights(weights_ + begin, end - begin, sum_.as<uint64_t>(), blocks_, stream_.get()),
          "reading weights"));
    }
    return CudaStatus(cudaStreamSynchronize(stream_.get()), "reading weights");
  }

 private:
  WeightReading(int device, const char* weights, int64_t bytes, cuda::Stream stream, cuda::DeviceBuffer sum)
      : device_(device),
        weights_(weights),
        bytes_(bytes),
        blocks_(synchronizer::BlocksThatFill(device)),
        stream_(std::move(stream)),
        sum_(std::move(sum)) {}

  const int device_;
  const char* const weights_;
  const int64_t bytes_;  // a multiple of 16, as in every arena
  const int blocks_;
  cuda::Stream stream_;
  cuda::DeviceBuffer sum_;
};

class CudaReceiver final : public ReceiverWeights {
 public:
  static absl::StatusOr<std::unique_ptr<CudaReceiver>> Create(const PeerOptions& options, const PeerPlan& plan) {
    std::unique_ptr<CudaReceiver> receiver(new CudaReceiver(options));
    const int64_t bytes = plan.receiver.arena_bytes(options.rank);
    SYNCOPATE_RETURN_IF_ERROR(options.install == "in_place" ? receiver->MakeInPlace(bytes) : receiver->MakePair(bytes));
    SYNCOPATE_ASSIGN_OR_RETURN(receiver->reading_, WeightReading::Create(options.device, receiver->live_, bytes));
    auto step = [reading = receiver->reading_.get()] { return reading->Step(); };
    // Without --decode the loop has no steps, and installs find it idle.
    receiver->loop_ = std::make_unique<DecodeLoop>(options.decode ? step : std::function<absl::Status()>());
    if (Wanted(options, "ipc")) SYNCOPATE_RETURN_IF_ERROR(receiver->OpenIpc());
    if (Wanted(options, "nccl")) SYNCOPATE_RETURN_IF_ERROR(receiver->OpenNccl());
    return receiver;
  }

  synchronizer::WeightTarget* target() override { return target_; }
  std::vector<synchronizer::ReceiverTransport*> transports() override {
    std::vector<synchronizer::ReceiverTransport*> all;
    if (ipc_ != nullptr) all.push_back(ipc_.get());
    if (nccl_ != nullptr) all.push_back(nccl_.get());
    return all;
  }
  DecodeLoop* loop() override { return loop_.get(); }
  absl::Status ReadLive(ByteRange range, char* to) override {
    DeviceScope scope(options_.device);
    return CudaStatus(cudaMemcpy(to, live_ + range.begin, range.size(), cudaMemcpyDeviceToHost), "reading weights");
  }

 private:
  explicit CudaReceiver(const PeerOptions& options) : options_(options) {}

  absl::Status MakePair(int64_t bytes) {
    auto between_steps = [this](const std::function<absl::Status()>& remap,
                                absl::Duration deadline) -> absl::StatusOr<absl::Duration> {
      SYNCOPATE_ASSIGN_OR_RETURN(const double seconds, loop_->Between(remap, deadline));
      return absl::Seconds(seconds);
    };
    SYNCOPATE_ASSIGN_OR_RETURN(pair_, synchronizer::CudaArenaPair::Create(
                                          bytes, between_steps,
                                          {.arenas = {.device = options_.device, .chunk_bytes = options_.chunk_bytes},
                                           .max_check_blocks = 0}));  // 0: digests may use the whole GPU
    target_ = pair_.get();
    live_ = pair_->live();
    return absl::OkStatus();
  }

  absl::Status MakeInPlace(int64_t bytes) {
    bench::InPlaceArena::Generation generation;
    generation.pause = [this](absl::Duration deadline) { return loop_->Hold(deadline); };
    generation.resume = [this] { loop_->Release(); };
    SYNCOPATE_ASSIGN_OR_RETURN(
        in_place_, bench::InPlaceArena::Create(bytes, std::move(generation),
                                               {.device = options_.device, .chunk_bytes = options_.chunk_bytes}));
    target_ = in_place_.get();
    live_ = in_place_->live();
    return absl::OkStatus();
  }

  absl::Status OpenIpc() {
    SYNCOPATE_ASSIGN_OR_RETURN(auto facts, cuda::ReadGpuFacts(options_.device));
    SYNCOPATE_ASSIGN_OR_RETURN(engine_, synchronizer::ipc::CudaCopyEngine::Create(options_.device));
    synchronizer::IpcReceiver::Options options;
    options.engine = engine_.get();
    options.server.folder = options_.run_dir;
    // With in-place installs there is no shadow from which other receivers could read.
    if (pair_ != nullptr) {
      options.shadow = [pair = pair_.get(), gpu = facts.gpu_uuid]() -> absl::StatusOr<synchronizer::ipc::SharedMemory> {
        SYNCOPATE_ASSIGN_OR_RETURN(auto shadow, pair->ExportShadow());
        return synchronizer::LendGpuMemory(std::move(shadow), gpu);
      };
    }
    SYNCOPATE_ASSIGN_OR_RETURN(ipc_, synchronizer::IpcReceiver::Create(std::move(options)));
    return absl::OkStatus();
  }

  absl::Status OpenNccl() {
    synchronizer::NcclReceiver::Options options;
    SYNCOPATE_ASSIGN_OR_RETURN(options.facts, synchronizer::ReadNcclFacts(options_.device));
    SYNCOPATE_ASSIGN_OR_RETURN(
        nccl_, synchronizer::NcclReceiver::Create(options, synchronizer::NcclDevices({.device = options_.device})));
    return absl::OkStatus();
  }

  const PeerOptions options_;
  std::unique_ptr<synchronizer::CudaArenaPair> pair_;  // one of these two is set
  std::unique_ptr<bench::InPlaceArena> in_place_;
  synchronizer::WeightTarget* target_ = nullptr;
  const char* live_ = nullptr;
  std::unique_ptr<synchronizer::ipc::CudaCopyEngine> engine_;
  std::unique_ptr<synchronizer::IpcReceiver> ipc_;
  std::unique_ptr<synchronizer::NcclReceiver> nccl_;
  std::unique_ptr<WeightReading> reading_;
  std::unique_ptr<DecodeLoop> loop_;  // last: its thread reads the weights
};

class CudaDevice final : public PeerDevice {
 public:
  CudaDevice(int device, synchronizer::DeviceFacts facts) : device_(device), facts_(std::move(facts)) {}

  synchronizer::DeviceFacts facts() const override { return facts_; }
  absl::StatusOr<int64_t> MemoryUsed() const override {
    SYNCOPATE_ASSIGN_OR_RETURN(const auto memory, cuda::ReadGpuMemory(device_));
    return memory.total - memory.free;  // of all processes on the GPU: cases with shared devices count each other
  }
  absl::Status CheckHealthy() override { return bench::CheckContext(device_); }
  absl::StatusOr<std::unique_ptr<SourceWeights>> MakeSource(const PeerOptions& options, const PeerPlan& plan) override {
    return CudaSource::Create(options, plan);
  }
  absl::StatusOr<std::unique_ptr<ReceiverWeights>> MakeReceiver(const PeerOptions& options,
                                                                const PeerPlan& plan) override {
    return CudaReceiver::Create(options, plan);
  }

 private:
  const int device_;
  const synchronizer::DeviceFacts facts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PeerDevice>> MakeCudaDevice(int device) {
  SYNCOPATE_RETURN_IF_ERROR(cuda::CheckGpu(device));
  SYNCOPATE_ASSIGN_OR_RETURN(auto facts, daemon::ReadDeviceFacts(device));
  return std::make_unique<CudaDevice>(device, std::move(facts));
}

CudaDevices FindCudaDevices() {
  CudaDevices found;
  found.count = cuda::GpuCount();
  cudaDeviceProp properties{};
  if (found.count > 0 && cudaGetDeviceProperties(&properties, 0) == cudaSuccess) found.name = properties.name;
  if (found.count == 0) found.error = std::string(cuda::CheckGpu(0).message());
  return found;
}

}  // namespace syncopate::bench
