#include <type_traits>

#include "model/cuda/train_kernels.h"
#include "model/cuda/typed_rows.cuh"

namespace syncopate::model::kernels {
namespace {

// Each block handles one row.

constexpr int kHeadThreads = 512;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLowest = -1e30f;  // finite, so that differences are finite

// max, the sum of exp(z - max) and the sum of exp(z - max) * z, over some of a row's z.
struct Softmax {
  float max = kLowest;
  float sum = 0;
  float weighted = 0;
  // Softmax in one pass: when a larger maximum comes, the sums so far are scaled down to it.
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
                           float* entropy, float* log_sum_exp, float* top_probability) {
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
  // With p = exp(z - lse): H = -sum(p log p) = lse - sum(p z).
  entropy[blockIdx.x] = lse - softmax.weighted / softmax.sum;
  top_probability[blockIdx.x] = 1.f / softmax.sum;
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
      // d logprob / dz_j = [j is the target] - p_j, and d entropy / dz_j = -p_j (log p_j + H).
      const float log_p = z.value[i] * inverse - lse;
      const float p = exp2f(log_p * kLog2E);
      Assign(out + i, -p * (dlogprob + dentropy * (log_p + entropy)) + (at + i == target ? dlogprob : 0.f));
    }
    // The stride of rows is padded to whole vectors, so the last one may reach beyond the columns.
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
    // Rows with equal ids are added to one row of the table, in no fixed order.
    atomicAdd(table + ids[row] * columns + at, ToFloat(x[row * columns + at]));
  }
}

// Rows with equal ids are neighbours in `order`, by ascending row: the block of the first of them adds all up.
template <typename T>
__global__ void EmbeddingGradientInOrderKernel(const T* x, const int64_t* ids, const int64_t* order, int64_t rows,
                                               int64_t columns, float* table) {
  const int64_t first = blockIdx.x, id = ids[first];
  if (first > 0 && ids[first - 1] == id) return;
  const int64_t at = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (at >= columns) return;
  float sum = table[id * columns + at];
  for (int64_t next = first; next < rows && ids[next] == id; ++next) sum += ToFloat(x[order[next] * columns + at]);
  table[id * columns + at] = sum;
}

}  // namespace

cudaError_t Head(Number number, const void* logits, const int64_t* targets, const LogitRows& shape,
                 float temperature_inverse, float* logprob, float* entropy, float* log_sum_exp, float* top_probability,
                 cudaStream_t stream) {
  return ForType(number, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    HeadKernel<T><<<static_cast<unsigned>(shape.rows), kHeadThreads, 0, stream>>>(
        static_cast<const T*>(logits), targets, shape, temperature_inverse, logprob, entropy, log_sum_exp,
        top_probability);
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

cudaError_t EmbeddingGradientInOrder(Number number, const void* x, const int64_t* ids, const int64_t* order,
                                     int64_t rows, int64_t columns, float* table, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((columns + kThreads - 1) / kThreads));
  return ForType(number, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    EmbeddingGradientInOrderKernel<T>
        <<<grid, kThreads, 0, stream>>>(static_cast<const T*>(x), ids, order, rows, columns, table);
  });
}

}  // namespace syncopate::model::kernels
