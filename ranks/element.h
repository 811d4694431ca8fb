#pragma once

#include <cstdint>

namespace syncopate {

// What ranks sum. A header of its own: kernels (ranks/nccl/largest_kernel.cu) include it, and nvcc reads no absl.
enum class Element : uint8_t { kFloat32 = 1, kFloat64 = 2, kBFloat16 = 3 };

}  // namespace syncopate
