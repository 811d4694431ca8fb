#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/policy_version.h"
#include "rollouter/engine/model_runner.h"
#include "rollouter/engine/step_plan.h"

// Rank 0 of a replica leads the other ranks: only its engine schedules, and the other ranks repeat every operation on
// runner and weights in the same order. So a plan and an install cannot swap places, and all ranks queue the same
// collectives. This header needs no libtorch.
namespace syncopate::rollouter {

class EngineBackend;

// One operation on runner or weights that a follower repeats.
struct EngineCommand {
  enum class Kind : uint8_t {
    kMakeRunner = 1,  // uses `runner`
    kPlan,            // uses `plan`
    kExchange,        // the shadow becomes live as `version` with `digest`
    kBeginInPlace,    // no plan follows until the transfer of `version` into the live weights is over
    kReleaseWeights,  // uses `keep_live`, see WeightArenas::Release()
    kRestoreWeights,
    kReleaseBlocks,
    kRestoreBlocks,
    kChooseShadow,  // uses `set`: see WeightArenas::ChooseShadow()
  };
  Kind kind = Kind::kPlan;
  RunnerOptions runner = {};
  StepPlan plan = {};
  PolicyVersion version = {};
  uint64_t digest = 0;
  bool keep_live = false;
  int32_t set = 0;
};

// The connection from rank 0 to all other ranks.
class EngineFollowers {
 public:
  virtual ~EngineFollowers() = default;
  // Queues the command behind all earlier ones; does not wait for its execution. UNAVAILABLE (reason RANK_LOST).
  virtual absl::Status Send(const EngineCommand& command) = 0;
  // Waits until every other rank has carried out all commands that were sent so far. RESOURCE_EXHAUSTED (reason
  // NO_ROOM): a rank had too little memory for a kRestoreBlocks or kRestoreWeights among them, and has what it had
  // before; UNAVAILABLE (reason RANK_LOST), also after `deadline`, which ends the replica.
  virtual absl::Status AwaitObeyed(absl::Duration deadline) = 0;
};

// Creates rank 0's backend: it calls `backend` and sends the same operation to the followers. Both must outlive the
// engine. An operation that succeeds here and fails on another rank ends that rank, and with it the replica.
std::shared_ptr<EngineBackend> MakeLeadingBackend(std::shared_ptr<EngineBackend> backend, EngineFollowers* followers);

// The runner and the weights of a rank other than rank 0. Not thread-safe.
class FollowingEngine {
 public:
  // `backend` was made for this rank's slice.
  explicit FollowingEngine(std::shared_ptr<EngineBackend> backend);
  ~FollowingEngine();
  FollowingEngine(const FollowingEngine&) = delete;
  FollowingEngine& operator=(const FollowingEngine&) = delete;

  // Executes a command. One thread calls it, in the order of rank 0's commands. A plan may block until an earlier
  // plan is done; other commands block until they are done. After an error, which includes errors of libtorch, this
  // object can only be destroyed. Too little memory for kRestoreBlocks or kRestoreWeights is no error: room() says
  // it, and rank 0 has all ranks release their memory again.
  absl::Status Obey(const EngineCommand& command);

  // RESOURCE_EXHAUSTED (reason NO_ROOM) if memory could not be allocated again since the last release; else OK.
  const absl::Status& room() const { return room_; }

  PolicyVersion serving() const { return serving_; }  // the version of the last exchange
  int64_t plans() const { return plans_; }            // the number of plans launched so far
  int64_t kv_bytes() const { return runner_ != nullptr ? runner_->kv_bytes() : 0; }
  // All device memory that is allocated now: weights, keys and values, and what steps need beside them.
  int64_t device_bytes() const;

 private:
  absl::Status Perform(const EngineCommand& command);
  // Records too little memory in room_; returns any other error.
  absl::Status KeepNoRoom(const absl::Status& restored);
  absl::Status Launch(const StepPlan& plan);
  absl::Status AwaitLaunched(size_t most);
  // Blocks until no work reads the weights.
  absl::Status Synchronize();

  const std::shared_ptr<EngineBackend> backend_;
  std::unique_ptr<ModelRunner> runner_;
  std::deque<ModelRunner::Ticket> launched_;
  PolicyVersion serving_;
  absl::Status room_;
  int64_t plans_ = 0;
};

}  // namespace syncopate::rollouter
