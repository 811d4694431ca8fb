#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cuda/stream.h"
#include "model/cuda/row_kernels.h"
#include "rollouter/cuda/decode/block_kernels.h"
#include "rollouter/cuda/decode/decode_model.h"
#include "rollouter/cuda/decode/filtered_sample.h"
#include "rollouter/cuda/decode/paged_attention.h"
#include "rollouter/cuda/decode/sample_kernels.h"
#include "rollouter/cuda/decode/slot_kernels.h"

namespace syncopate::rollouter {

// A token that is input to the sequence in `slot`.
struct PassRow {
  int32_t slot = 0;
  int32_t token = -1;  // -1: the token that the slot drew last
  // Tokens of the sequence including this one, whose key and value are appended; 0: the row is empty.
  int32_t length = 0;
  int32_t set = -1;  // the adapter set that computes it, with its place: MakeRowSet
};

// A draw of token `number` of a slot's answer, from the logits of a row.
struct PassDraw {
  int32_t slot = 0;
  int32_t number = 0;
  int32_t row = 0;
  bool wants_logits = false;           // the host gets the logits of this draw
  const DrawFilter* filter = nullptr;  // read until Launch returns; nullptr: drawn from the policy itself
};

// One sequence in a packed pass: the pass has the `queries` newest of its `keys` tokens as rows.
struct PassSequence {
  int32_t slot = 0;
  int32_t queries = 0;
  int32_t keys = 0;
};

// The input of one pass through the model. Settings apply before the rows, and stay until later settings replace them.
struct Pass {
  absl::Span<const SamplingSetting> sampling = {};
  absl::Span<const TableSetting> tables = {};
  absl::Span<const PassRow> rows = {};
  absl::Span<const PassDraw> draws = {};
  absl::Span<const PassSequence> sequences = {};  // all rows, if they attend as packed sequences; else empty
};

// The device memory of a decoder, except weights and blocks, and its host buffers. Addresses never change.
class DecodeBuffers {
 public:
  struct Options {
    int device = 0;
    int32_t max_rows = 0;            // rows of one pass
    int32_t max_paged_rows = 0;      // rows of one pass without packing
    int32_t max_draws = 0;           // draws of one pass
    int32_t max_packed_keys = 0;     // tokens of one packed pass
    int32_t max_table_settings = 0;  // table settings of one pass
    int32_t max_slots = 0;
    int32_t max_positions = 0;
    bool float32_logits = true;
    bool logits_elsewhere = false;  // logits are in memory passed to UseLogits()
    int32_t attention_grid = 0;
    int input_places = 0;  // host buffers for inputs, one pass each
    int result_places = 0;
  };
  // `rotations` is [max_positions, head_dim / 2, 2]: cosine and sine of each position's angles. RESOURCE_EXHAUSTED
  // (reason OUT_OF_GPU_MEMORY).
  static absl::StatusOr<DecodeBuffers> Create(const DecodeShape& shape, const Options& options,
                                              absl::Span<const float> rotations);
  // Sets memory for logits that the caller owns: LogitsBytes() bytes.
  void UseLogits(void* logits) { logits_at_ = logits; }
  static int64_t LogitsBytes(const DecodeShape& shape, const Options& options);
  // The device memory that Create() allocates.
  static int64_t DeviceBytes(const DecodeShape& shape, const Options& options);
  DecodeBuffers() = default;
  DecodeBuffers(DecodeBuffers&&) noexcept = default;
  DecodeBuffers& operator=(DecodeBuffers&&) noexcept = default;

  // Queues a pass's settings and the copy of its rows and draws, from host buffer `at`. Pads with empty rows up to
  // `rows`, and with draws from row 0 for an unused slot up to `draws`. Each row that is drawn from gets logits, in the
  // order of first draws; returns their number. The earlier copy from `at` must be complete.
  absl::StatusOr<int32_t> Upload(int at, const Pass& pass, int32_t rows, int32_t draws, cudaStream_t stream);
  // Queues the copy of `count` draws to host buffer `at`, behind the first `before` draws there.
  absl::Status Download(int at, int32_t before, int32_t count, cudaStream_t stream);
  absl::Span<const Drawn> results(int at, int32_t draws) const;
  // Ensures that host buffer `at` has room for `count` rows of float32 logits; its contents are lost. May block.
  absl::Status ReserveLogits(int at, int32_t count);
  // Queues the copy of a row of float32 logits to row `to` of host buffer `at`.
  absl::Status DownloadLogits(int at, int32_t to, int32_t row, cudaStream_t stream);
  // Host buffer `at`, which the device can read, with room for one filtered draw per slot.
  FilteredDraw* filtered(int at) const { return host_filtered_[static_cast<size_t>(at)].as<FilteredDraw>(); }
  const float* host_logits(int at, int32_t row) const {
    return host_logits_[static_cast<size_t>(at)].as<float>() + int64_t{row} * logits_stride_;
  }

  PagedRows rows(int32_t count) const;
  const int32_t* sets() const { return At<int32_t>(inputs_, inputs_at_.sets); }  // by row
  model::TokenSource tokens() const;
  // The draws of a pass: draw d is from logits row d (draws), or from the row that the pass gives (shared_draws).
  Draws draws(int32_t count) const;
  Draws shared_draws(int32_t count) const;
  const int32_t* drawn_rows() const { return At<int32_t>(inputs_, inputs_at_.drawn_rows); }
  // The sequences of the pass uploaded last, padded with empty sequences up to max_slots. `keys`: at least the number
  // of their tokens.
  PackedSequencesOf packed(int32_t sequences, int32_t keys) const;
  const int32_t* query_starts() const { return At<int32_t>(inputs_, inputs_at_.query_starts); }
  const SlotSampling* sampling() const { return sampling_.as<SlotSampling>(); }
  const float* rotations() const { return rotations_.as<float>(); }
  AttentionScratch attention() const;

  void* residual() const { return residual_.data(); }
  void* normed() const { return normed_.data(); }
  void* gathered() const { return gathered_.data(); }  // the normed rows that are drawn from
  void* projected() const { return projected_.data(); }
  void* qkv() const { return qkv_.data(); }
  void* queries() const { return queries_.data(); }
  void* attended() const { return attended_.data(); }
  void* packed_keys() const { return packed_keys_.data(); }
  void* packed_values() const { return packed_values_.data(); }
  void* gate_up() const { return gate_up_.data(); }
  void* activated() const { return activated_.data(); }
  void* logits() const { return logits_at_; }
  void* sample_scratch() const { return sample_scratch_.data(); }
  Drawn* drawn() const { return drawn_.as<Drawn>(); }
  int32_t* drawn_tokens() const { return drawn_tokens_.as<int32_t>(); }  // by slot
  void* workspace() const { return workspace_.data(); }
  int64_t device_bytes() const { return device_bytes_; }

 private:
  using DeviceBuffer = cuda::DeviceBuffer;
  using PinnedBuffer = cuda::PinnedBuffer;

  // Byte offsets in a pass's inputs, which are one buffer: a number for each row and draw, then the settings.
  struct InputPlaces {
    int64_t given = 0, slots = 0, lengths = 0, sets = 0;         // per row
    int64_t draw_slots = 0, draw_numbers = 0, logits_rows = 0;   // per draw
    int64_t drawn_rows = 0;                                      // per logits row
    int64_t packed_slots = 0, query_starts = 0, key_starts = 0;  // per packed sequence
    int64_t settings = 0, end = 0;
  };
  template <typename T, typename Buffer>
  static T* At(const Buffer& buffer, int64_t offset) {
    return reinterpret_cast<T*>(buffer.data() + offset);
  }
  void PutRows(const PinnedBuffer& host, absl::Span<const PassRow> rows, int32_t count) const;
  int32_t PutDraws(const PinnedBuffer& host, absl::Span<const PassDraw> draws, int32_t count) const;
  void PutSequences(const PinnedBuffer& host, absl::Span<const PassSequence> sequences) const;
  static InputPlaces PlacesFor(const Options& options);
  struct Piece {
    DeviceBuffer DecodeBuffers::*buffer;
    int64_t bytes;
    const char* what;
  };
  static std::vector<Piece> Pieces(const DecodeShape& shape, const Options& options);

  int32_t max_rows_ = 0;
  int32_t max_draws_ = 0;
  int32_t max_slots_ = 0;
  int32_t max_table_settings_ = 0;
  int32_t table_stride_ = 0;
  int64_t logits_stride_ = 0;
  InputPlaces inputs_at_;
  DeviceBuffer inputs_, tables_, sampling_, rotations_, workspace_;
  DeviceBuffer residual_, normed_, gathered_, projected_, qkv_, queries_, attended_, gate_up_, activated_, logits_;
  DeviceBuffer packed_keys_, packed_values_;
  DeviceBuffer sample_scratch_, drawn_, drawn_tokens_;
  DeviceBuffer row_tiles_, pieces_, parts_, arrivals_;
  std::vector<PinnedBuffer> host_inputs_, host_results_, host_logits_, host_filtered_;
  void* logits_at_ = nullptr;
  int64_t device_bytes_ = 0;
};

// The distance from row to row of logits, in elements.
int32_t LogitsStride(int32_t vocab);

}  // namespace syncopate::rollouter
