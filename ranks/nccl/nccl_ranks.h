#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"
#include "cuda/nccl/nccl_comm.h"
#include "ranks/communicator.h"
#include "ranks/meeting.h"

// Ranks over NCCL; each rank has its own GPU.
namespace syncopate {

struct NcclRanksOptions {
  int device = 0;  // GPU of this process; each rank has its own
  int32_t rank = 0;
  int32_t world = 1;
  // Longest time between the ends of two calls that are queued one after the other, including the work between them.
  absl::Duration deadline = absl::Minutes(1);
  // Multiprocessors that a call may occupy. A weight sync runs during a step, and both need some.
  int max_ctas = 16;
  // Returns the stream on which the caller currently queues its work; null: the device's default stream.
  std::function<cudaStream_t()> stream = nullptr;
};

// One rank's end of a group over NCCL: calls take device memory and are queued on NcclRanksOptions::stream. Calls of
// one rank are executed in the order in which they were made, whatever streams they are on. NCCL chooses the order of
// sums: they are bit-identical on every rank, and repeat with the same ranks on the same GPUs. NCCL cannot compare the
// calls of ranks: calls that differ end with RANK_LOST at their deadline. Barrier() blocks.
//
// After Abort(), a thread of the group's own stops the calls that the GPU is executing, because the caller may be
// blocked on the GPU.
class NcclGroup : public Communicator {
 public:
  // QueueSum and QueueBroadcast queue on a stream of the caller's and may be captured in a graph. The group keeps no
  // record of them and no deadline watches them: the caller waits for the GPU and polls Check(). They block until NCCL
  // has queued them.
  // values [count] bfloat16 := their sum over ranks.
  virtual absl::Status QueueSum(void* values, int64_t count, cudaStream_t stream) = 0;
  // data [bytes] := the data of rank 0.
  virtual absl::Status QueueBroadcast(void* data, int64_t bytes, cudaStream_t stream) = 0;
  // OK, or why the group has ended; on an error no call of the group runs on the GPU any more, or soon none will.
  virtual absl::Status Check() = 0;
};

// Blocks until all ranks have joined by the same id and their first call is done. UNAVAILABLE (reason RANK_LOST) after
// `meet`; the error of `go_on`, which is called repeatedly; errors of NCCL.
absl::StatusOr<std::unique_ptr<NcclGroup>> JoinNcclRanks(const NcclRanksOptions& options, const cuda::NcclId& id,
                                                         absl::Duration meet,
                                                         const std::function<absl::Status()>& go_on = nullptr);

// The RankPlace of one rank of `options.world` on the GPU of `options`, which the driver calls `gpu`. Ranks join by
// JoinNcclRanks(), within kRanksMeetWithin.
RankPlace PlaceOnGpu(const NcclRanksOptions& options, const std::string& gpu);

}  // namespace syncopate
