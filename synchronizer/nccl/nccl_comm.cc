#include "synchronizer/nccl/nccl_comm.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/stream.h"

namespace syncopate::synchronizer {
namespace {

using nccl::Communicator;
using nccl::GroupDevice;
using nccl::Seat;
using nccl::Transmission;
using nccl::UniqueId;

static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));

// An abort takes 0.3 to 0.6 s. What takes longer than this will not end.
constexpr absl::Duration kAbortWithin = absl::Seconds(5);
constexpr absl::Duration kFinalizePoll = absl::Milliseconds(1);

// OK for what has succeeded or is under way.
absl::Status NcclStatus(ncclResult_t result, ncclComm_t comm, const std::string& what) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  std::string words = absl::StrCat(what, ": ", ncclGetErrorString(result), "; ", ncclGetLastError(comm));
  if (result == ncclRemoteError) return Error(absl::StatusCode::kUnavailable, "PEER_LOST", words);
  return Error(absl::StatusCode::kInternal, "NCCL_ERROR", words);
}

// A flag that one thread raises and another waits for. Shared, so that either may go first.
class Flag {
 public:
  void Raise() {
    MutexLock lock(&mutex_);
    raised_ = true;
  }
  bool AwaitFor(absl::Duration deadline) {
    MutexLock lock(&mutex_);
    auto raised = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return raised_; };
    return mutex_.AwaitWithTimeout(Condition(&raised), deadline);
  }

 private:
  Mutex mutex_;
  bool raised_ ABSL_GUARDED_BY(mutex_) = false;
};

// Calls what NCCL may never return from, on a thread of its own while this one waits. If it does not return in time the
// thread is left to itself, with what it uses: there is no way to end it.
absl::Status CallWithin(absl::Duration deadline, std::function<void()> call, const std::string& what) {
  auto returned = std::make_shared<Flag>();
  auto thread = std::make_unique<std::thread>([call = std::move(call), returned] {
    call();
    returned->Raise();
  });
  if (returned->AwaitFor(deadline)) {
    thread->join();
    return absl::OkStatus();
  }
  [[maybe_unused]] std::thread* left = thread.release();
  return Error(absl::StatusCode::kInternal, "ABORT_STUCK",
               absl::StrCat(what, " does not return; restart this process"));
}

// One ncclComm_t and its RAII: aborted by the destructor unless it was finalised or aborted before.
class NcclComm final : public Communicator {
 public:
  static absl::StatusOr<std::unique_ptr<Communicator>> Join(const NcclDeviceOptions& options, const UniqueId& id,
                                                            const Seat& seat, cudaStream_t stream) {
    cuda::DeviceScope scope(options.device);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = "syncopate";
    if (options.max_ctas > 0) config.maxCTAs = options.max_ctas;
    ncclUniqueId meeting{};
    std::memcpy(&meeting, id.data(), id.size());
    std::unique_ptr<NcclComm> joined(new NcclComm(options.device, stream));
    ncclResult_t begun = ncclCommInitRankConfig(&joined->comm_, seat.size, meeting, seat.rank, &config);
    SYNCOPATE_RETURN_IF_ERROR(NcclStatus(begun, joined->comm_, "joining a communicator"));
    return joined;
  }

  ~NcclComm() override {
    absl::Status aborted = Abort();
    if (!aborted.ok()) SYNCOPATE_LOG(kError, "nccl: %s", std::string(aborted.message()));
  }

  absl::Status Begin(const std::vector<Transmission>& messages, char* base) override {
    cuda::DeviceScope scope(device_);
    SYNCOPATE_RETURN_IF_ERROR(NcclStatus(ncclGroupStart(), comm_, "beginning a round"));
    absl::Status posted;
    for (const Transmission& message : messages) {
      posted = NcclStatus(Post(message, base), comm_, "posting a message");
      if (!posted.ok()) break;
    }
    absl::Status begun = NcclStatus(ncclGroupEnd(), comm_, "beginning a round");
    return posted.ok() ? begun : posted;
  }

  absl::StatusOr<bool> Poll() override {
    ncclResult_t state = ncclSuccess;
    SYNCOPATE_RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(comm_, &state), comm_, "asking a communicator"));
    SYNCOPATE_RETURN_IF_ERROR(NcclStatus(state, comm_, "the communicator failed"));
    return state == ncclSuccess;
  }

  absl::Status Finalize(absl::Duration deadline) override {
    absl::Time until = Clock::Real()->Now() + deadline;
    cuda::DeviceScope scope(device_);
    SYNCOPATE_RETURN_IF_ERROR(NcclStatus(ncclCommFinalize(comm_), comm_, "finalising a communicator"));
    Flag never;  // sleeps without a deadline of its own kind
    for (;;) {
      SYNCOPATE_ASSIGN_OR_RETURN(bool ended, Poll());
      if (ended) break;
      if (Clock::Real()->Now() >= until) {
        return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
                     "a communicator could not be finalised in time and is aborted");
      }
      never.AwaitFor(kFinalizePoll);
    }
    // ncclCommDestroy would wait for the other members on this host, who may keep theirs.
    return Abort();
  }

  absl::Status Abort() override {
    ncclComm_t aborted = std::exchange(comm_, nullptr);
    if (aborted == nullptr) return absl::OkStatus();
    return CallWithin(
        kAbortWithin, [aborted] { ncclCommAbort(aborted); }, "ncclCommAbort");
  }

 private:
  NcclComm(int device, cudaStream_t stream) : device_(device), stream_(stream) {}

  ncclResult_t Post(const Transmission& message, char* base) {
    char* bytes = base + message.range.begin;
    auto count = static_cast<size_t>(message.range.size());
    switch (message.kind) {
      case Transmission::Kind::kSend:
        return ncclSend(bytes, count, ncclInt8, message.peer, comm_, stream_);
      case Transmission::Kind::kReceive:
        return ncclRecv(bytes, count, ncclInt8, message.peer, comm_, stream_);
      case Transmission::Kind::kBroadcast:
        return ncclBroadcast(bytes, bytes, count, ncclInt8, /*root=*/0, comm_, stream_);
    }
    return ncclInvalidArgument;
  }

  const int device_;
  const cudaStream_t stream_;
  ncclComm_t comm_ = nullptr;
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
    return NcclComm::Join(options_, id, seat, stream_.get());
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
      cudaGetLastError();  // an answer, not an error of what comes next
      return false;
    }
    SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(state, "exchanging weights"));
    return true;
  }

  absl::Status Drain(absl::Duration deadline) override {
    absl::Status drained = Mark();
    if (drained.ok()) drained = mark_.Wait(deadline, "the messages under way");
    if (drained.ok()) return drained;
    return Error(absl::StatusCode::kInternal, "COPY_STUCK",
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
  // What NCCL believes of the host decides whether two processes on one GPU can be of one group.
  if (const char* host = std::getenv("NCCL_HOSTID"); host != nullptr && *host != '\0') {
    absl::StrAppend(&facts.gpu, "@", absl::StrReplaceAll(host, {{" ", "_"}}));
  }
  SYNCOPATE_RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&facts.version), nullptr, "asking NCCL for its version"));
  return facts;
}

absl::StatusOr<UniqueId> NewNcclId() {
  ncclUniqueId meeting{};
  SYNCOPATE_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&meeting), nullptr, "opening a place for members to meet"));
  UniqueId id{};
  std::memcpy(id.data(), &meeting, id.size());
  return id;
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
