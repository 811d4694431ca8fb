#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "tests/gpu/transports/gpu_member.h"

namespace syncopate::synchronizer {

// T source ranks and M replicas of P ranks with real arenas on real GPUs, all in this process, over one transport,
// driven as the synchronizer drives them.
class GpuRig {
 public:
  struct Options {
    std::string transport = "ipc";  // or "nccl"
    std::string source_layout = "whole";
    std::string destination_layout = "whole:1";
    int replicas = 1;
    int gpus = 1;  // members use them in turn; nccl needs one for each member
    int64_t chunk_bytes = 64 << 20;
    Manifest manifest = GpuTestModel();
  };

  static absl::StatusOr<std::unique_ptr<GpuRig>> Create(Options options);

  // Stages random finite numbers as version {1, step}, on all sources.
  absl::Status Stage(int64_t step);
  // All participants (all receivers if empty) agree on an attempt of the version that was staged last.
  absl::Status Prepare(std::vector<int> receivers = {}, absl::Duration deadline = absl::Seconds(30));
  void StartSources();
  // Sources start and receivers receive, at once; returns the result of each receiver.
  std::vector<absl::Status> Transfer();
  absl::Status Install();
  void Finish();
  // Runs Prepare, Transfer, Install and Finish.
  absl::Status Sync(std::vector<int> receivers = {}, absl::Duration deadline = absl::Seconds(30));

  // Expects that the receiver's live weights equal, byte for byte, what the plan takes from the sources' send arenas.
  void ExpectServes(int receiver, int64_t step) const;

  GpuSource* source(int rank = 0) { return sources_[rank].get(); }
  GpuReceiver* receiver(int index = 0) { return receivers_[index].get(); }
  int receivers() const { return static_cast<int>(receivers_.size()); }
  const SyncPlan& plan() const { return case_.plan; }
  int64_t attempt() const { return attempt_; }
  // A transfer to one receiver as the others see it; for attempts in which only some members act.
  synchronizer::Transfer Command() const;
  // What each source reported since the last Transfer.
  std::vector<absl::Status> SourceStatuses() const;

 private:
  GpuRig(const Options& options, GpuCase of) : gpus_(options.gpus), case_(std::move(of)) {}
  absl::Status AddMembers(int replicas);

  const int gpus_;
  const GpuCase case_;
  mutable Mutex mutex_;
  std::map<int32_t, absl::Status> source_statuses_ ABSL_GUARDED_BY(mutex_);  // key: rank
  std::vector<std::unique_ptr<GpuSource>> sources_;
  std::vector<std::unique_ptr<GpuReceiver>> receivers_;
  std::vector<int> taking_part_;
  PolicyVersion version_;
  std::vector<uint64_t> digests_;
  int64_t attempt_ = 0;
};

}  // namespace syncopate::synchronizer
