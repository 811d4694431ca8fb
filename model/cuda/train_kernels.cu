#include <algorithm>
#include <type_traits>

#include "base/mix64.h"
#include "model/cuda/train_kernels.h"
#include "model/cuda/typed_rows.cuh"

namespace syncopate::model::kernels {
namespace {

// -- Rotation. One block for each row; one thread for a vector of one half of a head and its partner in the other half.

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
  gate.Round();  // as in the rollouters
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

// -- Digests. Blocks with the same x share a run. A thread's words are far apart, so that a warp's words are
// neighbours.

constexpr unsigned kBlocksARun = 16;

// Two numbers as the word of the same numbers in float32.
__device__ __forceinline__ uint64_t Widen(uint64_t word) { return word; }
__device__ __forceinline__ uint64_t Widen(uint32_t pair) {
  return static_cast<uint64_t>(pair & 0xffff0000u) << 32 | static_cast<uint64_t>(pair << 16);
}

template <typename Word>
__global__ void DigestKernel(const Word* words, const DigestRun* runs, unsigned long long* sums) {
  const DigestRun run = runs[blockIdx.x];
  const Word* const mine = words + run.begin;
  uint64_t sum = 0;
#pragma unroll 4
  for (int64_t i = blockIdx.y * blockDim.x + threadIdx.x; i < run.count; i += gridDim.y * blockDim.x) {
    sum += Mix64(Widen(mine[i]) + static_cast<uint64_t>(run.position + i + 1) * kDigestStride);
  }
  for (int other = 16; other > 0; other /= 2) sum += __shfl_down_sync(0xffffffffu, sum, other);
  if (threadIdx.x % 32 == 0) atomicAdd(sums + run.sum, static_cast<unsigned long long>(sum));
}

// -- AdamW. One thread for four elements.

constexpr int kAdamWThreads = 256;

// Returns the sum of the squares of the changes.
__device__ __forceinline__ float UpdateFour(const AdamWArguments& update, float factor, const float4& g,
                                            float4* parameters, float4* first, float4* second, uint2* copy) {
  float4 p = *parameters, m = *first, v = *second;
  float square = 0;
  auto one = [&](float& p, float& m, float& v, float g) {
    g *= factor;
    m = update.beta1 * m + (1.f - update.beta1) * g;
    v = update.beta2 * v + (1.f - update.beta2) * g * g;
    const float move = update.learning_rate * (m / update.correction1) / (sqrtf(v / update.correction2) + update.eps);
    const float change = p * (1.f - update.decay) + move;
    square += change * change;
    p = p * update.decay - move;
  };
  one(p.x, m.x, v.x, g.x);
  one(p.y, m.y, v.y, g.y);
  one(p.z, m.z, v.z, g.z);
  one(p.w, m.w, v.w, g.w);
  *parameters = p;
  *first = m;
  *second = v;
  if (copy == nullptr) return square;
  __nv_bfloat162 low = __floats2bfloat162_rn(p.x, p.y), high = __floats2bfloat162_rn(p.z, p.w);
  *copy = make_uint2(*reinterpret_cast<unsigned*>(&low), *reinterpret_cast<unsigned*>(&high));
  return square;
}

__global__ void AdamWKernel(AdamWArguments update, int64_t vectors, float4* parameters, float4* first, float4* second,
                            const float4* gradients, uint2* copy, float* squares) {
  __shared__ float shared[kWarp];
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const float factor = *update.factor;
  float square = 0;
  if (at < vectors && isfinite(factor)) {
    square = UpdateFour(update, factor, gradients[at], parameters + at, first + at, second + at,
                        copy == nullptr ? nullptr : copy + at);
  }
  square = BlockSum(square, shared);
  if (threadIdx.x == 0) squares[blockIdx.x] = square;
}

}  // namespace

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

int64_t AdamWBlocks(int64_t count) { return DivideUp(count / 4, kAdamWThreads); }

cudaError_t AdamW(const AdamWArguments& update, int64_t count, float* parameters, float* first, float* second,
                  const float* gradients, void* copy, float* squares, cudaStream_t stream) {
  AdamWKernel<<<static_cast<unsigned>(AdamWBlocks(count)), kAdamWThreads, 0, stream>>>(
      update, count / 4, reinterpret_cast<float4*>(parameters), reinterpret_cast<float4*>(first),
      reinterpret_cast<float4*>(second), reinterpret_cast<const float4*>(gradients), static_cast<uint2*>(copy),
      squares);
  return cudaGetLastError();
}

cudaError_t AddDigestSums(Number number, const void* words, const DigestRun* runs, int64_t count, void* sums,
                          cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(count), kBlocksARun);
  auto* const into = static_cast<unsigned long long*>(sums);
  if (number == Number::kFloat32) {
    DigestKernel<<<grid, 256, 0, stream>>>(static_cast<const uint64_t*>(words), runs, into);
  } else {
    DigestKernel<<<grid, 256, 0, stream>>>(static_cast<const uint32_t*>(words), runs, into);
  }
  return cudaGetLastError();
}

}  // namespace syncopate::model::kernels
