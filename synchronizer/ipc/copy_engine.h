#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "synchronizer/ipc/exported_memory.h"

// What the transport "ipc" needs of a device. The one for GPUs is cuda_copy_engine.h; tests have one for host memory.
namespace syncopate::synchronizer::ipc {

// Another process's memory, readable here while the object lives, whatever becomes of that process.
class MappedMemory {
 public:
  virtual ~MappedMemory() = default;
  virtual const char* data() const = 0;
};

// Copies that run one after another beside the host. One thread at a time.
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;  // nothing may be under way
  virtual absl::Status Copy(char* to, const char* from, int64_t bytes) = 0;
  // How many of the copies since the queue was made have finished.
  virtual absl::StatusOr<int64_t> Finished() = 0;
  // What Arrived is given: the CUDA stream; null if Copy returns only when the bytes are there.
  virtual void* stream() = 0;
  // Blocks until no copy is under way. INTERNAL reason COPY_STUCK if that takes longer than `deadline`.
  virtual absl::Status Drain(absl::Duration deadline) = 0;
};

// Thread-safe.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;
  // FAILED_PRECONDITION reason NO_PEER_ACCESS if the device that copies cannot reach the one that holds the memory.
  virtual absl::StatusOr<std::shared_ptr<const MappedMemory>> Map(LentMemory memory) = 0;
  virtual absl::StatusOr<std::unique_ptr<CopyQueue>> NewQueue() = 0;
};

}  // namespace syncopate::synchronizer::ipc
