#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "cuda/stream.h"
#include "synchronizer/cuda/cuda_arena_pair.h"
#include "synchronizer/cuda/cuda_send_arena.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/plan/sync_plan.h"
#include "synchronizer/transport/transport.h"
#include "synchronizer/transport/weight_receiver.h"
#include "synchronizer/transport/weight_source.h"

// Members of a weight sync with real arenas on real GPUs, like those of trainers and rollouters.
namespace syncopate::synchronizer {

// For a target without a decode loop: it is between two steps when the device has nothing to do.
BetweenSteps NoDecodeLoop(int device);

// A transformer of two layers; 0.7 MB times `width` squared.
Manifest GpuTestModel(int64_t width = 1);

// The model and the settings of a sync; all members share them.
struct GpuCase {
  static absl::StatusOr<GpuCase> Create(const Manifest& manifest, const std::string& transport,
                                        const std::string& source_layout, const std::string& destination_layout);

  Manifest manifest;
  std::string transport;  // "ipc" or "nccl"
  std::string source_layout;
  std::string destination_layout;
  Layout source;
  Layout destination;
  SyncPlan plan;
  int64_t chunk_bytes = 64 << 20;  // used by ipc
};

// Passes every call on to another transport, and reports arrivals to a test.
class WatchedReceiver final : public ReceiverTransport {
 public:
  explicit WatchedReceiver(std::unique_ptr<ReceiverTransport> receiver) : receiver_(std::move(receiver)) {}
  // Called after each announcement, on the announcing thread, with the number of announcements before it. Set it while
  // nothing is received.
  std::function<void(int)> on_arrival = nullptr;

  std::string name() const override { return receiver_->name(); }
  absl::StatusOr<std::string> Open(const Prepare& attempt) override { return receiver_->Open(attempt); }
  absl::Status Receive(const ReceiveRequest& request, char* destination, std::stop_token stop) override;
  absl::Status Probe(const ReceiveRequest& request, std::stop_token stop) override {
    return receiver_->Probe(request, std::move(stop));
  }
  void Connect(const ReceiveRequest& request, std::function<void(absl::Status)> done) override {
    receiver_->Connect(request, std::move(done));
  }
  void Close(int64_t attempt) override { receiver_->Close(attempt); }

 private:
  const std::unique_ptr<ReceiverTransport> receiver_;
};

struct GpuSource {
  // `of` is borrowed.
  static absl::StatusOr<std::unique_ptr<GpuSource>> Create(const GpuCase* of, int32_t rank, int device,
                                                           const std::string& incarnation);
  ~GpuSource();

  // Stages random finite numbers, a pure function of (step, rank), as version {1, step}. Returns the digests.
  absl::StatusOr<std::vector<uint64_t>> Stage(int64_t step);

  const GpuCase* of = nullptr;
  int device = 0;
  MemberId id;
  cuda::DeviceBuffer shard;
  cuda::Stream stream;
  std::unique_ptr<CudaSendArena> arena;
  std::shared_ptr<void> borrowed;  // objects that the transport borrows
  std::unique_ptr<SourceTransport> transport;
  std::unique_ptr<WeightSource> source;
  std::string rendezvous;  // of the last attempt
};

struct GpuReceiver {
  static absl::StatusOr<std::unique_ptr<GpuReceiver>> Create(const GpuCase* of, int32_t index, int device,
                                                             const std::string& incarnation);
  ~GpuReceiver();

  const GpuCase* of = nullptr;
  int device = 0;
  MemberId id;
  std::unique_ptr<CudaArenaPair> target;
  std::shared_ptr<void> borrowed;
  std::unique_ptr<WatchedReceiver> transport;
  std::unique_ptr<WeightReceiver> receiver;
  std::string rendezvous;             // of the last attempt
  WeightReceiver::Received received;  // of the last attempt
};

}  // namespace syncopate::synchronizer
