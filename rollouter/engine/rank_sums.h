#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/transformer.h"
#include "ranks/communicator.h"

namespace syncopate::rollouter {

// The collectives of a replica's ranks in one pass of HostModelRunner. Borrows the communicator, whose calls use memory
// of `device`. Used by one thread.
class RankSums final : public model::PartialSums {
 public:
  RankSums(Communicator* ranks, at::Device device) : ranks_(ranks), device_(device) {}

  bool leads() const { return ranks_->rank() == 0; }
  bool adds_biases() const override { return leads(); }
  // Returns the sum over the ranks, computed in float32; on the CPU in the order of ranks. May overwrite `partial`.
  at::Tensor Sum(const at::Tensor& partial) override;
  // Replaces `tokens` by rank 0's, on every rank; every rank passes the same number. Blocks.
  absl::Status Share(std::vector<int32_t>& tokens);
  // OK, or the first error of a collective: RANK_LOST, RANK_MISMATCH. After an error all results are invalid.
  const absl::Status& status() const { return status_; }

 private:
  Communicator* const ranks_;
  const at::Device device_;
  absl::Status status_;
};

}  // namespace syncopate::rollouter
