#include "trainer/cuda/cuda_state_arena.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "cuda/releasable_arena.h"
#include "cuda/stream.h"

namespace syncopate::trainer {
namespace {

// Copies run at tens of gigabytes a second, and what they wait for takes seconds: longer is a GPU that does not answer.
constexpr absl::Duration kCopyDeadline = absl::Minutes(2);
// A copy beside a step is made in pieces, of which two are queued at a time, so that nothing of the step ever has more
// than that before it. With all pieces queued before the step, the two took as long as one after the other, to the
// millisecond, though the device can do both at once: docs/performance.md.
constexpr int64_t kPieceBytes = 16 << 20;

// A copy to the host; the first thread that needs it whole makes it. Thread-safe.
class PiecewiseCopy {
 public:
  // Copies `bytes` bytes at `data`, as work that is queued before this call leaves them; they must not change until
  // Finish() has returned.
  static absl::StatusOr<std::shared_ptr<PiecewiseCopy>> Create(int device, char* host, const char* data, int64_t bytes,
                                                               std::string what) {
    std::shared_ptr<PiecewiseCopy> copy(new PiecewiseCopy(device, host, data, bytes, "copying " + std::move(what)));
    SYNCOPATE_ASSIGN_OR_RETURN(copy->stream_, cuda::Stream::Create(device, cuda::Stream::Priority::kLow));
    for (cuda::Event* event : {&copy->begun_, &copy->queued_[0], &copy->queued_[1]}) {
      SYNCOPATE_ASSIGN_OR_RETURN(*event, cuda::Event::Create(device));
    }
    SYNCOPATE_RETURN_IF_ERROR(cuda::OrderAfter(copy->stream_.get(), /*earlier=*/nullptr, copy->begun_));
    return copy;
  }

  absl::Status Finish() {
    auto is_free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return state_ != State::kUnderWay; };
    {
      MutexLock lock(&mutex_);
      // Pieces have deadlines of their own.
      mutex_.Await(Condition(&is_free));
      if (state_ == State::kDone) return status_;
      state_ = State::kUnderWay;
    }
    const absl::Status made = Make();
    MutexLock lock(&mutex_);
    state_ = State::kDone;
    return status_ = made;
  }

 private:
  enum class State : uint8_t { kBegun, kUnderWay, kDone };

  PiecewiseCopy(int device, char* host, const char* data, int64_t bytes, std::string what)
      : device_(device), host_(host), data_(data), bytes_(bytes), what_(std::move(what)) {}

  absl::Status Make() {
    const cuda::DeviceScope scope(device_);
    absl::Status status;
    int slot = 0;
    for (int64_t begin = 0; begin < bytes_ && status.ok(); begin += kPieceBytes, slot = 1 - slot) {
      // The piece before the last one; at first nothing was recorded, which is as good as done.
      status = queued_[slot].Wait(kCopyDeadline, what_, /*eagerly=*/absl::ZeroDuration());
      if (!status.ok()) break;
      const auto size = static_cast<size_t>(std::min(kPieceBytes, bytes_ - begin));
      status = cuda::CudaStatus(
          cudaMemcpyAsync(host_ + begin, data_ + begin, size, cudaMemcpyDeviceToHost, stream_.get()), what_);
      status.Update(queued_[slot].Record(stream_.get()));
    }
    // Waits also after an error, so that no copy is under way when this returns, unless the device does not answer.
    for (const cuda::Event& event : queued_) status.Update(event.Wait(kCopyDeadline, what_));
    return status;
  }

  const int device_;
  char* const host_;
  const char* const data_;
  const int64_t bytes_;
  const std::string what_;
  cuda::Stream stream_;
  cuda::Event begun_, queued_[2];
  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kBegun;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

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
    if (const absl::Status status = FinishCopies(); !status.ok()) {
      SYNCOPATE_LOG(kError, "a copy is not whole as its memory goes: %s", status.ToString());
    }
  }

  char* data() const override { return memory_->data(); }
  absl::Status FinishCopies() override {
    const std::shared_ptr<PiecewiseCopy> copy = std::exchange(copy_, nullptr);
    // A copy without another owner will not be read.
    return copy == nullptr || copy.use_count() == 1 ? absl::OkStatus() : copy->Finish();
  }

 private:
  absl::Status CopyToHost(char* host) override { return Move(host, memory_->data(), cudaMemcpyDeviceToHost); }
  absl::Status CopyFromHost(const char* host) override { return Move(memory_->data(), host, cudaMemcpyHostToDevice); }
  absl::StatusOr<std::shared_ptr<char>> TakeHostMemory() const override {
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::PinnedBuffer taken, cuda::PinnedBuffer::Create(bytes()));
    auto buffer = std::make_shared<cuda::PinnedBuffer>(std::move(taken));
    return std::shared_ptr<char>(buffer, buffer->data());
  }
  absl::StatusOr<HostCopyWork> BeginCopyTo(char* host) override {
    // The memory that it is copied to may be used again here.
    SYNCOPATE_RETURN_IF_ERROR(FinishCopies());
    const cuda::DeviceScope scope(device_);
    SYNCOPATE_ASSIGN_OR_RETURN(copy_, PiecewiseCopy::Create(device_, host, memory_->data(), bytes(), what_));
    return HostCopyWork([copy = copy_] { return copy->Finish(); });
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
  std::shared_ptr<PiecewiseCopy> copy_;  // the newest, unless it is known to be whole
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
