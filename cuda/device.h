#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::cuda {

// The number of GPUs that this process can use. 0 without a driver; never an error.
int GpuCount();

// OK if `device` exists, can run our kernels and can map memory at fixed addresses, else FAILED_PRECONDITION reason
// NO_GPU saying what is missing.
absl::Status CheckGpu(int device);

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" of `device`. Makes no context on it. The device's error.
absl::StatusOr<std::string> ReadGpuUuid(int device);

// The facts about a member's GPU that it sends to the others, for the choice of a transport.
struct GpuFacts {
  std::string host;                    // identifies this boot of this machine: boot id and host name
  std::string gpu_uuid;                // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
  std::vector<std::string> peer_gpus;  // uuids of the other GPUs whose memory this GPU reaches
  bool nvlink = false;                 // there are peer_gpus, and this GPU reaches all of them over NVLink
};
// Reads the facts about `device`. FAILED_PRECONDITION reason NO_GPU as CheckGpu.
absl::StatusOr<GpuFacts> ReadGpuFacts(int device);

// OK if the two GPUs of this process reach each other's memory, else FAILED_PRECONDITION reason NO_PEER_ACCESS naming
// both.
absl::Status CheckPeerAccess(int device, int peer);

// Free and total bytes of a GPU.
struct GpuMemory {
  int64_t free = 0;
  int64_t total = 0;
};
absl::StatusOr<GpuMemory> ReadGpuMemory(int device);

// Makes `device` the calling thread's current device for a scope. At its end the former device is restored if this
// process has a context on it: selecting a device without one would create it.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = -1;
};

}  // namespace syncopate::cuda
