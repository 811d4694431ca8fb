#include "trainer/cuda/cuda_state_arena.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/log.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/releasable_arena.h"
#include "cuda/stream.h"

namespace syncopate::trainer {
namespace {

// Copies run at tens of gigabytes a second, and what they wait for takes seconds: longer is a GPU that does not answer.
constexpr absl::Duration kCopyDeadline = absl::Minutes(2);
// A copy beside a step is made in pieces: what the step itself reads back, a few figures, waits for one of them at most.
constexpr int64_t kPieceBytes = 64 << 20;

class CudaStateArena final : public StateArena {
 public:
  CudaStateArena(int device, std::unique_ptr<cuda::ReleasableArena> memory, cuda::Event done, int64_t bytes, Kind kind,
                 std::string what)
      : StateArena(bytes, kind),
        device_(device),
        memory_(std::move(memory)),
        done_(std::move(done)),
        what_(std::move(what)) {}
  ~CudaStateArena() override {
    if (copied_ == nullptr) return;
    // Memory that is read must not go.
    if (const absl::Status status = copied_->Wait(kCopyDeadline, "copying " + what_); !status.ok()) {
      SYNCOPATE_LOG(kError, "a copy is under way as its memory goes: %s", status.ToString());
    }
  }

  char* data() const override { return memory_->data(); }
  absl::Status OrderAfterCopies() override {
    if (copied_ == nullptr) return absl::OkStatus();
    const cuda::DeviceScope scope(device_);
    return cuda::CudaStatus(cudaStreamWaitEvent(/*stream=*/nullptr, copied_->get(), 0),
                            "waiting for a copy of " + what_);
  }

 private:
  absl::Status CopyToHost() override {
    if (kept_.bytes() == 0) {
      SYNCOPATE_ASSIGN_OR_RETURN(kept_, cuda::PinnedBuffer::Create(bytes()));
    }
    return Move(kept_.data(), memory_->data(), cudaMemcpyDeviceToHost);
  }
  absl::Status CopyFromHost() override { return Move(memory_->data(), kept_.data(), cudaMemcpyHostToDevice); }
  absl::StatusOr<std::shared_ptr<char>> TakeHostMemory() const override {
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::PinnedBuffer taken, cuda::PinnedBuffer::Create(bytes()));
    auto buffer = std::make_shared<cuda::PinnedBuffer>(std::move(taken));
    return std::shared_ptr<char>(buffer, buffer->data());
  }
  // On a stream of its own, so that what is queued next runs beside it.
  absl::StatusOr<HostCopyWait> BeginCopyTo(char* host) override {
    const cuda::DeviceScope scope(device_);
    if (copying_.get() == nullptr) {
      SYNCOPATE_ASSIGN_OR_RETURN(copying_, cuda::Stream::Create(device_, cuda::Stream::Priority::kLow));
    }
    SYNCOPATE_RETURN_IF_ERROR(cuda::OrderAfter(copying_.get(), /*earlier=*/nullptr, done_));
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::Event event, cuda::Event::Create(device_));
    auto copied = std::make_shared<const cuda::Event>(std::move(event));
    absl::Status queued;
    for (int64_t begin = 0; begin < bytes() && queued.ok(); begin += kPieceBytes) {
      const auto size = static_cast<size_t>(std::min(kPieceBytes, bytes() - begin));
      queued = cuda::CudaStatus(
          cudaMemcpyAsync(host + begin, memory_->data() + begin, size, cudaMemcpyDeviceToHost, copying_.get()),
          "copying " + what_);
    }
    // Also after an error: some of the pieces may be under way.
    const absl::Status recorded = copied->Record(copying_.get());
    if (recorded.ok()) copied_ = copied;
    SYNCOPATE_RETURN_IF_ERROR(queued);
    SYNCOPATE_RETURN_IF_ERROR(recorded);
    return HostCopyWait([copied, device = device_, what = "copying " + what_] {
      const cuda::DeviceScope scope(device);
      return copied->Wait(kCopyDeadline, what);
    });
  }
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
  cuda::PinnedBuffer kept_;                    // once it has been offloaded
  cuda::Stream copying_;                       // once it has been copied
  std::shared_ptr<const cuda::Event> copied_;  // of the newest copy
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
