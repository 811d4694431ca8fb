#pragma once

#include <cstdint>

namespace syncopate {

// Type of the numbers that ranks combine. In its own header because kernels (ranks/nccl/largest_kernel.cu) include it,
// and nvcc cannot compile absl.
enum class Element : uint8_t { kFloat32 = 1, kFloat64 = 2, kBFloat16 = 3 };

}  // namespace syncopate
