#include "rollouter/cuda/decode/graph_decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "base/log.h"
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
constexpr absl::Duration kAskRanksEvery = absl::Milliseconds(100);
constexpr int32_t kMostTableSettings = 32768;  // in one pass
// A graph of packed sequences has room for this number of sequences, or for 2, 4, 8, ... times as many; unused ones are
// empty.
constexpr int32_t kLeastCapturedSequences = 8;
// With bit_identical_rows: passes of prompts from this size on attend by windows. Smaller passes have too few windows
// to fill a GPU.
constexpr int32_t kLeastRowsInWindows = 256;

int32_t LastOr(const std::vector<int32_t>& sizes, int32_t otherwise) {
  return sizes.empty() ? otherwise : sizes.back();
}

// Enough for one sequence of max_positions tokens beside a full pass of the largest size.
int32_t MostPackedKeys(const GraphDecoder::Options& options) {
  return options.packed_sizes.empty() ? 0 : options.max_positions + options.packed_sizes.back();
}

DeviceRanks::Extent GetExtent(const GraphDecoder::Options& options, const DecodeBuffers::Options& buffers) {
  return {buffers.max_rows, options.shape.hidden, DecodeBuffers::LogitsBytes(options.shape, buffers)};
}
}  // namespace

absl::StatusOr<std::unique_ptr<GraphDecoder>> GraphDecoder::Create(const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.shape.Validate());
  SYNCOPATE_CHECK(!options.batch_sizes.empty());
  SYNCOPATE_CHECK(std::is_sorted(options.batch_sizes.begin(), options.batch_sizes.end()));
  SYNCOPATE_CHECK(std::is_sorted(options.chunk_sizes.begin(), options.chunk_sizes.end()));
  SYNCOPATE_CHECK(options.max_slots <= options.batch_sizes.back() && options.batch_sizes.back() <= kMaxAttentionRows);
  SYNCOPATE_CHECK(std::is_sorted(options.packed_sizes.begin(), options.packed_sizes.end()));
  SYNCOPATE_CHECK(LastOr(options.chunk_sizes, 0) <= kMaxAttentionRows);
  SYNCOPATE_CHECK(options.packed_sizes.empty() || (options.attend_packed && !options.chunk_sizes.empty()));
  SYNCOPATE_CHECK(!options.bit_identical_rows || (options.packed_sizes.empty() && !options.choose_fastest));
  SYNCOPATE_CHECK(static_cast<int32_t>(options.weights.layers.size()) == options.shape.layers);
  SYNCOPATE_CHECK(options.storage.layers == options.shape.layers);
  std::unique_ptr<GraphDecoder> decoder(new GraphDecoder(options));
  const DeviceScope device(options.device);
  SYNCOPATE_RETURN_IF_ERROR(decoder->Prepare());
  for (int32_t rows : options.batch_sizes) {
    SYNCOPATE_RETURN_IF_ERROR(decoder->products_->MakeHead(rows));
    SYNCOPATE_ASSIGN_OR_RETURN(Bucket bucket, decoder->MakeBucket(rows, RowsOf::kDifferentSequences));
    decoder->batches_.emplace(rows, std::move(bucket));
  }
  for (int32_t rows : options.chunk_sizes) {
    SYNCOPATE_ASSIGN_OR_RETURN(Bucket bucket, decoder->MakeBucket(rows, RowsOf::kAnySequences));
    decoder->chunks_.emplace(rows, std::move(bucket));
  }
  for (int32_t rows : options.packed_sizes) {
    for (int32_t places = 1; places <= (options.shape.adapter_rank > 0 ? kAdapterPlaces : 1); ++places) {
      SYNCOPATE_ASSIGN_OR_RETURN(DecodeProducts products, decoder->products_->Make(rows, places));
      decoder->packed_.emplace(std::pair(rows, places), std::move(products));
    }
  }
  decoder->products_->EndTrial();
  return decoder;
}

absl::StatusOr<int32_t> GraphDecoder::GetAttentionGrid(int device) {
  int multiprocessors = 0;
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
                                       "asking for the GPU's size"));
  return AttentionGrid(multiprocessors);
}

DecodeBuffers::Options GraphDecoder::BufferOptions(const Options& options, int32_t attention_grid) {
  const int32_t paged = std::max(options.batch_sizes.back(), LastOr(options.chunk_sizes, 0));
  return {.device = options.device,
          .max_rows = std::max(paged, LastOr(options.packed_sizes, 0)),
          .max_paged_rows = paged,
          .max_draws = options.batch_sizes.back(),
          .max_packed_keys = MostPackedKeys(options),
          .max_table_settings = kMostTableSettings,
          .max_slots = options.max_slots,
          .max_positions = options.max_positions,
          .float32_logits = options.float32_logits,
          .logits_elsewhere = options.ranks != nullptr,
          .attention_grid = attention_grid,
          .input_places = kInputPlaces,
          .result_places = kMostUnderWay};
}

absl::StatusOr<int64_t> GraphDecoder::DeviceBytes(const Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(const int32_t grid, GetAttentionGrid(options.device));
  const DecodeBuffers::Options buffers = BufferOptions(options, grid);
  const int64_t of_ranks =
      options.ranks == nullptr ? 0 : DeviceRanks::MemoryBytes(options.ranks->world(), GetExtent(options, buffers));
  return DecodeBuffers::DeviceBytes(options.shape, buffers) + of_ranks;
}

GraphDecoder::~GraphDecoder() {
  const DeviceScope device(options_.device);
  if (stream_.get() != nullptr) cudaStreamSynchronize(stream_.get());  // no work reads the members any more
}

absl::Status GraphDecoder::Prepare() {
  SYNCOPATE_ASSIGN_OR_RETURN(stream_, cuda::Stream::Create(options_.device));
  SYNCOPATE_ASSIGN_OR_RETURN(attention_grid_, GetAttentionGrid(options_.device));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(PrepareAttention(options_.shape.heads), "loading the attention kernel"));
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::Load());
  SYNCOPATE_RETURN_IF_ERROR(
      DriverStatus(DescribeStorage(driver->encode_tensor_map, options_.storage, options_.shape.heads, &maps_),
                   "describing the key and value blocks"));
  const DecodeBuffers::Options buffers = BufferOptions(options_, attention_grid_);
  SYNCOPATE_ASSIGN_OR_RETURN(buffers_, DecodeBuffers::Create(options_.shape, buffers, options_.rotations));
  for (auto [events, count] : {std::pair(&uploaded_, kInputPlaces), std::pair(&done_, kMostUnderWay)}) {
    for (int i = 0; i < count; ++i) {
      SYNCOPATE_ASSIGN_OR_RETURN(cuda::Event event, cuda::Event::Create(options_.device));
      events->push_back(std::move(event));
    }
  }
  SYNCOPATE_ASSIGN_OR_RETURN(adapter_rows_, AdapterRows::Create(options_.device, options_.shape, options_.weights));
  // The buffers were filled on the default stream, which this one does not wait for.
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "clearing the decode buffers"));
  return MakeProducts(GetExtent(options_, buffers));
}

absl::StatusOr<HeadProducts::Options> GraphDecoder::ShareMemory(const DeviceRanks::Extent& extent) {
  HeadProducts::Options heads = {.slice = {0, options_.shape.vocab},
                                 .float32_logits = options_.float32_logits,
                                 .bit_identical_rows = options_.bit_identical_rows,
                                 .choose_fastest = options_.choose_fastest};
  DeviceRanks* const ranks = options_.ranks;
  if (ranks == nullptr) return heads;
  SYNCOPATE_ASSIGN_OR_RETURN(const DeviceRanks::Memory memory, ranks->MakeMemory(extent));
  parts_ = memory.parts;
  buffers_.UseLogits(memory.logits);
  if (memory.shares_logits) {
    heads.sharers = ranks;
    heads.slice = SliceOfRank(options_.shape.vocab, ranks->rank(), ranks->world());
  } else if (!leads()) {
    heads.slice = {};
  }
  return heads;
}

absl::Status GraphDecoder::MakeProducts(const DeviceRanks::Extent& extent) {
  SYNCOPATE_ASSIGN_OR_RETURN(const HeadProducts::Options heads, ShareMemory(extent));
  SYNCOPATE_ASSIGN_OR_RETURN(products_,
                             ProductChoice::Create(options_.shape, options_.weights, buffers_,
                                                   {.device = options_.device,
                                                    .head = heads,
                                                    .parts = parts_,
                                                    .add_to_residual = options_.add_in_products,
                                                    .most_rows = std::max(max_rows(), LastOr(options_.chunk_sizes, 0)),
                                                    .most_head_rows = max_rows()},
                                                   stream_.get()));
  return absl::OkStatus();
}

absl::StatusOr<GraphDecoder::Bucket> GraphDecoder::MakeBucket(int32_t rows, RowsOf rows_of) {
  SYNCOPATE_ASSIGN_OR_RETURN(DecodeProducts products, products_->Make(rows));
  auto queue = [&]() -> absl::Status {
    // Only rows of decode steps read drawn tokens, so only their graphs broadcast them.
    if (options_.ranks != nullptr && rows_of == RowsOf::kDifferentSequences) {
      SYNCOPATE_RETURN_IF_ERROR(options_.ranks->Broadcast(
          buffers_.drawn_tokens(), (options_.max_slots + 1) * int64_t{sizeof(int32_t)}, stream_.get()));
    }
    SYNCOPATE_RETURN_IF_ERROR(QueuePagedLayers(products, rows, rows_of));
    return rows_of == RowsOf::kDifferentSequences ? QueueDraws(rows) : absl::OkStatus();
  };
  // A first run with empty rows loads every kernel, because a capture should load none.
  SYNCOPATE_RETURN_IF_ERROR(Upload({}, rows, /*draws=*/std::min(rows, max_rows())).status());
  SYNCOPATE_RETURN_IF_ERROR(queue());
  cuda::Event first;
  SYNCOPATE_ASSIGN_OR_RETURN(first, cuda::Event::Create(options_.device));
  SYNCOPATE_RETURN_IF_ERROR(first.Record(stream_.get()));
  SYNCOPATE_RETURN_IF_ERROR(AwaitEvent(first, "a first decode step"));
  SYNCOPATE_ASSIGN_OR_RETURN(model::CudaGraph graph, model::CudaGraph::Capture(stream_.get(), queue));
  return Bucket{std::move(products), std::move(graph)};
}

LogitsShape GraphDecoder::logits_shape() const {
  return {options_.shape.vocab, LogitsStride(options_.shape.vocab), options_.float32_logits};
}

absl::Status GraphDecoder::QueueLayers(DecodeProducts& products, int32_t rows, const Attend& attend) {
  const DecodeShape& shape = options_.shape;
  const DecodeWeights& weights = options_.weights;
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      model::EmbedAndNorm({rows, shape.hidden, shape.norm_epsilon}, buffers_.tokens(),
                          {buffers_.rows(rows).lengths, weights.positions}, weights.tokens,
                          weights.layers[0].input_norm, buffers_.residual(), buffers_.normed(), stream_.get()),
      "embedding tokens"));
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    SYNCOPATE_RETURN_IF_ERROR(QueueLayer(products, rows, attend, layer));
  }
  return absl::OkStatus();
}

absl::Status GraphDecoder::QueuePagedLayers(DecodeProducts& products, int32_t rows, RowsOf rows_of) {
  const HeadCounts& heads = options_.shape.heads;
  Cuts cuts = Cuts::kAnywhere;
  if (options_.bit_identical_rows) {
    const bool in_windows = rows_of == RowsOf::kAnySequences && rows >= kLeastRowsInWindows;
    cuts = in_windows ? Cuts::kBetweenWindows : Cuts::kBetweenRows;
  }
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(PlanAttention(buffers_.rows(rows), heads, attention_grid_, cuts, buffers_.attention(), stream_.get()),
                 "planning attention"));
  return QueueLayers(products, rows, [&](int32_t layer) {
    return CudaStatus(
        AttendPaged(buffers_.rows(rows), heads, maps_, options_.storage, layer, attention_grid_, buffers_.attention(),
                    buffers_.queries(), buffers_.attended(), rows_of, cuts, stream_.get()),
        "attending");
  });
}

absl::Status GraphDecoder::QueuePackedLayers(int32_t rows, int32_t places, const PackedExtent& extent) {
  const PackedSequencesOf packed = buffers_.packed(extent.sequences, extent.keys);
  const PackedAttention call = {.queries = buffers_.queries(),
                                .keys = buffers_.packed_keys(),
                                .values = buffers_.packed_values(),
                                .out = buffers_.attended(),
                                .query_starts = buffers_.query_starts(),
                                .key_starts = packed.key_starts,
                                .sequences = extent.sequences,
                                .query_count = extent.queries,
                                .key_count = extent.keys,
                                .longest_query = extent.longest_query,
                                .longest_key = extent.longest_key};
  return QueueLayers(packed_.at({rows, places}), rows, [&](int32_t layer) -> absl::Status {
    SYNCOPATE_RETURN_IF_ERROR(
        CudaStatus(PackTokens(packed, buffers_.rows(rows), options_.shape.heads, options_.storage, layer,
                              buffers_.packed_keys(), buffers_.packed_values(), stream_.get()),
                   "packing keys and values"));
    return options_.attend_packed(call, stream_.get());
  });
}

absl::Status GraphDecoder::LaunchPackedLayers(int32_t rows, int32_t places, const ChunkPass& pass) {
  const PackedExtent extent = {static_cast<int32_t>(pass.sequences.size()), pass.rows(), pass.keys, pass.longest_query,
                               pass.longest_key};
  const bool whole = pass.keys == pass.rows();
  if (!captures_ || !whole || rows > options_.captured_rows) return QueuePackedLayers(rows, places, extent);
  int32_t sequences = kLeastCapturedSequences;
  while (sequences < extent.sequences) sequences *= 2;
  sequences = std::min(sequences, options_.max_slots);
  PackedGraph& made = packed_graphs_[{rows, places, sequences}];
  // The first pass of a size runs kernel by kernel: that loads every kernel, because a capture should load none, and a
  // size that occurs only once is not worth a graph.
  const PackedExtent most = {sequences, rows, rows, rows, rows};
  if (!std::exchange(made.has_run, true)) return QueuePackedLayers(rows, places, most);
  if (!made.graph.has_value()) {
    absl::StatusOr<model::CudaGraph> graph =
        model::CudaGraph::Capture(stream_.get(), [&] { return QueuePackedLayers(rows, places, most); });
    if (!graph.ok()) {
      SYNCOPATE_LOG(kWarning, "prompts go kernel by kernel, which takes the host longer: %s", graph.status().message());
      captures_ = false;
      return QueuePackedLayers(rows, places, extent);
    }
    made.graph = *std::move(graph);
  }
  return made.graph->Launch(stream_.get());
}

absl::Status GraphDecoder::QueueDraws(int32_t rows) {
  SYNCOPATE_RETURN_IF_ERROR(products_->head().Queue(rows, HeadProducts::Input::kNormed, stream_.get()));
  if (!leads()) return absl::OkStatus();
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
  SYNCOPATE_RETURN_IF_ERROR(products_->head().Queue(rows, HeadProducts::Input::kGathered, stream_.get()));
  if (!leads()) return absl::OkStatus();
  return CudaStatus(Sample(logits_shape(), buffers_.logits(), buffers_.shared_draws(draws), buffers_.sampling(),
                           buffers_.sample_scratch(), buffers_.drawn(), buffers_.drawn_tokens(), stream_.get()),
                    "sampling");
}

// Computes one layer, from its normed input to the normed input of the next layer, or of the head.
absl::Status GraphDecoder::QueueLayer(DecodeProducts& products, int32_t rows, const Attend& attend, int32_t index) {
  const DecodeShape& shape = options_.shape;
  const DecodeLayer& layer = options_.weights.layers[static_cast<size_t>(index)];
  const void* next_norm = index + 1 < shape.layers ? options_.weights.layers[static_cast<size_t>(index) + 1].input_norm
                                                   : options_.weights.norm;
  const model::NormShape norm = {rows, shape.hidden, shape.norm_epsilon};
  const std::optional<AdaptedProduct> adapters = products.GetQkvAdapters(layer, buffers_);
  const AppendInputs append = {.qkv = buffers_.qkv(),
                               .q_norm = shape.qk_norm ? layer.q_norm : nullptr,
                               .k_norm = shape.qk_norm ? layer.k_norm : nullptr,
                               .epsilon = shape.norm_epsilon,
                               .rotations = buffers_.rotations(),
                               .adapters = adapters.has_value() ? &*adapters : nullptr};
  cudaStream_t stream = stream_.get();
  SYNCOPATE_RETURN_IF_ERROR(products.Qkv(layer, buffers_, stream));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      RotateAndAppend(buffers_.rows(rows), shape.heads, append, options_.storage, index, buffers_.queries(), stream),
      "appending keys and values"));
  SYNCOPATE_RETURN_IF_ERROR(attend(index));
  SYNCOPATE_RETURN_IF_ERROR(products.Output(layer, buffers_, stream));
  SYNCOPATE_RETURN_IF_ERROR(AddAndNorm(0, products, layer, norm, layer.post_norm));
  SYNCOPATE_RETURN_IF_ERROR(products.GateUpActivated(layer, buffers_, stream));
  SYNCOPATE_RETURN_IF_ERROR(products.Down(layer, buffers_, stream));
  return AddAndNorm(1, products, layer, norm, next_norm);
}

absl::Status GraphDecoder::AddAndNorm(int which, const DecodeProducts& products, const DecodeLayer& layer,
                                      const model::NormShape& shape, const void* weight) {
  if (options_.ranks != nullptr) {
    return options_.ranks->SumAndNorm(which, shape, weight, buffers_.residual(), buffers_.normed(), stream_.get());
  }
  return products.AddAndNorm(which, layer, shape, weight, buffers_, stream_.get());
}

int32_t GraphDecoder::BatchSizeFor(int32_t rows) const {
  return *std::lower_bound(options_.batch_sizes.begin(), options_.batch_sizes.end(), rows);
}

const model::CudaGraph& GraphDecoder::GraphFor(int32_t rows) const { return batches_.at(BatchSizeFor(rows)).graph; }

absl::Status GraphDecoder::AwaitEvent(const cuda::Event& event, const char* what) const {
  if (options_.ranks == nullptr) return event.Wait(kStepDeadline, what);
  absl::Status waited;
  for (absl::Duration spent; spent < kStepDeadline; spent += kAskRanksEvery) {
    waited = event.Wait(kAskRanksEvery, what);
    if (!absl::IsDeadlineExceeded(waited)) return waited;
    SYNCOPATE_RETURN_IF_ERROR(options_.ranks->Check());
  }
  return waited;
}

absl::StatusOr<int32_t> GraphDecoder::Upload(const Pass& pass, int32_t rows, int32_t draws) {
  const size_t place = static_cast<size_t>(next_input_);
  next_input_ = (next_input_ + 1) % kInputPlaces;
  SYNCOPATE_RETURN_IF_ERROR(AwaitEvent(uploaded_[place], "the copy of an earlier pass's rows"));
  SYNCOPATE_ASSIGN_OR_RETURN(const int32_t drawn_rows,
                             buffers_.Upload(static_cast<int>(place), pass, rows, draws, stream_.get()));
  SYNCOPATE_RETURN_IF_ERROR(uploaded_[place].Record(stream_.get()));
  return drawn_rows;
}

absl::Status GraphDecoder::FilterAndDownload(absl::Span<const PassDraw> draws, UnderWay& launched) {
  const int32_t count = static_cast<int32_t>(draws.size());
  if (!leads()) {
    launched.draws += count;
    return absl::OkStatus();
  }
  FilteredDraw* const list = buffers_.filtered(launched.at) + launched.filtered;
  int32_t filtered = 0, logits_row = -1, row = -1;  // draws from one row are adjacent
  for (int32_t i = 0; i < count; ++i) {
    const PassDraw& draw = draws[static_cast<size_t>(i)];
    if (draw.row != row) ++logits_row;
    row = draw.row;
    if (draw.filter != nullptr) list[filtered++] = {*draw.filter, i, draw.slot, draw.number, logits_row};
    if (!draw.wants_logits) continue;
    SYNCOPATE_RETURN_IF_ERROR(buffers_.DownloadLogits(launched.at, launched.logits++, logits_row, stream_.get()));
  }
  launched.filtered += filtered;
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(SampleFiltered(logits_shape(), static_cast<const float*>(buffers_.logits()), list, filtered,
                                buffers_.sampling(), buffers_.drawn(), buffers_.drawn_tokens(), stream_.get()),
                 "sampling by filters"));
  SYNCOPATE_RETURN_IF_ERROR(buffers_.Download(launched.at, launched.draws, count, stream_.get()));
  launched.draws += count;
  return absl::OkStatus();
}

absl::Status GraphDecoder::LaunchSettings(const Pass& settings) {
  absl::Span<const TableSetting> tables = settings.tables;
  Pass pass = {.sampling = settings.sampling};
  while (!pass.sampling.empty() || !tables.empty()) {
    pass.tables = tables.subspan(0, kMostTableSettings);
    tables.remove_prefix(pass.tables.size());
    SYNCOPATE_RETURN_IF_ERROR(Upload(pass, /*rows=*/0, /*draws=*/0).status());
    pass.sampling = {};
  }
  return absl::OkStatus();
}

absl::Status GraphDecoder::LaunchChunk(const DecoderStep& step, const ChunkPass& chunk, UnderWay& launched) {
  const int32_t draws = static_cast<int32_t>(chunk.draws.size());
  const Pass pass = {.rows = step.chunk_rows.subspan(chunk.begin, chunk.end - chunk.begin),
                     .draws = chunk.draws,
                     .sequences = chunk.sequences};
  const bool packed = !chunk.sequences.empty();
  const int32_t rows =
      packed ? packed_.lower_bound({chunk.rows(), 0})->first.first : chunks_.lower_bound(chunk.rows())->first;
  SYNCOPATE_ASSIGN_OR_RETURN(const int32_t drawn_rows, Upload(pass, rows, draws > 0 ? BatchSizeFor(draws) : 0));
  if (packed) {
    int32_t places = 1;
    for (const PassRow& row : pass.rows) places = std::max(places, GetRowPlace(row.set) + 1);
    SYNCOPATE_RETURN_IF_ERROR(LaunchPackedLayers(rows, places, chunk));
  } else {
    SYNCOPATE_RETURN_IF_ERROR(chunks_.at(rows).graph.Launch(stream_.get()));
  }
  if (draws == 0) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(QueueChunkDraws(drawn_rows, draws));
  return FilterAndDownload(chunk.draws, launched);
}

absl::Status GraphDecoder::LaunchRows(Pass pass, const DecoderStep& step, UnderWay& launched) {
  std::vector<PassRow> rows;
  std::vector<PassDraw> draws;
  for (const DecoderRow& row : step.rows) {
    draws.push_back({row.slot, row.number, static_cast<int32_t>(rows.size()), row.wants_logits, row.filter});
    rows.push_back({row.slot, row.token, row.length, row.set});
  }
  const int32_t batch_size = BatchSizeFor(static_cast<int32_t>(rows.size()));
  pass.rows = rows;
  pass.draws = draws;
  SYNCOPATE_RETURN_IF_ERROR(Upload(pass, batch_size, batch_size).status());
  SYNCOPATE_RETURN_IF_ERROR(batches_.at(batch_size).graph.Launch(stream_.get()));
  return FilterAndDownload(draws, launched);
}

absl::Status GraphDecoder::PlaceAdapters(int32_t set, int32_t place) {
  const DeviceScope device(options_.device);
  return adapter_rows_.Queue(set, place, stream_.get());
}

absl::Status GraphDecoder::Launch(const DecoderStep& step) {
  SYNCOPATE_CHECK(under_way() < kMostUnderWay);
  SYNCOPATE_CHECK(static_cast<int32_t>(step.rows.size()) <= max_rows());
  SYNCOPATE_CHECK(step.chunk_rows.empty() || !options_.chunk_sizes.empty());
  const DeviceScope device(options_.device);
  UnderWay launched = {next_result_, 0};
  auto wants = [](const auto& draw) { return draw.wants_logits; };
  auto filters = [](const auto& draw) { return draw.filter != nullptr; };
  const auto wanted = std::count_if(step.chunk_draws.begin(), step.chunk_draws.end(), wants) +
                      std::count_if(step.rows.begin(), step.rows.end(), wants);
  const bool filtered = std::any_of(step.chunk_draws.begin(), step.chunk_draws.end(), filters) ||
                        std::any_of(step.rows.begin(), step.rows.end(), filters);
  SYNCOPATE_CHECK((wanted == 0 && !filtered) || options_.float32_logits);
  SYNCOPATE_RETURN_IF_ERROR(buffers_.ReserveLogits(launched.at, static_cast<int32_t>(wanted)));
  // If the step is a single pass, its settings travel with it, because each copy to the device takes time.
  Pass settings = {.sampling = step.sampling, .tables = step.tables};
  if (!step.chunk_rows.empty() || step.rows.empty() || step.tables.size() > size_t{kMostTableSettings}) {
    SYNCOPATE_RETURN_IF_ERROR(LaunchSettings(std::exchange(settings, Pass())));
  }
  const ChunkLimits limits = {.max_paged_rows = LastOr(options_.chunk_sizes, 0),
                              .max_packed_rows = LastOr(options_.packed_sizes, 0),
                              .max_packed_keys = MostPackedKeys(options_)};
  for (const ChunkPass& chunk : CutChunks(step.chunk_rows, step.chunk_draws, limits)) {
    SYNCOPATE_RETURN_IF_ERROR(LaunchChunk(step, chunk, launched));
  }
  if (!step.rows.empty()) SYNCOPATE_RETURN_IF_ERROR(LaunchRows(settings, step, launched));
  SYNCOPATE_RETURN_IF_ERROR(done_[static_cast<size_t>(launched.at)].Record(stream_.get()));
  under_way_.push_back(launched);
  next_result_ = (next_result_ + 1) % kMostUnderWay;
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const Drawn>> GraphDecoder::Await() {
  SYNCOPATE_CHECK(!under_way_.empty());
  awaited_ = under_way_.front();
  SYNCOPATE_RETURN_IF_ERROR(AwaitEvent(done_[static_cast<size_t>(awaited_.at)], "a decode step"));
  under_way_.pop_front();
  return buffers_.results(awaited_.at, awaited_.draws);
}

absl::Span<const float> GraphDecoder::WantedLogits(int32_t index) const {
  SYNCOPATE_CHECK(index < awaited_.logits);
  return {buffers_.host_logits(awaited_.at, index), static_cast<size_t>(options_.shape.vocab)};
}

}  // namespace syncopate::rollouter
