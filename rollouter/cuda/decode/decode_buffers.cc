#include "rollouter/cuda/decode/decode_buffers.h"

#include <algorithm>

#include "base/status.h"
#include "cuda/cuda_status.h"
#include "model/cuda/matmul.h"

namespace syncopate::rollouter {
namespace {

using cuda::CudaStatus;

constexpr int64_t kAlignment = 256;  // of the parts of the inputs
constexpr int64_t kHalfBytes = 2;    // a bf16

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

int32_t LogitsStride(int32_t vocab) { return (vocab + 7) / 8 * 8; }

absl::StatusOr<DecodeBuffers> DecodeBuffers::Create(const DecodeShape& shape, const Options& options) {
  DecodeBuffers buffers;
  buffers.max_rows_ = options.max_rows;
  buffers.max_draws_ = options.max_draws;
  buffers.max_slots_ = options.max_slots;
  buffers.table_stride_ = (options.max_positions + kTokensPerBlock - 1) / kTokensPerBlock;
  const int64_t slots = options.max_slots, row_numbers = Aligned(options.max_rows * int64_t{sizeof(int32_t)});
  const int64_t draw_numbers = Aligned(options.max_draws * int64_t{sizeof(int32_t)});
  InputPlaces& at = buffers.inputs_at_;
  at.slots = row_numbers;
  at.lengths = at.slots + row_numbers;
  at.draw_slots = at.lengths + row_numbers;
  at.draw_numbers = at.draw_slots + draw_numbers;
  at.logits_rows = at.draw_numbers + draw_numbers;
  at.drawn_rows = at.logits_rows + draw_numbers;
  at.sampling = at.drawn_rows + draw_numbers;
  at.tables = at.sampling + Aligned(slots * int64_t{sizeof(SamplingSetting)});
  at.end = at.tables + slots * buffers.table_stride_ * int64_t{sizeof(TableSetting)};
  SYNCOPATE_RETURN_IF_ERROR(buffers.Allocate(shape, options));

  const std::vector<float> table = RotaryTable(options.max_positions, shape.heads.head_dim, options.rope_theta);
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(buffers.rotations_.data(), table.data(), table.size() * sizeof(float), cudaMemcpyHostToDevice),
      "copying the rotary table"));
  for (int place = 0; place < options.input_places; ++place) {
    SYNCOPATE_ASSIGN_OR_RETURN(PinnedBuffer inputs, PinnedBuffer::Create(at.end));
    buffers.host_inputs_.push_back(std::move(inputs));
  }
  for (int place = 0; place < options.result_places; ++place) {
    SYNCOPATE_ASSIGN_OR_RETURN(PinnedBuffer results, PinnedBuffer::Create(slots * int64_t{sizeof(Drawn)}));
    buffers.host_results_.push_back(std::move(results));
  }
  return buffers;
}

// Zero at first: what a step does with rows that are empty is thrown away, but it should be the same each time.
absl::Status DecodeBuffers::Take(DeviceBuffer* buffer, int device, int64_t bytes, const char* what) {
  SYNCOPATE_ASSIGN_OR_RETURN(*buffer, DeviceBuffer::Create(device, bytes, what));
  device_bytes_ += bytes;
  return CudaStatus(cudaMemset(buffer->data(), 0, static_cast<size_t>(bytes)), what);
}

absl::Status DecodeBuffers::Allocate(const DecodeShape& shape, const Options& options) {
  const int64_t rows = options.max_rows, draws = options.max_draws;
  const int64_t slots = options.max_slots + 1;  // the last one is that of empty rows
  const int64_t logit_bytes = draws * LogitsStride(shape.vocab) * (options.float32_logits ? 4 : kHalfBytes);
  const AttentionScratchBytes attention = ScratchBytes(shape.heads, options.max_rows, options.attention_grid);
  struct Piece {
    DeviceBuffer* buffer;
    int64_t bytes;
    const char* what;
  };
  const Piece pieces[] = {
      {&inputs_, inputs_at_.end, "a pass's inputs"},
      {&tables_, slots * table_stride_ * int64_t{sizeof(int32_t)}, "block tables"},
      {&sampling_, slots * int64_t{sizeof(SlotSampling)}, "how slots are drawn"},
      {&rotations_, int64_t{options.max_positions} * shape.heads.head_dim * 4, "the rotary table"},
      {&workspace_, model::MatmulLibrary::kWorkspaceBytes, "the matrix products' workspace"},
      {&residual_, rows * shape.hidden * kHalfBytes, "residuals"},
      {&normed_, rows * shape.hidden * kHalfBytes, "normed residuals"},
      {&gathered_, draws * shape.hidden * kHalfBytes, "rows that are drawn from"},
      {&projected_, rows * shape.hidden * kHalfBytes, "projected rows"},
      {&qkv_, rows * shape.qkv_size() * kHalfBytes, "queries, keys and values"},
      {&queries_, rows * shape.query_size() * kHalfBytes, "queries"},
      {&attended_, rows * shape.query_size() * kHalfBytes, "attended rows"},
      {&gate_up_, rows * 2 * shape.intermediate * kHalfBytes, "gates"},
      {&activated_, rows * shape.intermediate * kHalfBytes, "activations"},
      {&logits_, logit_bytes, "logits"},
      {&sample_scratch_, SampleScratchBytes(options.max_draws, shape.vocab), "the sampler's sums"},
      {&drawn_, draws * int64_t{sizeof(Drawn)}, "draws"},
      {&drawn_tokens_, slots * int64_t{sizeof(int32_t)}, "drawn tokens"},
      {&row_tiles_, attention.row_tiles, "attention's tiles"},
      {&pieces_, attention.pieces, "attention's pieces"},
      {&parts_, attention.parts, "attention's parts"},
      {&arrivals_, attention.arrivals, "attention's arrivals"},
  };
  for (const Piece& piece : pieces) {
    SYNCOPATE_RETURN_IF_ERROR(Take(piece.buffer, options.device, piece.bytes, piece.what));
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> DecodeBuffers::Upload(int at, const Pass& pass, int32_t rows, int32_t draws,
                                              cudaStream_t stream) {
  SYNCOPATE_CHECK(rows <= max_rows_ && static_cast<int32_t>(pass.rows.size()) <= rows);
  SYNCOPATE_CHECK(draws <= max_draws_ && static_cast<int32_t>(pass.draws.size()) <= draws);
  SYNCOPATE_CHECK(pass.sampling.size() <= static_cast<size_t>(max_slots_));
  SYNCOPATE_CHECK(pass.tables.size() <= static_cast<size_t>(max_slots_) * static_cast<size_t>(table_stride_));
  const PinnedBuffer& host = host_inputs_[static_cast<size_t>(at)];
  PutRows(host, pass.rows, rows);
  const int32_t drawn_rows = PutDraws(host, pass.draws, draws);
  std::copy(pass.sampling.begin(), pass.sampling.end(), At<SamplingSetting>(host, inputs_at_.sampling));
  std::copy(pass.tables.begin(), pass.tables.end(), At<TableSetting>(host, inputs_at_.tables));
  int64_t bytes = inputs_at_.sampling;
  if (!pass.sampling.empty()) bytes = inputs_at_.tables;
  if (!pass.tables.empty()) {
    bytes = inputs_at_.tables + static_cast<int64_t>(pass.tables.size()) * int64_t{sizeof(TableSetting)};
  }
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(inputs_.data(), host.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream),
      "copying a pass's rows"));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      ApplySettings(At<TableSetting>(inputs_, inputs_at_.tables), static_cast<int64_t>(pass.tables.size()),
                    At<SamplingSetting>(inputs_, inputs_at_.sampling), static_cast<int64_t>(pass.sampling.size()),
                    {tables_.as<int32_t>(), table_stride_, sampling_.as<SlotSampling>()}, stream),
      "applying a pass's settings"));
  return drawn_rows;
}

void DecodeBuffers::PutRows(const PinnedBuffer& host, absl::Span<const PassRow> rows, int32_t count) const {
  int32_t* given = At<int32_t>(host, inputs_at_.given);
  int32_t* slots = At<int32_t>(host, inputs_at_.slots);
  int32_t* lengths = At<int32_t>(host, inputs_at_.lengths);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const PassRow row = i < rows.size() ? rows[i] : PassRow{.slot = max_slots_, .token = 0};
    given[i] = row.token;
    slots[i] = row.slot;
    lengths[i] = row.length;
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
    // Draws from one row are neighbours.
    if (i < draws.size() && (logits == 0 || drawn_rows[logits - 1] != draw.row)) drawn_rows[logits++] = draw.row;
    logits_rows[i] = i < draws.size() ? logits - 1 : 0;
  }
  std::fill(drawn_rows + logits, drawn_rows + count, 0);
  return logits;
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
