#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "synchronizer/cuda/kernel_work.h"

// The kernels that stage and check weights. Plain functions, so that files compiled by nvcc include no abseil.
namespace syncopate::synchronizer {

// Device memory to which the kernels write their findings.
struct Findings {
  uint64_t* sums = nullptr;              // one for each digest; must start at zero
  uint64_t* first_non_finite = nullptr;  // lowest begin of an item with such a number; must start at ~0
};

// All launches are asynchronous on `stream` of the current device; `blocks` bounds the grid. bases[tensor] (device
// memory) is the address to which the items' `source` is relative.
cudaError_t LaunchPack(const PackItem* items, int64_t count, const uint64_t* bases, char* arena, Findings findings,
                       int blocks, cudaStream_t stream);
cudaError_t LaunchPackElements(const ElementItem* items, int64_t count, const uint64_t* bases, char* arena,
                               Findings findings, int blocks, cudaStream_t stream);
cudaError_t LaunchCheck(const CheckItem* items, int64_t count, const char* arena, Findings findings, int blocks,
                        cudaStream_t stream);

// Load these kernels onto the current device. A kernel that is launched for the first time is loaded then, and that
// launch waits until the device is idle. The wait never ends if the device runs a communicator's kernel that the
// launching thread serves or ends. So load a kernel before its first launch.
cudaError_t LoadPackKernels();
cudaError_t LoadCheckKernel();

// Number of blocks of any of these kernels that fill the device.
int BlocksThatFill(int device);

}  // namespace syncopate::synchronizer
