#include "trainer/actor/fused_head.h"

#include <algorithm>

namespace syncopate::trainer {

namespace {
constexpr int64_t kAlignedElements = 8;  // 16 bytes of bf16

// A vocabulary of any size (a model's own and one token for padding, say) is to be multiplied and reduced about as fast
// as one that is a multiple of 8: rows of its logits begin on 16 bytes, and the tokens beyond the last multiple are
// multiplied by themselves, as products of odd sizes are slower.
at::Tensor AlignedRows(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  const int64_t stride = (columns + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
  return at::empty({rows, stride}, options).narrow(1, 0, columns);
}

// Calls `multiply` with begin and count of each part of a vocabulary, in order.
template <typename Multiply>
void ForPartsOfVocabulary(const at::Tensor& head, const Multiply& multiply) {
  const int64_t size = head.size(0);
  const int64_t aligned = head.is_cuda() ? size / kAlignedElements * kAlignedElements : size;
  if (aligned > 0) multiply(int64_t{0}, aligned);
  if (aligned < size) multiply(aligned, size - aligned);
}
}  // namespace

at::Tensor FusedHead::Logits(const at::Tensor& hidden, const at::Tensor& head) const {
  const bool widen = options_.float32_logits && hidden.scalar_type() != at::kFloat;
  // Only GPUs multiply bf16 into float32.
  if (!hidden.is_cuda()) {
    return widen ? at::mm(hidden.to(at::kFloat), head.t().to(at::kFloat)) : at::mm(hidden, head.t());
  }
  const at::ScalarType dtype = widen ? at::kFloat : hidden.scalar_type();
  at::Tensor logits = AlignedRows(hidden.size(0), head.size(0), hidden.options().dtype(dtype));
  ForPartsOfVocabulary(head, [&](int64_t begin, int64_t count) {
    at::Tensor part = logits.narrow(1, begin, count);
    const at::Tensor weights = head.narrow(0, begin, count).t();
    if (widen) {
      at::mm_out(part, hidden, weights, at::kFloat);
    } else {
      at::mm_out(part, hidden, weights);
    }
  });
  return logits;
}

FusedHead::Rows FusedHead::Forward(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets) const {
  const int64_t total = hidden.size(0);
  const at::TensorOptions options = hidden.options().dtype(at::kFloat);
  Rows rows{at::empty({total}, options), at::empty({total}, options), at::empty({total}, options)};
  for (int64_t begin = 0; begin < total; begin += options_.chunk_rows) {
    const int64_t size = std::min(options_.chunk_rows, total - begin);
    const model::Ops::HeadRows chunk =
        ops_.Head(Logits(hidden.narrow(0, begin, size), head), targets.narrow(0, begin, size), options_.temperature);
    rows.logprob.narrow(0, begin, size).copy_(chunk.logprob);
    rows.entropy.narrow(0, begin, size).copy_(chunk.entropy);
    rows.top_probability.narrow(0, begin, size).copy_(chunk.top_probability);
  }
  return rows;
}

at::Tensor FusedHead::ForwardBackward(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets,
                                      const Loss& loss, const at::Tensor& dhead) const {
  at::Tensor dhidden = at::empty_like(hidden);
  for (int64_t begin = 0; begin < hidden.size(0); begin += options_.chunk_rows) {
    const int64_t size = std::min(options_.chunk_rows, hidden.size(0) - begin);
    at::Tensor rows = hidden.narrow(0, begin, size), chunk_targets = targets.narrow(0, begin, size);
    at::Tensor logits = Logits(rows, head);
    const model::Ops::HeadRows forward = ops_.Head(logits, chunk_targets, options_.temperature);
    const RowGradients gradients = loss(begin, {forward.logprob, forward.entropy, forward.top_probability});
    at::Tensor dlogits = ops_.HeadBackward(logits, chunk_targets, forward, gradients.dlogprob, gradients.dentropy,
                                           options_.temperature, hidden.scalar_type());
    at::Tensor place = dhidden.narrow(0, begin, size);
    ForPartsOfVocabulary(head, [&](int64_t from, int64_t count) {
      const at::Tensor part = dlogits.narrow(1, from, count), weights = head.narrow(0, from, count);
      if (from == 0) {
        at::mm_out(place, part, weights);
      } else {
        at::addmm_out(place, place, part, weights);
      }
      if (dhead.defined()) ops_.AddWeightGradient(dhead.narrow(0, from, count), part, rows);
    });
  }
  return dhidden;
}

}  // namespace syncopate::trainer
