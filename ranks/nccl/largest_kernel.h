#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ranks/element.h"

// A header of its own, as nvcc reads neither NCCL's nor absl's.
namespace syncopate {

// largest [count] := the largest of all [world, count] over their rows, NaN where any of them is. Device memory; queued on
// `stream`, does not block. What CUDA says of the launch.
cudaError_t QueueLargest(Element element, const void* all, int32_t world, int64_t count, void* largest,
                         cudaStream_t stream);

}  // namespace syncopate
