// Weights in host memory.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "base/status.h"
#include "bench/sync/bench_weights.h"
#include "bench/sync/peer_device.h"
#include "services/member/grpc_transport.h"
#include "synchronizer/transport/arena_pair.h"
#include "synchronizer/transport/host_buffer.h"
#include "synchronizer/transport/send_arena.h"

namespace syncopate::bench {
namespace {

using synchronizer::HostBuffer;
using synchronizer::InstallResult;
using synchronizer::Piece;

// Writes the weights of one piece at `step`.
void FillPiece(const Piece& piece, DType dtype, int64_t step, char* shard) {
  char* to = shard + piece.offset;
  for (int64_t row = 0; row < piece.rows; ++row) {
    const int64_t first = piece.begin + row * piece.stride;
    for (int64_t i = 0; i < piece.row_elements(); ++i, to += DTypeBytes(dtype)) {
      if (dtype == DType::kFloat32) {
        const uint32_t bits = BenchWeightBits(piece.tensor, first + i, step);
        std::memcpy(to, &bits, sizeof(bits));
      } else {
        const uint16_t bits = BenchWeightBFloat16(piece.tensor, first + i, step);
        std::memcpy(to, &bits, sizeof(bits));
      }
    }
  }
}

class HostSource final : public SourceWeights {
 public:
  static absl::StatusOr<std::unique_ptr<HostSource>> Create(const PeerOptions& options, const PeerPlan& plan) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto arena,
                               synchronizer::SendArena::CreateForPlan(plan.manifest, plan.plan, options.rank, {}));
    return std::unique_ptr<HostSource>(new HostSource(options, plan, std::move(arena)));
  }

  absl::Status Fill(int64_t step) override {
    for (const Piece& piece : plan_.source.pieces()) {
      if (piece.rank != rank_) continue;
      FillPiece(piece, plan_.source.ToDType(plan_.manifest.tensors()[piece.tensor]), step, shard_.data());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Staged> Stage(PolicyVersion version) override {
    SYNCOPATE_ASSIGN_OR_RETURN(auto staged, arena_->Stage(version, [this](char* arena) {
      synchronizer::PackOnHost(plan_.plan.pack(rank_), shard_.data(), arena);
      return absl::OkStatus();
    }));
    return Staged{std::move(staged.bucket_digests), staged.seconds};
  }

  synchronizer::WeightStore* store() override { return arena_.get(); }
  std::vector<synchronizer::SourceTransport*> transports() override { return {}; }

 private:
  HostSource(const PeerOptions& options, const PeerPlan& plan, std::unique_ptr<synchronizer::SendArena> arena)
      : rank_(options.rank), plan_(plan), shard_(plan.source.arena_bytes(options.rank)), arena_(std::move(arena)) {}

  const int32_t rank_;
  const PeerPlan& plan_;
  HostBuffer shard_;
  const std::unique_ptr<synchronizer::SendArena> arena_;
};

// Installs by exchanging two buffers between two decode steps.
class HostReceiver final : public ReceiverWeights, private synchronizer::WeightTarget {
 public:
  HostReceiver(const PeerOptions& options, const PeerPlan& plan)
      : arenas_(plan.receiver.arena_bytes(options.rank)),
        bytes_(plan.receiver.arena_bytes(options.rank)),
        loop_(options.decode ? [this] { return Step(); } : std::function<absl::Status()>()) {}

  synchronizer::WeightTarget* target() override { return this; }
  std::vector<synchronizer::ReceiverTransport*> transports() override { return {&grpc_}; }
  DecodeLoop* loop() override { return &loop_; }
  absl::Status ReadLive(ByteRange range, char* to) override {
    std::memcpy(to, arenas_.live() + range.begin, range.size());
    return absl::OkStatus();
  }

 private:
  char* shadow() override { return arenas_.shadow(); }
  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                        absl::Duration deadline) override {
    SYNCOPATE_ASSIGN_OR_RETURN(
        const double pause,
        loop_.Between([&] { return arenas_.Install(version, digest, deadline).status(); }, deadline));
    return InstallResult{pause};
  }
  absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override {
    return arenas_.Relabel(version, deadline);
  }

  // Reads the first 4 MiB of the weights; reading a whole model in each step would take seconds here.
  absl::Status Step() {
    constexpr int64_t kReadBytes = 4 << 20;
    const char* live = arenas_.live();
    uint64_t sum = 0;
    for (int64_t read = 0; read + 8 <= std::min(kReadBytes, bytes_); read += 8) {
      uint64_t word;
      std::memcpy(&word, live + read, sizeof(word));
      sum += word;
    }
    sum_ = sum;
    return absl::OkStatus();
  }

  synchronizer::ArenaPair arenas_;
  const int64_t bytes_;
  member::GrpcReceiver grpc_;
  volatile uint64_t sum_ = 0;  // volatile, so that the reads are not removed
  DecodeLoop loop_;            // last: its thread uses the other members
};

class HostDevice final : public PeerDevice {
 public:
  synchronizer::DeviceFacts facts() const override { return {}; }

  absl::StatusOr<int64_t> MemoryUsed() const override {
    std::ifstream file("/proc/self/statm");
    int64_t pages = 0;
    int64_t resident = 0;
    file >> pages >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
  }

  absl::Status CheckHealthy() override { return absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<SourceWeights>> MakeSource(const PeerOptions& options, const PeerPlan& plan) override {
    return HostSource::Create(options, plan);
  }
  absl::StatusOr<std::unique_ptr<ReceiverWeights>> MakeReceiver(const PeerOptions& options,
                                                                const PeerPlan& plan) override {
    return std::make_unique<HostReceiver>(options, plan);
  }
};

}  // namespace

std::unique_ptr<PeerDevice> MakeHostDevice() { return std::make_unique<HostDevice>(); }

}  // namespace syncopate::bench
