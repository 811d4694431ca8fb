// Linked in builds without CUDA.
#include "base/status.h"
#include "bench/sync/peer_device.h"

namespace syncopate::bench {
namespace {

constexpr char kNoCuda[] = "this build has no CUDA (preset 'cuda' has)";

}  // namespace

absl::StatusOr<std::unique_ptr<PeerDevice>> MakeCudaDevice(int) {
  return Error(absl::StatusCode::kFailedPrecondition, "NO_GPU", kNoCuda);
}

CudaDevices FindCudaDevices() { return {0, "", kNoCuda}; }

}  // namespace syncopate::bench
