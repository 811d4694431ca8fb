#include "rollouter/cuda/decode/decode_buffers.h"

#include <algorithm>

#include "base/status.h"
#include "cuda/cuda_status.h"
#include "model/cuda/matmul.h"

namespace syncopate::rollouter {
namespace {

using cuda::CudaStatus;

constexpr int64_t kAlignment = 256;  // alignment of the parts of the inputs
constexpr int64_t kHalfBytes = 2;    // bytes of a bf16

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int32_t TableStride(const DecodeBuffers::Options& options) {
  return (options.max_positions + kTokensPerBlock - 1) / kTokensPerBlock;
}

}  // namespace

int32_t LogitsStride(int32_t vocab) { return (vocab + 7) / 8 * 8; }

DecodeBuffers::InputPlaces DecodeBuffers::PlacesFor(const Options& options) {
  const int64_t row_numbers = Aligned(options.max_rows * int64_t{sizeof(int32_t)});
  const int64_t draw_numbers = Aligned(options.max_draws * int64_t{sizeof(int32_t)});
  const int64_t sequence_numbers = Aligned((options.max_slots + 1) * int64_t{sizeof(int32_t)});
  InputPlaces at;
  at.slots = row_numbers;
  at.lengths = at.slots + row_numbers;
  at.sets = at.lengths + row_numbers;
  at.draw_slots = at.sets + row_numbers;
  at.draw_numbers = at.draw_slots + draw_numbers;
  at.logits_rows = at.draw_numbers + draw_numbers;
  at.drawn_rows = at.logits_rows + draw_numbers;
  at.packed_slots = at.drawn_rows + draw_numbers;
  at.query_starts = at.packed_slots + sequence_numbers;
  at.key_starts = at.query_starts + sequence_numbers;
  at.settings = at.key_starts + sequence_numbers;
  at.end = at.settings + Aligned(options.max_table_settings * int64_t{sizeof(TableSetting)}) +
           options.max_slots * int64_t{sizeof(SamplingSetting)};
  return at;
}

absl::StatusOr<DecodeBuffers> DecodeBuffers::Create(const DecodeShape& shape, const Options& options,
                                                    absl::Span<const float> rotations) {
  SYNCOPATE_CHECK(static_cast<int64_t>(rotations.size()) == int64_t{options.max_positions} * shape.heads.head_dim);
  DecodeBuffers buffers;
  buffers.max_rows_ = options.max_rows;
  buffers.max_draws_ = options.max_draws;
  buffers.max_slots_ = options.max_slots;
  buffers.max_table_settings_ = options.max_table_settings;
  buffers.table_stride_ = TableStride(options);
  buffers.logits_stride_ = LogitsStride(shape.vocab);
  buffers.inputs_at_ = PlacesFor(options);
  for (const Piece& piece : Pieces(shape, options)) {
    if (piece.bytes == 0) continue;
    DeviceBuffer& buffer = buffers.*piece.buffer;
    SYNCOPATE_ASSIGN_OR_RETURN(buffer, DeviceBuffer::Create(options.device, piece.bytes, piece.what));
    buffers.device_bytes_ += piece.bytes;
    // Results of empty rows are ignored, but they should be the same in each run.
    SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaMemset(buffer.data(), 0, static_cast<size_t>(piece.bytes)), piece.what));
  }
  buffers.logits_at_ = buffers.logits_.data();
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(buffers.rotations_.data(), rotations.data(), rotations.size() * sizeof(float), cudaMemcpyHostToDevice),
      "copying the rotary table"));
  for (int place = 0; place < options.input_places; ++place) {
    // Page-locked, so that the copies to the device do not block the host.
    SYNCOPATE_ASSIGN_OR_RETURN(PinnedBuffer inputs, PinnedBuffer::Create(buffers.inputs_at_.end));
    buffers.host_inputs_.push_back(std::move(inputs));
  }
  buffers.host_logits_.resize(static_cast<size_t>(options.result_places));
  for (int place = 0; place < options.result_places; ++place) {
    SYNCOPATE_ASSIGN_OR_RETURN(PinnedBuffer results, PinnedBuffer::Create(options.max_slots * int64_t{sizeof(Drawn)}));
    buffers.host_results_.push_back(std::move(results));
    SYNCOPATE_ASSIGN_OR_RETURN(PinnedBuffer filtered,
                               PinnedBuffer::Create(options.max_slots * int64_t{sizeof(FilteredDraw)}));
    buffers.host_filtered_.push_back(std::move(filtered));
  }
  return buffers;
}

int64_t DecodeBuffers::LogitsBytes(const DecodeShape& shape, const Options& options) {
  return int64_t{options.max_draws} * LogitsStride(shape.vocab) * (options.float32_logits ? 4 : kHalfBytes);
}

int64_t DecodeBuffers::DeviceBytes(const DecodeShape& shape, const Options& options) {
  int64_t bytes = 0;
  for (const Piece& piece : Pieces(shape, options)) bytes += piece.bytes;
  return bytes;
}

std::vector<DecodeBuffers::Piece> DecodeBuffers::Pieces(const DecodeShape& shape, const Options& options) {
  using B = DecodeBuffers;
  const int64_t rows = options.max_rows, draws = options.max_draws;
  const int64_t slots = options.max_slots + 1;  // the last slot is for empty rows
  const int64_t logit_bytes = options.logits_elsewhere ? 0 : LogitsBytes(shape, options);
  const int64_t packed_bytes =
      int64_t{options.max_packed_keys} * shape.heads.kv_heads * shape.heads.head_dim * kHalfBytes;
  const AttentionScratchBytes attention = ScratchBytes(shape.heads, options.max_paged_rows, options.attention_grid);
  return {
      {&B::inputs_, PlacesFor(options).end, "a pass's inputs"},
      {&B::tables_, slots * TableStride(options) * int64_t{sizeof(int32_t)}, "block tables"},
      {&B::sampling_, slots * int64_t{sizeof(SlotSampling)}, "how slots are drawn"},
      {&B::rotations_, int64_t{options.max_positions} * shape.heads.head_dim * 4, "the rotary table"},
      {&B::workspace_, model::MatmulLibrary::kWorkspaceBytes, "the matrix products' workspace"},
      {&B::residual_, rows * shape.hidden * kHalfBytes, "residuals"},
      {&B::normed_, rows * shape.hidden * kHalfBytes, "normed residuals"},
      {&B::gathered_, draws * shape.hidden * kHalfBytes, "rows that are drawn from"},
      {&B::projected_, rows * shape.row_stride(shape.hidden, 1) * kHalfBytes, "projected rows"},
      {&B::qkv_, rows * shape.row_stride(shape.qkv_size(), 3) * kHalfBytes, "queries, keys and values"},
      {&B::queries_, rows * shape.query_size() * kHalfBytes, "queries"},
      {&B::attended_, rows * shape.query_size() * kHalfBytes, "attended rows"},
      {&B::packed_keys_, packed_bytes, "packed keys"},
      {&B::packed_values_, packed_bytes, "packed values"},
      {&B::gate_up_, rows * shape.row_stride(2 * shape.intermediate, 2) * kHalfBytes, "gates"},
      {&B::activated_, rows * shape.intermediate * kHalfBytes, "activations"},
      {&B::logits_, logit_bytes, "logits"},
      {&B::sample_scratch_, SampleScratchBytes(options.max_draws, shape.vocab), "the sampler's sums"},
      {&B::drawn_, draws * int64_t{sizeof(Drawn)}, "draws"},
      {&B::drawn_tokens_, slots * int64_t{sizeof(int32_t)}, "drawn tokens"},
      {&B::row_tiles_, attention.row_tiles, "attention's tiles"},
      {&B::pieces_, attention.pieces, "attention's pieces"},
      {&B::parts_, attention.parts, "attention's parts"},
      {&B::arrivals_, attention.arrivals, "attention's arrivals"},
  };
}

absl::StatusOr<int32_t> DecodeBuffers::Upload(int at, const Pass& pass, int32_t rows, int32_t draws,
                                              cudaStream_t stream) {
  SYNCOPATE_CHECK(rows <= max_rows_ && static_cast<int32_t>(pass.rows.size()) <= rows);
  SYNCOPATE_CHECK(draws <= max_draws_ && static_cast<int32_t>(pass.draws.size()) <= draws);
  SYNCOPATE_CHECK(pass.sampling.size() <= static_cast<size_t>(max_slots_));
  SYNCOPATE_CHECK(pass.tables.size() <= static_cast<size_t>(max_table_settings_));
  SYNCOPATE_CHECK(pass.sequences.size() <= static_cast<size_t>(max_slots_));
  const PinnedBuffer& host = host_inputs_[static_cast<size_t>(at)];
  PutRows(host, pass.rows, rows);
  const int32_t drawn_rows = PutDraws(host, pass.draws, draws);
  PutSequences(host, pass.sequences);
  const int64_t table_count = static_cast<int64_t>(pass.tables.size());
  const int64_t sampling_count = static_cast<int64_t>(pass.sampling.size());
  // The two lists are adjacent, so that the copy has no unused bytes between them.
  const int64_t sampling_at = inputs_at_.settings + Aligned(table_count * int64_t{sizeof(TableSetting)});
  std::copy(pass.tables.begin(), pass.tables.end(), At<TableSetting>(host, inputs_at_.settings));
  std::copy(pass.sampling.begin(), pass.sampling.end(), At<SamplingSetting>(host, sampling_at));
  const int64_t bytes = sampling_at + sampling_count * int64_t{sizeof(SamplingSetting)};
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(inputs_.data(), host.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream),
      "copying a pass's rows"));
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(ApplySettings(At<TableSetting>(inputs_, inputs_at_.settings), table_count,
                               At<SamplingSetting>(inputs_, sampling_at), sampling_count,
                               {tables_.as<int32_t>(), table_stride_, sampling_.as<SlotSampling>()}, stream),
                 "applying a pass's settings"));
  return drawn_rows;
}

void DecodeBuffers::PutRows(const PinnedBuffer& host, absl::Span<const PassRow> rows, int32_t count) const {
  int32_t* given = At<int32_t>(host, inputs_at_.given);
  int32_t* slots = At<int32_t>(host, inputs_at_.slots);
  int32_t* lengths = At<int32_t>(host, inputs_at_.lengths);
  int32_t* sets = At<int32_t>(host, inputs_at_.sets);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const PassRow row = i < rows.size() ? rows[i] : PassRow{.slot = max_slots_, .token = 0};
    given[i] = row.token;
    slots[i] = row.slot;
    lengths[i] = row.length;
    sets[i] = row.set;
  }
}

int32_t DecodeBuffers::PutDraws(const PinnedBuffer& host, absl::Span<const PassDraw> draws, int32_t count) const {
  int32_t* slots = At<int32_t>(host, inputs_at_.draw_slots);
  int32_t* numbers = At<int32_t>(host, inputs_at_.draw_numbers);
  int32_t* logits_rows = At<int32_t>(host, inputs_at_.logits_rows);
  int32_t* drawn_rows = At<int32_t>(host, inputs_at_.drawn_rows);
  int32_t logits = 0;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const PassDraw draw = i < draws.size() ? draws[i] : PassDraw{.slot = max_slots_};
    slots[i] = draw.slot;
    numbers[i] = draw.number;
    // Draws from one row are adjacent.
    if (i < draws.size() && (logits == 0 || drawn_rows[logits - 1] != draw.row)) drawn_rows[logits++] = draw.row;
    logits_rows[i] = i < draws.size() ? logits - 1 : 0;
  }
  std::fill(drawn_rows + logits, drawn_rows + count, 0);
  return logits;
}

void DecodeBuffers::PutSequences(const PinnedBuffer& host, absl::Span<const PassSequence> sequences) const {
  if (sequences.empty()) return;
  int32_t* slots = At<int32_t>(host, inputs_at_.packed_slots);
  int32_t* query_starts = At<int32_t>(host, inputs_at_.query_starts);
  int32_t* key_starts = At<int32_t>(host, inputs_at_.key_starts);
  query_starts[0] = key_starts[0] = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    slots[i] = sequences[i].slot;
    query_starts[i + 1] = query_starts[i] + sequences[i].queries;
    key_starts[i + 1] = key_starts[i] + sequences[i].keys;
  }
  const size_t all = static_cast<size_t>(max_slots_) + 1;
  // The sequences behind the last one are empty, because a captured graph always reads max_slots of them.
  std::fill(query_starts + sequences.size() + 1, query_starts + all, query_starts[sequences.size()]);
  std::fill(key_starts + sequences.size() + 1, key_starts + all, key_starts[sequences.size()]);
}

absl::Status DecodeBuffers::Download(int at, int32_t before, int32_t count, cudaStream_t stream) {
  SYNCOPATE_CHECK(before + count <= max_slots_);
  return CudaStatus(cudaMemcpyAsync(host_results_[static_cast<size_t>(at)].as<Drawn>() + before, drawn_.data(),
                                    static_cast<size_t>(count) * sizeof(Drawn), cudaMemcpyDeviceToHost, stream),
                    "copying what a pass drew");
}

absl::Span<const Drawn> DecodeBuffers::results(int at, int32_t draws) const {
  return {host_results_[static_cast<size_t>(at)].as<Drawn>(), static_cast<size_t>(draws)};
}

absl::Status DecodeBuffers::ReserveLogits(int at, int32_t count) {
  PinnedBuffer& buffer = host_logits_[static_cast<size_t>(at)];
  const int64_t bytes = int64_t{count} * logits_stride_ * int64_t{sizeof(float)};
  // The buffer only grows: most passes need no logits on the host.
  if (bytes <= buffer.bytes()) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(buffer, PinnedBuffer::Create(bytes));
  return absl::OkStatus();
}

absl::Status DecodeBuffers::DownloadLogits(int at, int32_t to, int32_t row, cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(logits_stride_) * sizeof(float);
  return CudaStatus(cudaMemcpyAsync(host_logits_[static_cast<size_t>(at)].as<float>() + int64_t{to} * logits_stride_,
                                    static_cast<const float*>(logits_at_) + int64_t{row} * logits_stride_, bytes,
                                    cudaMemcpyDeviceToHost, stream),
                    "copying logits");
}

PackedSequencesOf DecodeBuffers::packed(int32_t sequences, int32_t keys) const {
  return {At<int32_t>(inputs_, inputs_at_.packed_slots), At<int32_t>(inputs_, inputs_at_.key_starts), sequences, keys};
}

PagedRows DecodeBuffers::rows(int32_t count) const {
  return {At<int32_t>(inputs_, inputs_at_.slots), At<int32_t>(inputs_, inputs_at_.lengths), tables_.as<int32_t>(),
          table_stride_, count};
}

model::TokenSource DecodeBuffers::tokens() const {
  return {At<int32_t>(inputs_, inputs_at_.given), At<int32_t>(inputs_, inputs_at_.slots), drawn_tokens()};
}

Draws DecodeBuffers::draws(int32_t count) const {
  return {At<int32_t>(inputs_, inputs_at_.draw_slots), At<int32_t>(inputs_, inputs_at_.draw_numbers), nullptr, count};
}

Draws DecodeBuffers::shared_draws(int32_t count) const {
  Draws shared = draws(count);
  shared.logits_rows = At<int32_t>(inputs_, inputs_at_.logits_rows);
  return shared;
}

AttentionScratch DecodeBuffers::attention() const {
  return {row_tiles_.as<int32_t>(), pieces_.as<int4>(), parts_.as<float>(), arrivals_.as<int32_t>()};
}

}  // namespace syncopate::rollouter
