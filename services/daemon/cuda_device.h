#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "synchronizer/messages.h"
#include "syncopate/v1/config.pb.h"

// Functions that trainer and rollouter on a GPU share.
namespace syncopate::daemon {

// N of "cuda:N", the form that model::ChooseDevice returns.
int CudaIndex(const std::string& device);

// Whether sync.transport lets members use the transport `name`.
bool MayOffer(const v1::RunConfig& config, const std::string& name);

// The facts by which the synchronizer chooses transports. FAILED_PRECONDITION reason NO_GPU.
absl::StatusOr<synchronizer::DeviceFacts> ReadDeviceFacts(int device);

// Returns `why` only if sync.transport asks for `name` alone. With "auto" it returns OK and logs that the run does
// without that transport.
absl::Status RequiredTransport(const v1::RunConfig& config, const std::string& name, const absl::Status& why);

}  // namespace syncopate::daemon
