#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "ranks/communicator.h"
#include "rollouter/engine/engine_commands.h"
#include "rollouter/engine/engine_loop.h"
#include "rollouter/engine/rank_slice.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::twin {

// An engine whose ranks are threads of one process: each rank above 0 has a thread that carries out rank 0's commands
// as a process would. With one rank it is the engine alone.
class EngineRanks final : public rollouter::EngineFollowers {
 public:
  // `wire` is the manifest of options.model as it travels.
  static absl::StatusOr<std::unique_ptr<EngineRanks>> Create(rollouter::EngineLoop::Options options,
                                                             const Manifest& wire, int32_t world);
  ~EngineRanks() override;  // ends the engine, then the threads

  int32_t world() const { return world_; }
  rollouter::EngineLoop& engine() { return *engine_; }
  // What receives a version on a rank. Rank 0's Install makes all ranks serve what they have received, so it comes
  // last.
  synchronizer::WeightTarget* target(int32_t rank);
  absl::Status Send(const rollouter::EngineCommand& command) override;
  // The shadow of a rank may be written only after this.
  absl::Status AwaitObeyed(absl::Duration deadline) override;

 private:
  class ShadowTarget;
  struct Follower {
    std::shared_ptr<rollouter::EngineBackend> backend;
    std::unique_ptr<rollouter::FollowingEngine> engine;
    std::unique_ptr<synchronizer::WeightTarget> target;
  };

  explicit EngineRanks(int32_t world) : world_(world) {}
  void Follow(size_t follower);

  const int32_t world_;
  std::optional<rollouter::RankSlice> slice_;                 // with several ranks
  std::vector<std::unique_ptr<Communicator>> communicators_;  // by rank
  std::vector<Follower> followers_;                           // of rank 1 and so on
  std::unique_ptr<rollouter::EngineLoop> engine_;
  Mutex mutex_;
  std::vector<std::deque<rollouter::EngineCommand>> commands_ ABSL_GUARDED_BY(mutex_);  // by follower
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0, done_ ABSL_GUARDED_BY(mutex_) = 0;         // over all followers
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace syncopate::twin
