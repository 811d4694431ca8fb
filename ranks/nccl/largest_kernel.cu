#include <cuda_bf16.h>

#include "ranks/nccl/largest_kernel.h"

namespace syncopate {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void Largest(const T* all, int32_t world, int64_t count, T* largest) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= count) return;
  T most = all[i];
  for (int32_t rank = 1; rank < world; ++rank) {
    const T value = all[rank * count + i];
    // A NaN replaces any number, and nothing replaces a NaN.
    if (value != value || value > most) most = most != most ? most : value;
  }
  largest[i] = most;
}

template <typename T>
cudaError_t Launch(const void* all, int32_t world, int64_t count, void* largest, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  Largest<<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(all), world, count, static_cast<T*>(largest));
  return cudaGetLastError();
}

}  // namespace

cudaError_t QueueLargest(Element element, const void* all, int32_t world, int64_t count, void* largest,
                         cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  switch (element) {
    case Element::kFloat32:
      return Launch<float>(all, world, count, largest, stream);
    case Element::kFloat64:
      return Launch<double>(all, world, count, largest, stream);
    case Element::kBFloat16:
      break;
  }
  return Launch<__nv_bfloat16>(all, world, count, largest, stream);
}

}  // namespace syncopate
