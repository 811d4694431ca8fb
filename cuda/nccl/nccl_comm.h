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

// Communicators of NCCL whose every wait has a bound. NCCL's own environment variables are the caller's; nothing here
// reads or sets any.
namespace syncopate::cuda {

// What the members of a new communicator meet by (ncclUniqueId): an address and a secret, never to be logged.
using NcclId = std::array<char, 128>;

// From now on this process answers there, until as many members as they say have met. INTERNAL reason NCCL_ERROR.
absl::StatusOr<NcclId> NewNcclId();
// NCCL's own number, e.g. 22809.
absl::StatusOr<int> NcclVersion();

// One rank's end of a communicator, on one GPU. Move-only; the destructor aborts what was neither finalised nor aborted,
// and waits for a few seconds at most. Used by one thread, the one that began to join.
//
// What is begun goes on beside the caller: Poll says when it is over, and nothing else may be begun before. Errors of
// all that asks NCCL: UNAVAILABLE reason PEER_LOST, INTERNAL reason NCCL_ERROR.
class NcclComm {
 public:
  struct Options {
    int device = 0;
    int max_ctas = 0;  // multiprocessors that one message may occupy; 0: NCCL's choice. Fewer than 16 halve the rate
  };

  // Begins to form a communicator with everybody who joins by the same id. Polled until it is formed.
  static absl::StatusOr<NcclComm> Join(const Options& options, const NcclId& id, int32_t rank, int32_t size);

  NcclComm() = default;
  ~NcclComm();
  NcclComm(NcclComm&& other) noexcept : device_(other.device_), comm_(std::exchange(other.comm_, nullptr)) {}
  NcclComm& operator=(NcclComm&& other) noexcept;

  // True when what was begun last is over: the members have met, or the messages are on their stream.
  absl::StatusOr<bool> Poll();

  // Messages between BeginRound and EndRound are exchanged together; EndRound puts them on their streams, and is what
  // Poll is about. Buffers are this device's memory, of `bytes` bytes, and stay until the stream has passed. After an
  // error EndRound is still to be called.
  absl::Status BeginRound();
  absl::Status Send(const void* from, size_t bytes, int32_t peer, cudaStream_t stream);
  absl::Status Receive(void* to, size_t bytes, int32_t peer, cudaStream_t stream);
  absl::Status Broadcast(void* in_place, size_t bytes, int32_t root, cudaStream_t stream);  // from `root` to all
  absl::Status EndRound();

  // What all members begin together, each by itself: Poll is about it. `mine` of AllGather may be its own place in
  // `all`; sums are made in an order of NCCL's own, the same bits on every member.
  enum class Number { kFloat32, kFloat64, kBFloat16 };
  absl::Status AllGather(const void* mine, void* all, size_t bytes, cudaStream_t stream);
  absl::Status ReduceScatter(const void* all, void* mine, size_t count, Number number, cudaStream_t stream);
  absl::Status AllReduce(void* in_place, size_t count, Number number, cudaStream_t stream);

  // Ends the communicator in order, whether or not other members keep theirs; blocks at most for `deadline` and then for
  // an abort. No message may be under way. DEADLINE_EXCEEDED reason DEADLINE: it is then aborted by the destructor.
  absl::Status Finalize(absl::Duration deadline);
  // Stops everything, on the device too, and frees it. Blocks at most for a few seconds: INTERNAL reason ABORT_STUCK if
  // that is not enough, in which case this process should end. Idempotent.
  absl::Status Abort();

 private:
  NcclComm(int device, ncclComm* comm) : device_(device), comm_(comm) {}

  int device_ = 0;
  ncclComm* comm_ = nullptr;
};

}  // namespace syncopate::cuda
