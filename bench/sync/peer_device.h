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

// What both ends of a benchmark make their weights from.
struct PeerPlan {
  Manifest manifest;
  synchronizer::Layout source;
  synchronizer::Layout receiver;
  synchronizer::SyncPlan plan;
};
absl::StatusOr<PeerPlan> MakePeerPlan(const PeerOptions& options);

// A source rank's shards and the copies of them that are sent. One thread calls Fill and Stage.
class SourceWeights {
 public:
  virtual ~SourceWeights() = default;
  // The shards become those of `step` (BenchWeightBits). Blocks until they are.
  virtual absl::Status Fill(int64_t step) = 0;
  struct Staged {
    std::vector<uint64_t> digests;  // of this rank's span
    double seconds = 0;             // for which the caller, a trainer, stood still
  };
  virtual absl::StatusOr<Staged> Stage(PolicyVersion version) = 0;
  virtual synchronizer::WeightStore* store() = 0;
  // Besides grpc. Owned by this.
  virtual std::vector<synchronizer::SourceTransport*> transports() = 0;
};

// A receiver rank's weights, and the loop that reads them.
class ReceiverWeights {
 public:
  virtual ~ReceiverWeights() = default;
  virtual synchronizer::WeightTarget* target() = 0;
  // All that can write to the target. Owned by this.
  virtual std::vector<synchronizer::ReceiverTransport*> transports() = 0;
  virtual DecodeLoop* loop() = 0;
  // Copies bytes of the weights that serve. Call while nothing is installed.
  virtual absl::Status ReadLive(ByteRange range, char* to) = 0;
};

// Where a process of a benchmark keeps its weights: host memory, or one GPU.
class PeerDevice {
 public:
  virtual ~PeerDevice() = default;
  virtual synchronizer::DeviceFacts facts() const = 0;
  virtual absl::StatusOr<int64_t> MemoryUsed() const = 0;  // bytes: of the process, or of the whole GPU
  // OK if the device still computes: a small matrix product comes out right.
  virtual absl::Status CheckHealthy() = 0;
  // `plan` outlives what is made here.
  virtual absl::StatusOr<std::unique_ptr<SourceWeights>> MakeSource(const PeerOptions& options,
                                                                    const PeerPlan& plan) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReceiverWeights>> MakeReceiver(const PeerOptions& options,
                                                                        const PeerPlan& plan) = 0;
};

std::unique_ptr<PeerDevice> MakeHostDevice();

// The GPUs of this machine. Two implementations, one of which is linked: cuda_device.cc, and no_cuda_device.cc for
// builds without CUDA. FAILED_PRECONDITION reason NO_GPU.
absl::StatusOr<std::unique_ptr<PeerDevice>> MakeCudaDevice(int device);
struct CudaDevices {
  int count = 0;
  std::string name;   // of the first
  std::string error;  // why there are none
};
CudaDevices FindCudaDevices();

}  // namespace syncopate::bench
