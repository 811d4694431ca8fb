#pragma once

#include <cstdint>
#include <string>

// What the allocator of a device says of this process. No libtorch here.
namespace syncopate::trainer {

struct DeviceMemory {
  int64_t allocated_bytes = 0;  // handed out
  int64_t reserved_bytes = 0;   // taken from the device, handed out or not
};

// `device`: "cuda:1", of libtorch's allocator, all 0 before it has given anything; or "cpu", of the C library's, which
// gives what the whole process has on its heap. Takes the allocators' locks: not for every step.
DeviceMemory ReadDeviceMemory(const std::string& device);

}  // namespace syncopate::trainer
