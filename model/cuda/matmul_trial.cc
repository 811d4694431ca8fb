#include "model/cuda/matmul_trial.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "cuda/cuda_status.h"
#include "model/cuda/matmul_trial_kernels.h"

namespace syncopate::model {
namespace {

using cuda::CudaStatus;

constexpr char kWhat[] = "trying the algorithms of a product";
constexpr int64_t kHalfBytes = 2;

int64_t Aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Bytes of rows * stride elements, rounded up to 4.
int64_t ResultBytes(const MatmulShape& shape) {
  const int64_t stride = shape.result_stride > 0 ? shape.result_stride : shape.n;
  return (shape.rows * stride * (shape.float32_result ? 4 : kHalfBytes) + 3) / 4 * 4;
}

}  // namespace

void MatmulTrial::Extent::Include(const MatmulShape& shape) {
  w_elements = std::max(w_elements, int64_t{shape.n} * shape.k);
  x_elements = std::max(x_elements, int64_t{shape.rows} * shape.k);
  result_bytes = std::max(result_bytes, ResultBytes(shape));
  bias_elements = std::max<int64_t>(bias_elements, shape.n);
}

MatmulTrial::MatmulTrial(cuda::DeviceBuffer memory, const Extent& extent, cudaStream_t stream)
    : memory_(std::move(memory)), stream_(stream) {
  w_ = memory_.data();
  x_ = w_ + Aligned(extent.w_elements * kHalfBytes);
  bias_ = x_ + Aligned(extent.x_elements * kHalfBytes);
  result_ = bias_ + Aligned(extent.bias_elements * kHalfBytes);
  digest_ = result_ + Aligned(extent.result_bytes);
}

absl::StatusOr<MatmulTrial> MatmulTrial::Create(int device, const Extent& extent, cudaStream_t stream) {
  const int64_t bytes = Aligned(extent.w_elements * kHalfBytes) + Aligned(extent.x_elements * kHalfBytes) +
                        Aligned(extent.bias_elements * kHalfBytes) + Aligned(extent.result_bytes) + Aligned(8);
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::DeviceBuffer memory, cuda::DeviceBuffer::Create(device, bytes, "made-up products"));
  MatmulTrial trial(std::move(memory), extent, stream);
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(trial.bias_, 0, static_cast<size_t>(extent.bias_elements * kHalfBytes), stream), kWhat));
  return trial;
}

absl::StatusOr<MatmulOperands> MatmulTrial::MakeUp(const MatmulShape& shape) const {
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(FillHalves(w_, shape.n, shape.k, /*negated=*/true, /*seed=*/1, stream_), kWhat));
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(FillHalves(x_, shape.rows, shape.k, /*negated=*/false, /*seed=*/2, stream_), kWhat));
  SYNCOPATE_RETURN_IF_ERROR(ClearResult(shape));
  return MatmulOperands{w_, x_, bias_, result_};
}

absl::Status MatmulTrial::ClearResult(const MatmulShape& shape) const {
  return CudaStatus(cudaMemsetAsync(result_, 0, static_cast<size_t>(ResultBytes(shape)), stream_), kWhat);
}

absl::StatusOr<uint64_t> MatmulTrial::DigestResult(const MatmulShape& shape) const {
  uint64_t digest = 0;
  auto* const place = reinterpret_cast<uint64_t*>(digest_);
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(place, 0, sizeof(digest), stream_), kWhat));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(AddDigest(result_, ResultBytes(shape), place, stream_), kWhat));
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(&digest, place, sizeof(digest), cudaMemcpyDeviceToHost, stream_), kWhat));
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), kWhat));
  return digest;
}

}  // namespace syncopate::model
