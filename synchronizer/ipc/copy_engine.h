#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "synchronizer/lent_memory.h"

// The device functions that the transport "ipc" needs. cuda_copy_engine.h implements them for GPUs, tests for host
// memory.
namespace syncopate::synchronizer::ipc {

// Another process's memory, readable here while this object exists, even after that process has ended.
class MappedMemory {
 public:
  virtual ~MappedMemory() = default;
  virtual const char* data() const = 0;
};

// Copies that run in order, asynchronously to the host. One thread at a time.
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;  // requires that no copy is under way
  virtual absl::Status Copy(char* to, const char* from, int64_t bytes) = 0;
  // The number of finished copies since the queue was made.
  virtual absl::StatusOr<int64_t> Finished() = 0;
  // The stream to pass to Arrived: the CUDA stream; null if Copy returns only when the bytes have arrived.
  virtual void* stream() = 0;
  // Blocks until no copy is under way. INTERNAL reason COPY_STUCK if that takes longer than `deadline`.
  virtual absl::Status Drain(absl::Duration deadline) = 0;
};

// Thread-safe.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;
  // FAILED_PRECONDITION reason NO_PEER_ACCESS if the copying device cannot access the memory's device.
  virtual absl::StatusOr<std::shared_ptr<const MappedMemory>> Map(LentMemory memory) = 0;
  virtual absl::StatusOr<std::unique_ptr<CopyQueue>> NewQueue() = 0;
};

}  // namespace syncopate::synchronizer::ipc
