#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct ncclComm;  // nccl.h stays inside cuda/nccl

// NCCL communicators; every wait has a bound. This code neither reads nor sets NCCL's environment variables; they are
// left to the caller.
namespace syncopate::cuda {

// The id by which the members of a new communicator find each other (ncclUniqueId): an address and a secret. Never log
// it.
using NcclId = std::array<char, 128>;

// Makes an id. From now on this process listens at its address, until all members have met. INTERNAL reason NCCL_ERROR.
absl::StatusOr<NcclId> NewNcclId();
// NCCL's version number, e.g. 22809.
absl::StatusOr<int> NcclVersion();

// One rank's end of a communicator, on one GPU. Move-only; the destructor aborts a communicator that was neither
// finalised nor aborted, and blocks for a few seconds at most. Only the thread that called Join may use it.
//
// Operations are asynchronous: Poll says when the last one is over, and no other may begin before that. Errors of all
// calls to NCCL: UNAVAILABLE reason PEER_LOST, INTERNAL reason NCCL_ERROR.
class NcclComm {
 public:
  struct Options {
    int device = 0;
    int max_ctas = 0;  // multiprocessors that one message may occupy; 0: NCCL chooses. Fewer than 16 halve the rate
  };

  // Begins to form a communicator with all processes that join by the same id. Call Poll until it is formed.
  static absl::StatusOr<NcclComm> Join(const Options& options, const NcclId& id, int32_t rank, int32_t size);

  NcclComm() = default;
  ~NcclComm();
  NcclComm(NcclComm&& other) noexcept : device_(other.device_), comm_(std::exchange(other.comm_, nullptr)) {}
  NcclComm& operator=(NcclComm&& other) noexcept;

  // True when the last operation is over: the members have met, or the messages are queued on their streams.
  absl::StatusOr<bool> Poll();

  // Messages between BeginRound and EndRound are exchanged together; EndRound queues them on their streams, and Poll
  // says when that is done. Buffers are `bytes` bytes of this device's memory and must live until the stream has passed
  // them. EndRound must be called even after an error.
  absl::Status BeginRound();
  absl::Status Send(const void* from, size_t bytes, int32_t peer, cudaStream_t stream);
  absl::Status Receive(void* to, size_t bytes, int32_t peer, cudaStream_t stream);
  absl::Status Broadcast(void* in_place, size_t bytes, int32_t root, cudaStream_t stream);  // from `root` to all
  absl::Status EndRound();

  // Collective operations, which all members must begin; Poll says when each is queued. `mine` of AllGather may be this
  // rank's part of `all`. NCCL chooses the order of sums; they are bit-identical on every member.
  enum class Number { kFloat32, kFloat64, kBFloat16 };
  absl::Status AllGather(const void* mine, void* all, size_t bytes, cudaStream_t stream);
  absl::Status ReduceScatter(const void* all, void* mine, size_t count, Number number, cudaStream_t stream);
  absl::Status AllReduce(void* in_place, size_t count, Number number, cudaStream_t stream);

  // Ends the communicator in order, even if other members keep theirs; blocks for at most `deadline`, and then for an
  // abort. No message may be in progress. DEADLINE_EXCEEDED reason DEADLINE: the destructor then aborts it.
  absl::Status Finalize(absl::Duration deadline);
  // Stops all operations, also on the device, and frees the communicator. Blocks for a few seconds at most: INTERNAL
  // reason ABORT_STUCK if that is not enough, in which case this process should end. Idempotent.
  absl::Status Abort();

 private:
  NcclComm(int device, ncclComm* comm) : device_(device), comm_(comm) {}

  int device_ = 0;
  ncclComm* comm_ = nullptr;
};

}  // namespace syncopate::cuda
