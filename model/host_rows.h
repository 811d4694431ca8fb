#pragma once

#include <cstdint>

namespace syncopate::model {

// The shape of one sequence's rows of queries, keys and values: a row has (heads + 2 * kv_heads) * head_dim numbers.
struct HostSequence {
  int64_t length = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // rows that a row attends to, itself and those before it; 0: itself and all before it

  // The first row that `row` attends to.
  int64_t FirstSeen(int64_t row) const { return window > 0 && row >= window ? row - window + 1 : 0; }
  int64_t row_size() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t query_size() const { return heads * head_dim; }
};

// The row operations of a decoder, all but matrix products, as loops over float32 in host memory. For the small models
// that a CPU trains and serves, calling an operator of libtorch costs more than its arithmetic, and successive
// operators read and write the same memory several times. Rows are dense unless a stride is given. On one processor the
// bits of a row's result do not depend on the other rows; sums over rows are made in their order. No torch; stateless,
// thread-safe.
class HostRows {
 public:
  // RMSNorm after an optional residual add: sum = x + residual, rstd = 1 / sqrt(mean(sum^2) + eps), y = sum * rstd *
  // weight. [rows, columns] each; rstd [rows]. `residual` may be null: then `sum` is not used; `rstd` may be null.
  // `sum` may be x, and y may be `sum` or, without a residual, x.
  virtual void Norm(const float* x, const float* residual, const float* weight, float eps, int64_t rows,
                    int64_t columns, float* sum, float* y, float* rstd) const = 0;

  // With n = sum * rstd and g = dy * weight: dsum = rstd * (g - n * mean(g n)) + passed; dweight [columns] += column
  // sums of dy * n; y = n * weight. `passed` and `y` may be null.
  virtual void NormBackward(const float* dy, const float* sum, const float* rstd, const float* weight,
                            const float* passed, int64_t rows, int64_t columns, float* dsum, double* dweight,
                            float* y) const = 0;

  // Rotary embedding in the halves convention, in place: the first `heads` heads of 2 * half numbers of each row. Rows
  // are `stride` numbers apart; the rows of cos and sin, one for each position, are `angle_stride` numbers apart.
  virtual void Rotate(float* x, int64_t rows, int64_t stride, int64_t heads, int64_t half, const float* cos,
                      const float* sin, int64_t angle_stride, const int64_t* positions, bool inverse) const = 0;

  // gate_up [rows, 2 width] -> silu(gate) * up [rows, width].
  virtual void SwiGlu(const float* gate_up, int64_t rows, int64_t width, float* y) const = 0;
  // dy [rows, width] -> dgate_up [rows, 2 width]; y [rows, width] again, or null.
  virtual void SwiGluBackward(const float* dy, const float* gate_up, int64_t rows, int64_t width, float* dgate_up,
                              float* y) const = 0;

  // Causal attention inside a sequence, scores scaled by 1 / sqrt(head_dim). qkv [length, row_size], rotated -> y
  // [length, query_size], log_sum_exp [length, heads] of the scaled scores. `scratch` has room for `length` numbers.
  virtual void Attend(const HostSequence& sequence, const float* qkv, float* y, float* log_sum_exp,
                      float* scratch) const = 0;
  // The gradient of qkv from dy [length, query_size] -> dqkv [length, row_size]. `scratch` has room for 2 * length
  // numbers.
  virtual void AttendBackward(const HostSequence& sequence, const float* dy, const float* qkv, const float* y,
                              const float* log_sum_exp, float* dqkv, float* scratch) const = 0;

  // Attention of one row of queries [query_size], the last of sequence.length, to the keys and values that it attends
  // to -> y [query_size]. These are in blocks of `block_tokens` rows of kv_heads * head_dim numbers; a block's values
  // begin `values_at` numbers after its keys. `scratch` has room for `length` numbers.
  virtual void AttendBlocks(const HostSequence& sequence, const float* query, const float* const* blocks,
                            int64_t block_tokens, int64_t values_at, float* y, float* scratch) const = 0;

  // For each row of logits [rows, vocabulary] / temperature: the log-probability of its target, the entropy in nats,
  // the log of the sum of exponentials, and the largest probability; [rows] each.
  virtual void Head(const float* logits, const int64_t* targets, float temperature, int64_t rows, int64_t vocabulary,
                    float* logprob, float* entropy, float* log_sum_exp, float* top_probability) const = 0;
  // Overwrites the logits by their gradient, computed from the gradients of logprob and entropy; dentropy may be null.
  virtual void HeadBackward(float* logits, const int64_t* targets, const float* entropy, const float* log_sum_exp,
                            const float* dlogprob, const float* dentropy, float temperature, int64_t rows,
                            int64_t vocabulary) const = 0;

 protected:
  ~HostRows() = default;
};

// The fastest implementation for this processor.
const HostRows& FastestHostRows();

// The implementations for any x86-64 processor, and for those with AVX2 and FMA. They round differently.
const HostRows& PlainHostRows();
const HostRows& Avx2HostRows();

}  // namespace syncopate::model
