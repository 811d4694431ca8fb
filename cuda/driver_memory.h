#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/daemon/card_account.h"

// One function: the library's calls and types stay in the source.
namespace syncopate::cuda {

// Reads the memory of the GPU `uuid` ("GPU-...") as nvidia-smi does: by the driver's management library
// (libnvidia-ml.so.1), which is looked up at run time. A process needs no context on the GPU for it and gets none, so
// that what its context takes can be measured. `used` is without what the driver reserves for itself, and `total` with it.
//
// FAILED_PRECONDITION (reason NO_NVML) without the library, if it is too old (before driver 510), or if it does not know
// the GPU. The reader is thread-safe and gives FAILED_PRECONDITION (reason NO_NVML) if the driver does not answer.
absl::StatusOr<daemon::CardReader> ReadByManagementLibrary(const std::string& uuid);

}  // namespace syncopate::cuda
