#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/policy_version.h"
#include "rollouter/engine/model_runner.h"
#include "rollouter/engine/step_plan.h"

// How rank 0 of a replica leads the others: its engine is the only one that schedules, and everything that it does to
// runner and weights the others do too, in the same order. So plans cannot cross with installs, and all ranks queue the
// same collectives. This header needs no libtorch.
namespace syncopate::rollouter {

class EngineBackend;

// One thing to do.
struct EngineCommand {
  enum class Kind : uint8_t {
    kMakeRunner = 1,  // with `runner`
    kPlan,            // `plan`
    kExchange,        // the shadow serves as `version`, with `digest`
    kReleaseWeights,  // keep_live as WeightArenas::Release()
    kRestoreWeights,
    kReleaseBlocks,
    kRestoreBlocks,
  };
  Kind kind = Kind::kPlan;
  RunnerOptions runner = {};
  StepPlan plan = {};
  PolicyVersion version = {};
  uint64_t digest = 0;
  bool keep_live = false;
};

// All ranks but rank 0.
class EngineFollowers {
 public:
  virtual ~EngineFollowers() = default;
  // Sends it behind all others that were sent, and does not wait until it is done. UNAVAILABLE reason RANK_LOST.
  virtual absl::Status Send(const EngineCommand& command) = 0;
};

// Rank 0's backend: does what `backend` does and has the followers do it too. Both outlive the engine. What succeeds
// here and fails on another rank is the end of that rank, and by that of the replica.
std::shared_ptr<EngineBackend> MakeLeadingBackend(std::shared_ptr<EngineBackend> backend, EngineFollowers* followers);

// Another rank's runner and weights.
class FollowingEngine {
 public:
  // `backend` is made for this rank's slice.
  explicit FollowingEngine(std::shared_ptr<EngineBackend> backend);
  ~FollowingEngine();
  FollowingEngine(const FollowingEngine&) = delete;
  FollowingEngine& operator=(const FollowingEngine&) = delete;

  // Does it; by one thread, in the order of rank 0's commands. Blocks for a plan at most, until an earlier one is done.
  // After an error the only thing to do is to destroy this; an error of libtorch is one, too.
  absl::Status Obey(const EngineCommand& command);

  PolicyVersion serving() const { return serving_; }  // what the last exchange brought
  int64_t plans() const { return plans_; }            // launched so far
  int64_t kv_bytes() const { return runner_ != nullptr ? runner_->kv_bytes() : 0; }

 private:
  absl::Status Perform(const EngineCommand& command);
  absl::Status Launch(const StepPlan& plan);
  absl::Status AwaitLaunched(size_t most);
  // Blocks until nothing reads the weights.
  absl::Status Synchronize();

  const std::shared_ptr<EngineBackend> backend_;
  std::unique_ptr<ModelRunner> runner_;
  std::deque<ModelRunner::Ticket> launched_;
  PolicyVersion serving_;
  int64_t plans_ = 0;
};

}  // namespace syncopate::rollouter
