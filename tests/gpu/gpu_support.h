#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"

namespace syncopate::synchronizer {

// Skips the test, saying why, unless `needed` GPUs of the kind the kernels are built for are here.
#define SYNCOPATE_NEED_GPUS(needed)                                                                           \
  do {                                                                                                        \
    const std::string syncopate_reason_ = ::syncopate::synchronizer::WhyTooFewGpus(needed);                   \
    if (!syncopate_reason_.empty()) GTEST_SKIP() << "needs " << (needed) << " GPU(s): " << syncopate_reason_; \
  } while (false)

// Empty if there are enough GPUs.
inline std::string WhyTooFewGpus(int needed) {
  for (int device = 0; device < needed; ++device) {
    absl::Status status = cuda::CheckGpu(device);
    if (!status.ok()) return std::string(status.message());
  }
  return "";
}

// Plain copies between host and device, for tests; they wait for all work of the device.
inline void ToDevice(int device, char* to, const void* from, int64_t bytes) {
  cuda::DeviceScope scope(device);
  ASSERT_EQ(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice), cudaSuccess);
  // A copy from pageable memory returns when the bytes are staged: `to` may be unmapped only when they have arrived.
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

inline std::vector<char> ToHost(int device, const char* from, int64_t bytes) {
  cuda::DeviceScope scope(device);
  std::vector<char> host(static_cast<size_t>(bytes));
  EXPECT_EQ(cudaMemcpy(host.data(), from, host.size(), cudaMemcpyDeviceToHost), cudaSuccess);
  return host;
}

}  // namespace syncopate::synchronizer
