#pragma once

#include <ATen/ATen.h>

#include "model/packed_sequences.h"
#include "model/transformer.h"

namespace syncopate::testing {

// Causal attention inside each sequence of a packed batch, for model::Transformer under autograd.
class PackedAttention final : public model::Attention {
 public:
  // `sequences` must outlive the returned function.
  explicit PackedAttention(const model::PackedSequences& sequences) : sequences_(sequences) {}

  at::Tensor Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    const int64_t heads = q.size(1);
    auto rectangle = [&](const at::Tensor& rows) {
      at::Tensor by_head = sequences_.ToRectangle(rows.flatten(1), rows.size(1));
      return rows.size(1) == heads ? by_head : by_head.repeat_interleave(heads / rows.size(1), 1);
    };
    // Padding follows every sequence, so the causal mask already hides the padding from the rows that count.
    return sequences_.FromRectangle(at::scaled_dot_product_attention(rectangle(q), rectangle(k), rectangle(v), {}, 0.0,
                                                                     /*is_causal=*/true));
  }

 private:
  const model::PackedSequences& sequences_;
};

}  // namespace syncopate::testing
