#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

// Where a daemon computes, without libtorch's headers.
namespace syncopate::model {

// What one process can compute on.
struct Hardware {
  bool built_with_cuda = false;  // libtorch's CUDA half is linked in
  int gpus = 0;                  // that the driver lets this process use
};

// Looks at the driver; needs no GPU.
Hardware ProbeHardware();

struct DeviceRequest {
  std::string key;     // the configuration key that asks, for messages: "train.device"
  std::string wanted;  // "auto", "cpu", "cuda" or "cuda:N"
  // Which GPU a "cuda" without a number is: the first `reserved` GPUs are left to others if `together` are left then,
  // which so many members in a row need beside each other; and members numbered 0, 1, .. take the rest in turn.
  int reserved = 0;
  int together = 1;
  int64_t member = 0;
};

// "cpu" or "cuda:N". "auto" is a GPU if there is one. Pure. INVALID_ARGUMENT (reason BAD_DEVICE) for any other word;
// FAILED_PRECONDITION, each naming the key, what is missing and the remedy:
//   NO_CUDA   this build has no CUDA
//   NO_GPU    the driver gives this process no GPU, or none of that number
absl::StatusOr<std::string> ChooseDevice(const DeviceRequest& request, const Hardware& hardware);

// True for "cuda" and "cuda:N".
bool IsCuda(const std::string& device);

struct MemoryUse {
  int64_t allocated_bytes = 0;  // in use
  int64_t reserved_bytes = 0;   // held, in use or not
  int64_t peak_bytes = 0;       // most that was in use at once, since the start or ResetMemoryPeak(); 0: nobody knows
};

// What the allocator of tensors on `device` ("cpu" or "cuda:N") says: libtorch's caching allocator on a GPU; on the
// CPU the C library's, which serves the whole process (0 where another malloc stands in for it).
MemoryUse ReadMemoryUse(const std::string& device);
// The most that was in use is what is in use now. Of GPUs.
void ResetMemoryPeak(const std::string& device);
// From now on tensors in host memory are taken as plain blocks and aligned in them, so that a freed one is taken again for
// the next of its size. libtorch asks for aligned blocks, for which glibc looks for more than they take in the end: a freed
// one is too small for the next of the same size, and with anything that lives behind it, it is never used again. The
// process grows by tens of kilobytes with each small step. Once, in main, before any tensor.
void ReuseFreedTensors();
// The same allocator gives what it holds unused back: to the GPU, or to the kernel. On a GPU it waits for its work.
void EmptyAllocator(const std::string& device);

}  // namespace syncopate::model
