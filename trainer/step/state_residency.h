#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "trainer/actor/actor.h"
#include "trainer/actor/reference_policy.h"
#include "trainer/memory/cache_rule.h"
#include "trainer/memory/memory_figures.h"
#include "trainer/step/options.h"

namespace syncopate::trainer {

// Which parts of a policy's state are on its device, and when its allocator is emptied. Owned by the policy's thread;
// may throw c10::Error. Errors are those of StatePart.
//
//   parameters  there while in use; else away if offload_params, or in rollout mode
//   optimizer   there, but from a step's first log-prob pass to its first update if offload_optimizer_for_logprob; away in
//               rollout mode, unless it is read between BeginUse and EndUse
//   reference   there, or during its passes alone if offload_reference; away in rollout mode
//   gradients   there from step to step, as nothing moves them in between; in rollout mode they are dropped, for each update
//               begins with zeros
class StateResidency {
 public:
  // All borrowed; `reference` may be null. `device`: "cpu" or "cuda:N".
  StateResidency(Actor& actor, ReferencePolicy* reference, const MemoryOptions& options, std::string device)
      : actor_(actor),
        reference_(reference),
        options_(options),
        device_(std::move(device)),
        rule_(options.empty_cache) {}

  // The state was made: what is not to stay leaves.
  absl::Status Begin();

  // See Policy::BeginUse and Policy::EndUse.
  absl::Status BeginUse();
  absl::Status EndUse();
  absl::StatusOr<StateMoves> EnterRolloutMode();
  absl::StatusOr<StateMoves> EnterTrainerMode();
  // All of the state is in host memory, and no use brings it back for now.
  bool is_away() const { return rollout_mode_ && uses_ == 0; }
  PolicyMemory memory() const;
  PolicyMoves TakeMoves();

  // Around what a step is made of, in a use. FAILED_PRECONDITION (reason ROLLOUT_MODE).
  absl::Status BeginStep();
  // Log-probs are asked for, without gradients: before each of a step's passes.
  absl::Status BeginPass();
  // Before each micro-batch, of a pass or of an update: while nothing of it is on the device.
  void BeginMicroBatch();
  // The optimizer is about to be used, or read.
  absl::Status NeedOptimizer() { return actor_.optimizer_state().Load(); }
  absl::Status BeginReference();
  absl::Status EndReference();
  // A reference pass over a whole batch is over.
  absl::Status EndReferencePass();
  // Call also after an error. Afterwards every part is where it belongs between two steps.
  absl::Status EndStep();

 private:
  absl::Status OffloadReference();
  absl::Status LoadAll();
  void LookAtCache();
  void EmptyCacheNow();
  StateMoves AllMoves() const;  // since they were taken
  StateMoves Since(const StateMoves& before) const;

  Actor& actor_;
  ReferencePolicy* const reference_;
  const MemoryOptions options_;
  const std::string device_;
  CacheRule rule_;
  int uses_ = 0;
  bool rollout_mode_ = false;
  bool stepped_ = false;  // in the use under way
  bool passed_ = false;   // a pass of the step under way has begun
  int64_t cache_flushes_ = 0;
};

}  // namespace syncopate::trainer
