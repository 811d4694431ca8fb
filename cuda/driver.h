#pragma once

#include <cuda.h>

#include "absl/status/statusor.h"

namespace syncopate::cuda {

// The driver calls that have no equivalent in the CUDA runtime, mostly for virtual memory. They are looked up at run
// time, so that a program starts, and can say what is missing, on a machine without a driver. Immutable.
struct Driver {
  decltype(&::cuGetErrorString) get_error_string = nullptr;
  decltype(&::cuDeviceGetAttribute) device_attribute = nullptr;
  decltype(&::cuDevicePrimaryCtxGetState) primary_context_state = nullptr;
  decltype(&::cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&::cuMemAddressReserve) reserve = nullptr;
  decltype(&::cuMemAddressFree) free_reservation = nullptr;
  decltype(&::cuMemCreate) create = nullptr;
  decltype(&::cuMemRelease) release = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
  decltype(&::cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&::cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&::cuTensorMapEncodeTiled) encode_tensor_map = nullptr;

  // The process's driver; never destroyed. Thread-safe. FAILED_PRECONDITION reason NO_GPU without a driver, or if it is
  // too old; the next call looks again.
  static absl::StatusOr<const Driver*> Load();
};

}  // namespace syncopate::cuda
