#include "synchronizer/nccl/nccl_device.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/reasons.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/nccl/nccl_comm.h"
#include "cuda/stream.h"

namespace syncopate::synchronizer {
namespace {

using nccl::Communicator;
using nccl::GroupDevice;
using nccl::Seat;
using nccl::Transmission;
using nccl::UniqueId;

// A cuda::NcclComm that exchanges rounds on one stream.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(cuda::NcclComm comm, cudaStream_t stream) : comm_(std::move(comm)), stream_(stream) {}

  absl::Status Begin(const std::vector<Transmission>& messages, char* base) override {
    SYNCOPATE_RETURN_IF_ERROR(comm_.BeginRound());
    absl::Status posted;
    for (const Transmission& message : messages) {
      posted = Post(message, base);
      if (!posted.ok()) break;
    }
    // Also after an error, because a group that was begun must be ended.
    const absl::Status begun = comm_.EndRound();
    return posted.ok() ? begun : posted;
  }
  absl::StatusOr<bool> Poll() override { return comm_.Poll(); }
  absl::Status Finalize(absl::Duration deadline) override { return comm_.Finalize(deadline); }
  absl::Status Abort() override { return comm_.Abort(); }

 private:
  absl::Status Post(const Transmission& message, char* base) {
    char* const bytes = base + message.range.begin;
    const auto count = static_cast<size_t>(message.range.size());
    switch (message.kind) {
      case Transmission::Kind::kSend:
        return comm_.Send(bytes, count, message.peer, stream_);
      case Transmission::Kind::kReceive:
        return comm_.Receive(bytes, count, message.peer, stream_);
      case Transmission::Kind::kBroadcast:
        return comm_.Broadcast(bytes, count, /*root=*/0, stream_);
    }
    return Error(absl::StatusCode::kInternal, "NCCL_ERROR", "a message of no kind");
  }

  cuda::NcclComm comm_;
  const cudaStream_t stream_;
};

class NcclDevice final : public GroupDevice {
 public:
  static absl::StatusOr<std::unique_ptr<GroupDevice>> Create(const NcclDeviceOptions& options) {
    SYNCOPATE_RETURN_IF_ERROR(cuda::CheckGpu(options.device));
    std::unique_ptr<NcclDevice> device(new NcclDevice(options));
    SYNCOPATE_ASSIGN_OR_RETURN(device->stream_, cuda::Stream::Create(options.device));
    SYNCOPATE_ASSIGN_OR_RETURN(device->mark_, cuda::Event::Create(options.device));
    SYNCOPATE_ASSIGN_OR_RETURN(
        device->scratch_, cuda::DeviceBuffer::Create(options.device, kScratchBytes, "the first message over NCCL"));
    return device;
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Join(const UniqueId& id, const Seat& seat) override {
    SYNCOPATE_ASSIGN_OR_RETURN(
        cuda::NcclComm comm,
        cuda::NcclComm::Join({.device = options_.device, .max_ctas = options_.max_ctas}, id, seat.rank, seat.size));
    return std::make_unique<NcclCommunicator>(std::move(comm), stream_.get());
  }
  char* scratch() override { return scratch_.data(); }
  void* stream() override { return stream_.get(); }

  absl::Status Mark() override {
    cuda::DeviceScope scope(options_.device);
    return mark_.Record(stream_.get());
  }

  absl::StatusOr<bool> Reached() override {
    cudaError_t state = cudaEventQuery(mark_.get());
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // clears the state, which is no error, before the next call reads it
      return false;
    }
    SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(state, "exchanging weights"));
    return true;
  }

  absl::Status Drain(absl::Duration deadline) override {
    absl::Status drained = Mark();
    if (drained.ok()) drained = mark_.Wait(deadline, "the messages under way");
    if (drained.ok()) return drained;
    return Error(absl::StatusCode::kInternal, reason::kCopyStuck,
                 absl::StrCat("messages cannot be waited for, restart this process: ", drained.message()));
  }

 private:
  explicit NcclDevice(const NcclDeviceOptions& options) : options_(options) {}

  const NcclDeviceOptions options_;
  cuda::Stream stream_;
  cuda::Event mark_;
  cuda::DeviceBuffer scratch_;
};

class PinnedSlot final : public StagedVersion {
 public:
  PinnedSlot(std::unique_ptr<DeviceReader> reader, int64_t bytes) : reader_(std::move(reader)), bytes_(bytes) {}
  const char* data() const override { return bytes_ > 0 ? reader_->arena().data() : nullptr; }
  int64_t bytes() const override { return bytes_; }

 private:
  const std::unique_ptr<DeviceReader> reader_;
  const int64_t bytes_;
};

}  // namespace

absl::StatusOr<NcclFacts> ReadNcclFacts(int device) {
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::GpuFacts gpu, cuda::ReadGpuFacts(device));
  NcclFacts facts;
  facts.gpu = gpu.gpu_uuid;
  // NCCL's view of the host decides whether two processes on one GPU can be in one group.
  if (const char* host = std::getenv("NCCL_HOSTID"); host != nullptr && *host != '\0') {
    absl::StrAppend(&facts.gpu, "@", absl::StrReplaceAll(host, {{" ", "_"}}));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(facts.version, cuda::NcclVersion());
  return facts;
}

nccl::GroupWorker::DeviceFactory NcclDevices(const NcclDeviceOptions& options) {
  return [options] { return NcclDevice::Create(options); };
}

absl::StatusOr<std::unique_ptr<StagedVersion>> CudaStagedMemory::Pin(PolicyVersion version,
                                                                     std::function<void()> on_superseded) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceReader> reader,
                             arena_->OpenOnDevice(version, std::move(on_superseded)));
  return std::make_unique<PinnedSlot>(std::move(reader), arena_->send_bytes());
}

}  // namespace syncopate::synchronizer
