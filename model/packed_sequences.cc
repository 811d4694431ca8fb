#include "model/packed_sequences.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace syncopate::model {

at::Tensor QueueCopy(const at::Tensor& host, at::Device device) {
  if (device.is_cpu()) return host;
  return host.pin_memory().to(device, host.scalar_type(), /*non_blocking=*/true);
}

PackedSequences::PackedSequences(std::vector<int64_t> lengths, at::Device device) : lengths_(std::move(lengths)) {
  SYNCOPATE_CHECK(!lengths_.empty());
  longest_ = *std::max_element(lengths_.begin(), lengths_.end());
  std::vector<int32_t> starts = {0};
  std::vector<int64_t> positions, cell_of_row, row_of_cell(lengths_.size() * static_cast<size_t>(longest_), 0);
  for (size_t s = 0; s < lengths_.size(); ++s) {
    SYNCOPATE_CHECK(lengths_[s] >= 1);
    for (int64_t i = 0; i < lengths_[s]; ++i) {
      const int64_t cell = static_cast<int64_t>(s) * longest_ + i;
      row_of_cell[static_cast<size_t>(cell)] = rows_ + i;
      cell_of_row.push_back(cell);
      positions.push_back(i);
    }
    rows_ += lengths_[s];
    starts.push_back(static_cast<int32_t>(rows_));
  }
  starts_ = QueueCopy(at::tensor(starts, at::kInt), device);
  positions_ = QueueCopy(at::tensor(positions, at::kLong), device);
  cell_of_row_ = QueueCopy(at::tensor(cell_of_row, at::kLong), device);
  row_of_cell_ = QueueCopy(at::tensor(row_of_cell, at::kLong), device);
}

at::Tensor PackedSequences::ToRectangle(const at::Tensor& rows, int64_t heads) const {
  return rows.index_select(0, row_of_cell_)
      .view({static_cast<int64_t>(lengths_.size()), longest_, heads, rows.size(1) / heads})
      .transpose(1, 2);
}

at::Tensor PackedSequences::FromRectangle(const at::Tensor& rectangle) const {
  return rectangle.transpose(1, 2)
      .reshape({static_cast<int64_t>(lengths_.size()) * longest_, rectangle.size(1) * rectangle.size(3)})
      .index_select(0, cell_of_row_);
}

}  // namespace syncopate::model
