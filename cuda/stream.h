#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

// Owners of the runtime's objects. All move-only; destructors never fail. Freeing a buffer waits for the work of its
// device, as CUDA wants it; nothing else here waits, except where it says so.
namespace syncopate::cuda {

// A stream of one device that does not synchronise with the legacy default stream.
class Stream {
 public:
  // kLow: blocks of kNormal streams' kernels start first. CUDA has nothing below the priority of streams that are made
  // without one (the default stream, libtorch's), and kLow is that one.
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
  // Blocks until the event has happened, at most for `deadline`: DEADLINE_EXCEEDED reason DEADLINE, `what` in its
  // message. An event that was never recorded has happened. Asks all the time at first, as most of these waits end
  // within a millisecond, and every 50 us after `eagerly`.
  absl::Status Wait(absl::Duration deadline, const std::string& what,
                    absl::Duration eagerly = absl::Milliseconds(2)) const;
  // Seconds between two events with timing that have both happened.
  static absl::StatusOr<double> SecondsBetween(const Event& begin, const Event& end);

 private:
  explicit Event(cudaEvent_t event) : event_(event) {}
  cudaEvent_t event_ = nullptr;
};

// Work that comes on `stream` from now on waits for what is on `earlier` now. Does not block.
absl::Status OrderAfter(cudaStream_t stream, cudaStream_t earlier, const Event& event);

// Small tables on a device (not for weights: see CudaArena), uninitialised.
class DeviceBuffer {
 public:
  // OUT_OF_GPU_MEMORY with the numbers; `what` names the buffer.
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

// Page-locked host memory, which copies to and from devices need to run beside the host; zero at first.
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
