#include "rollouter/cuda/decode/graph_decoder.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "model/cuda/row_kernels.h"
#include "rollouter/cuda/decode/paged_attention.h"

namespace syncopate::rollouter {

using cuda::CudaStatus;
using cuda::DeviceScope;
using cuda::DriverStatus;

namespace {
constexpr absl::Duration kStepDeadline = absl::Seconds(30);
}  // namespace

absl::StatusOr<std::unique_ptr<GraphDecoder>> GraphDecoder::Create(const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.shape.Validate());
  SYNCOPATE_CHECK(!options.batch_sizes.empty());
  SYNCOPATE_CHECK(std::is_sorted(options.batch_sizes.begin(), options.batch_sizes.end()));
  SYNCOPATE_CHECK(std::is_sorted(options.chunk_sizes.begin(), options.chunk_sizes.end()));
  SYNCOPATE_CHECK(options.max_slots <= options.batch_sizes.back() && options.batch_sizes.back() <= kMaxAttentionRows);
  SYNCOPATE_CHECK(options.chunk_sizes.empty() || options.chunk_sizes.back() <= kMaxAttentionRows);
  SYNCOPATE_CHECK(static_cast<int32_t>(options.weights.layers.size()) == options.shape.layers);
  SYNCOPATE_CHECK(options.storage.layers == options.shape.layers);
  std::unique_ptr<GraphDecoder> decoder(new GraphDecoder(options));
  const DeviceScope device(options.device);
  SYNCOPATE_RETURN_IF_ERROR(decoder->Prepare());
  for (int32_t rows : options.batch_sizes) {
    SYNCOPATE_RETURN_IF_ERROR(decoder->MakeHead(rows));
    SYNCOPATE_ASSIGN_OR_RETURN(Bucket bucket, decoder->MakeBucket(rows, RowsOf::kDifferentSequences));
    decoder->batches_.emplace(rows, std::move(bucket));
  }
  for (int32_t rows : options.chunk_sizes) {
    SYNCOPATE_ASSIGN_OR_RETURN(Bucket bucket, decoder->MakeBucket(rows, RowsOf::kAnySequences));
    decoder->chunks_.emplace(rows, std::move(bucket));
  }
  return decoder;
}

GraphDecoder::~GraphDecoder() {
  const DeviceScope device(options_.device);
  if (stream_.get() != nullptr) cudaStreamSynchronize(stream_.get());  // what is freed next is no longer read
}

absl::Status GraphDecoder::Prepare() {
  SYNCOPATE_ASSIGN_OR_RETURN(stream_, cuda::Stream::Create(options_.device));
  int multiprocessors = 0;
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, options_.device),
                 "asking for the GPU's size"));
  attention_grid_ = AttentionGrid(multiprocessors);
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(PrepareAttention(options_.shape.heads), "loading the attention kernel"));
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::Load());
  SYNCOPATE_RETURN_IF_ERROR(
      DriverStatus(DescribeStorage(driver->encode_tensor_map, options_.storage, options_.shape.heads, &maps_),
                   "describing the key and value blocks"));
  SYNCOPATE_ASSIGN_OR_RETURN(buffers_,
                             DecodeBuffers::Create(options_.shape, {.device = options_.device,
                                                                    .max_rows = std::max(max_rows(), max_chunk_rows()),
                                                                    .max_draws = max_rows(),
                                                                    .max_slots = options_.max_slots,
                                                                    .max_positions = options_.max_positions,
                                                                    .rope_theta = options_.rope_theta,
                                                                    .float32_logits = options_.float32_logits,
                                                                    .attention_grid = attention_grid_,
                                                                    .input_places = kInputPlaces,
                                                                    .result_places = kMostUnderWay}));
  SYNCOPATE_ASSIGN_OR_RETURN(model::MatmulLibrary library, model::MatmulLibrary::Create(buffers_.workspace()));
  library_ = std::make_unique<model::MatmulLibrary>(std::move(library));
  for (auto [events, count] : {std::pair(&uploaded_, kInputPlaces), std::pair(&done_, kMostUnderWay)}) {
    for (int i = 0; i < count; ++i) {
      SYNCOPATE_ASSIGN_OR_RETURN(cuda::Event event, cuda::Event::Create(options_.device));
      events->push_back(std::move(event));
    }
  }
  // The buffers were filled on the default stream, which this one does not wait for.
  return CudaStatus(cudaDeviceSynchronize(), "clearing the decode buffers");
}

absl::Status GraphDecoder::MakeHead(int32_t rows) {
  SYNCOPATE_ASSIGN_OR_RETURN(HeadProduct head,
                             HeadProduct::Create(*library_, options_.shape, rows, options_.float32_logits));
  if (options_.choose_fastest) {
    SYNCOPATE_RETURN_IF_ERROR(head.ChooseFastest(options_.weights, buffers_, stream_.get()));
  }
  heads_.emplace(rows, std::move(head));
  return absl::OkStatus();
}

absl::StatusOr<GraphDecoder::Bucket> GraphDecoder::MakeBucket(int32_t rows, RowsOf rows_of) {
  SYNCOPATE_ASSIGN_OR_RETURN(
      DecodeProducts products,
      DecodeProducts::Create(*library_, options_.shape, {.rows = rows, .add_to_residual = options_.add_in_products}));
  if (options_.choose_fastest) {
    SYNCOPATE_RETURN_IF_ERROR(products.ChooseFastest(options_.weights, buffers_, stream_.get()));
  }
  auto queue = [&]() -> absl::Status {
    SYNCOPATE_RETURN_IF_ERROR(QueueLayers(products, rows, rows_of));
    return rows_of == RowsOf::kDifferentSequences ? QueueDraws(rows) : absl::OkStatus();
  };
  // Once with empty rows, which loads every kernel; a capture should load none.
  SYNCOPATE_RETURN_IF_ERROR(Upload({}, rows, /*draws=*/std::min(rows, max_rows())).status());
  SYNCOPATE_RETURN_IF_ERROR(queue());
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_.get()), "running a first decode step"));
  SYNCOPATE_ASSIGN_OR_RETURN(model::CudaGraph graph, model::CudaGraph::Capture(stream_.get(), queue));
  return Bucket{std::move(products), std::move(graph)};
}

LogitsShape GraphDecoder::logits_shape() const {
  return {options_.shape.vocab, LogitsStride(options_.shape.vocab), options_.float32_logits};
}

absl::Status GraphDecoder::QueueLayers(DecodeProducts& products, int32_t rows, RowsOf rows_of) {
  const DecodeShape& shape = options_.shape;
  const DecodeWeights& weights = options_.weights;
  const model::NormShape norm = {rows, shape.hidden, shape.norm_epsilon};
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      PlanAttention(buffers_.rows(rows), shape.heads.kv_heads, attention_grid_, buffers_.attention(), stream_.get()),
      "planning attention"));
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(model::EmbedAndNorm(norm, buffers_.tokens(), weights.tokens, weights.layers[0].input_norm,
                                     buffers_.residual(), buffers_.normed(), stream_.get()),
                 "embedding tokens"));
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    SYNCOPATE_RETURN_IF_ERROR(QueueLayer(products, rows, rows_of, layer));
  }
  return absl::OkStatus();
}

absl::Status GraphDecoder::QueueDraws(int32_t rows) {
  SYNCOPATE_RETURN_IF_ERROR(
      heads_.at(rows).Queue(options_.weights, buffers_, HeadProduct::Input::kNormed, stream_.get()));
  return CudaStatus(Sample(logits_shape(), buffers_.logits(), buffers_.draws(rows), buffers_.sampling(),
                           buffers_.sample_scratch(), buffers_.drawn(), buffers_.drawn_tokens(), stream_.get()),
                    "sampling");
}

absl::Status GraphDecoder::QueueChunkDraws(int32_t drawn_rows, int32_t draws) {
  const int32_t rows = BatchSizeFor(drawn_rows);
  const model::NormShape shape = {rows, options_.shape.hidden, options_.shape.norm_epsilon};
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(model::GatherRows(shape, buffers_.drawn_rows(), buffers_.normed(), buffers_.gathered(), stream_.get()),
                 "gathering rows"));
  SYNCOPATE_RETURN_IF_ERROR(
      heads_.at(rows).Queue(options_.weights, buffers_, HeadProduct::Input::kGathered, stream_.get()));
  return CudaStatus(Sample(logits_shape(), buffers_.logits(), buffers_.shared_draws(draws), buffers_.sampling(),
                           buffers_.sample_scratch(), buffers_.drawn(), buffers_.drawn_tokens(), stream_.get()),
                    "sampling");
}

// From the layer's normed input to the normed input of what comes after it.
absl::Status GraphDecoder::QueueLayer(DecodeProducts& products, int32_t rows, RowsOf rows_of, int32_t index) {
  const DecodeShape& shape = options_.shape;
  const DecodeLayer& layer = options_.weights.layers[static_cast<size_t>(index)];
  const void* next_norm = index + 1 < shape.layers ? options_.weights.layers[static_cast<size_t>(index) + 1].input_norm
                                                   : options_.weights.norm;
  const model::NormShape norm = {rows, shape.hidden, shape.norm_epsilon};
  const void* added = products.adds_to_residual() ? nullptr : buffers_.projected();
  const AppendInputs append = {.qkv = buffers_.qkv(),
                               .q_norm = shape.qk_norm ? layer.q_norm : nullptr,
                               .k_norm = shape.qk_norm ? layer.k_norm : nullptr,
                               .epsilon = shape.norm_epsilon,
                               .rotations = buffers_.rotations()};
  cudaStream_t stream = stream_.get();
  SYNCOPATE_RETURN_IF_ERROR(products.Qkv(layer, buffers_, stream));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      RotateAndAppend(buffers_.rows(rows), shape.heads, append, options_.storage, index, buffers_.queries(), stream),
      "appending keys and values"));
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(AttendPaged(buffers_.rows(rows), shape.heads, maps_, options_.storage, index, attention_grid_,
                             buffers_.attention(), buffers_.queries(), buffers_.attended(), rows_of, stream),
                 "attending"));
  SYNCOPATE_RETURN_IF_ERROR(products.Output(layer, buffers_, stream));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      model::AddAndNorm(norm, added, layer.post_norm, buffers_.residual(), buffers_.normed(), stream), "a norm"));
  SYNCOPATE_RETURN_IF_ERROR(products.GateUp(layer, buffers_, stream));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      model::SwiGlu(rows, shape.intermediate, buffers_.gate_up(), buffers_.activated(), stream), "an activation"));
  SYNCOPATE_RETURN_IF_ERROR(products.Down(layer, buffers_, stream));
  return CudaStatus(model::AddAndNorm(norm, added, next_norm, buffers_.residual(), buffers_.normed(), stream),
                    "a norm");
}

int32_t GraphDecoder::BatchSizeFor(int32_t rows) const {
  return *std::lower_bound(options_.batch_sizes.begin(), options_.batch_sizes.end(), rows);
}

const model::CudaGraph& GraphDecoder::GraphFor(int32_t rows) const { return batches_.at(BatchSizeFor(rows)).graph; }

absl::StatusOr<int32_t> GraphDecoder::Upload(const Pass& pass, int32_t rows, int32_t draws) {
  const size_t place = static_cast<size_t>(next_input_);
  next_input_ = (next_input_ + 1) % kInputPlaces;
  SYNCOPATE_RETURN_IF_ERROR(uploaded_[place].Wait(kStepDeadline, "the copy of an earlier pass's rows"));
  SYNCOPATE_ASSIGN_OR_RETURN(const int32_t drawn_rows,
                             buffers_.Upload(static_cast<int>(place), pass, rows, draws, stream_.get()));
  SYNCOPATE_RETURN_IF_ERROR(uploaded_[place].Record(stream_.get()));
  return drawn_rows;
}

absl::Status GraphDecoder::LaunchChunks(const DecoderStep& step, UnderWay& launched) {
  size_t draw = 0;
  for (size_t begin = 0; begin < step.chunk_rows.size();) {
    const size_t end = std::min(step.chunk_rows.size(), begin + static_cast<size_t>(max_chunk_rows()));
    std::vector<PassDraw> draws;
    for (; draw < step.chunk_draws.size() && step.chunk_draws[draw].row < static_cast<int32_t>(end); ++draw) {
      draws.push_back(step.chunk_draws[draw]);
      draws.back().row -= static_cast<int32_t>(begin);
    }
    const int32_t count = static_cast<int32_t>(draws.size()), padded = count > 0 ? BatchSizeFor(count) : 0;
    auto& [rows, bucket] = *chunks_.lower_bound(static_cast<int32_t>(end - begin));
    Pass pass = {.rows = step.chunk_rows.subspan(begin, end - begin), .draws = draws};
    if (begin == 0) pass.sampling = step.sampling, pass.tables = step.tables;
    SYNCOPATE_ASSIGN_OR_RETURN(const int32_t drawn_rows, Upload(pass, rows, padded));
    SYNCOPATE_RETURN_IF_ERROR(bucket.graph.Launch(stream_.get()));
    if (count > 0) {
      SYNCOPATE_RETURN_IF_ERROR(QueueChunkDraws(drawn_rows, count));
      SYNCOPATE_RETURN_IF_ERROR(buffers_.Download(launched.at, launched.draws, count, stream_.get()));
    }
    launched.draws += count;
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status GraphDecoder::LaunchRows(const Pass& settings, const DecoderStep& step, UnderWay& launched) {
  std::vector<PassRow> rows;
  std::vector<PassDraw> draws;
  for (const DecoderRow& row : step.rows) {
    draws.push_back({row.slot, row.number, static_cast<int32_t>(rows.size())});
    rows.push_back({row.slot, row.token, row.length});
  }
  Pass pass = settings;
  pass.rows = rows;
  pass.draws = draws;
  const int32_t count = static_cast<int32_t>(rows.size()), batch_size = count > 0 ? BatchSizeFor(count) : 0;
  SYNCOPATE_RETURN_IF_ERROR(Upload(pass, batch_size, batch_size).status());
  if (count == 0) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(batches_.at(batch_size).graph.Launch(stream_.get()));
  SYNCOPATE_RETURN_IF_ERROR(buffers_.Download(launched.at, launched.draws, count, stream_.get()));
  launched.draws += count;
  return absl::OkStatus();
}

absl::Status GraphDecoder::Launch(const DecoderStep& step) {
  SYNCOPATE_CHECK(under_way() < kMostUnderWay);
  SYNCOPATE_CHECK(static_cast<int32_t>(step.rows.size()) <= max_rows());
  SYNCOPATE_CHECK(step.chunk_rows.empty() || max_chunk_rows() > 0);
  const DeviceScope device(options_.device);
  UnderWay launched = {next_result_, 0};
  SYNCOPATE_RETURN_IF_ERROR(LaunchChunks(step, launched));
  Pass settings;
  if (step.chunk_rows.empty()) settings.sampling = step.sampling, settings.tables = step.tables;
  const bool has_settings = !settings.sampling.empty() || !settings.tables.empty();
  if (!step.rows.empty() || has_settings) SYNCOPATE_RETURN_IF_ERROR(LaunchRows(settings, step, launched));
  SYNCOPATE_RETURN_IF_ERROR(done_[static_cast<size_t>(launched.at)].Record(stream_.get()));
  under_way_.push_back(launched);
  next_result_ = (next_result_ + 1) % kMostUnderWay;
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const Drawn>> GraphDecoder::Await() {
  SYNCOPATE_CHECK(!under_way_.empty());
  const UnderWay step = under_way_.front();
  SYNCOPATE_RETURN_IF_ERROR(done_[static_cast<size_t>(step.at)].Wait(kStepDeadline, "a decode step"));
  under_way_.pop_front();
  return buffers_.results(step.at, step.draws);
}

}  // namespace syncopate::rollouter
