#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/log.h"
#include "base/manifest.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "model/safetensors.h"
#include "trainer/actor/policy_snapshot.h"
#include "trainer/memory/memory_figures.h"
#include "trainer/step/options.h"
#include "trainer/step/step_figures.h"

namespace syncopate::trainer {

// A policy under training, as the step loop sees it: PolicyTrainer, or a test's own. Owned by one thread.
class Policy {
 public:
  virtual ~Policy() = default;

  virtual const Manifest& manifest() const = 0;
  // The tensors that training changes, with a layout of their own: those of manifest(), or its adapters, if it has
  // some. All other tensors are the base.
  virtual const Manifest& trained() const { return manifest(); }
  // Names the numbers of the base in float32, the same on any device and for any number of ranks; 0 if all tensors are
  // trained. May read all weights when it is called first.
  virtual absl::StatusOr<uint64_t> BaseDigest() const { return 0; }
  // One training step on whole groups, in this order; a pure function of state, groups and `step`, the number of the
  // version it begins with, which the staleness of tokens is counted to. Blocks for its duration. After an error the
  // run cannot go on from this state.
  virtual absl::StatusOr<StepFigures> Step(const std::vector<const TrajectoryGroup*>& groups, int64_t step) = 0;
  // Trains on given answers: each group has at least one, with tokens alone. Makes one update by the mean cross-entropy
  // of their tokens. A pure function of state and groups.
  virtual absl::StatusOr<StepFigures> SupervisedStep(const std::vector<const TrajectoryGroup*>& groups) = 0;
  // Measures the loss of a supervised step on `groups`, which are as those of SupervisedStep(), and changes nothing.
  virtual absl::StatusOr<HeldOutLoss> MeasureSupervised(const std::vector<const TrajectoryGroup*>& groups) = 0;

  // Writes the numbers of tensor `index` of trained() of a part, float32, row-major, to `sink`: in pieces of whole
  // numbers, of which two at most are copied from another device to the host at a time. Blocks; passes the sink's errors
  // on.
  virtual absl::Status WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink) const = 0;
  // Copies this rank's present state to host memory; the copy may be written to disk while steps are made. Other ranks
  // copy theirs too, and write it into `folder` of the folder of checkpoints. On the CPU the call blocks for the copy;
  // on a GPU the thread that calls PolicySnapshot::FinishCopy() makes the copy beside the next step, and that step's
  // update waits for it. RESOURCE_EXHAUSTED if the host has no room.
  virtual absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeSnapshot(const std::string& folder) const = 0;
  // The same of the weights alone, which other ranks write into `folder` of the folder of exports.
  virtual absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeWeights(const std::string& folder) const = 0;
  // Lets a reader read this rank's weights while the policy does what is next. SetReader, in a use, says that they are
  // read as they are now: the policy calls `finish` once, on its own thread, before it changes or moves them, and goes
  // on when that has returned OK; its error is the call's. Until then forward and backward passes, which change none of
  // them, may be made. Null: nobody reads any more. A reader replaces the one before, which must be done.
  virtual absl::Status SetReader(std::function<absl::Status()> finish) = 0;
  // Hands those weights to `sink`, ascending, in `dtype`: pieces of the rank's arena (trainer/actor/flat_shards.h; with
  // one rank and in float32 laid out as manifest(); in bfloat16 each number begins at half its byte there), each with the
  // byte at which it begins. Gaps may be left out. On the CPU float32 weights are passed as they are, and others are
  // converted piece by piece. From another device two small pieces at a time are copied, on a stream beside the policy's.
  // Called by any thread, between SetReader and the end of `finish`. No call of the other ranks. Blocks; passes the
  // sink's errors on.
  using ShardSink = std::function<absl::Status(int64_t begin, absl::string_view bytes)>;
  virtual absl::Status ReadShard(DType dtype, const ShardSink& sink) const = 0;
  // Reads as ReadShard() does, but the pieces of trained() at least.
  virtual absl::Status ReadTrained(DType dtype, const ShardSink& sink) const { return ReadShard(dtype, sink); }
  // The type in which to read weights that travel as `wire`: bfloat16 if all of them travel in it and the policy is on a
  // device that rounds to it, else float32.
  virtual DType GetShardDType(const Manifest& /*wire*/) const { return DType::kFloat32; }
  // The one digest of the parameters (base/digest.h), made where they are.
  virtual absl::StatusOr<uint64_t> Digest() const = 0;
  // DATA_LOSS (reason NON_FINITE) naming the first tensor with a parameter that is not finite. Looks where they are.
  virtual absl::Status CheckFinite() const = 0;
  // Optimizer updates that were made.
  virtual int64_t updates() const = 0;

  // -- Where the state is (docs/training.md, "Memory").
  // From BeginUse() to its EndUse() the weights are on the device, whatever was asked for; uses nest, and each call
  // above is one by itself. After the last one they leave if that was asked for. Both block; after an error there is no
  // use.
  virtual absl::Status BeginUse() = 0;
  virtual absl::Status EndUse() = 0;
  // Between two uses: all that the policy has on its device leaves it, or is there again but for what options keep
  // away. What moving it took, on this rank: all 0 if that was done. Of several ranks each returns when all have done
  // it. No step is made in rollout mode: FAILED_PRECONDITION (reason ROLLOUT_MODE).
  virtual absl::StatusOr<StateMoves> EnterRolloutMode() = 0;
  virtual absl::StatusOr<StateMoves> EnterTrainerMode() = 0;
  // Whether TakeSnapshot(), TakeWeights() and CheckFinite() read the state in host memory now, so that none of it comes
  // to the device: in rollout mode, where the policy supports it. A snapshot then lends that memory, and the next
  // EnterRolloutMode() takes more if the snapshot is still in use.
  virtual bool reads_on_host() const { return false; }
  virtual PolicyMemory memory() const = 0;
  virtual PolicyMoves TakeMoves() = 0;  // since it was called last
};

// Does `work`, which returns absl::Status or absl::StatusOr<T>, while the weights of `policy` are on its device:
// anything with BeginUse() and EndUse(). They may leave after it, also after an error, which is what is returned then.
template <typename Used, typename Work>
auto InUse(Used& policy, Work&& work) -> decltype(work()) {
  SYNCOPATE_RETURN_IF_ERROR(policy.BeginUse());
  auto result = work();
  const absl::Status ended = policy.EndUse();
  if (ended.ok()) return result;
  if (result.ok()) return ended;
  SYNCOPATE_LOG(kError, "after an error the weights stay on the device: %s", ended.ToString());
  return result;
}

// Does `work`, which calls TakeSnapshot(), TakeWeights() and CheckFinite() alone, in a use if it needs one.
template <typename Work>
auto InCopyUse(Policy& policy, Work&& work) -> decltype(work()) {
  return policy.reads_on_host() ? work() : InUse(policy, std::forward<Work>(work));
}

}  // namespace syncopate::trainer
