#pragma once

#include <c10/core/InferenceMode.h>

#include <cmath>
#include <vector>

#include "model/transformer.h"

namespace syncopate::testing {

// Attention of one whole sequence, in plain float32.
class WholeSequence final : public model::Attention {
 public:
  at::Tensor Attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override {
    const int64_t rows = q.size(0), group = q.size(1) / k.size(1);
    const at::Tensor queries = q.to(at::kFloat).transpose(0, 1);
    const at::Tensor keys = k.to(at::kFloat).repeat_interleave(group, 1).transpose(0, 1);
    const at::Tensor values = v.to(at::kFloat).repeat_interleave(group, 1).transpose(0, 1);
    at::Tensor scores = at::matmul(queries, keys.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2)));
    const at::Tensor later = at::ones({rows, rows}, scores.options().dtype(at::kBool)).triu(1);
    scores.masked_fill_(later, -std::numeric_limits<double>::infinity());
    return at::matmul(at::softmax(scores, -1), values).transpose(0, 1).reshape({rows, -1}).to(q.scalar_type());
  }
};

// Logits [answer tokens, vocabulary], float32 on the CPU, at each position from which a token of the answer was drawn.
inline at::Tensor AnswerLogits(const model::ModelConfig& config, const model::TransformerWeights& weights,
                               const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
  const c10::InferenceMode inference;
  const at::Device device = weights.tokens.device();
  std::vector<int64_t> ids(prompt.begin(), prompt.end());
  ids.insert(ids.end(), answer.begin(), answer.end() - 1);
  const int64_t count = static_cast<int64_t>(ids.size()), drawn = static_cast<int64_t>(answer.size());
  const at::Tensor rows = at::tensor(ids, at::kLong).to(device);
  WholeSequence attention;
  const model::Transformer transformer(config, device);
  const at::Tensor hidden =
      transformer.Forward(weights, rows, at::arange(count, rows.options()), attention).narrow(0, count - drawn, drawn);
  return transformer.Logits(weights, hidden).to(at::kCPU);
}

}  // namespace syncopate::testing
