#include "synchronizer/ipc/cuda_lending.h"

#include <utility>

#include "base/status.h"
#include "cuda/device.h"

namespace syncopate::synchronizer {
namespace {

class LentSlot final : public LentVersion {
 public:
  LentSlot(std::unique_ptr<DeviceReader> reader, SharedMemory memory)
      : reader_(std::move(reader)), memory_(std::move(memory)) {}
  SharedMemory memory() const override { return memory_; }

 private:
  const std::unique_ptr<DeviceReader> reader_;
  const SharedMemory memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaLendingStore>> CudaLendingStore::Create(CudaSendArena* arena) {
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::GpuFacts facts, cuda::ReadGpuFacts(arena->device()));
  return std::unique_ptr<CudaLendingStore>(new CudaLendingStore(arena, facts.gpu_uuid));
}

absl::StatusOr<std::unique_ptr<LentVersion>> CudaLendingStore::Lend(PolicyVersion version,
                                                                    std::function<void()> on_superseded) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceReader> reader,
                             arena_->OpenOnDevice(version, std::move(on_superseded)));
  SharedMemory memory = std::make_shared<LentMemory>();  // empty if the rank sends nothing: no peer asks for it
  if (arena_->send_bytes() > 0) {
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::ExportedMemory exported, reader->arena().Export());
    memory = LendGpuMemory(std::move(exported), gpu_);
  }
  return std::make_unique<LentSlot>(std::move(reader), std::move(memory));
}

SharedMemory LendGpuMemory(cuda::ExportedMemory memory, const std::string& gpu) {
  auto lent = std::make_shared<LentMemory>();
  lent->info = {memory.id, gpu, std::move(memory.chunks)};
  lent->handles = std::move(memory.fds);
  return lent;
}

}  // namespace syncopate::synchronizer
