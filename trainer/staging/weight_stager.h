#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "base/policy_version.h"
#include "base/status.h"
#include "synchronizer/transport/send_arena.h"
#include "synchronizer/transport/weight_store.h"

namespace syncopate::trainer {

// Copies the weights that a policy has at this moment to where receivers fetch them from, in wire order and in the
// dtype that they travel in. One rank's stager copies the rank's own shard; GroupStager does so on all ranks of a
// trainer.
class WeightStager {
 public:
  using Staged = synchronizer::SendArena::Staged;

  virtual ~WeightStager() = default;
  // The manifest of the weights that receivers get.
  virtual const Manifest& manifest() const = 0;
  // Begins to stage the present weights as `version`, on the thread that owns the policy and in a use of it. What
  // follows may be made beside it: the policy's next update, and a move of its weights, wait until the weights were
  // read (Policy::SetReader). Never waits for a receiver. FAILED_PRECONDITION reason VERSION_ORDER unless `version` is
  // above all versions staged before; reason STAGING if the previous Launch was not awaited.
  virtual absl::Status Launch(const PolicyVersion& version) = 0;
  // Blocks until the copy of the last Launch and its digests are made; after OK the version can be opened. Any thread,
  // but one at a time and not during a Launch. After an error nothing is staged, and the older versions that are still
  // there stay. DATA_LOSS reason NON_FINITE naming the tensor.
  virtual absl::StatusOr<Staged> Await() = 0;
  // What the policy's thread has waited, since this was called last, before it changed or moved weights that were still
  // read. For that thread.
  virtual double TakeWaitSeconds() = 0;
  // Launch, then Await.
  absl::StatusOr<Staged> Stage(const PolicyVersion& version) {
    SYNCOPATE_RETURN_IF_ERROR(Launch(version));
    return Await();
  }
  // Lets what is staged leave the policy's device, for others that share it; receivers go on being served. A base that
  // is lent (LendBase) stays. True if nothing else of it is there now; false if a receiver still reads it there: call
  // again. The next Launch takes memory of the device again. For the policy's thread, and not between Launch and Await.
  // RESOURCE_EXHAUSTED if the host has no room.
  virtual absl::StatusOr<bool> LeaveDevice() { return true; }
  virtual synchronizer::WeightStore* store() = 0;
  // The memory of the base weights of all staged versions, for processes of this host to map. FAILED_PRECONDITION reason
  // NOT_LENT if this stager lends none, or has staged no version yet. Any thread.
  virtual absl::StatusOr<synchronizer::SharedMemory> LendBase() {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_LENT", "this stager lends no base weights");
  }
  // The layout that weight syncs plan from (synchronizer/plan/layout_text.h).
  virtual std::string layout() const = 0;
  // Memory that the staged versions take now, of this rank, on the device or, if they are staged there, in host memory.
  // Any thread.
  virtual int64_t bytes() const = 0;
};

// One rank's part of a weight sync: the shard that it sends, and the layout of the receivers that it packs for.
struct StagedPart {
  int32_t rank = 0;
  int32_t world = 1;
  std::string destination = {};  // the layout of the receivers; "": each has everything
};

// The layout of a trainer's shards: "units:T:DTYPE" for `world` ranks that read weights of `dtype`.
std::string SourceLayoutText(int32_t world, DType dtype);

// The plan by which the ranks of a trainer pack what `part.destination` gets of `wire`. Errors of BuildLayout and
// SyncPlan::Create.
absl::StatusOr<synchronizer::SyncPlan> PlanStaging(const Manifest& wire, const StagedPart& part, DType dtype);

}  // namespace syncopate::trainer
