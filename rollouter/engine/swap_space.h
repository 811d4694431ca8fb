#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace syncopate::rollouter {

// Host memory of a rank on the CPU for keys and values of preempted sequences (rollout.host_kv_memory). It is reserved
// as a whole when it is taken, so that a host without room refuses at the start; its pages are used when they are first
// written. Initially zero. Move-only.
class SwapSpace {
 public:
  // RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY) if the host has no room.
  static absl::StatusOr<SwapSpace> Take(int64_t bytes);
  SwapSpace() = default;
  ~SwapSpace();
  SwapSpace(SwapSpace&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SwapSpace& operator=(SwapSpace&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  float* floats() const { return static_cast<float*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace syncopate::rollouter
