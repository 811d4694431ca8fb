#include "cuda/cuda_status.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "cuda/device.h"
#include "cuda/driver.h"

namespace syncopate::cuda {
namespace {

absl::Status NoGpu(const std::string& what, const char* words) {
  return Error(absl::StatusCode::kFailedPrecondition, "NO_GPU",
               absl::StrFormat("%s: %s; a GPU and a driver for CUDA %d.%d are needed", what, words,
                               CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
}

absl::Status NoPeerAccess(const std::string& what, const char* words) {
  return Error(absl::StatusCode::kFailedPrecondition, "NO_PEER_ACCESS", absl::StrCat(what, ": ", words));
}

absl::Status OutOfMemory(const std::string& what) {
  return Error(absl::StatusCode::kResourceExhausted, "OUT_OF_GPU_MEMORY",
               absl::StrCat(what, ": the GPU's memory is used up"));
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, const std::string& what) {
  // CUDA keeps the error as the thread's last error too; clears it, so that a later check does not report it again.
  if (error != cudaSuccess) cudaGetLastError();
  switch (error) {
    case cudaSuccess:
      return absl::OkStatus();
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorDevicesUnavailable:
      return NoGpu(what, cudaGetErrorString(error));
    case cudaErrorMemoryAllocation:
      return OutOfMemory(what);
    case cudaErrorPeerAccessUnsupported:
      return NoPeerAccess(what, cudaGetErrorString(error));
    default:
      return Error(absl::StatusCode::kInternal, "CUDA_ERROR",
                   absl::StrCat(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")"),
                   {{"cuda_error", cudaGetErrorName(error)}});
  }
}

absl::Status DriverStatus(CUresult error, const std::string& what) {
  switch (error) {
    case CUDA_SUCCESS:
      return absl::OkStatus();
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_NOT_INITIALIZED:  // the driver's library was found, but its cuInit() failed
      return NoGpu(what, "no CUDA device");
    case CUDA_ERROR_OUT_OF_MEMORY:
      return OutOfMemory(what);
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
      return NoPeerAccess(what, "the GPUs cannot reach each other's memory");
    default:
      break;
  }
  const char* words = nullptr;
  absl::StatusOr<const Driver*> driver = Driver::Load();
  if (driver.ok() && (*driver)->get_error_string(error, &words) != CUDA_SUCCESS) words = nullptr;
  std::string code = absl::StrCat(static_cast<int>(error));
  return Error(absl::StatusCode::kInternal, "CUDA_ERROR",
               absl::StrCat(what, ": ", words == nullptr ? "unknown error" : words, " (driver error ", code, ")"),
               {{"cuda_error", code}});
}

absl::Status OutOfGpuMemory(int device, int64_t bytes, const std::string& what) {
  constexpr double kGigabyte = 1e9;
  absl::StatusOr<GpuMemory> memory = ReadGpuMemory(device);
  if (!memory.ok()) return OutOfMemory(absl::StrFormat("%s of %.2f GB on GPU %d", what, bytes / kGigabyte, device));
  return Error(
      absl::StatusCode::kResourceExhausted, "OUT_OF_GPU_MEMORY",
      absl::StrFormat("%s needs %.2f GB of GPU %d, of whose %.2f GB only %.2f GB are free; leave more of it free", what,
                      bytes / kGigabyte, device, memory->total / kGigabyte, memory->free / kGigabyte),
      {{"needed", absl::StrCat(bytes)},
       {"free", absl::StrCat(memory->free)},
       {"total", absl::StrCat(memory->total)},
       {"device", absl::StrCat(device)}});
}

}  // namespace syncopate::cuda
