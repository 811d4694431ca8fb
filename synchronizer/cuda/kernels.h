#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "synchronizer/cuda/kernel_work.h"

// The kernels that stage and check weights. Plain calls, so that the units that nvcc compiles see no abseil.
namespace syncopate::synchronizer {

// Where the kernels leave what they found, in device memory.
struct Findings {
  uint64_t* sums = nullptr;              // per digest; must be zero at first
  uint64_t* first_non_finite = nullptr;  // lowest arena byte at which an item with such a number begins; must be ~0
};

// All launches are asynchronous on `stream`, of the current device; `blocks` bounds the grid. `bases` (device memory)
// holds, by tensor, the address that `source` counts from.
cudaError_t LaunchPack(const PackItem* items, int64_t count, const uint64_t* bases, char* arena, Findings findings,
                       int blocks, cudaStream_t stream);
cudaError_t LaunchPackElements(const ElementItem* items, int64_t count, const uint64_t* bases, char* arena,
                               Findings findings, int blocks, cudaStream_t stream);
cudaError_t LaunchCheck(const CheckItem* items, int64_t count, const char* arena, Findings findings, int blocks,
                        cudaStream_t stream);

// Load these kernels onto the current device. A kernel that is launched for the first time is loaded then, for which
// the launch waits until the device is idle: for ever, if what runs there is a communicator's kernel that the launching
// thread serves or ends. So whoever launches one loads it before.
cudaError_t LoadPackKernels();
cudaError_t LoadCheckKernel();

// Blocks of any of these kernels that fill the device.
int BlocksThatFill(int device);

}  // namespace syncopate::synchronizer
