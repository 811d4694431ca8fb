#include "cuda/nccl/nccl_comm.h"

#include <nccl.h>

#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/reasons.h"
#include "base/status.h"
#include "cuda/device.h"

namespace syncopate::cuda {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));

// An abort takes 0.3 to 0.6 s. One that takes longer than this bound will not end.
constexpr absl::Duration kAbortWithin = absl::Seconds(5);
constexpr absl::Duration kFinalizePoll = absl::Milliseconds(1);

// OK for a call that has succeeded or is in progress.
absl::Status NcclStatus(ncclResult_t result, ncclComm_t comm, const std::string& what) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  std::string words = absl::StrCat(what, ": ", ncclGetErrorString(result), "; ", ncclGetLastError(comm));
  // Another member failed or ended: this process is healthy, and can join another communicator.
  if (result == ncclRemoteError) return Error(absl::StatusCode::kUnavailable, "PEER_LOST", words);
  return Error(absl::StatusCode::kInternal, "NCCL_ERROR", words);
}

ncclDataType_t GetType(NcclComm::Number number) {
  switch (number) {
    case NcclComm::Number::kFloat32:
      return ncclFloat32;
    case NcclComm::Number::kFloat64:
      return ncclFloat64;
    case NcclComm::Number::kBFloat16:
      break;
  }
  return ncclBfloat16;
}

// A flag that one thread raises and another waits for. Shared by both threads, so that either may end first.
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

// Makes a call that may never return, on its own thread, and waits for it. If the call does not return in time, its
// thread and all that it uses are leaked: a thread cannot be ended from outside.
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
  return Error(absl::StatusCode::kInternal, reason::kAbortStuck,
               absl::StrCat(what, " does not return; restart this process"));
}

}  // namespace

absl::StatusOr<NcclId> NewNcclId() {
  ncclUniqueId meeting{};
  SYNCOPATE_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&meeting), nullptr, "opening a place for members to meet"));
  NcclId id{};
  std::memcpy(id.data(), &meeting, id.size());
  return id;
}

absl::StatusOr<int> NcclVersion() {
  int version = 0;
  SYNCOPATE_RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&version), nullptr, "asking NCCL for its version"));
  return version;
}

absl::StatusOr<NcclComm> NcclComm::Join(const Options& options, const NcclId& id, int32_t rank, int32_t size) {
  DeviceScope scope(options.device);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // otherwise a peer that does not come would block this thread for ever
  config.commName = "syncopate";
  if (options.max_ctas > 0) config.maxCTAs = options.max_ctas;
  ncclUniqueId meeting{};
  std::memcpy(&meeting, id.data(), id.size());
  ncclComm_t comm = nullptr;
  const ncclResult_t begun = ncclCommInitRankConfig(&comm, size, meeting, rank, &config);
  // Takes ownership before the check: a communicator that failed while it was made must be aborted too.
  NcclComm joined(options.device, comm);
  SYNCOPATE_RETURN_IF_ERROR(NcclStatus(begun, comm, "joining a communicator"));
  return joined;
}

NcclComm::~NcclComm() {
  const absl::Status aborted = Abort();
  if (!aborted.ok()) SYNCOPATE_LOG(kError, "nccl: %s", std::string(aborted.message()));
}

NcclComm& NcclComm::operator=(NcclComm&& other) noexcept {
  if (this == &other) return *this;
  const absl::Status aborted = Abort();
  if (!aborted.ok()) SYNCOPATE_LOG(kError, "nccl: %s", std::string(aborted.message()));
  device_ = other.device_;
  comm_ = std::exchange(other.comm_, nullptr);
  return *this;
}

absl::StatusOr<bool> NcclComm::Poll() {
  ncclResult_t state = ncclSuccess;
  SYNCOPATE_RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(comm_, &state), comm_, "asking a communicator"));
  SYNCOPATE_RETURN_IF_ERROR(NcclStatus(state, comm_, "the communicator failed"));
  return state == ncclSuccess;
}

absl::Status NcclComm::BeginRound() {
  DeviceScope scope(device_);
  return NcclStatus(ncclGroupStart(), comm_, "beginning a round");
}

absl::Status NcclComm::Send(const void* from, size_t bytes, int32_t peer, cudaStream_t stream) {
  DeviceScope scope(device_);
  return NcclStatus(ncclSend(from, bytes, ncclInt8, peer, comm_, stream), comm_, "posting a message");
}

absl::Status NcclComm::Receive(void* to, size_t bytes, int32_t peer, cudaStream_t stream) {
  DeviceScope scope(device_);
  return NcclStatus(ncclRecv(to, bytes, ncclInt8, peer, comm_, stream), comm_, "posting a message");
}

absl::Status NcclComm::Broadcast(void* in_place, size_t bytes, int32_t root, cudaStream_t stream) {
  DeviceScope scope(device_);
  return NcclStatus(ncclBroadcast(in_place, in_place, bytes, ncclInt8, root, comm_, stream), comm_,
                    "posting a message");
}

absl::Status NcclComm::AllGather(const void* mine, void* all, size_t bytes, cudaStream_t stream) {
  DeviceScope scope(device_);
  return NcclStatus(ncclAllGather(mine, all, bytes, ncclInt8, comm_, stream), comm_, "beginning an all-gather");
}

absl::Status NcclComm::ReduceScatter(const void* all, void* mine, size_t count, Number number, cudaStream_t stream) {
  DeviceScope scope(device_);
  return NcclStatus(ncclReduceScatter(all, mine, count, GetType(number), ncclSum, comm_, stream), comm_,
                    "beginning a reduce-scatter");
}

absl::Status NcclComm::AllReduce(void* in_place, size_t count, Number number, cudaStream_t stream) {
  DeviceScope scope(device_);
  return NcclStatus(ncclAllReduce(in_place, in_place, count, GetType(number), ncclSum, comm_, stream), comm_,
                    "beginning an all-reduce");
}

absl::Status NcclComm::EndRound() {
  DeviceScope scope(device_);
  return NcclStatus(ncclGroupEnd(), comm_, "beginning a round");
}

absl::Status NcclComm::Finalize(absl::Duration deadline) {
  const absl::Time until = Clock::Real()->Now() + deadline;
  DeviceScope scope(device_);
  SYNCOPATE_RETURN_IF_ERROR(NcclStatus(ncclCommFinalize(comm_), comm_, "finalising a communicator"));
  Flag never;  // never raised: AwaitFor() sleeps for the given time
  for (;;) {
    SYNCOPATE_ASSIGN_OR_RETURN(const bool ended, Poll());
    if (ended) break;
    if (Clock::Real()->Now() >= until) {
      return Error(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   "a communicator could not be finalised in time and is aborted");
    }
    never.AwaitFor(kFinalizePoll);
  }
  // Not ncclCommDestroy, which would wait for the other members on this host: they may keep theirs.
  return Abort();
}

absl::Status NcclComm::Abort() {
  ncclComm_t aborted = std::exchange(comm_, nullptr);
  if (aborted == nullptr) return absl::OkStatus();
  return CallWithin(
      kAbortWithin, [aborted] { ncclCommAbort(aborted); }, "ncclCommAbort");
}

}  // namespace syncopate::cuda
