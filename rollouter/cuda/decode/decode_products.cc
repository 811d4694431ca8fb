#include "rollouter/cuda/decode/decode_products.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"

namespace syncopate::rollouter {
namespace {

using model::Matmul;
using model::MatmulOperands;

MatmulOperands QkvOperands(const DecodeLayer& layer, const DecodeBuffers& buffers) {
  return {layer.qkv, buffers.normed(), layer.qkv_bias, buffers.qkv()};
}
MatmulOperands OutputOperands(const DecodeLayer& layer, const DecodeBuffers& buffers, void* to) {
  return {layer.output, buffers.attended(), nullptr, to};
}
MatmulOperands GateUpOperands(const DecodeLayer& layer, const DecodeBuffers& buffers) {
  return {layer.gate_up, buffers.normed(), nullptr, buffers.gate_up()};
}
MatmulOperands DownOperands(const DecodeLayer& layer, const DecodeBuffers& buffers, void* to) {
  return {layer.down, buffers.activated(), nullptr, to};
}

}  // namespace

absl::StatusOr<Matmul> MakeAlike(const model::MatmulLibrary& library, const model::MatmulShape& shape,
                                 const Matmul* like, const model::MatmulTrial* trial) {
  if (like == nullptr) return Matmul::Create(library, shape);
  return trial != nullptr ? Matmul::CreateAlike(library, shape, *like, *trial)
                          : Matmul::CreateLike(library, shape, *like);
}

DecodeProducts::DecodeProducts(Matmul qkv, Matmul output, Matmul gate_up, Matmul down, std::array<void*, 2> parts)
    : qkv_(std::move(qkv)),
      output_(std::move(output)),
      gate_up_(std::move(gate_up)),
      down_(std::move(down)),
      parts_(parts) {}

void* DecodeProducts::GetResult(int which, const DecodeBuffers& buffers) const {
  if (parts_[0] != nullptr) return parts_[static_cast<size_t>(which)];
  return adds_to_residual() ? buffers.residual() : buffers.projected();
}

absl::StatusOr<DecodeProducts> DecodeProducts::Create(const model::MatmulLibrary& library, const DecodeShape& shape,
                                                      const Options& options) {
  const bool add = options.add_to_residual && options.parts[0] == nullptr;
  auto make = [&](int32_t n, int32_t k, bool bias, bool accumulate, Matmul DecodeProducts::*product) {
    return MakeAlike(library,
                     {.rows = options.rows,
                      .n = n,
                      .k = k,
                      .bias = bias,
                      .accumulate = accumulate,
                      .rows_alike = options.rows_alike},
                     options.like != nullptr ? &(options.like->*product) : nullptr, options.trial);
  };
  SYNCOPATE_ASSIGN_OR_RETURN(Matmul qkv,
                             make(shape.qkv_size(), shape.hidden, shape.qkv_bias, false, &DecodeProducts::qkv_));
  SYNCOPATE_ASSIGN_OR_RETURN(Matmul output,
                             make(shape.hidden, shape.query_size(), false, add, &DecodeProducts::output_));
  SYNCOPATE_ASSIGN_OR_RETURN(Matmul gate_up,
                             make(2 * shape.intermediate, shape.hidden, false, false, &DecodeProducts::gate_up_));
  SYNCOPATE_ASSIGN_OR_RETURN(Matmul down, make(shape.hidden, shape.intermediate, false, add, &DecodeProducts::down_));
  return DecodeProducts(std::move(qkv), std::move(output), std::move(gate_up), std::move(down), options.parts);
}

void DecodeProducts::Include(const DecodeShape& shape, int32_t rows, model::MatmulTrial::Extent& extent) {
  extent.Include({.rows = rows, .n = shape.qkv_size(), .k = shape.hidden});
  extent.Include({.rows = rows, .n = shape.hidden, .k = shape.query_size()});
  extent.Include({.rows = rows, .n = 2 * shape.intermediate, .k = shape.hidden});
  extent.Include({.rows = rows, .n = shape.hidden, .k = shape.intermediate});
}

absl::Status DecodeProducts::Qkv(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream) {
  return qkv_.Queue(QkvOperands(layer, buffers), stream);
}
absl::Status DecodeProducts::Output(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream) {
  return output_.Queue(OutputOperands(layer, buffers, GetResult(0, buffers)), stream);
}
absl::Status DecodeProducts::GateUp(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream) {
  return gate_up_.Queue(GateUpOperands(layer, buffers), stream);
}
absl::Status DecodeProducts::Down(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream) {
  return down_.Queue(DownOperands(layer, buffers, GetResult(1, buffers)), stream);
}

absl::Status DecodeProducts::ChooseFastest(const DecodeWeights& weights, const DecodeBuffers& buffers,
                                           cudaStream_t stream) {
  std::vector<MatmulOperands> qkv, output, gate_up, down;
  // Few rows read weights, which should come from memory; many multiply, and a few layers tell enough.
  constexpr int32_t kManyRows = 512;
  constexpr size_t kFewLayers = 3;
  const size_t layers = weights.layers.size();
  const size_t timed = qkv_.shape().rows < kManyRows ? layers : std::min(kFewLayers, layers);
  for (const DecodeLayer& layer : absl::MakeSpan(weights.layers).subspan(0, timed)) {
    qkv.push_back(QkvOperands(layer, buffers));
    output.push_back(OutputOperands(layer, buffers, GetResult(0, buffers)));
    gate_up.push_back(GateUpOperands(layer, buffers));
    down.push_back(DownOperands(layer, buffers, GetResult(1, buffers)));
  }
  SYNCOPATE_RETURN_IF_ERROR(qkv_.ChooseFastest(qkv, stream));
  SYNCOPATE_RETURN_IF_ERROR(output_.ChooseFastest(output, stream));
  SYNCOPATE_RETURN_IF_ERROR(gate_up_.ChooseFastest(gate_up, stream));
  return down_.ChooseFastest(down, stream);
}

}  // namespace syncopate::rollouter
