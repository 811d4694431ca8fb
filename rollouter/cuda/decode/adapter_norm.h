#pragma once

#include <cuda_runtime_api.h>

#include "model/cuda/row_kernels.h"
#include "rollouter/cuda/decode/adapter_kernels.h"

// The norm behind a product with an adapter, of many rows; apart from adapter_kernels.h, which knows no norms. No libtorch.
namespace syncopate::rollouter {

// Whether AddAdaptersAndNorm computes this product: it has one adapter of all its columns, of which there are at most
// 2048, one place, and so one set of all rows that have one, a rank of at most 32, and rows for each multiprocessor of
// a GPU.
bool FitsAddAdaptersAndNorm(const AdaptedProduct& product);

// residual += y + scale * (x a^T) b^T, rounded once; normed = RmsNorm(residual) * weight. Does what AddAdapters and
// model::AddAndNorm do one after the other, with the same bits in the residual; the squares of a row are added in
// another order. `shape` has the product's rows and columns. Launches as the functions of adapter_kernels.h do.
// cudaErrorInvalidValue unless FitsAddAdaptersAndNorm.
cudaError_t AddAdaptersAndNorm(const AdaptedProduct& product, const model::NormShape& shape, const void* y,
                               const void* weight, void* residual, void* normed, cudaStream_t stream);

}  // namespace syncopate::rollouter
