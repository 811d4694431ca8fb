#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/nccl/nccl_comm.h"
#include "synchronizer/cuda/cuda_arena_pair.h"
#include "synchronizer/cuda/cuda_send_arena.h"
#include "synchronizer/cuda/shard_bases.h"
#include "synchronizer/ipc/cuda_copy_engine.h"
#include "synchronizer/ipc/cuda_lending.h"
#include "synchronizer/ipc/ipc_receiver.h"
#include "synchronizer/ipc/ipc_source.h"
#include "synchronizer/nccl/nccl_device.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu/transports/gpu_member.h"
#include "tests/support/transport_shapes.h"

// Runs the conformance suite of all transports on the transports between GPUs. Members are threads of one process here.
// Members of ipc share the available GPUs; members of nccl have one GPU each.
namespace syncopate::synchronizer {
namespace {

constexpr absl::Duration kStageDeadline = absl::Seconds(20);
constexpr int kMostGpus = 16;

int GpuCount() {
  int count = 0;
  while (count < kMostGpus && cuda::CheckGpu(count).ok()) ++count;
  return count;
}

class GpuTarget final : public TestTarget {
 public:
  GpuTarget(int64_t bytes, int device)
      : bytes_(bytes),
        device_(device),
        arenas_(*CudaArenaPair::Create(bytes, NoDecodeLoop(device), {.arenas = {.device = device}})) {}
  WeightTarget* target() override { return arenas_.get(); }
  CudaArenaPair* arenas() { return arenas_.get(); }
  std::vector<char> Live() const override { return ToHost(device_, arenas_->live(), bytes_); }
  PolicyVersion serving() const override { return arenas_->serving(); }

 private:
  const int64_t bytes_;
  const int device_;
  const std::unique_ptr<CudaArenaPair> arenas_;
};

class GpuArena final : public TestArena {
 public:
  GpuArena(const Manifest& manifest, const SyncPlan& plan, int32_t source_rank, int on_device)
      : rank(source_rank),
        device(on_device),
        manifest(manifest),
        stream_(*cuda::Stream::Create(on_device)),
        arena_(*CudaSendArena::Create(manifest, plan, source_rank, {.device = on_device})) {}
  WeightStore* store() override { return arena_.get(); }
  CudaSendArena* arena() { return arena_.get(); }
  absl::StatusOr<std::vector<uint64_t>> Stage(PolicyVersion version, const std::vector<char>& shard) override {
    const int64_t bytes = std::max<int64_t>(static_cast<int64_t>(shard.size()), 4);
    if (shard_.bytes() < bytes) {
      SYNCOPATE_ASSIGN_OR_RETURN(shard_, cuda::DeviceBuffer::Create(device, bytes, "a test's shard"));
    }
    ToDevice(device, shard_.data(), shard.data(), static_cast<int64_t>(shard.size()));
    SYNCOPATE_ASSIGN_OR_RETURN(CudaSendArena::Staged staged, arena_->Stage(version, FlatShard(manifest, shard_.data()),
                                                                           stream_.get(), kStageDeadline));
    return staged.digests;
  }

  const int32_t rank;
  const int device;
  const Manifest manifest;

 private:
  const cuda::Stream stream_;
  cuda::DeviceBuffer shard_;
  const std::unique_ptr<CudaSendArena> arena_;
};

// The process of a source, which a test can end.
class MortalSource final : public SourceTransport {
 public:
  MortalSource(std::string name, std::shared_ptr<const void> borrowed, std::unique_ptr<SourceTransport> source)
      : name_(std::move(name)), borrowed_(std::move(borrowed)), source_(std::move(source)) {}
  void Kill() { source_.reset(); }

  std::string name() const override { return name_; }
  absl::StatusOr<std::string> Open(const Prepare& attempt) override { return source_->Open(attempt); }
  absl::Status Start(const Transfer& attempt, std::function<void(absl::Status)> on_done) override {
    return source_->Start(attempt, std::move(on_done));
  }
  void Close(int64_t attempt) override {
    if (source_ != nullptr) source_->Close(attempt);
  }

 private:
  const std::string name_;
  const std::shared_ptr<const void> borrowed_;
  std::unique_ptr<SourceTransport> source_;
};

class GpuHarness : public TransportHarness {
 public:
  GpuHarness() : gpus_(GpuCount()) {}

  SourceTransport* AddSource(WeightStore* store) override {
    sources_.push_back(MakeSource(arenas_.at(store)));
    return sources_.back().get();
  }
  void KillSource(SourceTransport* source) override { static_cast<MortalSource*>(source)->Kill(); }
  ReceiverTransport* receiver() override { return AddReceiver(); }
  ReceiverTransport* AddReceiver() override {
    receivers_.push_back(MakeReceiver(NextDevice()));
    return receivers_.back().get();
  }
  std::unique_ptr<TestTarget> MakeTarget(int64_t bytes) override {
    auto target = std::make_unique<GpuTarget>(bytes, device_);
    *shadow_of_ = target->arenas();
    return target;
  }
  std::unique_ptr<TestArena> MakeArena(const Manifest& manifest, const SyncPlan& plan, int32_t source) override {
    auto arena = std::make_unique<GpuArena>(manifest, plan, source, NextDevice());
    arenas_[arena->store()] = arena.get();
    return arena;
  }

 protected:
  virtual std::unique_ptr<MortalSource> MakeSource(GpuArena* arena) = 0;
  virtual std::unique_ptr<ReceiverTransport> MakeReceiver(int device) = 0;
  // The target of the receiver that is made next, once it is known.
  std::shared_ptr<CudaArenaPair*> NewShadow() { return shadow_of_ = std::make_shared<CudaArenaPair*>(nullptr); }
  int gpus() const { return gpus_; }
  // Called before the objects that receivers borrow are destroyed.
  void DropReceivers() { receivers_.clear(); }

 private:
  // One GPU for each member, then round again.
  int NextDevice() { return device_ = next_device_++ % std::max(gpus_, 1); }

  const int gpus_;
  int next_device_ = 0;
  int device_ = 0;
  std::shared_ptr<CudaArenaPair*> shadow_of_ = std::make_shared<CudaArenaPair*>(nullptr);
  std::map<WeightStore*, GpuArena*> arenas_;
  std::vector<std::unique_ptr<MortalSource>> sources_;
  std::vector<std::unique_ptr<ReceiverTransport>> receivers_;
};

class IpcGpuHarness final : public GpuHarness {
 public:
  ~IpcGpuHarness() override { DropReceivers(); }
  bool CanHold(int) const override { return gpus() > 0; }

 private:
  std::unique_ptr<MortalSource> MakeSource(GpuArena* arena) override {
    std::shared_ptr<CudaLendingStore> store = *CudaLendingStore::Create(arena->arena());
    std::unique_ptr<SourceTransport> source = *IpcSource::Create(store.get(), {});
    return std::make_unique<MortalSource>("ipc", store, std::move(source));
  }
  std::unique_ptr<ReceiverTransport> MakeReceiver(int device) override {
    engines_.push_back(*ipc::CudaCopyEngine::Create(device));
    IpcReceiver::Options options;
    options.engine = engines_.back().get();
    options.shadow = [target = NewShadow(),
                      gpu = cuda::ReadGpuFacts(device)->gpu_uuid]() -> absl::StatusOr<SharedMemory> {
      SYNCOPATE_ASSIGN_OR_RETURN(cuda::ExportedMemory memory, (*target)->ExportShadow());
      return LendGpuMemory(std::move(memory), gpu);
    };
    return *IpcReceiver::Create(std::move(options));
  }

  std::vector<std::unique_ptr<ipc::CudaCopyEngine>> engines_;
};

class NcclGpuHarness final : public GpuHarness {
 public:
  bool CanHold(int members) const override { return members <= gpus(); }

 private:
  std::unique_ptr<MortalSource> MakeSource(GpuArena* arena) override {
    auto memory = std::make_shared<CudaStagedMemory>(arena->arena());
    NcclSource::Options options;
    options.rank = arena->rank;
    options.manifest = std::make_shared<const Manifest>(arena->manifest);
    options.facts = *ReadNcclFacts(arena->device);
    std::unique_ptr<SourceTransport> source =
        *NcclSource::Create(options, memory.get(), NcclDevices({.device = arena->device}), &cuda::NewNcclId);
    return std::make_unique<MortalSource>("nccl", memory, std::move(source));
  }
  std::unique_ptr<ReceiverTransport> MakeReceiver(int device) override {
    NcclReceiver::Options options;
    options.facts = *ReadNcclFacts(device);
    return *NcclReceiver::Create(options, NcclDevices({.device = device}));
  }
};

// A suite makes its rigs before it asks whether they are complete, so without a GPU there is no harness.
template <typename Harness>
std::unique_ptr<TransportHarness> MakeHarness() {
  if (GpuCount() > 0) return std::make_unique<Harness>();
  return nullptr;
}

INSTANTIATE_TEST_SUITE_P(Ipc, TransportShapesTest, ::testing::Values(&MakeHarness<IpcGpuHarness>));
INSTANTIATE_TEST_SUITE_P(Nccl, TransportShapesTest, ::testing::Values(&MakeHarness<NcclGpuHarness>));

}  // namespace
}  // namespace syncopate::synchronizer
