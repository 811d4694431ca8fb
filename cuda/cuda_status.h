#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace syncopate::cuda {

// A result of the CUDA runtime or driver as a status; OK for success. `what` names the operation ("copying a bucket").
// CudaStatus clears the runtime's last error of this thread.
//   FAILED_PRECONDITION reason NO_GPU          no device, no driver, or one that is too old
//   FAILED_PRECONDITION reason NO_PEER_ACCESS  the two GPUs cannot reach each other's memory
//   RESOURCE_EXHAUSTED  reason OUT_OF_GPU_MEMORY
//   INTERNAL            reason CUDA_ERROR      everything else, with CUDA's own words
absl::Status CudaStatus(cudaError_t error, const std::string& what);
absl::Status DriverStatus(CUresult error, const std::string& what);

// An error OUT_OF_GPU_MEMORY that says how much `what` ("the shadow arena") needs, `bytes`, and how much of the device
// is free. Metadata: needed, free, total (bytes), device.
absl::Status OutOfGpuMemory(int device, int64_t bytes, const std::string& what);

}  // namespace syncopate::cuda
