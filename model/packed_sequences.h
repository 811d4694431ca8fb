#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace syncopate::model {

// A copy of a host tensor on `device`; the tensor itself if that is the CPU. A copy to a GPU goes through pinned memory
// on the current stream and does not block.
at::Tensor QueueCopy(const at::Tensor& host, at::Device device);

// Sequences laid end to end without padding: T rows in all, row r of sequence s at starts[s] + r. Attention stays
// inside a sequence and is causal. Immutable; all tensors on one device.
class PackedSequences {
 public:
  // `lengths`: rows of each sequence, each at least 1.
  explicit PackedSequences(std::vector<int64_t> lengths, at::Device device = at::kCPU);

  const std::vector<int64_t>& lengths() const { return lengths_; }
  int64_t rows() const { return rows_; }        // T
  int64_t longest() const { return longest_; }  // the largest length
  // [sequences + 1] int32, from 0 to T: the form that kernels for sequences of varying length need.
  const at::Tensor& starts() const { return starts_; }
  // [T] int64, from 0 in each sequence.
  const at::Tensor& positions() const { return positions_; }

  // rows [T, heads * d] -> [sequences, heads, longest, d], padded with other rows, which a causal mask hides; and back.
  // For attention by batched products.
  at::Tensor ToRectangle(const at::Tensor& rows, int64_t heads) const;
  at::Tensor FromRectangle(const at::Tensor& rectangle) const;

 private:
  std::vector<int64_t> lengths_;
  int64_t rows_ = 0;
  int64_t longest_ = 0;
  at::Tensor starts_;
  at::Tensor positions_;
  at::Tensor cell_of_row_;  // [T]: index into the flattened rectangle
  at::Tensor row_of_cell_;  // [sequences * longest]: index into the rows; 0 for padding
};

}  // namespace syncopate::model
