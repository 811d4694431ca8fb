#include <algorithm>
#include <type_traits>

#include "model/cuda/device_code.cuh"
#include "model/cuda/train_kernels.h"
#include "model/cuda/typed_rows.cuh"

namespace syncopate::model::kernels {
namespace {

// -- Norms. A block handles one row at a time; thread i has the vectors i, i + blockDim.x, ... The normed number is
// rounded
// before it is multiplied by the weight, as in the rollouters' norms: otherwise log-probs would differ needlessly.

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
  // The row stays in registers between the sum of squares and the scaling, so it is read from memory only once.
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

template <typename T, int kVectors, bool kHasGradient>
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
  // A block handles many rows, and keeps its part of the weight's gradient in registers until the end; without that
  // gradient it handles one row.
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
        if (kHasGradient) dweight[v][i] += gradient[v].value[i] * normed[v].value[i];
        gradient[v].value[i] *= w[v].value[i];
        dot += gradient[v].value[i] * normed[v].value[i];
      }
    }
    // With n = x rstd and g = dy w: dx = rstd (g - n mean(g n)).
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
      // Recomputes the forward pass's output with the same rounding: bit-identical, so the caller need not keep it.
      if (y == nullptr) continue;
      normed[v].Round();
#pragma unroll
      for (int i = 0; i < Vector<T>::kSize; ++i) normed[v].value[i] *= w[v].value[i];
      normed[v].Store(y + offset);
    }
  }
  if constexpr (kHasGradient) {
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
}

// -- Column sums: first over blocks of rows, then over the blocks.

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

// Adds the same rows in the same order each time, without atomics, so that a repeated sum is bit-identical.
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

void AddRows(const float* partial, int64_t rows, int64_t columns, float* total, cudaStream_t stream) {
  AddRowsKernel<<<static_cast<unsigned>(DivideUp(columns, kWarp)), dim3(kWarp, kAddRowsLanes), 0, stream>>>(
      partial, rows, columns, total);
}

constexpr int kMaxNormThreads = 512;
// Four blocks on each multiprocessor of an H100; more blocks would leave more partial sums to add.
constexpr int64_t kNormBackwardBlocks = kMultiprocessors * 4;

// Calls f with the number of vectors of each thread, as a constant, and the number of threads.
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
    const bool has_gradient = dweight != nullptr;
    ForNormShape<T>(norm.columns, [&](auto vectors, int threads) {
      const auto kernel =
          has_gradient ? AddNormBackwardKernel<T, vectors.value, true> : AddNormBackwardKernel<T, vectors.value, false>;
      const int64_t blocks = has_gradient ? NormPartialRows(norm.rows) : norm.rows;
      kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(
          static_cast<const T*>(dy), static_cast<const T*>(sum), rstd, static_cast<const T*>(norm.weight),
          static_cast<const T*>(passed), norm.rows, static_cast<int>(norm.columns), static_cast<T*>(dsum),
          static_cast<T*>(y), partial);
    });
    if (has_gradient) AddRows(partial, NormPartialRows(norm.rows), norm.columns, dweight, stream);
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

}  // namespace syncopate::model::kernels
