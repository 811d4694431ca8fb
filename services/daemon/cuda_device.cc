#include "services/daemon/cuda_device.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/daemon/host_lock.h"
#include "base/log.h"
#include "cuda/device.h"
#include "cuda/driver_memory.h"
#include "synchronizer/nccl/nccl_device.h"

namespace syncopate::daemon {
namespace {

// A rollouter that is about to make its engine has a minute to connect, and makes it in less than ten seconds.
constexpr absl::Duration kMeasureWait = absl::Seconds(20);

std::string MeasurementLock(const std::string& gpu_uuid) { return absl::StrCat("syncopate-measures-", gpu_uuid); }

absl::StatusOr<std::shared_ptr<CardAccount>> MakeAccount(const std::string& gpu_uuid) {
  SYNCOPATE_ASSIGN_OR_RETURN(CardReader read, cuda::ReadByManagementLibrary(gpu_uuid));
  return std::make_shared<CardAccount>(std::move(read));
}

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

std::shared_ptr<CardAccount> OpenCard(int device) {
  const absl::StatusOr<std::string> gpu_uuid = cuda::ReadGpuUuid(device);
  absl::StatusOr<std::shared_ptr<CardAccount>> card = gpu_uuid.ok() ? MakeAccount(*gpu_uuid) : gpu_uuid.status();
  if (!card.ok()) {
    SYNCOPATE_LOG(kWarning, "metrics will not say who owns the memory of GPU %d: %s", device, card.status().ToString());
    return nullptr;
  }
  BeginMeasurement(card->get(), *gpu_uuid, /*own=*/0);
  return *std::move(card);
}

std::shared_ptr<const void> HoldCard(const std::string& gpu_uuid) {
  absl::StatusOr<std::shared_ptr<const HostLock>> lock =
      HostLock::Acquire(MeasurementLock(gpu_uuid), absl::ZeroDuration());
  if (lock.ok()) return *std::move(lock);
  if (absl::IsDeadlineExceeded(lock.status())) return nullptr;
  return std::make_shared<int>();  // a host without such locks, where nobody measures
}

void BeginMeasurement(CardAccount* card, const std::string& gpu_uuid, int64_t own) {
  absl::StatusOr<std::shared_ptr<const HostLock>> lock = HostLock::Acquire(MeasurementLock(gpu_uuid), kMeasureWait);
  const absl::Status begun = lock.ok() ? card->Begin(own, *std::move(lock)) : lock.status();
  if (!begun.ok()) {
    SYNCOPATE_LOG(kWarning, "what the context and libraries of this process take of %s is not measured: %s", gpu_uuid,
                  begun.ToString());
  }
}

absl::Status RequiredTransport(const v1::RunConfig& config, const std::string& name, const absl::Status& why) {
  if (why.ok() || config.sync().transport() == name) return why;
  SYNCOPATE_LOG(kWarning, "weights cannot travel by %s: %s", name, why.ToString());
  return absl::OkStatus();
}

}  // namespace syncopate::daemon
