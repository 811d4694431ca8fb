#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

// Owners of the CUDA runtime's objects. All are move-only; destructors never fail. Freeing a buffer blocks until its
// device has finished all work, as CUDA requires; nothing else here blocks, except where it says so.
namespace syncopate::cuda {

// A stream of one device that does not synchronise with the legacy default stream.
class Stream {
 public:
  // kLow: blocks of kNormal streams' kernels start first. kLow is CUDA's lowest priority, which streams without a
  // priority (the default stream, libtorch's) have too.
  enum class Priority { kNormal, kLow };

  static absl::StatusOr<Stream> Create(int device, Priority priority = Priority::kNormal);
  Stream() = default;
  ~Stream();
  Stream(Stream&& other) noexcept : device_(other.device_), stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept;

  cudaStream_t get() const { return stream_; }
  int device() const { return device_; }

 private:
  Stream(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
};

// A point in a stream's order.
class Event {
 public:
  enum class Timing { kOff, kOn };

  static absl::StatusOr<Event> Create(int device, Timing timing = Timing::kOff);
  Event() = default;
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept;

  cudaEvent_t get() const { return event_; }
  absl::Status Record(cudaStream_t stream) const;
  // Blocks until the event has happened, for at most `deadline`: DEADLINE_EXCEEDED reason DEADLINE with `what` in its
  // message. An event that was never recorded counts as happened. Polls without a pause for `eagerly`, as most of these
  // waits end within a millisecond, and then every 50 us.
  absl::Status Wait(absl::Duration deadline, const std::string& what,
                    absl::Duration eagerly = absl::Milliseconds(2)) const;
  // Seconds between two events with timing that have both happened.
  static absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end);

 private:
  explicit Event(cudaEvent_t event) : event_(event) {}
  cudaEvent_t event_ = nullptr;
};

// Work that is queued on `stream` from now on waits for the work that is on `earlier` now. `event` is recorded for it.
// Does not block.
absl::Status OrderAfter(cudaStream_t stream, cudaStream_t earlier, const Event& event);

// Uninitialised device memory for small tables (not for weights: see CudaArena).
class DeviceBuffer {
 public:
  // Allocates `bytes`. OUT_OF_GPU_MEMORY with the numbers; `what` names the buffer.
  static absl::StatusOr<DeviceBuffer> Create(int device, int64_t bytes, const std::string& what);
  DeviceBuffer() = default;
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  int device_ = 0;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Page-locked host memory, which asynchronous copies to and from devices need; initially zero.
class PinnedBuffer {
 public:
  static absl::StatusOr<PinnedBuffer> Create(int64_t bytes);
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace syncopate::cuda
