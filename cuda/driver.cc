#include "cuda/driver.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/status.h"

namespace syncopate::cuda {
namespace {

template <typename Function>
bool Find(const char* name, Function* function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, CUDART_VERSION, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return false;
  *function = reinterpret_cast<Function>(address);
  return true;
}

// The first call that the driver lacks, or nullptr.
const char* Fill(Driver* driver) {
  if (!Find("cuGetErrorString", &driver->get_error_string)) return "cuGetErrorString";
  if (!Find("cuDeviceGetAttribute", &driver->device_attribute)) return "cuDeviceGetAttribute";
  if (!Find("cuDevicePrimaryCtxGetState", &driver->primary_context_state)) return "cuDevicePrimaryCtxGetState";
  if (!Find("cuMemGetAllocationGranularity", &driver->granularity)) return "cuMemGetAllocationGranularity";
  if (!Find("cuMemAddressReserve", &driver->reserve)) return "cuMemAddressReserve";
  if (!Find("cuMemAddressFree", &driver->free_reservation)) return "cuMemAddressFree";
  if (!Find("cuMemCreate", &driver->create)) return "cuMemCreate";
  if (!Find("cuMemRelease", &driver->release)) return "cuMemRelease";
  if (!Find("cuMemMap", &driver->map)) return "cuMemMap";
  if (!Find("cuMemUnmap", &driver->unmap)) return "cuMemUnmap";
  if (!Find("cuMemSetAccess", &driver->set_access)) return "cuMemSetAccess";
  if (!Find("cuMemExportToShareableHandle", &driver->export_handle)) return "cuMemExportToShareableHandle";
  if (!Find("cuMemImportFromShareableHandle", &driver->import_handle)) return "cuMemImportFromShareableHandle";
  if (!Find("cuTensorMapEncodeTiled", &driver->encode_tensor_map)) return "cuTensorMapEncodeTiled";
  return nullptr;
}

}  // namespace

absl::StatusOr<const Driver*> Driver::Load() {
  static Mutex mutex;
  static const Driver* loaded = nullptr;  // written once, under `mutex`; never freed
  MutexLock lock(&mutex);
  if (loaded != nullptr) return loaded;
  Driver driver;
  if (const char* missing = Fill(&driver); missing != nullptr) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_GPU",
                 absl::StrFormat("no CUDA driver of version %d.%d or later answers on this machine (%s not found)",
                                 CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, missing));
  }
  loaded = new Driver(driver);
  return loaded;
}

}  // namespace syncopate::cuda
