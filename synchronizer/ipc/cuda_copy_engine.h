#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "synchronizer/ipc/copy_engine.h"

namespace syncopate::synchronizer::ipc {

// Copies from the memory of other GPUs of this host with the copy engines of one GPU: decode kernels that run at the
// same time lose memory bandwidth, but no multiprocessor. Thread-safe.
class CudaCopyEngine final : public CopyEngine {
 public:
  // FAILED_PRECONDITION reason NO_GPU.
  static absl::StatusOr<std::unique_ptr<CudaCopyEngine>> Create(int device);

  absl::StatusOr<std::shared_ptr<const MappedMemory>> Map(LentMemory memory) override;
  absl::StatusOr<std::unique_ptr<CopyQueue>> NewQueue() override;

 private:
  CudaCopyEngine(int device, std::map<std::string, int> devices) : device_(device), devices_(std::move(devices)) {}

  const int device_;
  const std::map<std::string, int> devices_;  // devices that this process sees, by UUID
};

}  // namespace syncopate::synchronizer::ipc
