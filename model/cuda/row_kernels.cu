#include "model/cuda/device_code.cuh"
#include "model/cuda/row_kernels.h"

namespace syncopate::model {
namespace {

constexpr int kMaxThreads = kMaxHidden / kVector;
constexpr int kSwiGluThreads = 256;
constexpr int kMostSwiGluBlocks = kMultiprocessors * 16;

// Writes this thread's part of the normed row; `x` is this thread's part of the row's residual. All threads of the
// block must call it.
__device__ __forceinline__ void WriteNormed(float* x, const float* weight, const NormShape& shape, bool mine,
                                            bf16* normed) {
  __shared__ float warps[kMaxThreads / kWarp];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) squares += x[i] * x[i];
  const float scale = rsqrtf(BlockSum(squares, warps) / static_cast<float>(shape.hidden) + shape.epsilon);
  if (!mine) return;
  ScaleAsRmsNorm(x, scale, weight);
  Store(normed, x);
}

// A block handles one row, a thread eight elements of it. The weights are read before the wait, because no kernel
// writes them.
__global__ void __launch_bounds__(kMaxThreads)
    Embed(NormShape shape, TokenSource tokens, PositionSource positions, const bf16* table, const bf16* weight,
          bf16* residual, bf16* normed) {
  const int element = static_cast<int>(threadIdx.x) * kVector;
  const bool mine = element < shape.hidden;
  float weights[kVector], x[kVector] = {};
  if (mine) Load(weight + element, weights);
  WaitForEarlierKernels();
  LetNextKernelStart();
  const int64_t place = static_cast<int64_t>(blockIdx.x) * shape.hidden + element;
  if (mine) {
    const int32_t given = tokens.given[blockIdx.x];
    // A token that the sampler drew in the step before is read from the GPU: the host has not seen it yet.
    const int64_t token = given >= 0 ? given : tokens.drawn[tokens.slots[blockIdx.x]];
    Load(table + token * shape.hidden + element, x);
    if (positions.table != nullptr) {
      const int64_t position = max(positions.lengths[blockIdx.x], 1) - 1;
      float more[kVector];
      Load(static_cast<const bf16*>(positions.table) + position * shape.hidden + element, more);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] = Round(x[i] + more[i]);
    }
    Store(residual + place, x);
  }
  WriteNormed(x, weights, shape, mine, normed + place);
}

__global__ void __launch_bounds__(kMaxThreads)
    Add(NormShape shape, const bf16* added, const bf16* weight, bf16* residual, bf16* normed) {
  const int element = static_cast<int>(threadIdx.x) * kVector;
  const bool mine = element < shape.hidden;
  float weights[kVector], x[kVector] = {};
  if (mine) Load(weight + element, weights);
  WaitForEarlierKernels();
  LetNextKernelStart();
  const int64_t place = static_cast<int64_t>(blockIdx.x) * shape.hidden + element;
  if (mine) {
    Load(residual + place, x);
    if (added != nullptr) {
      float more[kVector];
      Load(added + place, more);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] += more[i];
      const Vector sum = Narrow(x);
      Write(residual + place, sum);
      Widen(sum, x);
    }
  }
  WriteNormed(x, weights, shape, mine, normed + place);
}

__global__ void __launch_bounds__(kMaxThreads) Gather(int32_t hidden, const int32_t* rows, const bf16* from, bf16* to) {
  WaitForEarlierKernels();
  LetNextKernelStart();
  const int element = static_cast<int>(threadIdx.x) * kVector;
  if (element >= hidden) return;
  Write(to + static_cast<int64_t>(blockIdx.x) * hidden + element,
        Read(from + static_cast<int64_t>(rows[blockIdx.x]) * hidden + element));
}

__global__ void __launch_bounds__(kSwiGluThreads)
    Activate(int64_t vectors, int32_t width, const bf16* gate_up, bf16* activated) {
  WaitForEarlierKernels();
  LetNextKernelStart();
  const int vectors_a_row = width / kVector;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < vectors; at += threads) {
    const int64_t row = at / vectors_a_row;
    const int64_t element = (at - row * vectors_a_row) * kVector;
    float gate[kVector], up[kVector];
    Load(gate_up + row * 2 * width + element, gate);
    Load(gate_up + row * 2 * width + width + element, up);
#pragma unroll
    for (int i = 0; i < kVector; ++i) gate[i] = Round(__fdividef(gate[i], 1.0f + __expf(-gate[i]))) * up[i];
    Store(activated + row * width + element, gate);
  }
}

bool Fits(const NormShape& shape) {
  return shape.rows > 0 && shape.hidden > 0 && shape.hidden % kVector == 0 && shape.hidden <= kMaxHidden;
}

dim3 GetBlock(const NormShape& shape) {
  const unsigned threads = static_cast<unsigned>(shape.hidden / kVector);
  return dim3((threads + kWarp - 1) / kWarp * kWarp);
}

}  // namespace

cudaError_t EmbedAndNorm(const NormShape& shape, const TokenSource& tokens, const PositionSource& positions,
                         const void* table, const void* weight, void* residual, void* normed, cudaStream_t stream) {
  if (!Fits(shape)) return cudaErrorInvalidValue;
  return LaunchChained(Embed, dim3(static_cast<unsigned>(shape.rows)), GetBlock(shape), 0, stream, shape, tokens,
                       positions, static_cast<const bf16*>(table), static_cast<const bf16*>(weight),
                       static_cast<bf16*>(residual), static_cast<bf16*>(normed));
}

cudaError_t AddAndNorm(const NormShape& shape, const void* added, const void* weight, void* residual, void* normed,
                       cudaStream_t stream) {
  if (!Fits(shape)) return cudaErrorInvalidValue;
  return LaunchChained(Add, dim3(static_cast<unsigned>(shape.rows)), GetBlock(shape), 0, stream, shape,
                       static_cast<const bf16*>(added), static_cast<const bf16*>(weight), static_cast<bf16*>(residual),
                       static_cast<bf16*>(normed));
}

cudaError_t GatherRows(const NormShape& shape, const int32_t* rows, const void* from, void* gathered,
                       cudaStream_t stream) {
  if (!Fits(shape)) return cudaErrorInvalidValue;
  return LaunchChained(Gather, dim3(static_cast<unsigned>(shape.rows)), GetBlock(shape), 0, stream, shape.hidden, rows,
                       static_cast<const bf16*>(from), static_cast<bf16*>(gathered));
}

cudaError_t SwiGlu(int32_t rows, int32_t width, const void* gate_up, void* activated, cudaStream_t stream) {
  if (rows <= 0 || width <= 0 || width % kVector != 0) return cudaErrorInvalidValue;
  const int64_t vectors = static_cast<int64_t>(rows) * (width / kVector);
  const int64_t blocks = (vectors + kSwiGluThreads - 1) / kSwiGluThreads;
  return LaunchChained(Activate, dim3(static_cast<unsigned>(blocks < kMostSwiGluBlocks ? blocks : kMostSwiGluBlocks)),
                       dim3(kSwiGluThreads), 0, stream, vectors, width, static_cast<const bf16*>(gate_up),
                       static_cast<bf16*>(activated));
}

}  // namespace syncopate::model
