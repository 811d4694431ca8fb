#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "model/cuda/row_kernels.h"

// The sum over ranks whose GPUs can read each other's memory, and the norm behind it, as one kernel. Two GPUs that exchange
// 64 rows of 3584 elements by NCCL take 12 us for it, most of it its protocol's; this reads the others' rows where they
// are. No libtorch.
namespace syncopate::rollouter {

constexpr int32_t kMostPeers = 8;

// Addresses on the current device, the others' memory mapped.
struct PeerSums {
  int32_t rank = 0;
  int32_t world = 1;
  const void* parts[kMostPeers] = {};  // [rows, hidden] bf16, by rank
  // Of each rank, on its own device: [world, rows_at_most]. Flag (r, i) counts the calls in which rank r has begun row i.
  uint32_t* flags[kMostPeers] = {};
  int32_t rows_at_most = 0;                // one more than are summed: the last is that of MeetPeers
  uint32_t* counts = nullptr;              // [rows_at_most]: this rank's calls for each row
  const volatile int32_t* stop = nullptr;  // host memory that the device reads: not 0: nobody is waited for any more
};

// residual += the parts of all ranks, in the order of ranks; normed = RmsNorm(residual) * weight. Each row waits until all
// ranks have come to it, by which their parts of it are complete, as they were queued before. Before a rank writes its part
// again there is another call, with another piece: then nobody reads this one any more. Queues and returns.
cudaError_t SumPeersAndNorm(const model::NormShape& shape, const PeerSums& peers, const void* weight, void* residual,
                            void* normed, cudaStream_t stream);

// Waits until all ranks have come to this call: what they queued before it is complete, also what they wrote to other
// ranks' memory. Queues and returns.
cudaError_t MeetPeers(const PeerSums& peers, cudaStream_t stream);

}  // namespace syncopate::rollouter
