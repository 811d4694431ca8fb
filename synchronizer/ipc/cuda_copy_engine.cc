#include "synchronizer/ipc/cuda_copy_engine.h"

#include <cuda_runtime_api.h>

#include <deque>
#include <utility>
#include <vector>

#include "base/reasons.h"
#include "base/status.h"
#include "cuda/cuda_arena.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/stream.h"

namespace syncopate::synchronizer::ipc {
namespace {

class MappedArena final : public MappedMemory {
 public:
  explicit MappedArena(std::unique_ptr<cuda::CudaArena> arena) : arena_(std::move(arena)) {}
  const char* data() const override { return arena_->data(); }

 private:
  const std::unique_ptr<cuda::CudaArena> arena_;
};

class CudaCopyQueue final : public CopyQueue {
 public:
  CudaCopyQueue(int device, cuda::Stream stream) : device_(device), stream_(std::move(stream)) {}

  absl::Status Copy(char* to, const char* from, int64_t bytes) override {
    cuda::DeviceScope scope(device_);
    SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_.get()), "copying weights"));
    if (spare_.empty()) {
      SYNCOPATE_ASSIGN_OR_RETURN(cuda::Event event, cuda::Event::Create(device_));
      spare_.push_back(std::move(event));
    }
    SYNCOPATE_RETURN_IF_ERROR(spare_.back().Record(stream_.get()));
    under_way_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Finished() override {
    while (!under_way_.empty()) {
      cudaError_t state = cudaEventQuery(under_way_.front().get());
      if (state == cudaErrorNotReady) {
        cudaGetLastError();  // clears the state, which is no error, before the next call reads it
        break;
      }
      SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(state, "copying weights"));
      Retire();
    }
    return finished_;
  }

  void* stream() override { return stream_.get(); }

  absl::Status Drain(absl::Duration deadline) override {
    if (under_way_.empty()) return absl::OkStatus();
    absl::Status drained = under_way_.back().Wait(deadline, "the copies under way");
    if (!drained.ok()) {
      return Error(
          absl::StatusCode::kInternal, reason::kCopyStuck,
          "copies into the destination cannot be waited for, restart this process: " + std::string(drained.message()));
    }
    while (!under_way_.empty()) Retire();
    return absl::OkStatus();
  }

 private:
  void Retire() {
    spare_.push_back(std::move(under_way_.front()));
    under_way_.pop_front();
    ++finished_;
  }

  const int device_;
  const cuda::Stream stream_;
  std::deque<cuda::Event> under_way_;  // one event after each copy
  std::vector<cuda::Event> spare_;
  int64_t finished_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaCopyEngine>> CudaCopyEngine::Create(int device) {
  SYNCOPATE_RETURN_IF_ERROR(cuda::CheckGpu(device));
  std::map<std::string, int> devices;
  for (int other = 0; other < cuda::GpuCount(); ++other) {
    absl::StatusOr<cuda::GpuFacts> facts = cuda::ReadGpuFacts(other);
    if (facts.ok()) devices[facts->gpu_uuid] = other;
  }
  return std::unique_ptr<CudaCopyEngine>(new CudaCopyEngine(device, std::move(devices)));
}

absl::StatusOr<std::shared_ptr<const MappedMemory>> CudaCopyEngine::Map(LentMemory memory) {
  // A GPU that this process does not see may still be accessible: the driver decides.
  auto holder = devices_.find(memory.info.device);
  if (holder != devices_.end() && holder->second != device_) {
    SYNCOPATE_RETURN_IF_ERROR(cuda::CheckPeerAccess(device_, holder->second));
  }
  cuda::ExportedMemory exported;
  exported.id = memory.info.id;
  exported.chunks = std::move(memory.info.chunks);
  exported.fds = std::move(memory.handles);
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaArena> arena, cuda::CudaArena::Import(exported, device_));
  return std::make_shared<const MappedArena>(std::move(arena));
}

absl::StatusOr<std::unique_ptr<CopyQueue>> CudaCopyEngine::NewQueue() {
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::Create(device_));
  return std::unique_ptr<CopyQueue>(new CudaCopyQueue(device_, std::move(stream)));
}

}  // namespace syncopate::synchronizer::ipc
