#include "cuda/device.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/driver.h"

namespace syncopate::cuda {
namespace {

constexpr int kComputeCapability = 9;  // major number that the kernels are built for

std::string UuidText(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    absl::StrAppendFormat(&text, "%s%02x", dash ? "-" : "", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? std::string(name) : std::string("unknown");
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace

int GpuCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // clears the error, so that no later check reports it
  return 0;
}

absl::Status CheckGpu(int device) {
  int count = 0;
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "looking for GPUs"));
  if (device < 0 || device >= count) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_GPU",
                 absl::StrFormat("there is no GPU %d: this process sees %d", device, count));
  }
  int major = 0;
  SYNCOPATE_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "reading the GPU's type"));
  SYNCOPATE_ASSIGN_OR_RETURN(const Driver* driver, Driver::Load());
  int virtual_memory = 0;
  SYNCOPATE_RETURN_IF_ERROR(DriverStatus(
      driver->device_attribute(&virtual_memory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device),
      "reading the GPU's type"));
  if (major < kComputeCapability || virtual_memory == 0) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "NO_GPU",
        absl::StrFormat("GPU %d has compute capability %d.x%s; needed is %d.0 or later with virtual memory", device,
                        major, virtual_memory == 0 ? " and no virtual memory" : "", kComputeCapability));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadGpuUuid(int device) {
  cudaDeviceProp properties{};
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device), "reading the GPU's properties"));
  return UuidText(properties.uuid);
}

absl::StatusOr<GpuFacts> ReadGpuFacts(int device) {
  SYNCOPATE_RETURN_IF_ERROR(CheckGpu(device));
  GpuFacts facts;
  // The containers of one machine share its boot id and have their own host names; machines may share a host name.
  facts.host = BootId() + "/" + HostName();
  SYNCOPATE_ASSIGN_OR_RETURN(facts.gpu_uuid, ReadGpuUuid(device));
  facts.nvlink = true;
  for (int peer = 0; peer < GpuCount(); ++peer) {
    if (peer == device || !CheckPeerAccess(device, peer).ok()) continue;
    SYNCOPATE_ASSIGN_OR_RETURN(std::string uuid, ReadGpuUuid(peer));
    facts.peer_gpus.push_back(std::move(uuid));
    // NVLink supports atomics between GPUs, PCIe does not.
    int atomics = 0;
    SYNCOPATE_RETURN_IF_ERROR(CudaStatus(
        cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer), "reading GPU links"));
    facts.nvlink = facts.nvlink && atomics != 0;
  }
  facts.nvlink = facts.nvlink && !facts.peer_gpus.empty();
  return facts;
}

absl::Status CheckPeerAccess(int device, int peer) {
  int possible = 0;
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaDeviceCanAccessPeer(&possible, device, peer), "looking for peer access"));
  if (possible != 0) return absl::OkStatus();
  return Error(
      absl::StatusCode::kFailedPrecondition, "NO_PEER_ACCESS",
      absl::StrFormat("GPU %d cannot reach the memory of GPU %d; use the nccl or the grpc transport", device, peer));
}

absl::StatusOr<GpuMemory> ReadGpuMemory(int device) {
  DeviceScope scope(device);
  size_t free = 0;
  size_t total = 0;
  SYNCOPATE_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "reading the GPU's free memory"));
  return GpuMemory{static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

DeviceScope::DeviceScope(int device) {
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess || current == device) {
    cudaSetDevice(device);
    return;
  }
  // Selecting a device creates a context on it, which costs memory: go back only to a device that has a context.
  absl::StatusOr<const Driver*> driver = Driver::Load();
  unsigned flags = 0;
  int active = 0;
  bool known = driver.ok() && (*driver)->primary_context_state(current, &flags, &active) == CUDA_SUCCESS;
  if (known && active != 0) previous_ = current;
  cudaSetDevice(device);
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

}  // namespace syncopate::cuda
