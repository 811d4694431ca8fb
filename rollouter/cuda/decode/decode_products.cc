#include "rollouter/cuda/decode/decode_products.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"

namespace syncopate::rollouter {

using model::Matmul;
using model::MatmulOperands;
using model::MatmulShape;

namespace {

constexpr int64_t kColumnBytes = 2;
// Columns of a product begin and its rows are at multiples of 8 numbers, which is what kernels load at once.
constexpr int32_t kColumnAlignment = 8 * kColumnBytes;

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

// The adapter at `place` among those that share one inner product, of `rank` numbers each.
MatmulOperands OuterOperands(const DecodeAdapter& adapter, const MatmulOperands& base, const DecodeBuffers& buffers,
                             size_t place, int32_t rank) {
  const char* const inner =
      static_cast<const char*>(buffers.adapted()) + static_cast<int64_t>(place) * rank * kColumnBytes;
  return {adapter.b, inner, nullptr, static_cast<char*>(base.y) + adapter.begin * kColumnBytes};
}
MatmulOperands InnerOperands(const DecodeAdapter& adapter, const MatmulOperands& base, const DecodeBuffers& buffers) {
  return {adapter.a, base.x, nullptr, buffers.adapted()};
}

}  // namespace

absl::StatusOr<Matmul> MakeBitIdentical(const model::MatmulLibrary& library, const MatmulShape& shape,
                                        const Matmul* reference, const model::MatmulTrial* trial) {
  if (reference == nullptr) return Matmul::Create(library, shape);
  return trial != nullptr ? Matmul::CreateBitIdentical(library, shape, *reference, *trial)
                          : Matmul::CreateWithReference(library, shape, *reference);
}

DecodeProducts::DecodeProducts(Product qkv, Product output, Product gate_up, Product down, std::array<void*, 2> parts)
    : qkv_(std::move(qkv)),
      output_(std::move(output)),
      gate_up_(std::move(gate_up)),
      down_(std::move(down)),
      parts_(parts) {}

void* DecodeProducts::GetResult(int which, const DecodeBuffers& buffers) const {
  // With several ranks the collective adds the sum to the residual, not the product.
  if (parts_[0] != nullptr) return parts_[static_cast<size_t>(which)];
  return adds_to_residual() ? buffers.residual() : buffers.projected();
}

bool DecodeProducts::AreJoint(const DecodeShape& shape, const MatmulShape& base,
                              absl::Span<const DecodeAdapter> adapters) {
  const int64_t bytes = int64_t{shape.adapter_rank} * base.k * kColumnBytes;
  for (size_t i = 1; i < adapters.size(); ++i) {
    if (static_cast<const char*>(adapters[i].a) != static_cast<const char*>(adapters[i - 1].a) + bytes) return false;
  }
  // A trial of algorithms takes rows of x that follow each other.
  return adapters.size() > 1 && !base.bit_identical_rows;
}

MatmulShape DecodeProducts::GetInnerShape(const DecodeShape& shape, const MatmulShape& base, size_t joint) {
  return {.rows = base.rows,
          .n = shape.adapter_rank * static_cast<int32_t>(joint),
          .k = base.k,
          .bit_identical_rows = base.bit_identical_rows};
}

MatmulShape DecodeProducts::GetOuterShape(const DecodeShape& shape, const MatmulShape& base,
                                          const DecodeAdapter& adapter, size_t joint) {
  return {.rows = base.rows,
          .n = adapter.outputs,
          .k = shape.adapter_rank,
          .accumulate = true,
          .result_stride = base.n,
          .x_stride = joint > 1 ? shape.adapter_rank * static_cast<int32_t>(joint) : 0,
          .alignment = kColumnAlignment,
          .scale = shape.adapter_scale,
          .bit_identical_rows = base.bit_identical_rows};
}

absl::StatusOr<DecodeProducts::Product> DecodeProducts::MakeProduct(const model::MatmulLibrary& library,
                                                                    const DecodeShape& shape, const MatmulShape& base,
                                                                    absl::Span<const DecodeAdapter> adapters,
                                                                    const Product* reference,
                                                                    const model::MatmulTrial* trial) {
  SYNCOPATE_ASSIGN_OR_RETURN(Matmul made,
                             MakeBitIdentical(library, base, reference != nullptr ? &reference->base : nullptr, trial));
  Product product{std::move(made), {}, {}};
  const size_t joint = AreJoint(shape, base, adapters) ? adapters.size() : 1;
  for (size_t i = 0; i < adapters.size() / joint; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(Matmul inner,
                               MakeBitIdentical(library, GetInnerShape(shape, base, joint),
                                                reference != nullptr ? &reference->inner[i] : nullptr, trial));
    product.inner.push_back(std::move(inner));
  }
  for (size_t i = 0; i < adapters.size(); ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(Matmul outer,
                               MakeBitIdentical(library, GetOuterShape(shape, base, adapters[i], joint),
                                                reference != nullptr ? &reference->outer[i] : nullptr, trial));
    product.outer.push_back(std::move(outer));
  }
  return product;
}

absl::StatusOr<DecodeProducts> DecodeProducts::Create(const model::MatmulLibrary& library, const DecodeShape& shape,
                                                      const Options& options) {
  const bool add = options.add_to_residual && options.parts[0] == nullptr;
  const DecodeLayer& layer = *options.layer;
  auto make = [&](int32_t n, int32_t k, bool bias, bool accumulate, absl::Span<const DecodeAdapter> adapters,
                  Product DecodeProducts::*product) {
    return MakeProduct(library, shape,
                       {.rows = options.rows,
                        .n = n,
                        .k = k,
                        .bias = bias,
                        .accumulate = accumulate,
                        .bit_identical_rows = options.bit_identical_rows},
                       adapters, options.reference != nullptr ? &(options.reference->*product) : nullptr,
                       options.trial);
  };
  SYNCOPATE_ASSIGN_OR_RETURN(Product qkv, make(shape.qkv_size(), shape.hidden, shape.qkv_bias, false,
                                               layer.qkv_adapters, &DecodeProducts::qkv_));
  SYNCOPATE_ASSIGN_OR_RETURN(Product output, make(shape.hidden, shape.query_size(), false, add, layer.output_adapters,
                                                  &DecodeProducts::output_));
  SYNCOPATE_ASSIGN_OR_RETURN(Product gate_up, make(2 * shape.intermediate, shape.hidden, false, false,
                                                   layer.gate_up_adapters, &DecodeProducts::gate_up_));
  SYNCOPATE_ASSIGN_OR_RETURN(
      Product down, make(shape.hidden, shape.intermediate, false, add, layer.down_adapters, &DecodeProducts::down_));
  return DecodeProducts(std::move(qkv), std::move(output), std::move(gate_up), std::move(down), options.parts);
}

void DecodeProducts::Include(const DecodeShape& shape, const DecodeLayer& layer, int32_t rows,
                             model::MatmulTrial::Extent& extent) {
  auto include = [&](const MatmulShape& base, absl::Span<const DecodeAdapter> adapters) {
    extent.Include(base);
    // Only products whose rows are bit-identical are tried, and those are not joint.
    if (!adapters.empty()) extent.Include(GetInnerShape(shape, base, /*joint=*/1));
    for (const DecodeAdapter& adapter : adapters) extent.Include(GetOuterShape(shape, base, adapter, /*joint=*/1));
  };
  include({.rows = rows, .n = shape.qkv_size(), .k = shape.hidden}, layer.qkv_adapters);
  include({.rows = rows, .n = shape.hidden, .k = shape.query_size()}, layer.output_adapters);
  include({.rows = rows, .n = 2 * shape.intermediate, .k = shape.hidden}, layer.gate_up_adapters);
  include({.rows = rows, .n = shape.hidden, .k = shape.intermediate}, layer.down_adapters);
}

absl::Status DecodeProducts::Queue(Product& product, const Operands& operands, const DecodeBuffers& buffers,
                                   cudaStream_t stream) {
  SYNCOPATE_RETURN_IF_ERROR(product.base.Queue(operands.base, stream));
  const bool are_joint = product.inner.size() < product.outer.size();
  for (size_t i = 0; i < product.outer.size(); ++i) {
    const DecodeAdapter& adapter = operands.adapters[i];
    if (i < product.inner.size()) {
      SYNCOPATE_RETURN_IF_ERROR(product.inner[i].Queue(InnerOperands(adapter, operands.base, buffers), stream));
    }
    const MatmulOperands outer =
        OuterOperands(adapter, operands.base, buffers, are_joint ? i : 0, product.outer[i].shape().k);
    SYNCOPATE_RETURN_IF_ERROR(product.outer[i].Queue(outer, stream));
  }
  return absl::OkStatus();
}

absl::Status DecodeProducts::Qkv(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream) {
  return Queue(qkv_, {QkvOperands(layer, buffers), layer.qkv_adapters}, buffers, stream);
}
absl::Status DecodeProducts::Output(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream) {
  return Queue(output_, {OutputOperands(layer, buffers, GetResult(0, buffers)), layer.output_adapters}, buffers,
               stream);
}
absl::Status DecodeProducts::GateUp(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream) {
  return Queue(gate_up_, {GateUpOperands(layer, buffers), layer.gate_up_adapters}, buffers, stream);
}
absl::Status DecodeProducts::Down(const DecodeLayer& layer, const DecodeBuffers& buffers, cudaStream_t stream) {
  return Queue(down_, {DownOperands(layer, buffers, GetResult(1, buffers)), layer.down_adapters}, buffers, stream);
}

absl::Status DecodeProducts::ChooseFastest(Product& product, absl::Span<const Operands> operands,
                                           const DecodeBuffers& buffers, cudaStream_t stream) {
  std::vector<MatmulOperands> base;
  for (const Operands& set : operands) base.push_back(set.base);
  SYNCOPATE_RETURN_IF_ERROR(product.base.ChooseFastest(base, stream));
  for (size_t i = 0; i < product.inner.size(); ++i) {
    std::vector<MatmulOperands> inner;
    for (const Operands& set : operands) inner.push_back(InnerOperands(set.adapters[i], set.base, buffers));
    SYNCOPATE_RETURN_IF_ERROR(product.inner[i].ChooseFastest(inner, stream));
  }
  for (size_t i = 0; i < product.outer.size(); ++i) {
    std::vector<MatmulOperands> outer;
    for (const Operands& set : operands) {
      outer.push_back(OuterOperands(set.adapters[i], set.base, buffers, /*place=*/0, product.outer[i].shape().k));
    }
    SYNCOPATE_RETURN_IF_ERROR(product.outer[i].ChooseFastest(outer, stream));
  }
  return absl::OkStatus();
}

absl::Status DecodeProducts::ChooseFastest(const DecodeWeights& weights, const DecodeBuffers& buffers,
                                           cudaStream_t stream) {
  std::vector<Operands> qkv, output, gate_up, down;
  // With few rows a product mostly reads weights, so each layer is measured, to read them from memory and not from
  // cache. With many rows computation dominates, and a few layers suffice.
  constexpr int32_t kManyRows = 512;
  constexpr size_t kFewLayers = 3;
  const size_t layers = weights.layers.size();
  const size_t timed = qkv_.base.shape().rows < kManyRows ? layers : std::min(kFewLayers, layers);
  for (const DecodeLayer& layer : absl::MakeSpan(weights.layers).subspan(0, timed)) {
    qkv.push_back({QkvOperands(layer, buffers), layer.qkv_adapters});
    output.push_back({OutputOperands(layer, buffers, GetResult(0, buffers)), layer.output_adapters});
    gate_up.push_back({GateUpOperands(layer, buffers), layer.gate_up_adapters});
    down.push_back({DownOperands(layer, buffers, GetResult(1, buffers)), layer.down_adapters});
  }
  SYNCOPATE_RETURN_IF_ERROR(ChooseFastest(qkv_, qkv, buffers, stream));
  SYNCOPATE_RETURN_IF_ERROR(ChooseFastest(output_, output, buffers, stream));
  SYNCOPATE_RETURN_IF_ERROR(ChooseFastest(gate_up_, gate_up, buffers, stream));
  return ChooseFastest(down_, down, buffers, stream);
}

}  // namespace syncopate::rollouter
