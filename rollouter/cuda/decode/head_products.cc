#include "rollouter/cuda/decode/head_products.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "rollouter/cuda/decode/decode_products.h"

namespace syncopate::rollouter {

VocabSlice SliceOfRank(int32_t vocab, int32_t rank, int32_t world) {
  constexpr int32_t kTogether = 8;  // elements: each slice of a row begins at a vector's boundary
  const int32_t each = (vocab + world * kTogether - 1) / (world * kTogether) * kTogether;
  const int32_t begin = std::min(vocab, rank * each);
  return {begin, std::min(each, vocab - begin)};
}

model::MatmulShape HeadProducts::ShapeFor(int32_t rows) const {
  return {.rows = rows,
          .n = options_.slice.count,
          .k = shape_.hidden,
          .float32_result = options_.float32_logits,
          .result_stride = LogitsStride(shape_.vocab),
          .bit_identical_rows = options_.bit_identical_rows};
}

void HeadProducts::Include(int32_t rows, model::MatmulTrial::Extent& extent) const { extent.Include(ShapeFor(rows)); }

model::MatmulOperands HeadProducts::Operands(Input input) const {
  const int64_t half = 2, logit = options_.float32_logits ? 4 : half, first = options_.slice.begin;
  return {static_cast<const char*>(weights_.head) + first * shape_.hidden * half,
          input == Input::kNormed ? buffers_.normed() : buffers_.gathered(), nullptr,
          static_cast<char*>(buffers_.logits()) + first * logit};
}

absl::Status HeadProducts::MakePattern(int32_t rows) {
  if (options_.slice.count == 0) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(model::Matmul product, model::Matmul::Create(library_, ShapeFor(rows)));
  pattern_ = std::move(product);
  return absl::OkStatus();
}

absl::Status HeadProducts::Make(int32_t rows, const model::MatmulTrial* trial, cudaStream_t stream) {
  if (options_.slice.count == 0) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(
      model::Matmul product,
      MakeBitIdentical(library_, ShapeFor(rows), pattern_.has_value() ? &*pattern_ : nullptr, trial));
  if (options_.choose_fastest) {
    SYNCOPATE_RETURN_IF_ERROR(product.ChooseFastest({Operands(Input::kNormed)}, stream));
  }
  products_.emplace(rows, std::move(product));
  return absl::OkStatus();
}

absl::Status HeadProducts::Queue(int32_t rows, Input input, cudaStream_t stream) {
  if (options_.slice.count > 0) SYNCOPATE_RETURN_IF_ERROR(products_.at(rows).Queue(Operands(input), stream));
  return options_.sharers != nullptr ? options_.sharers->JoinLogits(stream) : absl::OkStatus();
}

}  // namespace syncopate::rollouter
