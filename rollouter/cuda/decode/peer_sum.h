#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "model/cuda/row_kernels.h"

// A kernel for the sum over ranks whose GPUs can read each other's memory, together with the following norm. Two GPUs
// that exchange 64 rows of 3584 elements by NCCL need 12 us, mostly for its protocol; this kernel reads the other
// ranks' rows in place. No libtorch.
namespace syncopate::rollouter {

constexpr int32_t kMostPeers = 8;

// Addresses on the current device; the memory of the other ranks is mapped.
struct PeerSums {
  int32_t rank = 0;
  int32_t world = 1;
  const void* parts[kMostPeers] = {};  // [rows, hidden] bf16, by rank
  // flags[p] is rank p's array, on its own device: [world, rows_at_most]. Entry (r, i) counts the calls in which rank r
  // has begun row i.
  uint32_t* flags[kMostPeers] = {};
  int32_t rows_at_most = 0;    // one more than the most summed rows: the last row is for MeetPeers
  uint32_t* counts = nullptr;  // [rows_at_most]: this rank's calls for each row
  // Host memory that the device reads; not 0: waits end without the other ranks.
  const volatile int32_t* stop = nullptr;
};

// residual += the parts of all ranks, in the order of ranks; normed = RmsNorm(residual) * weight. Each row waits until
// all ranks have begun it; their parts of it are then complete, because they were queued before. Before a rank writes
// its part again there must be a call with the other buffer: after that call no rank reads this buffer. Queues the work
// and returns.
cudaError_t SumPeersAndNorm(const model::NormShape& shape, const PeerSums& peers, const void* weight, void* residual,
                            void* normed, cudaStream_t stream);

// Waits until all ranks have begun this call: the work that they queued before it is then complete, including writes to
// other ranks' memory. Queues the work and returns.
cudaError_t MeetPeers(const PeerSums& peers, cudaStream_t stream);

}  // namespace syncopate::rollouter
