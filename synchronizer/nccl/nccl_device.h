#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "synchronizer/cuda/cuda_send_arena.h"
#include "synchronizer/nccl/communicator.h"
#include "synchronizer/nccl/group_worker.h"
#include "synchronizer/nccl/nccl_receiver.h"
#include "synchronizer/nccl/nccl_source.h"
#include "synchronizer/nccl/staged_memory.h"

// The real NCCL and GPU behind the interfaces of communicator.h.
namespace syncopate::synchronizer {

// FAILED_PRECONDITION reason NO_GPU.
absl::StatusOr<NcclFacts> ReadNcclFacts(int device);

struct NcclDeviceOptions {
  int device = 0;
  int max_ctas = 0;  // multiprocessors that one message may use; 0: NCCL's choice. Fewer than 16 halve the rate
};

// For GroupWorker: creates the stream, the mark and the scratch memory on the worker's thread.
nccl::GroupWorker::DeviceFactory NcclDevices(const NcclDeviceOptions& options);

// Pins the slots of a send arena for NcclSource. Thread-safe.
class CudaStagedMemory final : public StagedMemory {
 public:
  explicit CudaStagedMemory(CudaSendArena* arena) : arena_(arena) {}  // borrows `arena`
  absl::StatusOr<std::unique_ptr<StagedVersion>> Pin(PolicyVersion version,
                                                     std::function<void()> on_superseded) override;

 private:
  CudaSendArena* const arena_;
};

}  // namespace syncopate::synchronizer
