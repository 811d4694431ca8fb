#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Tools that measure the ceilings: plain CUDA, one process, no code of the product's transports.
namespace syncopate::bench {

// OK, or INTERNAL reason CUDA_ERROR with CUDA's message.
absl::Status Cuda(cudaError_t error, const char* what);

// Device memory full of random bytes. Move-only.
class GpuBuffer {
 public:
  static absl::StatusOr<GpuBuffer> Create(int device, int64_t bytes);
  GpuBuffer(GpuBuffer&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  GpuBuffer& operator=(GpuBuffer&&) = delete;
  ~GpuBuffer();

  int device() const { return device_; }
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  GpuBuffer(int device, char* data, int64_t bytes) : device_(device), data_(data), bytes_(bytes) {}
  int device_;
  char* data_;
  int64_t bytes_;
};

class GpuStream {
 public:
  static absl::StatusOr<GpuStream> Create(int device);
  GpuStream(GpuStream&& other) noexcept : device_(other.device_), stream_(std::exchange(other.stream_, nullptr)) {}
  GpuStream& operator=(GpuStream&&) = delete;
  ~GpuStream();

  int device() const { return device_; }
  cudaStream_t get() const { return stream_; }

 private:
  GpuStream(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  int device_;
  cudaStream_t stream_;
};

// The buffers that stand for a case's processes: the memory of each source and of each receiver. Receiver r is rank r %
// (receivers / replicas) of replica r / (receivers / replicas).
struct CeilingCase {
  std::vector<int> sources;    // devices
  std::vector<int> receivers;  // devices
  int replicas = 1;
  int64_t bytes = 0;  // into each receiver

  int slices() const { return static_cast<int>(receivers.size()) / replicas; }
  // The bytes that one receiver takes from one source.
  int64_t part() const { return bytes / static_cast<int64_t>(sources.size()); }
};

// Lets every device of the case access the memory of every other one.
absl::Status EnablePeerAccess(const CeilingCase& ceiling_case);

// Median seconds from the call of `run`, which queues work on `streams`, until that work is done; after some warm-up
// runs.
absl::StatusOr<double> MedianSeconds(const std::vector<GpuStream>& streams, const std::function<absl::Status()>& run);

}  // namespace syncopate::bench
