#include "services/daemon/cuda_device.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "cuda/device.h"
#include "synchronizer/nccl/nccl_device.h"

namespace syncopate::daemon {
namespace {

// Turns 22809 into "2.28.9".
std::string VersionText(int version) {
  return absl::StrFormat("%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
}

}  // namespace

int CudaIndex(const std::string& device) {
  constexpr size_t kPrefix = 5;  // "cuda:"
  int index = 0;
  SYNCOPATE_CHECK(device.size() > kPrefix && absl::SimpleAtoi(device.substr(kPrefix), &index));
  return index;
}

bool MayOffer(const v1::RunConfig& config, const std::string& name) {
  return config.sync().transport() == "auto" || config.sync().transport() == name;
}

absl::StatusOr<synchronizer::DeviceFacts> ReadDeviceFacts(int device) {
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::GpuFacts gpu, cuda::ReadGpuFacts(device));
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::NcclFacts nccl, synchronizer::ReadNcclFacts(device));
  synchronizer::DeviceFacts facts;
  facts.host = std::move(gpu.host);
  facts.gpu_uuid = std::move(gpu.gpu_uuid);
  facts.peer_gpus = std::move(gpu.peer_gpus);
  facts.nvlink = gpu.nvlink;
  facts.nccl_version = VersionText(nccl.version);
  return facts;
}

absl::Status RequiredTransport(const v1::RunConfig& config, const std::string& name, const absl::Status& why) {
  if (why.ok() || config.sync().transport() == name) return why;
  SYNCOPATE_LOG(kWarning, "weights cannot travel by %s: %s", name, why.ToString());
  return absl::OkStatus();
}

}  // namespace syncopate::daemon
