#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/cuda/row_kernels.h"
#include "rollouter/cuda/decode/decode_model.h"
#include "rollouter/cuda/decode/paged_attention.h"
#include "rollouter/cuda/decode/sample_kernels.h"
#include "rollouter/cuda/decode/slot_kernels.h"
#include "synchronizer/cuda/stream.h"

namespace syncopate::rollouter {

// A row of a decode step: the sequence in `slot` takes a token and draws the next one.
struct DecoderRow {
  int32_t slot = 0;
  int32_t token = -1;  // the one that it takes; -1: the one that the slot has drawn last
  int32_t length = 0;  // tokens of the sequence with it; its key and value are appended
  int32_t number = 0;  // of the token that is drawn, in its answer
};

// A decode step. Settings come before rows, and hold until others come for the same place.
struct DecoderStep {
  absl::Span<const SamplingSetting> sampling;
  absl::Span<const TableSetting> tables;
  absl::Span<const DecoderRow> rows;
};

// The device memory of a decoder, apart from weights and blocks, and the host's ends of it. Addresses stay for life.
class DecodeBuffers {
 public:
  struct Options {
    int device = 0;
    int32_t max_rows = 0;
    int32_t max_slots = 0;
    int32_t max_positions = 0;
    double rope_theta = 0;
    bool float32_logits = true;
    int32_t attention_grid = 0;
    int steps = 0;  // whose inputs and results the host holds
  };
  // RESOURCE_EXHAUSTED reason OUT_OF_GPU_MEMORY.
  static absl::StatusOr<DecodeBuffers> Create(const DecodeShape& shape, const Options& options);
  DecodeBuffers() = default;
  DecodeBuffers(DecodeBuffers&&) noexcept = default;
  DecodeBuffers& operator=(DecodeBuffers&&) noexcept = default;

  // Queues a step's settings and the copy of its rows, from place `at` of the host's; the rows after them, up to
  // `batch_size`, become empty. The former copy from there must be over.
  absl::Status Upload(int at, const DecoderStep& step, int32_t batch_size, cudaStream_t stream);
  // Queues the copy of the first `draws` draws to place `at`.
  absl::Status Download(int at, int32_t draws, cudaStream_t stream);
  absl::Span<const Drawn> results(int at, int32_t draws) const;

  PagedRows rows(int32_t count) const;
  model::TokenSource tokens() const;
  Draws draws(int32_t count) const;
  const SlotSampling* sampling() const { return sampling_.as<SlotSampling>(); }
  const float* rotations() const { return rotations_.as<float>(); }
  AttentionScratch attention() const;

  void* residual() const { return residual_.data(); }
  void* normed() const { return normed_.data(); }
  void* projected() const { return projected_.data(); }
  void* qkv() const { return qkv_.data(); }
  void* queries() const { return queries_.data(); }
  void* attended() const { return attended_.data(); }
  void* gate_up() const { return gate_up_.data(); }
  void* activated() const { return activated_.data(); }
  void* logits() const { return logits_.data(); }
  void* sample_scratch() const { return sample_scratch_.data(); }
  Drawn* drawn() const { return drawn_.as<Drawn>(); }
  int32_t* drawn_tokens() const { return drawn_tokens_.as<int32_t>(); }  // by slot
  void* workspace() const { return workspace_.data(); }
  int64_t device_bytes() const { return device_bytes_; }

 private:
  using DeviceBuffer = synchronizer::DeviceBuffer;
  using PinnedBuffer = synchronizer::PinnedBuffer;

  // Byte offsets in a step's inputs, which are one piece: a number each for every row, then the settings.
  struct InputPlaces {
    int64_t given = 0, slots = 0, lengths = 0, numbers = 0, sampling = 0, tables = 0, end = 0;
  };
  template <typename T, typename Buffer>
  static T* At(const Buffer& buffer, int64_t offset) {
    return reinterpret_cast<T*>(buffer.data() + offset);
  }
  absl::Status Allocate(const DecodeShape& shape, const Options& options);
  absl::Status Take(DeviceBuffer* buffer, int device, int64_t bytes, const char* what);

  int32_t max_rows_ = 0;
  int32_t max_slots_ = 0;
  int32_t table_stride_ = 0;
  InputPlaces inputs_at_;
  DeviceBuffer inputs_, tables_, sampling_, rotations_, workspace_;
  DeviceBuffer residual_, normed_, projected_, qkv_, queries_, attended_, gate_up_, activated_, logits_;
  DeviceBuffer sample_scratch_, drawn_, drawn_tokens_;
  DeviceBuffer row_tiles_, pieces_, parts_, arrivals_;
  std::vector<PinnedBuffer> host_inputs_, host_results_;
  int64_t device_bytes_ = 0;
};

// Elements from row to row of logits.
int32_t LogitsStride(int32_t vocab);

}  // namespace syncopate::rollouter
