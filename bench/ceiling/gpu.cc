#include "bench/ceiling/gpu.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/measure/figures.h"

namespace syncopate::bench {
namespace {

constexpr int kWarmup = 2;
constexpr int kRepetitions = 7;
constexpr int64_t kRandomBytes = int64_t{16} << 20;  // made on the host, then doubled on the device

// Not zeros: zeros can move faster than weights do.
const std::vector<char>& RandomBytes() {
  static const auto* const bytes = [] {
    auto* made = new std::vector<char>(kRandomBytes);
    std::mt19937_64 random(20);
    for (size_t i = 0; i + 8 <= made->size(); i += 8) {
      const uint64_t word = random();
      std::copy_n(reinterpret_cast<const char*>(&word), 8, made->data() + i);
    }
    return made;
  }();
  return *bytes;
}

absl::Status FillRandomly(char* data, int64_t bytes) {
  int64_t filled = std::min(bytes, kRandomBytes);
  SYNCOPATE_RETURN_IF_ERROR(
      Cuda(cudaMemcpy(data, RandomBytes().data(), filled, cudaMemcpyHostToDevice), "filling a buffer"));
  for (int64_t more; filled < bytes; filled += more) {
    more = std::min(filled, bytes - filled);
    SYNCOPATE_RETURN_IF_ERROR(
        Cuda(cudaMemcpy(data + filled, data, more, cudaMemcpyDeviceToDevice), "filling a buffer"));
  }
  return Cuda(cudaDeviceSynchronize(), "filling a buffer");
}

}  // namespace

absl::Status Cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return Error(absl::StatusCode::kInternal, "CUDA_ERROR", absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

absl::StatusOr<GpuBuffer> GpuBuffer::Create(int device, int64_t bytes) {
  SYNCOPATE_RETURN_IF_ERROR(Cuda(cudaSetDevice(device), "choosing a device"));
  void* data = nullptr;
  SYNCOPATE_RETURN_IF_ERROR(Cuda(cudaMalloc(&data, bytes), "allocating a buffer"));
  GpuBuffer buffer(device, static_cast<char*>(data), bytes);
  SYNCOPATE_RETURN_IF_ERROR(FillRandomly(buffer.data(), bytes));
  return buffer;
}

GpuBuffer::~GpuBuffer() {
  if (data_ == nullptr) return;
  cudaSetDevice(device_);
  cudaFree(data_);
}

absl::StatusOr<GpuStream> GpuStream::Create(int device) {
  SYNCOPATE_RETURN_IF_ERROR(Cuda(cudaSetDevice(device), "choosing a device"));
  cudaStream_t stream = nullptr;
  SYNCOPATE_RETURN_IF_ERROR(Cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream"));
  return GpuStream(device, stream);
}

GpuStream::~GpuStream() {
  if (stream_ == nullptr) return;
  cudaSetDevice(device_);
  cudaStreamDestroy(stream_);
}

absl::Status EnablePeerAccess(const CeilingCase& ceiling_case) {
  std::set<int> devices(ceiling_case.sources.begin(), ceiling_case.sources.end());
  devices.insert(ceiling_case.receivers.begin(), ceiling_case.receivers.end());
  for (int device : devices) {
    SYNCOPATE_RETURN_IF_ERROR(Cuda(cudaSetDevice(device), "choosing a device"));
    for (int peer : devices) {
      if (peer == device) continue;
      const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
        continue;
      }
      SYNCOPATE_RETURN_IF_ERROR(Cuda(error, "peer access"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> MedianSeconds(const std::vector<GpuStream>& streams, const std::function<absl::Status()>& run) {
  std::vector<double> seconds;
  for (int i = 0; i < kWarmup + kRepetitions; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    SYNCOPATE_RETURN_IF_ERROR(run());
    for (const GpuStream& stream : streams) {
      SYNCOPATE_RETURN_IF_ERROR(Cuda(cudaSetDevice(stream.device()), "choosing a device"));
      SYNCOPATE_RETURN_IF_ERROR(Cuda(cudaStreamSynchronize(stream.get()), "waiting for a stream"));
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (i >= kWarmup) seconds.push_back(taken.count());
  }
  return Median(std::move(seconds));
}

}  // namespace syncopate::bench
