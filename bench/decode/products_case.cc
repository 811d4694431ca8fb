#include "bench/decode/products_case.h"

#include <functional>

#include "base/status.h"
#include "bench/decode/random_fill.h"
#include "bench/measure/figures.h"
#include "cuda/cuda_status.h"
#include "model/cuda/cuda_graph.h"
#include "rollouter/cuda/decode/decode_products.h"
#include "rollouter/cuda/decode/head_products.h"

namespace syncopate::bench {
namespace {

using cuda::CudaStatus;
using rollouter::DecodeBuffers;
using rollouter::DecodeProducts;

absl::StatusOr<double> TimeQueued(cudaStream_t stream, int repeats, const std::function<absl::Status()>& queue) {
  SYNCOPATE_RETURN_IF_ERROR(queue());
  SYNCOPATE_ASSIGN_OR_RETURN(const model::CudaGraph graph, model::CudaGraph::Capture(stream, queue));
  SYNCOPATE_RETURN_IF_ERROR(graph.TimeLaunch(stream).status());
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(const double one, graph.TimeLaunch(stream, /*launches=*/10));
    seconds.push_back(one);
  }
  return Median(seconds);
}

// Not zeros: products of zeros run faster.
absl::Status FillActivations(const rollouter::DecodeShape& shape, const DecodeBuffers& buffers, int64_t rows) {
  const std::pair<void*, int64_t> pieces[] = {{buffers.normed(), rows * shape.hidden},
                                              {buffers.attended(), rows * shape.query_size()},
                                              {buffers.activated(), rows * shape.intermediate}};
  for (const auto& [data, count] : pieces) {
    SYNCOPATE_RETURN_IF_ERROR(CudaStatus(FillNormal(data, count, 0, 1, 9, nullptr), "drawing activations"));
  }
  return CudaStatus(cudaDeviceSynchronize(), "drawing activations");
}

}  // namespace

absl::StatusOr<PartTimes> TimeProducts(const NamedShape& named, const RandomModel& model, int32_t rows,
                                       bool float32_logits, int repeats) {
  constexpr int32_t kPositions = 16;
  SYNCOPATE_ASSIGN_OR_RETURN(
      const DecodeBuffers buffers,
      DecodeBuffers::Create(named.shape,
                            {.max_rows = rows,
                             .max_paged_rows = rows,
                             .max_draws = rows,
                             .max_table_settings = rows,
                             .max_slots = rows,
                             .max_positions = kPositions,
                             .float32_logits = float32_logits,
                             .attention_grid = 1,
                             .input_places = 1,
                             .result_places = 1},
                            rollouter::RotaryTable(kPositions, named.shape.heads.head_dim, named.rope_theta)));
  SYNCOPATE_RETURN_IF_ERROR(FillActivations(named.shape, buffers, rows));
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::Create(0));
  SYNCOPATE_ASSIGN_OR_RETURN(const model::MatmulLibrary library, model::MatmulLibrary::Create(buffers.workspace()));
  SYNCOPATE_ASSIGN_OR_RETURN(
      DecodeProducts products,
      DecodeProducts::Create(library, named.shape, {.rows = rows, .layer = &model.weights().layers.front()}));
  SYNCOPATE_RETURN_IF_ERROR(products.ChooseFastest(model.weights(), buffers, stream.get()));
  const rollouter::DecodeWeights weights = model.weights();
  rollouter::HeadProducts head(library, named.shape, weights, buffers,
                               {.slice = {0, named.shape.vocab}, .float32_logits = float32_logits});
  SYNCOPATE_RETURN_IF_ERROR(head.Make(rows, /*trial=*/nullptr, stream.get()));
  PartTimes times;
  SYNCOPATE_ASSIGN_OR_RETURN(times.layers, TimeQueued(stream.get(), repeats, [&]() -> absl::Status {
                               for (const rollouter::DecodeLayer& layer : model.weights().layers) {
                                 SYNCOPATE_RETURN_IF_ERROR(products.Qkv(layer, buffers, stream.get()));
                                 SYNCOPATE_RETURN_IF_ERROR(products.Output(layer, buffers, stream.get()));
                                 SYNCOPATE_RETURN_IF_ERROR(products.GateUpActivated(layer, buffers, stream.get()));
                                 SYNCOPATE_RETURN_IF_ERROR(products.Down(layer, buffers, stream.get()));
                               }
                               return absl::OkStatus();
                             }));
  SYNCOPATE_ASSIGN_OR_RETURN(times.head, TimeQueued(stream.get(), repeats, [&] {
                               return head.Queue(rows, rollouter::HeadProducts::Input::kNormed, stream.get());
                             }));
  const rollouter::LogitsShape logits = {named.shape.vocab, rollouter::LogitsStride(named.shape.vocab), float32_logits};
  SYNCOPATE_ASSIGN_OR_RETURN(
      times.sampler, TimeQueued(stream.get(), repeats, [&] {
        return CudaStatus(Sample(logits, buffers.logits(), buffers.draws(rows), buffers.sampling(),
                                 buffers.sample_scratch(), buffers.drawn(), buffers.drawn_tokens(), stream.get()),
                          "sampling");
      }));
  return times;
}

}  // namespace syncopate::bench
