#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/manifest.h"
#include "model/adapter_files.h"
#include "model/model_config.h"
#include "model/ops.h"
#include "model/transformer.h"
#include "model/weight_files.h"
#include "ranks/communicator.h"
#include "trainer/actor/actor_options.h"
#include "trainer/actor/flat_shards.h"
#include "trainer/actor/policy_snapshot.h"
#include "trainer/actor/sharded_units.h"
#include "trainer/actor/unit_access.h"
#include "trainer/memory/state_part.h"

namespace syncopate::trainer {

// Memory for a rank's state that can leave the device.
struct ActorArenas {
  std::unique_ptr<StateArena> parameters, copy, gradients, first_moment, second_moment;

  // For a rank's parameters and what is trained of them; `copy` in bfloat16, if there is one. Without a factory all are
  // null.
  static absl::StatusOr<ActorArenas> Create(const StateArenaFactory& factory, const FlatShards& shards, bool has_copy);
};

// The policy that is trained: parameters, gradients and AdamW moments as four flat float32 tensors in wire order on one
// device, so that the optimizer is a handful of operators and staging a version is one copy. If the model has adapters, they
// alone are trained: gradients and moments are only of them, the end of the parameters. Forward and backward read
// the parameters themselves, or a bfloat16 copy that each update renews. With several ranks each holds a shard of every
// unit (FlatShards), and forward and backward gather weights and reduce gradients unit by unit; what is said to be of a
// rank's arena is that shard. Not thread-safe: the step thread owns it. May throw c10::Error.
class Actor {
 public:
  // The weights of `files`, which were opened for `config`; without them random ones from `seed`, the same on every
  // device. `adapters`: those of the same config, or null for new ones from `seed`. `manifest` is the float32 manifest of `config`. `compute`: kFloat or kBFloat16. `ranks`: those that share
  // the policy, which outlive this, on the memory of `device`, and for which FlatShards::Create() has no error; null: one.
  // `arenas`: memory of `device` for shards().local_elements(); what is null there is taken from its allocator. `reduce`:
  // as ReducedGradients.
  Actor(const model::ModelConfig& config, const Manifest& manifest, const AdamWOptions& options, uint64_t seed,
        at::Device device = at::kCPU, const model::WeightFiles* files = nullptr, at::ScalarType compute = at::kFloat,
        Communicator* ranks = nullptr, ActorArenas arenas = {}, at::ScalarType reduce = at::kFloat,
        const model::AdapterFiles* adapters = nullptr);
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  // Parts that may leave the device and come back at the same addresses; nothing of a part that is away may be called for.
  // Weights: those in float32, and the copy and units that forward and backward read, which are made again. Gradients come
  // back as 0.
  StatePart& parameter_state() { return parameter_state_; }
  StatePart& optimizer_state() { return optimizer_state_; }
  StatePart& gradient_state() { return gradient_state_; }
  // Of `arenas`.
  int64_t arena_bytes_on_device() const;

  const Manifest& manifest() const { return manifest_; }
  // The tensors that are trained, laid out from 0: the adapters, or all.
  const Manifest& trained() const { return trained_; }
  at::Device device() const { return parameters_.device(); }
  const model::Transformer& transformer() const { return transformer_; }
  const FlatShards& shards() const { return shards_; }
  // What forward and backward multiply, in the dtype `compute`.
  UnitAccess& weight_units() { return *weights_; }
  // The weights without the adapters: no copy. Only while weight_units() are there, and with the same calls.
  UnitAccess& base_units() { return *base_; }
  // With one rank; with several they are there from Acquire to Release.
  const model::TransformerWeights& weights() const { return weights_->views(); }
  // float32, shaped as the weights are; weights that are not trained have none.
  UnitAccess& gradient_units() { return *gradient_units_; }

  void ZeroGradients();
  // After the last micro-batch: sums those that are not yet, over ranks.
  absl::Status FlushGradients();
  // Of the trained part of this rank's arena; memory of device().
  absl::Span<float> gradients() {
    return absl::MakeSpan(gradients_.data_ptr<float>(), static_cast<size_t>(gradients_.numel()));
  }

  // Clips, then makes one AdamW update by the gradients, which it may scale in place; on a GPU nothing waits for it.
  // Nothing changes if the gradient's norm or `guard`, a scalar such as the loss, the same on all ranks, is not finite.
  //
  // Clipped is the norm: to max_grad_norm, and to max_grad_growth times the root of the second moment's sum (bias
  // corrected), which is the norm that gradients have had lately. Without the latter, one gradient that comes after
  // many small ones moves each weight by up to (1 - beta1) / sqrt(1 - beta2) / (1 - beta1 / sqrt(beta2)) learning rates
  // in one direction (5.8 with the defaults) before the moments have forgotten it, however small it is: AdamW divides
  // its size away. Late in an easy task that undid what was learned (docs/learning.md).
  //
  // Returns the gradient's norm before clipping, of all ranks, a scalar on device(). Whoever has read it, and the guard,
  // calls CountUpdate() if both were finite. Errors are those of Communicator and of FinishSnapshot().
  absl::StatusOr<at::Tensor> QueueUpdate(const at::Tensor& guard);
  void CountUpdate() { ++updates_; }
  int64_t updates() const { return updates_; }
  // Of the update that was made last; 0 before the first.
  double learning_rate() const { return updates_ > 0 ? LearningRateAt(options_, updates_) : 0; }

  // This rank's arenas, owned by this object; a checkpoint holds what is trained of the three, of all ranks, and the number
  // of updates.
  const at::Tensor& parameters() const { return parameters_; }
  const at::Tensor& first_moment() const { return first_moment_; }
  const at::Tensor& second_moment() const { return second_moment_; }

  // Copies all of `source`, of which this rank takes its shards, through a buffer of some MiB where the actor is not on
  // the host. After FinishSnapshot(), if one may be under way.
  void Restore(const PolicySource& source);
  // As Policy::WriteTensor, `index` in trained(): a call of all ranks. Rank 0's sink gets the tensor, other sinks nothing.
  absl::Status WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink);
  // As Policy::TakeSnapshot, of this rank; weights and moments are on the device.
  absl::StatusOr<std::shared_ptr<PolicySnapshot>> TakeSnapshot() const;
  // Before weights or moments are changed: the copies of snapshots are whole. Each update does this itself.
  absl::Status FinishSnapshot() const;
  // As Policy::ReadShard.
  absl::Status ReadShard(const std::function<absl::Status(int64_t begin, absl::string_view bytes)>& sink) const;
  // This rank's weights in `dtype`: float32, or `compute`.
  const at::Tensor& shard(at::ScalarType dtype) const { return dtype == at::kFloat ? parameters_ : copy_; }
  // Of the parameters of all ranks, on every rank, which all call it: as Policy's.
  absl::StatusOr<uint64_t> Digest() const;
  absl::Status CheckFinite() const;

 private:
  // What weight decay treats alike.
  struct Range {
    int64_t begin = 0;
    int64_t count = 0;
    bool decays = true;
  };
  static std::vector<Range> DecayRanges(const Manifest& manifest, bool decay_all, const FlatShards& shards);

  // Norms over all ranks: of the gradient, and the sum of the second moment, undefined if nothing asks for it.
  struct Norms {
    at::Tensor gradient;
    at::Tensor moment_sum;  // [] float64
  };
  const at::Tensor& GetPart(PolicyPart part) const;
  StateArena* GetArena(PolicyPart part) const;  // null: the part's memory is of the allocator
  // A trained unit of a part, of all ranks, on the actor's device. [world * shard]
  absl::StatusOr<at::Tensor> GatherUnit(PolicyPart part, int unit);
  absl::StatusOr<Norms> MeasureNorms() const;
  // What the gradients are multiplied by, [] float32; NaN if norm or guard is not finite.
  at::Tensor ClipFactor(const Norms& norms, const at::Tensor& guard) const;
  void Initialise(const model::ModelConfig& config, uint64_t seed);
  // Writes tensors [first, first + count) of the manifest, which `read` gives by their index from 0.
  void CopyTensors(size_t first, size_t count, const std::function<void(size_t index, absl::Span<float> values)>& read);
  // Elements of one of the trained arenas by elements of the parameters.
  int64_t ToTrained(int64_t local) const { return local - shards_.trained_begin(); }
  at::Tensor TrainedParameters() const {
    return parameters_.narrow(0, shards_.trained_begin(), shards_.trained_elements());
  }
  // The arena of a part, beginning with the first element that is trained.
  at::Tensor GetTrainedPart(PolicyPart part) const {
    return part == PolicyPart::kParameters ? TrainedParameters() : GetPart(part);
  }
  // The weights have changed.
  void RenewCopy();
  // They are on the device again: so is what is made of them.
  void RenewWeights();
  void MakeWeightUnits();
  void MakeGradientUnits();
  void ReleaseWeightUnits();
  void ReleaseGradientUnits();
  void WaitForDevice() const;
  bool remembers() const { return options_.max_grad_growth > 0 && updates_ > 0; }

  const Manifest manifest_;
  const Manifest trained_;
  const size_t first_trained_;  // index in manifest_ of the first tensor of trained_
  const AdamWOptions options_;
  const model::Ops& ops_;
  const model::Transformer transformer_;
  SingleRank single_;
  Communicator& ranks_;
  const FlatShards shards_;
  const std::vector<Range> ranges_;
  const at::ScalarType reduce_;
  const ActorArenas arenas_;
  at::Tensor parameters_;                                // [elements of this rank's arena]
  at::Tensor gradients_, first_moment_, second_moment_;  // [those that are trained: the last ones]
  at::Tensor copy_;                                      // the parameters in bfloat16; undefined for kFloat
  StatePart parameter_state_, optimizer_state_, gradient_state_;
  std::unique_ptr<UnitAccess> weights_, base_, gradient_units_;  // null while their part is away
  GatheredWeights* gathered_ = nullptr;                          // the two, with several ranks
  ReducedGradients* reduced_ = nullptr;
  // The unit that was written last, of a part, until it changes: WriteTensor is asked for all of its tensors. On ranks
  // other than 0 it is empty.
  struct Written {
    PolicyPart part = PolicyPart::kParameters;
    int unit = -1;
    at::Tensor numbers;
  };
  Written written_;
  int64_t updates_ = 0;
};

}  // namespace syncopate::trainer
