#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "absl/types/span.h"
#include "model/model_config.h"

namespace syncopate::rollouter {

// Keys and values of every running sequence, on any device: one slot of max_position_embeddings positions a sequence,
// and one scratch slot for the rows that only pad a batch. Not thread-safe.
class KvCache {
 public:
  // Allocates; may throw c10::Error.
  KvCache(const model::ModelConfig& config, int64_t slots, at::TensorOptions options);

  static int64_t BytesFor(const model::ModelConfig& config, int64_t slots, int64_t element_bytes);

  int64_t slots() const { return slots_; }
  int64_t scratch_slot() const { return slots_; }
  int64_t bytes() const { return static_cast<int64_t>(data_.nbytes()); }

  // Copies positions [0, length) of one slot to others, in all layers.
  void Fork(int64_t from, absl::Span<const int64_t> to, int64_t length);

  // [layers, 2, slots + 1, positions, kv_heads * head_dim], dense; keys at index 0 of the second dimension, values
  // at 1.
  const at::Tensor& data() const { return data_; }
  // Elements from one position, one slot, and from keys to values, to the next.
  int64_t position_stride() const { return data_.stride(3); }
  int64_t slot_stride() const { return data_.stride(2); }
  int64_t value_offset() const { return data_.stride(1); }
  int64_t layer_stride() const { return data_.stride(0); }

 private:
  void ForkOnHost(int64_t from, absl::Span<const int64_t> to, int64_t length);

  const int64_t slots_;
  at::Tensor data_;
};

// Where a row of a batch lives: token `position` of the sequence in `slot`.
struct RowPlace {
  int64_t slot = 0;
  int64_t position = 0;
};

}  // namespace syncopate::rollouter
