#pragma once

#include <cstdint>

namespace syncopate::model {

// One sequence's rows of queries, keys and values, side by side: heads + 2 * kv_heads times head_dim numbers.
struct HostSequence {
  int64_t length = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // rows that a row sees, itself and those before it; 0: all of them

  // The first row that `row` sees.
  int64_t FirstSeen(int64_t row) const { return window > 0 && row >= window ? row - window + 1 : 0; }
  int64_t row_size() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t query_size() const { return heads * head_dim; }
};

// What a decoder computes of rows beside products, as loops over float32 in host memory. For the small models that a CPU
// trains and serves, an operator of libtorch costs more than its arithmetic, and several that follow each other read and
// write the same memory several times. Rows are dense unless a stride is given. On one processor a row's result has the
// same bits whatever the other rows are; sums over rows are made in their order. No torch; stateless, thread-safe.
class HostRows {
 public:
  // RMSNorm after an optional residual add: sum = x + residual, rstd = 1 / sqrt(mean(sum^2) + eps), y = sum * rstd *
  // weight. [rows, columns] each; rstd [rows]. `residual` may be null: then `sum` is not looked at; `rstd` may be null.
  // `sum` may be x, and y may be `sum` or, without a residual, x.
  virtual void Norm(const float* x, const float* residual, const float* weight, float eps, int64_t rows,
                    int64_t columns, float* sum, float* y, float* rstd) const = 0;

  // With n = sum * rstd and g = dy * weight: dsum = rstd * (g - n * mean(g n)) + passed; dweight [columns] is added to by
  // the column sums of dy * n; y = n * weight. `passed` and `y` may be null.
  virtual void NormBackward(const float* dy, const float* sum, const float* rstd, const float* weight,
                            const float* passed, int64_t rows, int64_t columns, float* dsum, double* dweight,
                            float* y) const = 0;

  // Rotary embedding in the halves convention, in place: the first `heads` heads of 2 * half numbers of each row, rows
  // `stride` numbers apart. A position's angles are `angle_stride` apart in cos and sin.
  virtual void Rotate(float* x, int64_t rows, int64_t stride, int64_t heads, int64_t half, const float* cos,
                      const float* sin, int64_t angle_stride, const int64_t* positions, bool inverse) const = 0;

  // gate_up [rows, 2 width] -> silu(gate) * up [rows, width].
  virtual void SwiGlu(const float* gate_up, int64_t rows, int64_t width, float* y) const = 0;
  // dy [rows, width] -> dgate_up [rows, 2 width]; y [rows, width] again, or null.
  virtual void SwiGluBackward(const float* dy, const float* gate_up, int64_t rows, int64_t width, float* dgate_up,
                              float* y) const = 0;

  // Causal attention inside a sequence, scores scaled by 1 / sqrt(head_dim). qkv [length, row_size], rotated -> y [length,
  // query_size], log_sum_exp [length, heads] of the scaled scores. `scratch` has room for `length` numbers.
  virtual void Attend(const HostSequence& sequence, const float* qkv, float* y, float* log_sum_exp,
                      float* scratch) const = 0;
  // -> dqkv [length, row_size]. `scratch` has room for 2 * length numbers.
  virtual void AttendBackward(const HostSequence& sequence, const float* dy, const float* qkv, const float* y,
                              const float* log_sum_exp, float* dqkv, float* scratch) const = 0;

  // Attention of one row of queries [query_size], the last of sequence.length, to the keys and values that it may see, in blocks
  // of `block_tokens` rows of kv_heads * head_dim numbers: a block's values are `values_at` numbers behind its keys. -> y
  // [query_size]. `scratch` has room for `length` numbers.
  virtual void AttendBlocks(const HostSequence& sequence, const float* query, const float* const* blocks,
                            int64_t block_tokens, int64_t values_at, float* y, float* scratch) const = 0;

  // Of each row of logits [rows, vocabulary] / temperature: the log of its target's probability, the entropy in nats, the
  // log of the sum of exponentials; [rows] each.
  virtual void Head(const float* logits, const int64_t* targets, float temperature, int64_t rows, int64_t vocabulary,
                    float* logprob, float* entropy, float* log_sum_exp) const = 0;
  // The gradient of the logits in place of them, from those of logprob and entropy; dentropy may be null.
  virtual void HeadBackward(float* logits, const int64_t* targets, const float* entropy, const float* log_sum_exp,
                            const float* dlogprob, const float* dentropy, float temperature, int64_t rows,
                            int64_t vocabulary) const = 0;

 protected:
  ~HostRows() = default;
};

// The fastest for this processor.
const HostRows& FastestHostRows();

// For any x86-64, and for those with AVX2 and FMA, which round differently.
const HostRows& PlainHostRows();
const HostRows& Avx2HostRows();

}  // namespace syncopate::model
