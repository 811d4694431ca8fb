#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/transformer.h"
#include "ranks/communicator.h"

namespace syncopate::rollouter {

// What the ranks of a replica compute together in one pass of HostModelRunner. Borrows the communicator, whose calls
// are on the memory of `device`. Used by one thread.
class RankSums final : public model::PartialSums {
 public:
  RankSums(Communicator* ranks, at::Device device) : ranks_(ranks), device_(device) {}

  bool leads() const { return ranks_->rank() == 0; }
  bool adds_biases() const override { return leads(); }
  // In float32, in the order of ranks on the CPU. May overwrite `partial`.
  at::Tensor Sum(const at::Tensor& partial) override;
  // Rank 0's, on every rank; as many on each. Blocks.
  absl::Status Share(std::vector<int32_t>& tokens);
  // OK, or what the first call said that failed: RANK_LOST, RANK_MISMATCH. After an error nothing is of use.
  const absl::Status& status() const { return status_; }

 private:
  Communicator* const ranks_;
  const at::Device device_;
  absl::Status status_;
};

}  // namespace syncopate::rollouter
