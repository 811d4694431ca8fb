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

// Ranks that have a GPU each, over NCCL.
namespace syncopate {

struct NcclRanksOptions {
  int device = 0;  // of this process; each rank has one of its own
  int32_t rank = 0;
  int32_t world = 1;
  // Between the ends of two calls that are queued one behind the other, whatever is computed between them.
  absl::Duration deadline = absl::Minutes(1);
  // Multiprocessors that a call may occupy. A weight sync moves beside a step, and both must find room.
  int max_ctas = 16;
  // The stream that the caller queues its work on at the moment of a call; null: the device's default stream.
  std::function<cudaStream_t()> stream = nullptr;
};

// One rank's end of such a group: calls are made on device memory and queued on NcclRanksOptions::stream. Calls of
// one rank are done in the order in which they were made, whatever streams they are on. Sums are made in an order of
// NCCL's own: the same bits on every rank, and again with the same ranks on the same GPUs. No call is compared with that
// of other ranks, which NCCL cannot do; one that differs is lost at its deadline. Barrier() blocks.
//
// A thread of its own ends what is under way on the GPU once the group is aborted: whoever made the calls may be waiting
// for the GPU by then.
class NcclGroup : public Communicator {
 public:
  // The same kind of calls for work that is queued on a stream of the caller's, and may be captured in a graph: nothing is
  // remembered of them, no deadline watches them, and the caller waits for the GPU, asking Check(). They block until NCCL
  // has queued them.
  // values [count] bfloat16 := their sum over ranks.
  virtual absl::Status QueueSum(void* values, int64_t count, cudaStream_t stream) = 0;
  // data [bytes] := that of rank 0.
  virtual absl::Status QueueBroadcast(void* data, int64_t bytes, cudaStream_t stream) = 0;
  // OK, or why the group is at its end; then nothing of it is under way on the GPU, or soon will be.
  virtual absl::Status Check() = 0;
};

// Waits until all ranks have come by the same id, and until their first call is done. UNAVAILABLE (reason RANK_LOST) after
// `meet`; what `go_on` says, which is asked again and again; what NCCL says.
absl::StatusOr<std::unique_ptr<NcclGroup>> JoinNcclRanks(const NcclRanksOptions& options, const cuda::NcclId& id,
                                                         absl::Duration meet,
                                                         const std::function<absl::Status()>& go_on = nullptr);

// The GPU of `options`, which its driver calls `gpu`, as a place where one rank of `options.world` computes: they join by
// JoinNcclRanks(), within kRanksMeetWithin.
RankPlace PlaceOnGpu(const NcclRanksOptions& options, const std::string& gpu);

}  // namespace syncopate
