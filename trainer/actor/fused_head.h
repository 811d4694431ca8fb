#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>

#include "model/ops.h"

namespace syncopate::trainer {

// Computes log-probabilities from hidden states, and gradients back, in chunks of rows, so that logits of shape
// [A, vocabulary] never exist.
// A rows whose next token is trained on, D hidden, V vocabulary.
class FusedHead {
 public:
  struct Options {
    double temperature = 1.0;  // log-probs are those of softmax(logits / temperature)
    int64_t chunk_rows = 4096;
    bool float32_logits = false;  // else of the weights' dtype. bf16 logits alone cost k3 2.6e-5 to 1.2e-3
  };

  FusedHead(at::Device device, const Options& options) : ops_(model::OpsFor(device)), options_(options) {}

  struct Rows {
    at::Tensor logprob;          // [A] float32, of the target
    at::Tensor entropy;          // [A] float32, nats
    at::Tensor top_probability;  // [A] float32, of the most likely token
  };
  // hidden [A, D], head [V, D], targets [A] int64. No gradient.
  Rows Forward(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets) const;

  // Gradients of the loss, [rows] float32 each; dentropy may be undefined.
  struct RowGradients {
    at::Tensor dlogprob;
    at::Tensor dentropy;
  };
  // Called once a chunk, in order: rows `begin` to begin + rows.logprob.size(0) of A.
  using Loss = std::function<RowGradients(int64_t begin, const Rows& rows)>;
  // Forward, `loss`, backward, a chunk at a time. Adds to dhead [V, D] float32, unless it is undefined; returns the
  // gradient of hidden [A, D]. Only for losses of a token that need no other token; for others, Forward first and give
  // the gradients here.
  at::Tensor ForwardBackward(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets,
                             const Loss& loss, const at::Tensor& dhead) const;

 private:
  at::Tensor Logits(const at::Tensor& hidden, const at::Tensor& head) const;

  const model::Ops& ops_;
  const Options options_;
};

}  // namespace syncopate::trainer
