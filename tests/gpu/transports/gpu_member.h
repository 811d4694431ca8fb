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

// Members of a weight sync with real arenas on real GPUs, as trainers and rollouters have them.
namespace syncopate::synchronizer {

// For a target without a decode loop: the moment between two steps is when the device has nothing to do.
BetweenSteps NoDecodeLoop(int device);

// A transformer of two layers; 0.7 MB, or `width` times `width` of that.
Manifest GpuTestModel(int64_t width = 1);

// What is synced, and how; the same for all members.
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
  int64_t chunk_bytes = 64 << 20;  // ipc
};

// Passes everything on to another transport, and tells a test what arrives.
class WatchedReceiver final : public ReceiverTransport {
 public:
  explicit WatchedReceiver(std::unique_ptr<ReceiverTransport> receiver) : receiver_(std::move(receiver)) {}
  // Called after each announcement, with how many there were before, by the thread that announces. Set it while nothing
  // is received.
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

  // Random finite numbers, a pure function of (step, rank), as version {1, step}. The digests.
  absl::StatusOr<std::vector<uint64_t>> Stage(int64_t step);

  const GpuCase* of = nullptr;
  int device = 0;
  MemberId id;
  cuda::DeviceBuffer shard;
  cuda::Stream stream;
  std::unique_ptr<CudaSendArena> arena;
  std::shared_ptr<void> borrowed;  // what the transport borrows
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
  WeightReceiver::Received received;  // likewise
};

}  // namespace syncopate::synchronizer
