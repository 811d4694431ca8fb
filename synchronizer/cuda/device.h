#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// GPUs that this process can use. 0 without a driver; never an error.
int GpuCount();

// OK if `device` is there and can map memory at fixed addresses, else FAILED_PRECONDITION reason NO_GPU saying what is
// missing.
absl::Status CheckGpu(int device);

// What this process sees of its machine and of `device`; nccl_version is left empty, for who links NCCL.
// FAILED_PRECONDITION reason NO_GPU as CheckGpu.
absl::StatusOr<DeviceFacts> ReadDeviceFacts(int device);

// OK if the two GPUs of this process reach each other's memory, else FAILED_PRECONDITION reason NO_PEER_ACCESS naming
// both.
absl::Status CheckPeerAccess(int device, int peer);

// Free and total bytes of a GPU.
struct GpuMemory {
  int64_t free = 0;
  int64_t total = 0;
};
absl::StatusOr<GpuMemory> ReadGpuMemory(int device);

// Makes `device` the calling thread's current one for a scope, and the former one again at its end if that has a
// context; a device that the process does not use is left alone.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = -1;
};

}  // namespace syncopate::synchronizer
