// HostRows as loops that a compiler vectorises. This file is compiled once for each kind of processor, with its own
// flags (CMakeLists.txt). SYNCOPATE_HOST_ROWS names the function of host_rows.h that it defines. So it must not include
// headers with inline functions: the linker would keep one copy for the whole program, perhaps with instructions that
// the processor lacks.
#include "model/host_rows.h"

namespace syncopate::model {
namespace {

// Number of partial sums, which are added in a fixed order.
constexpr int64_t kLanes = 16;

// e^x as 2^k e^r with |r| <= log(2) / 2 and the polynomial of Cephes' expf for e^r, within 2 units of the last place;
// bounded to [e^-87, e^88]. libm's function would not be vectorised.
inline float Exp(float x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds a number to an integer
  const float above = x < -87.0f ? -87.0f : x;
  const float bounded = above > 88.0f ? 88.0f : above;
  const float shifted = bounded * kLog2E + kShift;
  const float k = shifted - kShift;
  const float r = (bounded - k * kLn2High) - k * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t exponent = __builtin_bit_cast(int32_t, shifted) - __builtin_bit_cast(int32_t, kShift) + 127;
  return p * __builtin_bit_cast(float, exponent << 23);
}

inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// Adds sixteen partial sums, which a compiler can vectorise: it must keep the order of a single sum. The sum is a tree,
// so that the result does not depend on the width of the processor's vectors.
inline float AddLanes(float* lanes) {
  for (int64_t i = 0; i < 8; ++i) lanes[i] += lanes[i + 8];
  for (int64_t i = 0; i < 4; ++i) lanes[i] += lanes[i + 4];
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

inline float Dot(const float* a, const float* b, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) lanes[i % kLanes] += a[i] * b[i];
  return AddLanes(lanes);
}

// The sum of a * b * c.
inline float Dot(const float* a, const float* b, const float* c, int64_t n) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane] * c[i + lane];
  }
  for (; i < n; ++i) lanes[i % kLanes] += a[i] * b[i] * c[i];
  return AddLanes(lanes);
}

inline void AddScaled(float scale, const float* __restrict x, float* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += scale * x[i];
}

// scores[t] = e^(scores[t] - largest); returns the sum.
inline float ExpInPlace(float* scores, float largest, int64_t n) {
  for (int64_t t = 0; t < n; ++t) scores[t] = Exp(scores[t] - largest);
  float total = 0;
  for (int64_t t = 0; t < n; ++t) total += scores[t];
  return total;
}

inline void Clear(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = 0;
}

inline float Largest(const float* x, int64_t n) {
  float largest = x[0];
  for (int64_t i = 1; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

template <bool kAgain>
inline void SwiGluRowBackward(const float* __restrict dy, const float* __restrict gates, const float* __restrict ups,
                              int64_t width, float* __restrict dgates, float* __restrict dups, float* __restrict y) {
  for (int64_t i = 0; i < width; ++i) {
    const float gate = gates[i], s = Sigmoid(gate), silu = gate * s;
    // silu'(g) = s (1 + g (1 - s)).
    dgates[i] = dy[i] * ups[i] * s * (1.0f + gate * (1.0f - s));
    dups[i] = dy[i] * silu;
    if (kAgain) y[i] = silu * ups[i];
  }
}

class Loops final : public HostRows {
 public:
  void Norm(const float* x, const float* residual, const float* weight, float eps, int64_t rows, int64_t columns,
            float* sum, float* y, float* rstd) const override {
    for (int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
      const float* summed = x;
      if (residual != nullptr) {
        for (int64_t i = 0; i < columns; ++i) sum[i] = x[i] + residual[i];
        summed = sum;
        sum += columns, residual += columns;
      }
      const float scale = 1.0f / __builtin_sqrtf(Dot(summed, summed, columns) / static_cast<float>(columns) + eps);
      for (int64_t i = 0; i < columns; ++i) y[i] = summed[i] * scale * weight[i];
      if (rstd != nullptr) rstd[row] = scale;
    }
  }

  void NormBackward(const float* dy, const float* sum, const float* rstd, const float* weight, const float* passed,
                    int64_t rows, int64_t columns, float* dsum, double* dweight, float* y) const override {
    for (int64_t row = 0; row < rows; ++row, dy += columns, sum += columns, dsum += columns) {
      const float scale = rstd[row];
      for (int64_t i = 0; i < columns; ++i) dsum[i] = sum[i] * scale;
      for (int64_t i = 0; i < columns; ++i) dweight[i] += static_cast<double>(dy[i] * dsum[i]);
      if (y != nullptr) {
        for (int64_t i = 0; i < columns; ++i) y[i] = dsum[i] * weight[i];
        y += columns;
      }
      const float mean = Dot(dy, weight, dsum, columns) / static_cast<float>(columns);
      for (int64_t i = 0; i < columns; ++i) dsum[i] = scale * (dy[i] * weight[i] - dsum[i] * mean);
      if (passed != nullptr) {
        for (int64_t i = 0; i < columns; ++i) dsum[i] += passed[i];
        passed += columns;
      }
    }
  }

  void Rotate(float* x, int64_t rows, int64_t stride, int64_t heads, int64_t half, const float* cos, const float* sin,
              int64_t angle_stride, const int64_t* positions, bool inverse) const override {
    const float sign = inverse ? -1.0f : 1.0f;
    for (int64_t row = 0; row < rows; ++row) {
      const float* const c = cos + positions[row] * angle_stride;
      const float* const s = sin + positions[row] * angle_stride;
      for (int64_t head = 0; head < heads; ++head) {
        float* const first = x + row * stride + head * 2 * half;
        float* const second = first + half;
        for (int64_t i = 0; i < half; ++i) {
          const float a = first[i], b = second[i], turn = sign * s[i];
          first[i] = a * c[i] - b * turn;
          second[i] = b * c[i] + a * turn;
        }
      }
    }
  }

  void SwiGlu(const float* gate_up, int64_t rows, int64_t width, float* y) const override {
    for (int64_t row = 0; row < rows; ++row, gate_up += 2 * width, y += width) {
      const float* const up = gate_up + width;
      for (int64_t i = 0; i < width; ++i) y[i] = gate_up[i] * Sigmoid(gate_up[i]) * up[i];
    }
  }

  void SwiGluBackward(const float* dy, const float* gate_up, int64_t rows, int64_t width, float* dgate_up,
                      float* y) const override {
    for (int64_t row = 0; row < rows; ++row, dy += width, gate_up += 2 * width, dgate_up += 2 * width) {
      if (y != nullptr) {
        SwiGluRowBackward<true>(dy, gate_up, gate_up + width, width, dgate_up, dgate_up + width, y);
        y += width;
      } else {
        SwiGluRowBackward<false>(dy, gate_up, gate_up + width, width, dgate_up, dgate_up + width, nullptr);
      }
    }
  }

  void Attend(const HostSequence& sequence, const float* qkv, float* y, float* log_sum_exp,
              float* scratch) const override {
    const int64_t dim = sequence.head_dim, stride = sequence.row_size(), group = sequence.heads / sequence.kv_heads;
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
    Clear(y, sequence.length * sequence.query_size());
    for (int64_t head = 0; head < sequence.heads; ++head) {
      const float* const keys = qkv + (sequence.heads + head / group) * dim;
      const float* const values = keys + sequence.kv_heads * dim;
      for (int64_t row = 0; row < sequence.length; ++row) {
        const float* const query = qkv + row * stride + head * dim;
        const int64_t first = sequence.FirstSeen(row);
        for (int64_t t = first; t <= row; ++t) scratch[t] = scale * Dot(query, keys + t * stride, dim);
        // e^(score - largest) cannot overflow.
        const float largest = Largest(scratch + first, row + 1 - first);
        const float total = ExpInPlace(scratch + first, largest, row + 1 - first);
        const float inverse = 1.0f / total;
        float* const out = y + row * sequence.query_size() + head * dim;
        for (int64_t t = first; t <= row; ++t) AddScaled(scratch[t] * inverse, values + t * stride, out, dim);
        log_sum_exp[row * sequence.heads + head] = largest + __builtin_logf(total);
      }
    }
  }

  // With P the probabilities and D = dy * y summed over a head: dS = P (dy v^T - D) scale, dq = dS k, dk = dS^T q,
  // dv = P^T dy; dk and dv are summed over the query heads that share a key and a value.
  void AttendBackward(const HostSequence& sequence, const float* dy, const float* qkv, const float* y,
                      const float* log_sum_exp, float* dqkv, float* scratch) const override {
    const int64_t dim = sequence.head_dim, stride = sequence.row_size(), group = sequence.heads / sequence.kv_heads;
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
    float* const __restrict probabilities = scratch;
    float* const __restrict gradients = scratch + sequence.length;
    Clear(dqkv, sequence.length * stride);
    for (int64_t head = 0; head < sequence.heads; ++head) {
      const int64_t key_at = (sequence.heads + head / group) * dim, value_at = key_at + sequence.kv_heads * dim;
      for (int64_t row = 0; row < sequence.length; ++row) {
        const float* const query = qkv + row * stride + head * dim;
        const float* const dout = dy + row * sequence.query_size() + head * dim;
        const float shared = Dot(dout, y + row * sequence.query_size() + head * dim, dim);
        const float shift = log_sum_exp[row * sequence.heads + head];
        const int64_t first = sequence.FirstSeen(row);
        for (int64_t t = first; t <= row; ++t) {
          // The forward pass's log sum exp gives the probabilities without a second sum.
          probabilities[t] = scale * Dot(query, qkv + t * stride + key_at, dim) - shift;
          gradients[t] = Dot(dout, qkv + t * stride + value_at, dim);
        }
        for (int64_t t = first; t <= row; ++t) {
          probabilities[t] = Exp(probabilities[t]);
          gradients[t] = probabilities[t] * (gradients[t] - shared) * scale;
        }
        float* const dquery = dqkv + row * stride + head * dim;
        for (int64_t t = first; t <= row; ++t) {
          AddScaled(gradients[t], qkv + t * stride + key_at, dquery, dim);
          AddScaled(gradients[t], query, dqkv + t * stride + key_at, dim);
          AddScaled(probabilities[t], dout, dqkv + t * stride + value_at, dim);
        }
      }
    }
  }

  void AttendBlocks(const HostSequence& sequence, const float* query, const float* const* blocks, int64_t block_tokens,
                    int64_t values_at, float* y, float* scratch) const override {
    const int64_t dim = sequence.head_dim, stride = sequence.kv_heads * dim, length = sequence.length;
    const int64_t group = sequence.heads / sequence.kv_heads;
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
    Clear(y, sequence.query_size());
    const int64_t first = sequence.FirstSeen(length - 1), first_block = first / block_tokens * block_tokens;
    for (int64_t head = 0; head < sequence.heads; ++head, query += dim, y += dim) {
      const int64_t key_at = head / group * dim;
      for (int64_t begin = first_block; begin < length; begin += block_tokens) {
        const float* const keys = blocks[begin / block_tokens] + key_at;
        const int64_t count = length - begin < block_tokens ? length - begin : block_tokens;
        for (int64_t t = begin < first ? first - begin : 0; t < count; ++t) {
          scratch[begin + t] = scale * Dot(query, keys + t * stride, dim);
        }
      }
      const float inverse =
          1.0f / ExpInPlace(scratch + first, Largest(scratch + first, length - first), length - first);
      for (int64_t begin = first_block; begin < length; begin += block_tokens) {
        const float* const values = blocks[begin / block_tokens] + key_at + values_at;
        const int64_t count = length - begin < block_tokens ? length - begin : block_tokens;
        for (int64_t t = begin < first ? first - begin : 0; t < count; ++t) {
          AddScaled(scratch[begin + t] * inverse, values + t * stride, y, dim);
        }
      }
    }
  }

  void Head(const float* logits, const int64_t* targets, float temperature, int64_t rows, int64_t vocabulary,
            float* logprob, float* entropy, float* log_sum_exp, float* top_probability) const override {
    const float inverse = 1.0f / temperature;
    for (int64_t row = 0; row < rows; ++row, logits += vocabulary) {
      const float largest = Largest(logits, vocabulary) * inverse;
      // With e = exp(z - largest): log sum exp = largest + log(sum e),
      // and entropy = log(sum e) - sum((z - largest) e) / sum e.
      double total = 0, weighted = 0;
      for (int64_t begin = 0; begin < vocabulary; begin += kLanes) {
        // Sums sixteen numbers in float32, and these sums in double: float32 would lose digits over a vocabulary of
        // 150,000.
        const int64_t count = vocabulary - begin < kLanes ? vocabulary - begin : kLanes;
        float masses[kLanes], products[kLanes], few = 0, few_weighted = 0;
        for (int64_t i = 0; i < count; ++i) {
          const float below = logits[begin + i] * inverse - largest;
          masses[i] = Exp(below);
          products[i] = below * masses[i];
        }
        for (int64_t i = 0; i < count; ++i) few += masses[i], few_weighted += products[i];
        total += static_cast<double>(few);
        weighted += static_cast<double>(few_weighted);
      }
      const float log_total = static_cast<float>(__builtin_log(total));
      log_sum_exp[row] = largest + log_total;
      logprob[row] = logits[targets[row]] * inverse - log_sum_exp[row];
      entropy[row] = log_total - static_cast<float>(weighted / total);
      top_probability[row] = static_cast<float>(1 / total);
    }
  }

  // d logprob / dz_j = [j = target] - p_j; d entropy / dz_j = -p_j (log p_j + entropy).
  void HeadBackward(float* logits, const int64_t* targets, const float* entropy, const float* log_sum_exp,
                    const float* dlogprob, const float* dentropy, float temperature, int64_t rows,
                    int64_t vocabulary) const override {
    const float inverse = 1.0f / temperature;
    for (int64_t row = 0; row < rows; ++row, logits += vocabulary) {
      const float by_logprob = dlogprob[row], by_entropy = dentropy != nullptr ? dentropy[row] : 0.0f;
      const float shift = log_sum_exp[row], whole = entropy[row];
      for (int64_t i = 0; i < vocabulary; ++i) {
        const float log_p = logits[i] * inverse - shift;
        logits[i] = -Exp(log_p) * (by_logprob + by_entropy * (log_p + whole)) * inverse;
      }
      logits[targets[row]] += by_logprob * inverse;
    }
  }
};

constexpr Loops kLoops;

}  // namespace

const HostRows& SYNCOPATE_HOST_ROWS() { return kLoops; }

}  // namespace syncopate::model
