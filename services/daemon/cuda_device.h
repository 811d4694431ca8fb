#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "synchronizer/messages.h"
#include "syncopate/v1/config.pb.h"

// What trainer and rollouter on a GPU have in common.
namespace syncopate::daemon {

// N of "cuda:N", as model::ChooseDevice says it.
int CudaIndex(const std::string& device);

// Whether sync.transport lets members use the transport `name`.
bool MayOffer(const v1::RunConfig& config, const std::string& name);

// What the synchronizer chooses transports by. FAILED_PRECONDITION reason NO_GPU.
absl::StatusOr<synchronizer::DeviceFacts> ReadDeviceFacts(int device);

// OK, or `why` if sync.transport asks for `name` alone; with "auto" the run does without it, and the log says so.
absl::Status RequiredTransport(const v1::RunConfig& config, const std::string& name, const absl::Status& why);

}  // namespace syncopate::daemon
