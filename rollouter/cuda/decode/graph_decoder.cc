#include "rollouter/cuda/decode/graph_decoder.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "base/status.h"
#include "model/cuda/row_kernels.h"
#include "rollouter/cuda/decode/paged_attention.h"
#include "synchronizer/cuda/cuda_status.h"
#include "synchronizer/cuda/device.h"
#include "synchronizer/cuda/driver.h"

namespace syncopate::rollouter {

using synchronizer::CudaStatus;
using synchronizer::DeviceScope;
using synchronizer::DriverStatus;

namespace {
constexpr absl::Duration kStepDeadline = absl::Seconds(30);
}  // namespace

absl::StatusOr<std::unique_ptr<GraphDecoder>> GraphDecoder::Create(const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.shape.Validate());
  SYNCOPATE_CHECK(!options.batch_sizes.empty());
  SYNCOPATE_CHECK(std::is_sorted(options.batch_sizes.begin(), options.batch_sizes.end()));
  SYNCOPATE_CHECK(options.batch_sizes.back() <= kMaxAttentionRows);
  SYNCOPATE_CHECK(static_cast<int32_t>(options.weights.layers.size()) == options.shape.layers);
  SYNCOPATE_CHECK(options.storage.layers == options.shape.layers);
  std::unique_ptr<GraphDecoder> decoder(new GraphDecoder(options));
  const DeviceScope device(options.device);
  SYNCOPATE_RETURN_IF_ERROR(decoder->Prepare());
  for (int32_t batch_size : options.batch_sizes) SYNCOPATE_RETURN_IF_ERROR(decoder->MakeGraph(batch_size));
  return decoder;
}

GraphDecoder::~GraphDecoder() {
  const DeviceScope device(options_.device);
  if (stream_.get() != nullptr) cudaStreamSynchronize(stream_.get());  // what is freed next is no longer read
}

absl::Status GraphDecoder::Prepare() {
  SYNCOPATE_ASSIGN_OR_RETURN(stream_, synchronizer::Stream::Create(options_.device));
  int multiprocessors = 0;
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, options_.device),
                 "asking for the GPU's size"));
  attention_grid_ = AttentionGrid(multiprocessors);
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(PrepareAttention(options_.shape.heads), "loading the attention kernel"));
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Driver* driver, synchronizer::Driver::Load());
  SYNCOPATE_RETURN_IF_ERROR(
      DriverStatus(DescribeStorage(driver->encode_tensor_map, options_.storage, options_.shape.heads, &maps_),
                   "describing the key and value blocks"));
  SYNCOPATE_ASSIGN_OR_RETURN(buffers_, DecodeBuffers::Create(options_.shape, {.device = options_.device,
                                                                              .max_rows = max_rows(),
                                                                              .max_slots = options_.max_slots,
                                                                              .max_positions = options_.max_positions,
                                                                              .rope_theta = options_.rope_theta,
                                                                              .float32_logits = options_.float32_logits,
                                                                              .attention_grid = attention_grid_,
                                                                              .steps = kMostUnderWay}));
  SYNCOPATE_ASSIGN_OR_RETURN(model::MatmulLibrary library, model::MatmulLibrary::Create(buffers_.workspace()));
  library_ = std::make_unique<model::MatmulLibrary>(std::move(library));
  for (int i = 0; i < kMostUnderWay; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(synchronizer::Event done, synchronizer::Event::Create(options_.device));
    done_.push_back(std::move(done));
  }
  // The buffers were filled on the default stream, which this one does not wait for.
  return CudaStatus(cudaDeviceSynchronize(), "clearing the decode buffers");
}

absl::Status GraphDecoder::MakeGraph(int32_t batch_size) {
  SYNCOPATE_ASSIGN_OR_RETURN(DecodeProducts products,
                             DecodeProducts::Create(*library_, options_.shape,
                                                    {.rows = batch_size,
                                                     .float32_logits = options_.float32_logits,
                                                     .add_to_residual = options_.add_in_products}));
  if (options_.choose_fastest) {
    SYNCOPATE_RETURN_IF_ERROR(products.ChooseFastest(options_.weights, buffers_, stream_.get()));
  }
  // Once with empty rows, which loads every kernel; a capture should load none.
  SYNCOPATE_RETURN_IF_ERROR(buffers_.Upload(/*at=*/0, {}, batch_size, stream_.get()));
  SYNCOPATE_RETURN_IF_ERROR(QueueStep(products, batch_size));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_.get()), "running a first decode step"));
  SYNCOPATE_ASSIGN_OR_RETURN(model::CudaGraph graph,
                             model::CudaGraph::Capture(stream_.get(), [&] { return QueueStep(products, batch_size); }));
  products_.emplace(batch_size, std::move(products));
  graphs_.emplace(batch_size, std::move(graph));
  return absl::OkStatus();
}

LogitsShape GraphDecoder::logits_shape() const {
  return {options_.shape.vocab, LogitsStride(options_.shape.vocab), options_.float32_logits};
}

absl::Status GraphDecoder::QueueStep(DecodeProducts& products, int32_t rows) {
  const DecodeShape& shape = options_.shape;
  const DecodeWeights& weights = options_.weights;
  const model::NormShape norm = {rows, shape.hidden, shape.norm_epsilon};
  cudaStream_t stream = stream_.get();
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      PlanAttention(buffers_.rows(rows), shape.heads.kv_heads, attention_grid_, buffers_.attention(), stream),
      "planning attention"));
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(model::EmbedAndNorm(norm, buffers_.tokens(), weights.tokens, weights.layers[0].input_norm,
                                     buffers_.residual(), buffers_.normed(), stream),
                 "embedding tokens"));
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    SYNCOPATE_RETURN_IF_ERROR(QueueLayer(products, rows, layer));
  }
  SYNCOPATE_RETURN_IF_ERROR(products.Head(weights, buffers_, stream));
  return CudaStatus(Sample(logits_shape(), buffers_.logits(), buffers_.draws(rows), buffers_.sampling(),
                           buffers_.sample_scratch(), buffers_.drawn(), buffers_.drawn_tokens(), stream),
                    "sampling");
}

// From the layer's normed input to the normed input of what comes after it.
absl::Status GraphDecoder::QueueLayer(DecodeProducts& products, int32_t rows, int32_t index) {
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
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      AttendPaged(buffers_.rows(rows), shape.heads, maps_, options_.storage, index, attention_grid_,
                  buffers_.attention(), buffers_.queries(), buffers_.attended(), RowsOf::kDifferentSequences, stream),
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

const model::CudaGraph& GraphDecoder::GraphFor(int32_t rows) const { return graphs_.at(BatchSizeFor(rows)); }

absl::Status GraphDecoder::Launch(const DecoderStep& step) {
  SYNCOPATE_CHECK(under_way() < kMostUnderWay);
  SYNCOPATE_CHECK(!step.rows.empty() && static_cast<int32_t>(step.rows.size()) <= max_rows());
  const DeviceScope device(options_.device);
  const UnderWay launched = {next_, static_cast<int32_t>(step.rows.size())};
  const int32_t batch_size = BatchSizeFor(launched.rows);
  SYNCOPATE_RETURN_IF_ERROR(buffers_.Upload(launched.at, step, batch_size, stream_.get()));
  SYNCOPATE_RETURN_IF_ERROR(graphs_.at(batch_size).Launch(stream_.get()));
  SYNCOPATE_RETURN_IF_ERROR(buffers_.Download(launched.at, launched.rows, stream_.get()));
  SYNCOPATE_RETURN_IF_ERROR(done_[static_cast<size_t>(launched.at)].Record(stream_.get()));
  under_way_.push_back(launched);
  next_ = (next_ + 1) % kMostUnderWay;
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const Drawn>> GraphDecoder::Await() {
  SYNCOPATE_CHECK(!under_way_.empty());
  const UnderWay step = under_way_.front();
  SYNCOPATE_RETURN_IF_ERROR(done_[static_cast<size_t>(step.at)].Wait(kStepDeadline, "a decode step"));
  under_way_.pop_front();
  return buffers_.results(step.at, step.rows);
}

}  // namespace syncopate::rollouter
