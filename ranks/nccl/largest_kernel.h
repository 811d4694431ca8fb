#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ranks/element.h"

// In its own header, because nvcc cannot compile the headers of NCCL and absl.
namespace syncopate {

// largest [count] := the maximum of all [world, count] over its rows, NaN where any row has a NaN. Device memory;
// queued on `stream`, does not block. Returns CUDA's result of the launch.
cudaError_t QueueLargest(Element element, const void* all, int32_t world, int64_t count, void* largest,
                         cudaStream_t stream);

}  // namespace syncopate
