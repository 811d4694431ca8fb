#include "trainer/cuda/cuda_state_arena.h"

#include <cuda_runtime_api.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/releasable_arena.h"
#include "cuda/stream.h"

namespace syncopate::trainer {
namespace {

// Copies run at tens of gigabytes a second, and what they wait for takes seconds: longer is a GPU that does not answer.
constexpr absl::Duration kCopyDeadline = absl::Minutes(2);

class CudaStateArena final : public StateArena {
 public:
  CudaStateArena(int device, std::unique_ptr<cuda::ReleasableArena> memory, cuda::Event done, int64_t bytes, Kind kind,
                 std::string what)
      : StateArena(bytes, kind),
        device_(device),
        memory_(std::move(memory)),
        done_(std::move(done)),
        what_(std::move(what)) {}

  char* data() const override { return memory_->data(); }

 private:
  absl::Status CopyToHost() override {
    if (kept_.bytes() == 0) {
      SYNCOPATE_ASSIGN_OR_RETURN(kept_, cuda::PinnedBuffer::Create(bytes()));
    }
    return CopyTo(kept_.data());
  }
  absl::Status CopyFromHost() override { return Move(memory_->data(), kept_.data(), cudaMemcpyHostToDevice); }
  absl::StatusOr<std::shared_ptr<char>> TakeHostMemory() const override {
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::PinnedBuffer taken, cuda::PinnedBuffer::Create(bytes()));
    auto buffer = std::make_shared<cuda::PinnedBuffer>(std::move(taken));
    return std::shared_ptr<char>(buffer, buffer->data());
  }
  absl::Status CopyTo(char* host) override { return Move(host, memory_->data(), cudaMemcpyDeviceToHost); }
  absl::Status Release() override {
    SYNCOPATE_RETURN_IF_ERROR(Finish());
    return memory_->Release();
  }
  absl::Status Restore() override { return memory_->Restore(); }

  absl::Status Move(char* to, const char* from, cudaMemcpyKind kind) {
    const cuda::DeviceScope scope(device_);
    SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes()), kind, /*stream=*/nullptr), "moving " + what_));
    return Finish();
  }
  // Waits for the default stream.
  absl::Status Finish() {
    const cuda::DeviceScope scope(device_);
    SYNCOPATE_RETURN_IF_ERROR(done_.Record(/*stream=*/nullptr));
    return done_.Wait(kCopyDeadline, "moving " + what_);
  }

  const int device_;
  const std::unique_ptr<cuda::ReleasableArena> memory_;
  const cuda::Event done_;
  const std::string what_;
  cuda::PinnedBuffer kept_;  // once it has been offloaded
};

}  // namespace

StateArenaFactory CudaStateArenas(int device) {
  return [device](int64_t bytes, StateArena::Kind kind,
                  const std::string& what) -> absl::StatusOr<std::unique_ptr<StateArena>> {
    SYNCOPATE_ASSIGN_OR_RETURN(auto memory, cuda::ReleasableArena::Create(bytes, {.device = device, .what = what}));
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::Event done, cuda::Event::Create(device));
    return std::make_unique<CudaStateArena>(device, std::move(memory), std::move(done), bytes, kind, what);
  };
}

}  // namespace syncopate::trainer
