#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cuda/stream.h"
#include "ranks/nccl/nccl_ranks.h"
#include "rollouter/cuda/decode/device_ranks.h"
#include "rollouter/cuda/decode/peer_sum.h"

namespace syncopate::rollouter {

// The ranks of one replica for its decoders. If all GPUs can read each other's memory, our own kernel computes sums
// together with the norm (peer_sum.h), and every rank writes its logits into rank 0's memory. Otherwise NCCL computes
// sums, and rank 0 computes all logits. With more than two ranks NCCL also computes the sums of passes of many rows,
// because the kernel would read each part too often. Must outlive graphs that captured its calls.
class NcclDeviceRanks final : public DeviceRanks {
 public:
  // `group` is borrowed.
  NcclDeviceRanks(NcclGroup* group, int device) : group_(group), device_(device) {}
  ~NcclDeviceRanks() override;

  int32_t rank() const override { return group_->rank(); }
  int32_t world() const override { return group_->world(); }
  absl::StatusOr<Memory> MakeMemory(const Extent& extent) override;
  absl::Status SumAndNorm(int which, const model::NormShape& shape, const void* weight, void* residual, void* normed,
                          cudaStream_t stream) override;
  absl::Status JoinLogits(cudaStream_t stream) override;
  absl::Status Broadcast(void* data, int64_t bytes, cudaStream_t stream) override {
    return group_->QueueBroadcast(data, bytes, stream);
  }
  absl::Status Check() override;
  // Returns the least number that any rank passes. Blocks.
  absl::StatusOr<int64_t> AgreeOnLeast(int64_t mine);

 private:
  struct Card;
  // Maps the memory of the other ranks; false if that is impossible.
  absl::StatusOr<bool> MapPeers(int64_t flags_at);
  bool MapPeer(const Card& mine, const Card& theirs, char** at);

  NcclGroup* const group_;
  const int device_;
  cuda::DeviceBuffer memory_;  // two pieces, logits, flags, counts
  cuda::PinnedBuffer stop_;
  std::vector<void*> opened_;  // mappings of other processes' memory
  int64_t piece_bytes_ = 0;
  bool reads_peers_ = false;
  std::array<PeerSums, 2> sums_;  // by piece
};

}  // namespace syncopate::rollouter
