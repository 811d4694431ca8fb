#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cuda/gpu_memory.h"
#include "synchronizer/cuda/cuda_send_arena.h"
#include "synchronizer/ipc/ipc_source.h"
#include "synchronizer/lent_memory.h"

namespace syncopate::synchronizer {

// Lends the slots of a send arena to other processes. Thread-safe.
class CudaLendingStore final : public LendingStore {
 public:
  // `arena` is borrowed. FAILED_PRECONDITION reason NO_GPU.
  static absl::StatusOr<std::unique_ptr<CudaLendingStore>> Create(CudaSendArena* arena);

  uint64_t fingerprint() const override { return arena_->fingerprint(); }
  absl::StatusOr<std::unique_ptr<LentVersion>> Lend(PolicyVersion version,
                                                    std::function<void()> on_superseded) override;

 private:
  CudaLendingStore(CudaSendArena* arena, std::string gpu) : arena_(arena), gpu_(std::move(gpu)) {}

  CudaSendArena* const arena_;
  const std::string gpu_;
};

// Wraps memory of the GPU with this UUID for lending by the transport "ipc". For IpcReceiver::Options::shadow, `memory`
// is the result of CudaArenaPair::ExportShadow.
SharedMemory LendGpuMemory(cuda::ExportedMemory memory, const std::string& gpu);

}  // namespace syncopate::synchronizer
