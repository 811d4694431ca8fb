#include "rollouter/cuda/decode/decode_products.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "model/cuda/row_kernels.h"
#include "rollouter/cuda/decode/adapter_norm.h"

namespace syncopate::rollouter {

using cuda::CudaStatus;
using model::Matmul;
using model::MatmulOperands;
using model::MatmulShape;

namespace {

constexpr char kAdding[] = "adding adapters";

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

// The four products of a layer, x a^T of its adapters in `places` places included; `add`: output and down add to what is
// there, unless they have adapters.
std::array<MatmulShape, 4> GetShapes(const DecodeShape& shape, const DecodeLayer& layer, int32_t rows, bool add,
                                     bool bit_identical_rows, int32_t places) {
  const auto make = [&](int32_t n, int32_t k, const std::vector<AdapterColumns>& adapters) {
    return MatmulShape{.rows = rows,
                       .n = n + shape.inner_columns(adapters.size(), places),
                       .k = k,
                       .result_stride = shape.row_stride(n, adapters.size(), places),
                       .bit_identical_rows = bit_identical_rows};
  };
  std::array<MatmulShape, 4> shapes = {make(shape.qkv_size(), shape.hidden, layer.qkv_adapters),
                                       make(shape.hidden, shape.query_size(), layer.output_adapters),
                                       make(2 * shape.intermediate, shape.hidden, layer.gate_up_adapters),
                                       make(shape.hidden, shape.intermediate, layer.down_adapters)};
  shapes[0].bias = shape.qkv_bias;
  shapes[1].accumulate = add && layer.output_adapters.empty();
  shapes[3].accumulate = add && layer.down_adapters.empty();
  return shapes;
}

}  // namespace

absl::StatusOr<Matmul> MakeBitIdentical(const model::MatmulLibrary& library, const MatmulShape& shape,
                                        const Matmul* reference, const model::MatmulTrial* trial) {
  if (reference == nullptr) return Matmul::Create(library, shape);
  return trial != nullptr ? Matmul::CreateBitIdentical(library, shape, *reference, *trial)
                          : Matmul::CreateWithReference(library, shape, *reference);
}

DecodeProducts::DecodeProducts(const DecodeShape& shape, const Options& options, std::array<Matmul, 4> products)
    : shape_(shape),
      places_(options.places),
      qkv_(std::move(products[0])),
      output_(std::move(products[1])),
      gate_up_(std::move(products[2])),
      down_(std::move(products[3])),
      parts_(options.parts),
      is_adapted_{!options.layer->output_adapters.empty(), !options.layer->down_adapters.empty()},
      add_to_residual_(options.add_to_residual),
      bit_identical_rows_(options.bit_identical_rows) {}

void* DecodeProducts::GetResult(int which, const DecodeBuffers& buffers) const {
  // With several ranks the collective adds the sum to the residual, not the product.
  if (parts_[0] != nullptr) return parts_[static_cast<size_t>(which)];
  return add_to_residual_ || IsAdapted(which) ? buffers.residual() : buffers.projected();
}

void* DecodeProducts::GetProduct(int which, const DecodeBuffers& buffers) const {
  return IsAdapted(which) ? buffers.projected() : GetResult(which, buffers);
}

absl::StatusOr<DecodeProducts> DecodeProducts::Create(const model::MatmulLibrary& library, const DecodeShape& shape,
                                                      const Options& options) {
  const bool add = options.add_to_residual && options.parts[0] == nullptr;
  const std::array<MatmulShape, 4> shapes =
      GetShapes(shape, *options.layer, options.rows, add, options.bit_identical_rows, options.places);
  const DecodeProducts* const reference = options.reference;
  const std::array<const Matmul*, 4> references = {
      reference != nullptr ? &reference->qkv_ : nullptr, reference != nullptr ? &reference->output_ : nullptr,
      reference != nullptr ? &reference->gate_up_ : nullptr, reference != nullptr ? &reference->down_ : nullptr};
  std::vector<Matmul> made;
  for (size_t i = 0; i < shapes.size(); ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(Matmul product, MakeBitIdentical(library, shapes[i], references[i], options.trial));
    made.push_back(std::move(product));
  }
  return DecodeProducts(shape, options,
                        {std::move(made[0]), std::move(made[1]), std::move(made[2]), std::move(made[3])});
}

void DecodeProducts::Include(const DecodeShape& shape, const DecodeLayer& layer, int32_t rows,
                             model::MatmulTrial::Extent& extent) {
  for (const MatmulShape& one :
       GetShapes(shape, layer, rows, /*add=*/false, /*bit_identical_rows=*/false, kAdapterPlaces)) {
    extent.Include(one);
  }
}

AdaptedProduct DecodeProducts::GetAdapted(const Matmul& base, int32_t columns,
                                          absl::Span<const AdapterColumns> adapters,
                                          const DecodeBuffers& buffers) const {
  AdaptedProduct product = {.rows = base.shape().rows,
                            .columns = columns,
                            .rank = shape_.adapter_rank,
                            .scale = shape_.adapter_scale,
                            .count = static_cast<int32_t>(adapters.size()),
                            .places = places_,
                            .sets = buffers.sets()};
  std::copy(adapters.begin(), adapters.end(), product.adapters);
  return product;
}

absl::Status DecodeProducts::Qkv(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream) {
  return qkv_.Queue(QkvOperands(layer, buffers), stream);
}

std::optional<AdaptedProduct> DecodeProducts::GetQkvAdapters(const DecodeLayer& layer,
                                                             const DecodeBuffers& buffers) const {
  if (layer.qkv_adapters.empty()) return std::nullopt;
  return GetAdapted(qkv_, shape_.qkv_size(), layer.qkv_adapters, buffers);
}

AdaptedProduct DecodeProducts::GetAdapted(int which, const DecodeLayer& layer, const DecodeBuffers& buffers) const {
  return GetAdapted(which == 0 ? output_ : down_, shape_.hidden,
                    which == 0 ? layer.output_adapters : layer.down_adapters, buffers);
}

bool DecodeProducts::NormAdds(const AdaptedProduct& product) const {
  return parts_[0] == nullptr && !bit_identical_rows_ && FitsAddAdaptersAndNorm(product);
}

absl::Status DecodeProducts::AddToResidual(int which, const DecodeLayer& layer, const DecodeBuffers& buffers,
                                           cudaStream_t stream) const {
  if (!IsAdapted(which)) return absl::OkStatus();
  const AdaptedProduct product = GetAdapted(which, layer, buffers);
  if (NormAdds(product)) return absl::OkStatus();
  void* const result = GetResult(which, buffers);
  const void* const added = parts_[0] != nullptr ? nullptr : result;
  return CudaStatus(AddAdapters(product, buffers.projected(), added, result, shape_.hidden, stream), kAdding);
}

absl::Status DecodeProducts::Output(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream) {
  SYNCOPATE_RETURN_IF_ERROR(output_.Queue(OutputOperands(layer, buffers, GetProduct(0, buffers)), stream));
  return AddToResidual(0, layer, buffers, stream);
}

absl::Status DecodeProducts::GateUpActivated(const DecodeLayer& layer, const DecodeBuffers& buffers,
                                             cudaStream_t stream) {
  SYNCOPATE_RETURN_IF_ERROR(gate_up_.Queue(GateUpOperands(layer, buffers), stream));
  const int32_t rows = gate_up_.shape().rows, width = shape_.intermediate;
  const cudaError_t queued =
      layer.gate_up_adapters.empty()
          ? model::SwiGlu(rows, width, buffers.gate_up(), buffers.activated(), stream)
          : AddAdaptersAndSwiGlu(GetAdapted(gate_up_, 2 * width, layer.gate_up_adapters, buffers), width,
                                 buffers.gate_up(), buffers.activated(), stream);
  return CudaStatus(queued, "an activation");
}

absl::Status DecodeProducts::Down(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream) {
  SYNCOPATE_RETURN_IF_ERROR(down_.Queue(DownOperands(layer, buffers, GetProduct(1, buffers)), stream));
  return AddToResidual(1, layer, buffers, stream);
}

absl::Status DecodeProducts::AddAndNorm(int which, const DecodeLayer& layer, const model::NormShape& shape,
                                        const void* weight, const DecodeBuffers& buffers, cudaStream_t stream) const {
  if (IsAdapted(which)) {
    const AdaptedProduct product = GetAdapted(which, layer, buffers);
    if (NormAdds(product)) {
      return CudaStatus(
          AddAdaptersAndNorm(product, shape, buffers.projected(), weight, buffers.residual(), buffers.normed(), stream),
          "adding adapters and a norm");
    }
  }
  const void* const added = add_to_residual_ || IsAdapted(which) ? nullptr : buffers.projected();
  return CudaStatus(model::AddAndNorm(shape, added, weight, buffers.residual(), buffers.normed(), stream), "a norm");
}

absl::Status DecodeProducts::ChooseFastest(const DecodeWeights& weights, const DecodeBuffers& buffers,
                                           cudaStream_t stream) {
  std::vector<MatmulOperands> qkv, output, gate_up, down;
  // With few rows a product mostly reads weights, so each layer is measured, to read them from memory and not from
  // cache. With many rows computation dominates, and a few layers suffice.
  constexpr int32_t kManyRows = 512;
  constexpr size_t kFewLayers = 3;
  const size_t layers = weights.layers.size();
  const size_t timed = qkv_.shape().rows < kManyRows ? layers : std::min(kFewLayers, layers);
  for (const DecodeLayer& layer : absl::MakeSpan(weights.layers).subspan(0, timed)) {
    qkv.push_back(QkvOperands(layer, buffers));
    output.push_back(OutputOperands(layer, buffers, GetProduct(0, buffers)));
    gate_up.push_back(GateUpOperands(layer, buffers));
    down.push_back(DownOperands(layer, buffers, GetProduct(1, buffers)));
  }
  SYNCOPATE_RETURN_IF_ERROR(qkv_.ChooseFastest(qkv, stream));
  SYNCOPATE_RETURN_IF_ERROR(output_.ChooseFastest(output, stream));
  SYNCOPATE_RETURN_IF_ERROR(gate_up_.ChooseFastest(gate_up, stream));
  return down_.ChooseFastest(down, stream);
}

}  // namespace syncopate::rollouter
