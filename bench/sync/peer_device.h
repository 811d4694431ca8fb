#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "base/policy_version.h"
#include "bench/sync/decode_loop.h"
#include "bench/sync/peer_options.h"
#include "synchronizer/messages.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/plan/sync_plan.h"
#include "synchronizer/transport/transport.h"
#include "synchronizer/transport/weight_store.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::bench {

// The manifest, layouts and plan from which both ends of a benchmark make their weights.
struct PeerPlan {
  Manifest manifest;
  synchronizer::Layout source;
  synchronizer::Layout receiver;
  synchronizer::SyncPlan plan;
};
absl::StatusOr<PeerPlan> MakePeerPlan(const PeerOptions& options);

// A source rank's shards and their staged copies. Only one thread may call Fill and Stage.
class SourceWeights {
 public:
  virtual ~SourceWeights() = default;
  // Fills the shards with the weights of `step` (BenchWeightBits). Blocks until that is done.
  virtual absl::Status Fill(int64_t step) = 0;
  struct Staged {
    std::vector<uint64_t> digests;  // of this rank's span
    double seconds = 0;             // for which the caller, a trainer's step loop, was blocked
  };
  virtual absl::StatusOr<Staged> Stage(PolicyVersion version) = 0;
  virtual synchronizer::WeightStore* store() = 0;
  // The transports besides grpc. Owned by this object.
  virtual std::vector<synchronizer::SourceTransport*> transports() = 0;
};

// A receiver rank's weights, and the loop that reads them.
class ReceiverWeights {
 public:
  virtual ~ReceiverWeights() = default;
  virtual synchronizer::WeightTarget* target() = 0;
  // All transports that can write to the target. Owned by this object.
  virtual std::vector<synchronizer::ReceiverTransport*> transports() = 0;
  virtual DecodeLoop* loop() = 0;
  // Copies bytes of the serving weights. Call it while no install runs.
  virtual absl::Status ReadLive(ByteRange range, char* to) = 0;
};

// The device where a process of a benchmark keeps its weights: host memory, or one GPU.
class PeerDevice {
 public:
  virtual ~PeerDevice() = default;
  virtual synchronizer::DeviceFacts facts() const = 0;
  virtual absl::StatusOr<int64_t> MemoryUsed() const = 0;  // bytes: of the process, or of the whole GPU
  // OK if the device still computes: a small matrix product is right.
  virtual absl::Status CheckHealthy() = 0;
  // `plan` must outlive the returned object.
  virtual absl::StatusOr<std::unique_ptr<SourceWeights>> MakeSource(const PeerOptions& options,
                                                                    const PeerPlan& plan) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReceiverWeights>> MakeReceiver(const PeerOptions& options,
                                                                        const PeerPlan& plan) = 0;
};

std::unique_ptr<PeerDevice> MakeHostDevice();

// A GPU of this machine. One of two implementations is linked: cuda_device.cc, or no_cuda_device.cc in builds without
// CUDA. FAILED_PRECONDITION reason NO_GPU.
absl::StatusOr<std::unique_ptr<PeerDevice>> MakeCudaDevice(int device);
struct CudaDevices {
  int count = 0;
  std::string name;   // of the first GPU
  std::string error;  // why there is no GPU
};
CudaDevices FindCudaDevices();

}  // namespace syncopate::bench
