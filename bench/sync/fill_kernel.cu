#include "bench/sync/bench_weights.h"
#include "bench/sync/fill_kernel.h"

namespace syncopate::bench {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 4096;

__global__ void Fill(FillPiece piece, uint64_t step) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < piece.elements; i += threads) {
    const int64_t row = i / piece.row_elements;
    const int64_t element = piece.first + row * piece.stride + (i - row * piece.row_elements);
    if (piece.as_float) {
      reinterpret_cast<uint32_t*>(piece.to)[i] = BenchWeightBits(piece.tensor, element, step);
    } else {
      reinterpret_cast<uint16_t*>(piece.to)[i] = BenchWeightBFloat16(piece.tensor, element, step);
    }
  }
}

}  // namespace

cudaError_t LaunchFill(const FillPiece& piece, uint64_t step, cudaStream_t stream) {
  if (piece.elements == 0) return cudaSuccess;
  const int64_t blocks = (piece.elements + kThreads - 1) / kThreads;
  Fill<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0, stream>>>(piece, step);
  return cudaGetLastError();
}

}  // namespace syncopate::bench
