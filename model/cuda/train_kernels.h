#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Kernels of a training step, all but matrix products and attention: plain pointers to device memory, work queued on
// `stream`, launch errors returned. Rows are contiguous and start on 16 bytes, so their lengths are multiples of
// kernels::VectorElements(dtype). model/ops.h says what each computes. Results are repeatable: sums over rows are made
// in a fixed order, except in EmbeddingGradient, which adds atomically (EmbeddingGradientInOrder does not). Norms and
// column sums are in norm_kernels.cu, the head and the embedding in head_kernels.cu, what adapters add to SwiGLU in
// low_rank_kernels.cu, the others in train_kernels.cu.
namespace syncopate::model::kernels {

enum class Number : uint8_t { kFloat32, kBFloat16 };
inline constexpr int64_t VectorElements(Number number) { return number == Number::kFloat32 ? 4 : 8; }
inline constexpr int64_t kMaxNormElements = 16384;  // most elements of a row for AddNorm

struct NormArguments {
  Number number = Number::kBFloat16;
  int64_t rows = 0;
  int64_t columns = 0;
  const void* weight = nullptr;  // [columns]
};
// `residual` may be null; then `sum` is not written and may be null. rstd [rows] float32.
cudaError_t AddNorm(const NormArguments& norm, const void* x, const void* residual, float eps, void* sum, void* y,
                    float* rstd, cudaStream_t stream);
// `passed` and y may be null. `partial`: float32 scratch of NormPartialRows() rows. Without `dweight`, which may be null,
// `partial` is not needed.
int64_t NormPartialRows(int64_t rows);
cudaError_t AddNormBackward(const NormArguments& norm, const void* dy, const void* sum, const float* rstd,
                            const void* passed, void* dsum, void* y, float* partial, float* dweight,
                            cudaStream_t stream);

// total [columns] += column sums of x [rows, columns], which is float32 or bf16.
int64_t ColumnPartialRows(int64_t rows);
cudaError_t ColumnSums(Number number, const void* x, int64_t rows, int64_t columns, float* partial, float* total,
                       cudaStream_t stream);

struct RotateArguments {
  Number number = Number::kBFloat16;
  int64_t rows = 0;
  int64_t stride = 0;  // elements from row to row
  int64_t heads = 0;
  int64_t half = 0;  // half of the head's dimension
  bool inverse = false;
};
cudaError_t Rotate(const RotateArguments& rotate, void* x, const float* cos, const float* sin, const int64_t* positions,
                   cudaStream_t stream);

cudaError_t SwiGlu(Number number, const void* gate_up, int64_t rows, int64_t width, void* y, cudaStream_t stream);
// y may be null.
cudaError_t SwiGluBackward(Number number, const void* dy, const void* gate_up, int64_t rows, int64_t width,
                           void* dgate_up, void* y, cudaStream_t stream);

// scale * inner outer^T in bfloat16, which an adapter adds to a product. All begin on 16 bytes.
struct LowRank {
  const void* inner = nullptr;  // [rows, rank]
  int64_t inner_stride = 0;     // elements from row to row, a multiple of 8
  const void* outer = nullptr;  // [columns, rank]
  int32_t rank = 0;             // a multiple of 8; 0: nothing is added
  float scale = 1;
};
// SwiGlu and SwiGluBackward, in bfloat16 alone, of their inputs with what adapters add to dy and to both halves of
// gate_up; each sum is rounded. dgate_up may be gate_up; y of the backward may be null.
cudaError_t LowRankSwiGlu(const LowRank& of_gate, const LowRank& of_up, const void* gate_up, int64_t rows,
                          int64_t width, void* y, cudaStream_t stream);
cudaError_t LowRankSwiGluBackward(const LowRank& of_dy, const LowRank& of_gate, const LowRank& of_up, const void* dy,
                                  const void* gate_up, int64_t rows, int64_t width, void* dgate_up, void* y,
                                  cudaStream_t stream);

// LowRankSwiGluBackward with what it adds to gradients in float32, for ranks that HasLowRankGradients() accepts:
//   sum += scale * sums over rows of inner [rows, rank] times d [rows, width]
// with d the rounded gradient of gate or up for their terms, and SwiGLU's output y for that of dy. `partial`: scratch
// of LowRankPartialElements().
struct LowRankGradient {
  float* sum = nullptr;  // [rank, width], or [width, rank] if is_transposed; null: not made
  bool is_transposed = false;
  int32_t rank = 0;
  float scale = 1;
};
struct LowRankGradients {
  LowRankGradient gate, up, dy;
};
bool HasLowRankGradients(const LowRank& term);
int64_t LowRankPartialElements(int64_t rows, int64_t width);
cudaError_t LowRankSwiGluBackward(const LowRank& of_dy, const LowRank& of_gate, const LowRank& of_up, const void* dy,
                                  const void* gate_up, int64_t rows, int64_t width, void* dgate_up, float* partial,
                                  const LowRankGradients& gradients, cudaStream_t stream);

// Any number of columns; stride, in elements, is a multiple of VectorElements, and memory between rows may be read and
// overwritten.
struct LogitRows {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
};
// temperature_inverse is 1 / temperature.
cudaError_t Head(Number number, const void* logits, const int64_t* targets, const LogitRows& shape,
                 float temperature_inverse, float* logprob, float* entropy, float* log_sum_exp, float* top_probability,
                 cudaStream_t stream);
struct HeadGradients {
  const float* log_sum_exp = nullptr;
  const float* entropy = nullptr;
  const float* dlogprob = nullptr;
  const float* dentropy = nullptr;  // may be null
};
// gradient: shape and stride of the logits, dtype `to`; may be the logits themselves if they have that dtype.
cudaError_t HeadBackward(Number from, const void* logits, const int64_t* targets, const LogitRows& shape,
                         float temperature_inverse, const HeadGradients& gradients, Number to, void* gradient,
                         cudaStream_t stream);

// table [*, columns] float32 += x[r] at row ids[r].
cudaError_t EmbeddingGradient(Number number, const void* x, const int64_t* ids, int64_t rows, int64_t columns,
                              float* table, cudaStream_t stream);
// EmbeddingGradient with each sum made in the order of rows, so that a repeated call is bit-identical. ids [rows]: the
// ids sorted ascending; order [rows]: the row that each of them belongs to, ascending where ids are equal.
cudaError_t EmbeddingGradientInOrder(Number number, const void* x, const int64_t* ids, const int64_t* order,
                                     int64_t rows, int64_t columns, float* table, cudaStream_t stream);

// One AdamW update of `count` elements (Loshchilov & Hutter, arXiv 1711.05101), and a bf16 copy of the result for the
// forward pass.
struct AdamWArguments {
  float learning_rate = 0;
  float beta1 = 0;
  float beta2 = 0;
  float eps = 0;
  float decay = 1;                // multiplies a parameter first: 1 - learning_rate * weight_decay
  float correction1 = 1;          // 1 - beta1^t
  float correction2 = 1;          // 1 - beta2^t
  const float* factor = nullptr;  // device memory; multiplies gradients; if not finite, the update changes nothing
};
// parameters, first, second, gradients float32; `copy` bf16, may be null. squares [AdamWBlocks(count)] float32: sums of
// the squares of the parameters' changes before they are rounded.
int64_t AdamWBlocks(int64_t count);
cudaError_t AdamW(const AdamWArguments& update, int64_t count, float* parameters, float* first, float* second,
                  const float* gradients, void* copy, float* squares, cudaStream_t stream);

// See Ops::DigestRun and Ops::AddDigestSums; `runs` in device memory. A word is two numbers.
struct DigestRun {
  int64_t begin, count, position, sum;
};
cudaError_t AddDigestSums(Number number, const void* words, const DigestRun* runs, int64_t count, void* sums,
                          cudaStream_t stream);

}  // namespace syncopate::model::kernels
