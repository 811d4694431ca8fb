#include "cuda/stream.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/host_memory.h"
#include "base/reasons.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"

namespace syncopate::cuda {

absl::StatusOr<Stream> Stream::Create(int device, Priority priority) {
  DeviceScope scope(device);
  int least = 0;
  int greatest = 0;
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "making a stream"));
  // Numerically lower priorities are more urgent. Normal streams leave room above them for libtorch's high-priority
  // pool, on which the exchanges between ranks run.
  int middle = (least + greatest) / 2;
  cudaStream_t stream = nullptr;
  // Non-blocking: such a stream does not wait for the legacy default stream, on which libtorch computes.
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority == Priority::kLow ? least : middle),
      "making a stream"));
  return Stream(device, stream);
}

Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(stream_, other.stream_);
  return *this;
}

absl::StatusOr<Event> Event::Create(int device, Timing timing) {
  DeviceScope scope(device);
  // CUDA records and queries events faster if they take no time stamp.
  cudaEvent_t event = nullptr;
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&event, timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming),
                 "making an event"));
  return Event(event);
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

absl::Status Event::Record(cudaStream_t stream) const {
  return CudaStatus(cudaEventRecord(event_, stream), "recording an event");
}

absl::Status Event::Wait(absl::Duration deadline, const std::string& what, absl::Duration eagerly) const {
  // Polls, because CUDA's own wait has no deadline, and the work may depend on another process.
  constexpr std::chrono::microseconds kPause{50};
  const absl::Time begun = Clock::Real()->Now();
  while (true) {
    cudaError_t state = cudaEventQuery(event_);
    if (state != cudaErrorNotReady) return CudaStatus(state, what);
    cudaGetLastError();  // clears "not ready", which CUDA keeps as an error
    absl::Duration waited = Clock::Real()->Now() - begun;
    if (waited >= deadline) {
      return Error(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   absl::StrFormat("%s: the GPU had not done it after %s", what, absl::FormatDuration(deadline)));
    }
    if (waited < eagerly) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

absl::StatusOr<double> Event::SecondsBetween(const Event& begin, const Event& end) {
  float milliseconds = 0;
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(cudaEventElapsedTime(&milliseconds, begin.event_, end.event_), "reading a GPU timer"));
  return milliseconds / 1e3;
}

// The wait refers to this record of the event, so the caller may record the event again at once.
absl::Status OrderAfter(cudaStream_t stream, cudaStream_t earlier, const Event& event) {
  SYNCOPATE_RETURN_IF_ERROR(event.Record(earlier));
  return CudaStatus(cudaStreamWaitEvent(stream, event.get(), 0), "ordering two streams");
}

absl::StatusOr<DeviceBuffer> DeviceBuffer::Create(int device, int64_t bytes, const std::string& what) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  DeviceScope scope(device);
  void* data = nullptr;
  cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which CudaStatus() would have done
    return OutOfGpuMemory(device, bytes, what);
  }
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(error, what));
  buffer.device_ = device;
  buffer.data_ = static_cast<char*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  DeviceScope scope(device_);
  cudaFree(data_);
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

namespace {
constexpr char kPinning[] = "page-locking host memory";
constexpr int64_t kLargePinned = int64_t{64} << 20;
constexpr int64_t kPinnedSlice = int64_t{2} << 20;  // a huge page

// Has the operating system allocate the pages of [data, data + bytes), all zero, on several cores: one core clears only
// 2 GB a second. A page that is not allocated here is allocated when it is locked.
void MakePages(char* data, int64_t bytes) {
  const int64_t most = std::min<int64_t>(8, std::max(1u, std::thread::hardware_concurrency()));
  const int64_t share = (bytes / most + kPinnedSlice - 1) / kPinnedSlice * kPinnedSlice;
  std::vector<std::thread> threads;
  for (int64_t begin = 0; begin < bytes; begin += share) {
    threads.emplace_back([data, begin, size = std::min(share, bytes - begin)] {
      madvise(data + begin, static_cast<size_t>(size), MADV_POPULATE_WRITE);
    });
  }
  for (std::thread& thread : threads) thread.join();
}
}  // namespace

absl::StatusOr<PinnedBuffer> PinnedBuffer::Create(int64_t bytes) {
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  const size_t size = static_cast<size_t>(bytes);
  if (bytes < kLargePinned) {
    // Portable: the memory is page-locked for every GPU of the process, not only for the current one.
    void* data = nullptr;
    SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&data, size, cudaHostAllocPortable), kPinning));
    buffer.data_ = static_cast<char*>(data);
    buffer.bytes_ = bytes;
    std::fill_n(buffer.data_, bytes, 0);
    return buffer;
  }
  // Not cudaHostAlloc, which allocates, clears and locks small pages on one core: 14.5 GB of weights took 8 s.
  if (const int64_t available = ReadHostMemory().available; bytes > available) {
    return absl::ResourceExhaustedError(absl::StrFormat("%s: %d MiB are wanted, and this host has %d MiB available",
                                                        kPinning, bytes >> 20, available >> 20));
  }
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: the host has no %d MiB (%s)", kPinning, bytes >> 20, std::strerror(errno)));
  }
  // Huge pages leave 512 times fewer pages to clear and to lock. A kernel without them ignores the advice.
  madvise(data, size, MADV_HUGEPAGE);
  MakePages(static_cast<char*>(data), bytes);
  const absl::Status locked = CudaStatus(cudaHostRegister(data, size, cudaHostRegisterPortable), kPinning);
  if (!locked.ok()) {
    munmap(data, size);
    return locked;
  }
  buffer.data_ = static_cast<char*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ == nullptr) return;
  if (bytes_ < kLargePinned) {  // as Create() has chosen
    cudaFreeHost(data_);
  } else {
    cudaHostUnregister(data_);
    munmap(data_, static_cast<size_t>(bytes_));
  }
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace syncopate::cuda
