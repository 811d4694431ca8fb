#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "model/cuda/train_kernels.h"

namespace syncopate::model::kernels {
namespace {

constexpr int kWarp = 32;

// 16 bytes of a row, as float32 numbers while they are worked on.
template <typename T>
struct Vector;

template <>
struct Vector<float> {
  static constexpr int kSize = 4;
  float value[kSize];
  __device__ void Load(const float* from) {
    *reinterpret_cast<float4*>(value) = *reinterpret_cast<const float4*>(from);
  }
  __device__ void Store(float* to) const { *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(value); }
  __device__ void Round() {}
};

template <>
struct Vector<__nv_bfloat16> {
  static constexpr int kSize = 8;
  float value[kSize];
  __device__ void Load(const __nv_bfloat16* from) {
    uint4 raw = *reinterpret_cast<const uint4*>(from);
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) {
      float2 pair = __bfloat1622float2(pairs[i]);
      value[2 * i] = pair.x;
      value[2 * i + 1] = pair.y;
    }
  }
  __device__ void Store(__nv_bfloat16* to) const {
    uint4 raw;
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(&raw);
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) pairs[i] = __floats2bfloat162_rn(value[2 * i], value[2 * i + 1]);
    *reinterpret_cast<uint4*>(to) = raw;
  }
  // To what a store keeps.
  __device__ void Round() {
#pragma unroll
    for (float& v : value) v = __bfloat162float(__float2bfloat16_rn(v));
  }
};

template <typename T>
__device__ float ToFloat(T x);
template <>
__device__ float ToFloat(float x) {
  return x;
}
template <>
__device__ float ToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ void Assign(float* to, float x) { *to = x; }
__device__ void Assign(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

__device__ float WarpSum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// The sum over the block in every thread; the same order each time. Threads: a multiple of the warp.
__device__ float BlockSum(float x, float* shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  x = WarpSum(x);
  if (warps == 1) return x;
  __syncthreads();  // the former sum has been read
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return WarpSum(lane < warps ? shared[lane] : 0.f);
}

// -- Norms. A block a row at a time; thread i has the vectors i, i + blockDim.x, ... What is normed is rounded before
// it is multiplied by the weight, as the rollouters' norms do: else their log-probs would differ for nothing.

template <typename T, int kVectors>
__global__ void AddNormKernel(const T* x, const T* residual, const T* weight, int columns, float eps, T* sum, T* y,
                              float* rstd) {
  __shared__ float shared[kWarp];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * columns;
  const int vectors = columns / Vector<T>::kSize;
  Vector<T> kept[kVectors];
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = threadIdx.x + v * blockDim.x;
    if (at >= vectors) continue;
    const int64_t offset = row + static_cast<int64_t>(at) * Vector<T>::kSize;
    kept[v].Load(x + offset);
    if (residual != nullptr) {
      Vector<T> other;
      other.Load(residual + offset);
#pragma unroll
      for (int i = 0; i < Vector<T>::kSize; ++i) kept[v].value[i] += other.value[i];
      kept[v].Round();
      kept[v].Store(sum + offset);
    }
#pragma unroll
    for (float value : kept[v].value) squares += value * value;
  }
  const float scale = rsqrtf(BlockSum(squares, shared) / columns + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = threadIdx.x + v * blockDim.x;
    if (at >= vectors) continue;
    Vector<T> w;
    w.Load(weight + at * Vector<T>::kSize);
#pragma unroll
    for (int i = 0; i < Vector<T>::kSize; ++i) kept[v].value[i] *= scale;
    kept[v].Round();
#pragma unroll
    for (int i = 0; i < Vector<T>::kSize; ++i) kept[v].value[i] *= w.value[i];
    kept[v].Store(y + row + static_cast<int64_t>(at) * Vector<T>::kSize);
  }
}

template <typename T, int kVectors>
__global__ void AddNormBackwardKernel(const T* dy, const T* sum, const float* rstd, const T* weight, const T* passed,
                                      int64_t rows, int columns, T* dsum, T* y, float* partial) {
  __shared__ float shared[kWarp];
  const int vectors = columns / Vector<T>::kSize;
  Vector<T> w[kVectors];
  float dweight[kVectors][Vector<T>::kSize] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = threadIdx.x + v * blockDim.x;
    if (at < vectors) w[v].Load(weight + at * Vector<T>::kSize);
  }
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const float scale = rstd[r];
    Vector<T> normed[kVectors], gradient[kVectors];
    float dot = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int at = threadIdx.x + v * blockDim.x;
      if (at >= vectors) continue;
      const int64_t offset = r * columns + static_cast<int64_t>(at) * Vector<T>::kSize;
      normed[v].Load(sum + offset);
      gradient[v].Load(dy + offset);
#pragma unroll
      for (int i = 0; i < Vector<T>::kSize; ++i) {
        normed[v].value[i] *= scale;
        dweight[v][i] += gradient[v].value[i] * normed[v].value[i];
        gradient[v].value[i] *= w[v].value[i];
        dot += gradient[v].value[i] * normed[v].value[i];
      }
    }
    const float mean = BlockSum(dot, shared) / columns;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int at = threadIdx.x + v * blockDim.x;
      if (at >= vectors) continue;
      const int64_t offset = r * columns + static_cast<int64_t>(at) * Vector<T>::kSize;
#pragma unroll
      for (int i = 0; i < Vector<T>::kSize; ++i) {
        gradient[v].value[i] = scale * (gradient[v].value[i] - normed[v].value[i] * mean);
      }
      if (passed != nullptr) {
        Vector<T> other;
        other.Load(passed + offset);
#pragma unroll
        for (int i = 0; i < Vector<T>::kSize; ++i) gradient[v].value[i] += other.value[i];
      }
      gradient[v].Store(dsum + offset);
      if (y == nullptr) continue;
      normed[v].Round();
#pragma unroll
      for (int i = 0; i < Vector<T>::kSize; ++i) normed[v].value[i] *= w[v].value[i];
      normed[v].Store(y + offset);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = threadIdx.x + v * blockDim.x;
    if (at >= vectors) continue;
#pragma unroll
    for (int i = 0; i < Vector<T>::kSize; ++i) {
      partial[static_cast<int64_t>(blockIdx.x) * columns + at * Vector<T>::kSize + i] = dweight[v][i];
    }
  }
}

// -- Column sums: blocks of rows first, then the blocks.

constexpr int64_t kColumnRows = 128;  // rows that one block adds up

template <typename T>
__global__ void ColumnPartialKernel(const T* x, int64_t rows, int64_t columns, float* partial) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const int64_t begin = blockIdx.y * kColumnRows, end = min(begin + kColumnRows, rows);
  float total = 0;
  for (int64_t r = begin; r < end; ++r) total += ToFloat(x[r * columns + column]);
  partial[blockIdx.y * columns + column] = total;
}

constexpr int kAddRowsLanes = 16;  // rows that a block adds at a time, to each of kWarp columns

__global__ void AddRowsKernel(const float* partial, int64_t rows, int64_t columns, float* total) {
  __shared__ float shared[kAddRowsLanes][kWarp];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (column < columns) {
    for (int64_t r = threadIdx.y; r < rows; r += kAddRowsLanes) sum += partial[r * columns + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int lane = 1; lane < kAddRowsLanes; ++lane) sum += shared[lane][threadIdx.x];
  total[column] += sum;
}

// -- Rotation. A block a row; a thread a vector of one half of a head, with its partner in the other half.

template <typename T>
__global__ void RotateKernel(T* x, int64_t stride, int heads, int half, const float* cos, const float* sin, float sign,
                             const int64_t* positions) {
  constexpr int kSize = Vector<T>::kSize;
  const int a_head = half / kSize;
  const float* c = cos + positions[blockIdx.x] * half;
  const float* s = sin + positions[blockIdx.x] * half;
  T* row = x + static_cast<int64_t>(blockIdx.x) * stride;
  for (int at = threadIdx.x; at < heads * a_head; at += blockDim.x) {
    const int column = (at % a_head) * kSize;
    T* first = row + (at / a_head) * 2 * half + column;
    Vector<T> a, b;
    a.Load(first);
    b.Load(first + half);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float cosine = c[column + i], sine = s[column + i] * sign;
      const float turned = a.value[i] * cosine - b.value[i] * sine;
      b.value[i] = b.value[i] * cosine + a.value[i] * sine;
      a.value[i] = turned;
    }
    a.Store(first);
    b.Store(first + half);
  }
}

// -- SwiGLU

__device__ float Sigmoid(float x) { return 1.f / (1.f + __expf(-x)); }

template <typename T>
__global__ void SwiGluKernel(const T* gate_up, int64_t vectors, int64_t a_row, T* y) {
  constexpr int kSize = Vector<T>::kSize;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= vectors) return;
  const int64_t row = at / a_row, column = (at % a_row) * kSize, width = a_row * kSize;
  Vector<T> gate, up;
  gate.Load(gate_up + row * 2 * width + column);
  up.Load(gate_up + row * 2 * width + width + column);
#pragma unroll
  for (int i = 0; i < kSize; ++i) gate.value[i] *= Sigmoid(gate.value[i]);
  gate.Round();  // as the rollouters do
#pragma unroll
  for (int i = 0; i < kSize; ++i) up.value[i] *= gate.value[i];
  up.Store(y + row * width + column);
}

template <typename T>
__global__ void SwiGluBackwardKernel(const T* dy, const T* gate_up, int64_t vectors, int64_t a_row, T* dgate_up, T* y) {
  constexpr int kSize = Vector<T>::kSize;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= vectors) return;
  const int64_t row = at / a_row, column = (at % a_row) * kSize, width = a_row * kSize;
  Vector<T> gate, up, gradient, dgate, dup, result;
  gate.Load(gate_up + row * 2 * width + column);
  up.Load(gate_up + row * 2 * width + width + column);
  gradient.Load(dy + row * width + column);
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float sigmoid = Sigmoid(gate.value[i]), silu = gate.value[i] * sigmoid;
    dgate.value[i] = gradient.value[i] * up.value[i] * sigmoid * (1.f + gate.value[i] * (1.f - sigmoid));
    dup.value[i] = gradient.value[i] * silu;
    result.value[i] = silu;
  }
  dgate.Store(dgate_up + row * 2 * width + column);
  dup.Store(dgate_up + row * 2 * width + width + column);
  if (y == nullptr) return;
  result.Round();
#pragma unroll
  for (int i = 0; i < kSize; ++i) result.value[i] *= up.value[i];
  result.Store(y + row * width + column);
}

// -- Head. A block a row.

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLowest = -1e30f;  // finite, so that differences are

// The sum of exp(z - max), that of exp(z - max) * z, and max, of some of a row's z.
struct Softmax {
  float max = kLowest;
  float sum = 0;
  float weighted = 0;
  __device__ void Add(float z) {
    if (z > max) {
      const float scale = exp2f((max - z) * kLog2E);
      sum *= scale;
      weighted *= scale;
      max = z;
    }
    const float e = exp2f((z - max) * kLog2E);
    sum += e;
    weighted += e * z;
  }
  __device__ void Merge(float other_max, float other_sum, float other_weighted) {
    const float top = fmaxf(max, other_max);
    const float mine = exp2f((max - top) * kLog2E), theirs = exp2f((other_max - top) * kLog2E);
    sum = sum * mine + other_sum * theirs;
    weighted = weighted * mine + other_weighted * theirs;
    max = top;
  }
};

template <typename T>
__global__ void HeadKernel(const T* logits, const int64_t* targets, LogitRows shape, float inverse, float* logprob,
                           float* entropy, float* log_sum_exp) {
  constexpr int kSize = Vector<T>::kSize;
  __shared__ float shared[3][kWarp];
  const T* row = logits + static_cast<int64_t>(blockIdx.x) * shape.stride;
  Softmax softmax;
  for (int64_t at = threadIdx.x * kSize; at < shape.columns; at += static_cast<int64_t>(blockDim.x) * kSize) {
    Vector<T> z;
    z.Load(row + at);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      if (at + i < shape.columns) softmax.Add(z.value[i] * inverse);
    }
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    softmax.Merge(__shfl_xor_sync(0xffffffffu, softmax.max, offset), __shfl_xor_sync(0xffffffffu, softmax.sum, offset),
                  __shfl_xor_sync(0xffffffffu, softmax.weighted, offset));
  }
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (lane == 0) {
    shared[0][warp] = softmax.max;
    shared[1][warp] = softmax.sum;
    shared[2][warp] = softmax.weighted;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int other = 1; other < static_cast<int>(blockDim.x) / kWarp; ++other) {
    softmax.Merge(shared[0][other], shared[1][other], shared[2][other]);
  }
  const float lse = softmax.max + logf(softmax.sum);
  log_sum_exp[blockIdx.x] = lse;
  entropy[blockIdx.x] = lse - softmax.weighted / softmax.sum;
  logprob[blockIdx.x] = ToFloat(row[targets[blockIdx.x]]) * inverse - lse;
}

template <typename From, typename To>
__global__ void HeadBackwardKernel(const From* logits, const int64_t* targets, LogitRows shape, float inverse,
                                   HeadGradients gradients, To* gradient) {
  constexpr int kSize = Vector<From>::kSize;
  const int64_t row = blockIdx.x, target = targets[row];
  const float lse = gradients.log_sum_exp[row], entropy = gradients.entropy[row];
  const float dlogprob = gradients.dlogprob[row] * inverse;
  const float dentropy = gradients.dentropy == nullptr ? 0.f : gradients.dentropy[row] * inverse;
  for (int64_t at = threadIdx.x * kSize; at < shape.columns; at += static_cast<int64_t>(blockDim.x) * kSize) {
    Vector<From> z;
    z.Load(logits + row * shape.stride + at);
    alignas(16) To out[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float log_p = z.value[i] * inverse - lse;
      const float p = exp2f(log_p * kLog2E);
      Assign(out + i, -p * (dlogprob + dentropy * (log_p + entropy)) + (at + i == target ? dlogprob : 0.f));
    }
    auto* pairs = reinterpret_cast<uint2*>(gradient + row * shape.stride + at);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(out) / sizeof(uint2)); ++i) {
      pairs[i] = reinterpret_cast<const uint2*>(out)[i];
    }
  }
}

template <typename T>
__global__ void EmbeddingGradientKernel(const T* x, const int64_t* ids, int64_t columns, float* table) {
  const int64_t row = blockIdx.x;
  for (int64_t at = threadIdx.x; at < columns; at += blockDim.x) {
    atomicAdd(table + ids[row] * columns + at, ToFloat(x[row * columns + at]));
  }
}

// -- AdamW. A thread four elements.

__global__ void AdamWKernel(AdamWArguments update, int64_t vectors, float4* parameters, float4* first, float4* second,
                            const float4* gradients, uint2* copy) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= vectors) return;
  const float factor = *update.factor;
  if (!isfinite(factor)) return;
  float4 p = parameters[at], m = first[at], v = second[at];
  const float4 g = gradients[at];
  auto one = [&](float& p, float& m, float& v, float g) {
    g *= factor;
    m = update.beta1 * m + (1.f - update.beta1) * g;
    v = update.beta2 * v + (1.f - update.beta2) * g * g;
    p = p * update.decay -
        update.learning_rate * (m / update.correction1) / (sqrtf(v / update.correction2) + update.eps);
  };
  one(p.x, m.x, v.x, g.x);
  one(p.y, m.y, v.y, g.y);
  one(p.z, m.z, v.z, g.z);
  one(p.w, m.w, v.w, g.w);
  parameters[at] = p;
  first[at] = m;
  second[at] = v;
  if (copy == nullptr) return;
  __nv_bfloat162 low = __floats2bfloat162_rn(p.x, p.y), high = __floats2bfloat162_rn(p.z, p.w);
  copy[at] = make_uint2(*reinterpret_cast<unsigned*>(&low), *reinterpret_cast<unsigned*>(&high));
}

// -- Launches

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

void AddRows(const float* partial, int64_t rows, int64_t columns, float* total, cudaStream_t stream) {
  AddRowsKernel<<<static_cast<unsigned>(DivideUp(columns, kWarp)), dim3(kWarp, kAddRowsLanes), 0, stream>>>(
      partial, rows, columns, total);
}

// Calls f with a null pointer of the type that `number` names.
template <typename F>
cudaError_t ForType(Number number, F f) {
  if (number == Number::kFloat32) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<__nv_bfloat16*>(nullptr));
  }
  return cudaGetLastError();
}

constexpr int kMaxNormThreads = 512;
constexpr int64_t kNormBackwardBlocks = 132 * 4;

// Calls f with the number of vectors that a thread has, as a constant, and the number of threads.
template <typename T, typename F>
void ForNormShape(int64_t columns, F f) {
  const int64_t vectors = columns / Vector<T>::kSize;
  const int threads = static_cast<int>(std::min<int64_t>(DivideUp(vectors, kWarp) * kWarp, kMaxNormThreads));
  const int64_t a_thread = DivideUp(vectors, threads);
  if (a_thread <= 1) {
    f(std::integral_constant<int, 1>{}, threads);
  } else if (a_thread <= 2) {
    f(std::integral_constant<int, 2>{}, threads);
  } else if (a_thread <= 4) {
    f(std::integral_constant<int, 4>{}, threads);
  } else {
    f(std::integral_constant<int, 8>{}, threads);
  }
}

}  // namespace

cudaError_t AddNorm(const NormArguments& norm, const void* x, const void* residual, float eps, void* sum, void* y,
                    float* rstd, cudaStream_t stream) {
  return ForType(norm.number, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ForNormShape<T>(norm.columns, [&](auto vectors, int threads) {
      AddNormKernel<T, vectors.value><<<static_cast<unsigned>(norm.rows), threads, 0, stream>>>(
          static_cast<const T*>(x), static_cast<const T*>(residual), static_cast<const T*>(norm.weight),
          static_cast<int>(norm.columns), eps, static_cast<T*>(sum), static_cast<T*>(y), rstd);
    });
  });
}

int64_t NormPartialRows(int64_t rows) { return std::min(rows, kNormBackwardBlocks); }

cudaError_t AddNormBackward(const NormArguments& norm, const void* dy, const void* sum, const float* rstd,
                            const void* passed, void* dsum, void* y, float* partial, float* dweight,
                            cudaStream_t stream) {
  return ForType(norm.number, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ForNormShape<T>(norm.columns, [&](auto vectors, int threads) {
      AddNormBackwardKernel<T, vectors.value>
          <<<static_cast<unsigned>(NormPartialRows(norm.rows)), threads, 0, stream>>>(
              static_cast<const T*>(dy), static_cast<const T*>(sum), rstd, static_cast<const T*>(norm.weight),
              static_cast<const T*>(passed), norm.rows, static_cast<int>(norm.columns), static_cast<T*>(dsum),
              static_cast<T*>(y), partial);
    });
    AddRows(partial, NormPartialRows(norm.rows), norm.columns, dweight, stream);
  });
}

int64_t ColumnPartialRows(int64_t rows) { return DivideUp(rows, kColumnRows); }

cudaError_t ColumnSums(Number number, const void* x, int64_t rows, int64_t columns, float* partial, float* total,
                       cudaStream_t stream) {
  constexpr int kThreads = 256;
  const unsigned across = static_cast<unsigned>(DivideUp(columns, kThreads));
  const unsigned down = static_cast<unsigned>(ColumnPartialRows(rows));
  return ForType(number, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ColumnPartialKernel<T>
        <<<dim3(across, down), kThreads, 0, stream>>>(static_cast<const T*>(x), rows, columns, partial);
    AddRows(partial, down, columns, total, stream);
  });
}

cudaError_t Rotate(const RotateArguments& rotate, void* x, const float* cos, const float* sin, const int64_t* positions,
                   cudaStream_t stream) {
  return ForType(rotate.number, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t work = rotate.heads * rotate.half / Vector<T>::kSize;
    const int threads = static_cast<int>(std::min<int64_t>(DivideUp(work, kWarp) * kWarp, 256));
    RotateKernel<T><<<static_cast<unsigned>(rotate.rows), threads, 0, stream>>>(
        static_cast<T*>(x), rotate.stride, static_cast<int>(rotate.heads), static_cast<int>(rotate.half), cos, sin,
        rotate.inverse ? -1.f : 1.f, positions);
  });
}

cudaError_t SwiGlu(Number number, const void* gate_up, int64_t rows, int64_t width, void* y, cudaStream_t stream) {
  return ForType(number, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t a_row = width / Vector<T>::kSize, vectors = rows * a_row;
    SwiGluKernel<T><<<static_cast<unsigned>(DivideUp(vectors, 256)), 256, 0, stream>>>(
        static_cast<const T*>(gate_up), vectors, a_row, static_cast<T*>(y));
  });
}

cudaError_t SwiGluBackward(Number number, const void* dy, const void* gate_up, int64_t rows, int64_t width,
                           void* dgate_up, void* y, cudaStream_t stream) {
  return ForType(number, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t a_row = width / Vector<T>::kSize, vectors = rows * a_row;
    SwiGluBackwardKernel<T><<<static_cast<unsigned>(DivideUp(vectors, 256)), 256, 0, stream>>>(
        static_cast<const T*>(dy), static_cast<const T*>(gate_up), vectors, a_row, static_cast<T*>(dgate_up),
        static_cast<T*>(y));
  });
}

namespace {
constexpr int kHeadThreads = 512;
}  // namespace

cudaError_t Head(Number number, const void* logits, const int64_t* targets, const LogitRows& shape,
                 float temperature_inverse, float* logprob, float* entropy, float* log_sum_exp, cudaStream_t stream) {
  return ForType(number, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    HeadKernel<T><<<static_cast<unsigned>(shape.rows), kHeadThreads, 0, stream>>>(
        static_cast<const T*>(logits), targets, shape, temperature_inverse, logprob, entropy, log_sum_exp);
  });
}

cudaError_t HeadBackward(Number from, const void* logits, const int64_t* targets, const LogitRows& shape,
                         float temperature_inverse, const HeadGradients& gradients, Number to, void* gradient,
                         cudaStream_t stream) {
  return ForType(from, [&](auto* from_type) {
    using From = std::remove_pointer_t<decltype(from_type)>;
    ForType(to, [&](auto* to_type) {
      using To = std::remove_pointer_t<decltype(to_type)>;
      HeadBackwardKernel<From, To><<<static_cast<unsigned>(shape.rows), kHeadThreads, 0, stream>>>(
          static_cast<const From*>(logits), targets, shape, temperature_inverse, gradients, static_cast<To*>(gradient));
    });
  });
}

cudaError_t EmbeddingGradient(Number number, const void* x, const int64_t* ids, int64_t rows, int64_t columns,
                              float* table, cudaStream_t stream) {
  return ForType(number, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    EmbeddingGradientKernel<T>
        <<<static_cast<unsigned>(rows), 256, 0, stream>>>(static_cast<const T*>(x), ids, columns, table);
  });
}

cudaError_t AdamW(const AdamWArguments& update, int64_t count, float* parameters, float* first, float* second,
                  const float* gradients, void* copy, cudaStream_t stream) {
  const int64_t vectors = count / 4;
  AdamWKernel<<<static_cast<unsigned>(DivideUp(vectors, 256)), 256, 0, stream>>>(
      update, vectors, reinterpret_cast<float4*>(parameters), reinterpret_cast<float4*>(first),
      reinterpret_cast<float4*>(second), reinterpret_cast<const float4*>(gradients), static_cast<uint2*>(copy));
  return cudaGetLastError();
}

}  // namespace syncopate::model::kernels
