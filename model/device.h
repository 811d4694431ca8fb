#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

// Where a daemon computes, without libtorch's headers.
namespace syncopate::model {

// The hardware that one process can compute on.
struct Hardware {
  bool built_with_cuda = false;  // the CUDA part of libtorch is linked in
  int gpus = 0;                  // number of GPUs that the driver lets this process use
};

// Asks the driver; needs no GPU.
Hardware ProbeHardware();

struct DeviceRequest {
  std::string key;     // the configuration key of the request, for messages: "train.device"
  std::string wanted;  // "auto", "cpu", "cuda" or "cuda:N"
  // These choose the GPU for "auto" and for "cuda" without a number. `together`: GPUs that as many consecutive members
  // need at the same time. If at least that many remain after the first `reserved` GPUs, those are left to other
  // processes. Members 0, 1, ... take the remaining GPUs in turn.
  int reserved = 0;
  int together = 1;
  int64_t member = 0;
};

// Returns "cpu" or "cuda:N". "auto" is a GPU if there is one. Pure. INVALID_ARGUMENT (reason BAD_DEVICE) if `wanted` is
// another word; FAILED_PRECONDITION naming the key, what is missing and the remedy:
//   NO_CUDA   this build has no CUDA
//   NO_GPU    the driver gives this process no GPU, or none with that number
absl::StatusOr<std::string> ChooseDevice(const DeviceRequest& request, const Hardware& hardware);

// True for "cuda" and "cuda:N".
bool IsCuda(const std::string& device);

struct MemoryUse {
  int64_t allocated_bytes = 0;  // in use
  int64_t reserved_bytes = 0;   // owned by the allocator, in use or not
  int64_t peak_bytes = 0;       // most in use at once since the start or ResetMemoryPeak(); 0: unknown
};

// The numbers of the tensor allocator of `device` ("cpu" or "cuda:N"): libtorch's caching allocator on a GPU; on the
// CPU the C library's, which serves the whole process (0 if another malloc replaces it).
MemoryUse ReadMemoryUse(const std::string& device);
// Sets the peak to the bytes in use now. GPUs only.
void ResetMemoryPeak(const std::string& device);
// From now on tensors in host memory are allocated as plain blocks and aligned inside them, so that a freed block is
// reused for the next tensor of its size. libtorch asks for aligned blocks, for which glibc searches more bytes than it
// returns: a freed block is too small for the next tensor of the same size, and stays unused while a later block is in
// use. The process would grow by tens of kilobytes in each small step. Call it once, in main, before any tensor.
void ReuseFreedTensors();
// Makes the allocator of `device` return its unused memory to the GPU, or to the kernel. On a GPU it waits for its
// work.
void EmptyAllocator(const std::string& device);

}  // namespace syncopate::model
