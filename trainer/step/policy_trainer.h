#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"
#include "base/trajectory.h"
#include "model/adapter_files.h"
#include "model/model_config.h"
#include "model/weight_files.h"
#include "ranks/mesh.h"
#include "trainer/actor/base_memory.h"
#include "trainer/memory/state_arena.h"
#include "trainer/step/options.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// The policy under training and everything that changes it: actor, loss, optimizer. The border to libtorch: this header
// needs none of it. Owned by the step thread; not thread-safe. With several ranks Step(), WriteTensor(),
// Digest() and CheckFinite() are calls that all ranks make in the same order, with the same groups, and whose errors
// Communicator's may be; all give the same on every rank, but for WriteTensor(), which writes on rank 0 alone.
class PolicyTrainer final : public Policy {
 public:
  struct Options {
    model::ModelConfig model;
    AdamWOptions optimizer;
    TrainStepOptions step;
    uint64_t seed = 0;  // of the initial weights
    // The initial weights, opened for `model`; null: random ones. Not needed after Create() unless the model has
    // adapters. They are the reference policy too, if the loss asks for one, whatever is restored later; see
    // reference_after_supervised.
    std::shared_ptr<const model::WeightFiles> weights = nullptr;
    // The run begins with supervised steps, and the reference policy is the policy at their end: the first Step() makes
    // its weights the reference, and checkpoints contain it from then on. Without effect on adapters, whose reference
    // is their base.
    bool reference_after_supervised = false;
    // The initial adapters, opened for `model`; null: new ones, with which the policy is the base. Not needed after
    // Create().
    std::shared_ptr<const model::AdapterFiles> adapters = nullptr;
    // What adapter_config.json of a checkpoint says, if the model has adapters.
    std::string adapter_config = {};
    // The unit of Digest(). Not that of the wire, which may change when a run is resumed.
    int64_t bucket_bytes = Manifest::kDefaultBucketBytes;
    int threads = 1;             // intra-op threads of libtorch, for the whole process
    std::string device = "cpu";  // or "cuda:N", as model::ChooseDevice says
    // What forward and backward multiply; without one bfloat16 on a GPU and float32 on the CPU. Weights and moments are
    // float32 beside it.
    std::optional<DType> compute_dtype = std::nullopt;
    // What ranks sum their gradients in: kFloat32 or kBFloat16.
    DType reduce_dtype = DType::kFloat32;
    MemoryOptions memory;
    // Memory of `device` for the state, which can leave it. Null: on the CPU MakeHostStateArena; on a GPU memory of
    // libtorch's allocator, which stays there, and `memory` may not ask for more.
    StateArenaFactory arenas = nullptr;
    // Memory of the send slots for the base of adapters, which takes none beside `send_bytes` then. Null: the base is in
    // the state.
    std::shared_ptr<const BaseMemory> base_memory = nullptr;
    // Memory of `device` for the state and for `send_bytes`; 0: not known.
    int64_t device_bytes = 0;
    // What the send slots of this rank will take of `device`.
    int64_t send_bytes = 0;
    // The ranks that share the policy, each with the same other options; their communicators outlive it.
    Mesh mesh;
  };

  // Builds the model. INVALID_ARGUMENT for options that cannot be (reason TOO_MANY_RANKS among them);
  // RESOURCE_EXHAUSTED (reason STATE_TOO_LARGE), with the sum and what it is made of, if the state needs more than
  // device_bytes; DATA_LOSS (reason NON_FINITE) naming file and tensor if a weight is not finite: both before anything
  // is allocated. RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY) saying how much was needed.
  static absl::StatusOr<std::unique_ptr<PolicyTrainer>> Create(const Options& options);
  // The check of Create() that the state fits `options.device_bytes`; allocates nothing.
  static absl::Status CheckFits(const Options& options);
  ~PolicyTrainer() override;
  PolicyTrainer(const PolicyTrainer&) = delete;
  PolicyTrainer& operator=(const PolicyTrainer&) = delete;

  const Manifest& manifest() const override;
  const Manifest& trained() const override;
  absl::StatusOr<uint64_t> BaseDigest() const override;
  // INTERNAL (reason TORCH) is libtorch's own error, RESOURCE_EXHAUSTED (reason OUT_OF_MEMORY) one of memory. So for
  // all that follow.
  absl::StatusOr<StepFigures> Step(const std::vector<const TrajectoryGroup*>& groups, int64_t step) override;
  // For callers that do not measure staleness: a step at version 0.
  absl::StatusOr<StepFigures> Step(const std::vector<const TrajectoryGroup*>& groups) { return Step(groups, 0); }
  absl::StatusOr<StepFigures> SupervisedStep(const std::vector<const TrajectoryGroup*>& groups) override;
  absl::StatusOr<HeldOutLoss> MeasureSupervised(const std::vector<const TrajectoryGroup*>& groups) override;
  absl::Status WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink) const override;
  // Both are this rank's only; LeadingPolicy forwards the calls to the others.
  absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeSnapshot(const std::string& folder) const override;
  absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeWeights(const std::string& folder) const override;
  absl::Status SetReader(std::function<absl::Status()> finish) override;
  absl::Status ReadShard(DType dtype, const ShardSink& sink) const override;
  absl::Status ReadTrained(DType dtype, const ShardSink& sink) const override;
  DType GetShardDType(const Manifest& wire) const override;
  absl::StatusOr<uint64_t> Digest() const override;
  absl::Status CheckFinite() const override;
  int64_t updates() const override;
  absl::Status BeginUse() override;
  absl::Status EndUse() override;
  absl::StatusOr<StateMoves> EnterRolloutMode() override;
  absl::StatusOr<StateMoves> EnterTrainerMode() override;
  bool reads_on_host() const override;
  PolicyMemory memory() const override;
  PolicyMoves TakeMoves() override;
  // Copies all of `source`, which has the tensors of trained(), tensor by tensor; of several ranks each its shards. With
  // reference_after_supervised a source without a reference is of a time before the first Step().
  absl::Status Restore(const PolicySource& source);

  // This rank's weights, in `dtype`, where the policy computes: float32, or the copy in compute_dtype().
  // Laid out as FlatShards says; always at this address, with memory behind it while the policy is in use. Work on them
  // is queued on the device's default stream.
  const void* device_shard(DType dtype) const;
  // Where each tensor of manifest() is in compute_dtype(), of a policy of one rank; else as device_shard().
  std::vector<const void*> device_tensors() const;
  DType compute_dtype() const;
  bool is_sharded() const;  // there are several ranks

 private:
  class Core;
  explicit PolicyTrainer(std::unique_ptr<Core> core);
  // A step of either kind.
  template <typename Work>
  absl::StatusOr<StepFigures> RunStep(const char* what, Work work);
  // Names in a snapshot of adapters what they belong to.
  absl::StatusOr<std::shared_ptr<const PolicySnapshot>> WithBase(
      absl::StatusOr<std::shared_ptr<PolicySnapshot>> copied) const;

  std::unique_ptr<Core> core_;
};

}  // namespace syncopate::trainer
