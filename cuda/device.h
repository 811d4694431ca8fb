#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::cuda {

// GPUs that this process can use. 0 without a driver; never an error.
int GpuCount();

// OK if `device` is there and can map memory at fixed addresses, else FAILED_PRECONDITION reason NO_GPU saying what is
// missing.
absl::Status CheckGpu(int device);

// What a member tells the others about its GPU, so that a transport can be chosen by fact.
struct GpuFacts {
  std::string host;                    // of this boot of this machine: boot id and host name
  std::string gpu_uuid;                // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
  std::vector<std::string> peer_gpus;  // uuids whose memory this GPU reaches, itself left out
  bool nvlink = false;                 // all of peer_gpus over NVLink, and there is at least one
};
// FAILED_PRECONDITION reason NO_GPU as CheckGpu.
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

}  // namespace syncopate::cuda
