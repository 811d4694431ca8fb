#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/daemon/card_account.h"
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

// The account of GPU `device`'s memory, whose first measurement has begun: call it before this process makes a context
// there. Null, which is logged, if the driver's management library cannot be used: metrics lack it then.
std::shared_ptr<CardAccount> OpenCard(int device);

// Begins a measurement, in which no other daemon of this host makes one on GPU `gpu_uuid`; waits for that for at most
// 20 s. If the lock cannot be had no measurement begins, which is logged, as what is not measured counts as `others`.
void BeginMeasurement(CardAccount* card, const std::string& gpu_uuid, int64_t own);

// Keeps other daemons of this host from measuring on GPU `gpu_uuid` until the result is freed. Null while one measures
// there. Does not block.
std::shared_ptr<const void> HoldCard(const std::string& gpu_uuid);

// Returns `why` only if sync.transport asks for `name` alone. With "auto" it returns OK and logs that the run does
// without that transport.
absl::Status RequiredTransport(const v1::RunConfig& config, const std::string& name, const absl::Status& why);

}  // namespace syncopate::daemon
