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
#include "trainer/actor/base_memory.h"
#include "trainer/actor/flat_shards.h"
#include "trainer/actor/policy_snapshot.h"
#include "trainer/actor/sharded_units.h"
#include "trainer/actor/side_stream.h"
#include "trainer/actor/unit_access.h"
#include "trainer/memory/state_part.h"

namespace syncopate::trainer {

// The memory of one rank's state, if the state may leave the device.
struct ActorArenas {
  std::unique_ptr<StateArena> parameters, copy, gradients, first_moment, second_moment;

  // Makes each arena for a rank's parameters, or for what is trained of them (moments, gradients): bfloat16 in
  // `copy`, which is null unless `has_copy`, and float32 in the others. With `copy` and adapters, `parameters` are
  // the adapters alone, as the base is in `copy`; with `base_elsewhere` (BaseMemory) it is in none. All are null if
  // `factory` is null.
  static absl::StatusOr<ActorArenas> Create(const StateArenaFactory& factory, const FlatShards& shards, bool has_copy,
                                            bool base_elsewhere = false);
};

// BaseMemory that is allocated.
struct PlacedBase {
  const Manifest* layout = nullptr;  // read by the constructor alone
  char* bytes = nullptr;             // null: there is none
};

// The policy that is trained: parameters, gradients and AdamW moments as four flat float32 tensors in wire order on one
// device, so that the optimizer is a handful of operators and staging a version is one copy. If the model has adapters,
// they alone are trained: gradients and moments are only of them, the end of the parameters. Forward and backward read
// the parameters themselves, or a bfloat16 copy that each update renews. A base of adapters that computes in bfloat16
// is in that copy alone, rounded once from what was read: there are no float32 parameters of it. With several ranks
// each owns a shard of every unit (FlatShards), and forward and backward gather weights and reduce gradients unit by
// unit; "a rank's arena" below means that shard. Not thread-safe: the step thread owns it. May throw c10::Error.
class Actor {
 public:
  // Starts from the weights of `files`, which were opened for `config`; if `files` is null, from random weights made
  // from `seed`, the same on every device. `manifest` is the float32 manifest of `config`. `compute`: kFloat or
  // kBFloat16. `ranks`: the communicator of the ranks that share the policy, for memory of `device`; it must outlive
  // this object, and FlatShards::Create() must have succeeded for it; null: a single rank. `arenas`: memory of
  // `device` for shards().local_elements(); each null member is replaced by memory of the device's allocator.
  // `reduce`: see ReducedGradients. `adapters`: the initial adapters, opened for `config`; null: new ones from
  // `seed`. `base`: memory for the base of adapters, for which CanHoldBase() is true; default: the base is in
  // `arenas`.
  Actor(const model::ModelConfig& config, const Manifest& manifest, const AdamWOptions& options, uint64_t seed,
        at::Device device = at::kCPU, const model::WeightFiles* files = nullptr, at::ScalarType compute = at::kFloat,
        Communicator* ranks = nullptr, ActorArenas arenas = {}, at::ScalarType reduce = at::kFloat,
        const model::AdapterFiles* adapters = nullptr, const PlacedBase& base = {});
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  // The parts of the state that may leave the device; they come back at the same addresses. While a part is away, no
  // call may use it. parameter_state() includes the copy and the units that forward and backward read, which are made
  // again when it comes back. Gradients come back as 0.
  StatePart& parameter_state() { return parameter_state_; }
  StatePart& optimizer_state() { return optimizer_state_; }
  StatePart& gradient_state() { return gradient_state_; }
  // Bytes of `arenas` that are on the device now.
  int64_t arena_bytes_on_device() const;

  const Manifest& manifest() const { return manifest_; }
  // The tensors that are trained, laid out from 0: the adapters, or all.
  const Manifest& trained() const { return trained_; }
  at::Device device() const { return parameters_.device(); }
  const model::Transformer& transformer() const { return transformer_; }
  const FlatShards& shards() const { return shards_; }
  // The weights that forward and backward multiply with, in the dtype `compute`.
  UnitAccess& weight_units() { return *weights_; }
  // The weights without the adapters: no copy. Only while weight_units() are there, and with the same calls.
  UnitAccess& base_units() { return *base_; }
  // With one rank the views always have memory; with several, only from Acquire to Release of their unit.
  const model::TransformerWeights& weights() const { return weights_->views(); }
  // The gradients: float32, in the shapes of the weights; undefined for weights that are not trained.
  UnitAccess& gradient_units() { return *gradient_units_; }

  void ZeroGradients();
  // Sums the gradients that have not been summed over ranks yet. Call after the last micro-batch, on all ranks.
  absl::Status FlushGradients();
  // The gradients in the trained part of this rank's arena: memory of device().
  absl::Span<float> gradients() {
    return absl::MakeSpan(gradients_.data_ptr<float>(), static_cast<size_t>(gradients_.numel()));
  }

  // Norms over all ranks, scalars on device().
  struct UpdateNorms {
    at::Tensor gradient;  // before clipping
    at::Tensor update;    // float64, of the change of the trained weights; 0 if they do not change
  };
  // Clips the gradients, which it may scale in place, and makes one AdamW update; on a GPU it only queues the work. The
  // update changes nothing if the gradient's norm or `guard` is not finite. `guard` is a scalar such as the loss, equal
  // on all ranks.
  //
  // The norm is clipped to max_grad_norm, and to max_grad_growth times the root of the second moment's sum (bias
  // corrected), which is the norm that recent gradients had. Without the second limit, one gradient after many small
  // ones moves each weight by up to (1 - beta1) / sqrt(1 - beta2) / (1 - beta1 / sqrt(beta2)) learning rates in one
  // direction (5.8 with the defaults) before the moments have forgotten it, however small that gradient is, because
  // AdamW divides by its size. Late in an easy task such a gradient undid what was learned (docs/learning.md).
  //
  // A caller that has read the gradient's norm and the guard calls CountUpdate() if both are finite. Errors: those of
  // Communicator, of FinishSnapshot() and of FinishRead().
  absl::StatusOr<UpdateNorms> QueueUpdate(const at::Tensor& guard);
  void CountUpdate() { ++updates_; }
  int64_t updates() const { return updates_; }
  // The learning rate of the last update; 0 before the first.
  double learning_rate() const { return updates_ > 0 ? LearningRateAt(options_, updates_) : 0; }

  // This rank's arenas, owned by this object. A checkpoint contains what is trained of these three arenas of all ranks,
  // and updates(). With base_is_rounded() the first one contains the adapters alone.
  const at::Tensor& parameters() const { return parameters_; }
  const at::Tensor& first_moment() const { return first_moment_; }
  const at::Tensor& second_moment() const { return second_moment_; }

  // Replaces the state by this rank's shards of `source`; for a GPU through a host buffer of 64 MiB. If a snapshot or a
  // read may be under way, call FinishSnapshot() and FinishRead() first.
  void Restore(const PolicySource& source);
  // See Policy::WriteTensor; `index` is in trained(). All ranks must call it; only rank 0's sink gets the tensor.
  absl::Status WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink);
  // See Policy::TakeSnapshot; copies what is trained of this rank's shard. Weights and moments must be on the device,
  // or in the host memory of their arenas, which is lent then.
  absl::StatusOr<std::shared_ptr<PolicySnapshot>> TakeSnapshot() const { return CopyParts(kPolicyParts); }
  // See Policy::TakeWeights; the same of the weights alone.
  absl::StatusOr<std::shared_ptr<PolicySnapshot>> TakeWeights() const { return CopyParts({PolicyPart::kParameters}); }
  // Finishes the copies of snapshots. Call before weights or moments are changed; each update does this itself.
  absl::Status FinishSnapshot() const;
  // CheckFinite() of weights in the host memory of their arena: those that are trained.
  absl::Status CheckFiniteOnHost() const;
  // See Policy::SetReader and Policy::ReadShard; with `trained_alone` see Policy::ReadTrained.
  void SetReader(std::function<absl::Status()> finish);
  absl::Status ReadShard(DType dtype, const std::function<absl::Status(int64_t begin, absl::string_view bytes)>& sink,
                         bool trained_alone = false) const;
  // Before weights are changed or moved: nobody reads them any more. Each update and each move does this itself.
  absl::Status FinishRead();
  bool has_arenas() const { return arenas_.parameters != nullptr; }  // not memory of libtorch's allocator
  // True if the base of adapters is in bfloat16 alone.
  bool base_is_rounded() const { return copy_.defined() && shards_.trained_begin() > 0; }
  // DigestBytes of the float32 numbers of each tensor of the base, as they were read or drawn. Empty unless this rank
  // has read or drawn all of the base and keeps it rounded.
  const std::vector<uint64_t>& base_digests() const { return base_digests_; }
  // Whether the base is in BaseMemory.
  bool base_is_elsewhere() const { return !base_tensors_.empty(); }
  // This rank's weights in `dtype`: float32, unless base_is_rounded(), or `compute`; the adapters alone if
  // base_is_elsewhere().
  const at::Tensor& shard(at::ScalarType dtype) const {
    SYNCOPATE_CHECK(dtype != at::kFloat || !base_is_rounded());
    return dtype == at::kFloat ? parameters_ : copy_;
  }
  // Where each tensor is in the dtype that computes, with one rank.
  std::vector<const void*> GetPlaces() const;
  // The digest, and the check, of the parameters of all ranks. All ranks must call them and get the same result; see
  // Policy.
  absl::StatusOr<uint64_t> Digest() const;
  absl::Status CheckFinite() const;

 private:
  // A range of the arena in which weight decay applies to all elements or to none.
  struct Range {
    int64_t begin = 0;
    int64_t count = 0;
    bool decays = true;
  };
  static std::vector<Range> DecayRanges(const Manifest& manifest, bool decay_all, const FlatShards& shards);

  // The gradient's norm and the second moment's sum over all ranks; the sum is undefined unless remembers().
  struct Norms {
    at::Tensor gradient;
    at::Tensor moment_sum;  // [] float64
  };
  const at::Tensor& GetPart(PolicyPart part) const;
  StateArena* GetArena(PolicyPart part) const;  // null: the part's memory comes from libtorch's allocator
  // Copies the trained part of each of these arenas.
  absl::StatusOr<std::shared_ptr<PolicySnapshot>> CopyParts(absl::Span<const PolicyPart> parts) const;
  // Gathers one trained unit of a part from all ranks: [world * shard], on the actor's device.
  absl::StatusOr<at::Tensor> GatherUnit(PolicyPart part, int unit);
  absl::StatusOr<Norms> MeasureNorms() const;
  // The factor that the gradients are multiplied by, [] float32; NaN if norm or guard is not finite.
  at::Tensor ClipFactor(const Norms& norms, const at::Tensor& guard) const;
  // Draws the tensors from `first` on; all others are 0.
  void Initialise(const model::ModelConfig& config, uint64_t seed, size_t first);
  // Writes tensors [first, first + count) of the manifest, which `read` gives by their index from 0.
  void CopyTensors(size_t first, size_t count, const std::function<void(size_t index, absl::Span<float> values)>& read);
  // Elements of one of the trained arenas by elements of this rank's arena.
  int64_t ToTrained(int64_t local) const { return local - shards_.trained_begin(); }
  at::Tensor TrainedParameters() const {
    return base_is_rounded() ? parameters_ : parameters_.narrow(0, shards_.trained_begin(), shards_.trained_elements());
  }
  // Where elements [local, local + count) of this rank's arena, of tensor `index`, are set at the start.
  at::Tensor GetInitialPlace(size_t index, int64_t local, int64_t count) const;
  at::Tensor TrainedCopy() const {
    return base_is_elsewhere() ? copy_ : copy_.narrow(0, shards_.trained_begin(), shards_.trained_elements());
  }
  // The base in bfloat16, in the order of this rank's arena: a part of the copy, or a new tensor if
  // base_is_elsewhere().
  at::Tensor RoundedBase() const;
  static std::vector<at::Tensor> ViewBase(const PlacedBase& base, at::Device device);
  // The arena of a part, beginning with the first element that is trained.
  at::Tensor GetTrainedPart(PolicyPart part) const {
    return part == PolicyPart::kParameters ? TrainedParameters() : GetPart(part);
  }
  // Call after the weights have changed.
  void RenewCopy();
  // Call after weights return to the device; rebuilds what is derived from them.
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
  at::Tensor parameters_;                                // [elements of this rank's arena, or of its trained part]
  at::Tensor gradients_, first_moment_, second_moment_;  // [those that are trained: the last ones]
  std::vector<uint64_t> base_digests_;
  const std::vector<at::Tensor> base_tensors_;  // flat, in BaseMemory; empty: the base is in copy_
  at::Tensor copy_;                             // this rank's arena in bfloat16; undefined for kFloat
  StatePart parameter_state_, optimizer_state_, gradient_state_;
  std::unique_ptr<UnitAccess> weights_, base_, gradient_units_;  // null while their part is away
  GatheredWeights* gathered_ = nullptr;  // *weights_ and, below, *gradient_units_, with several ranks
  ReducedGradients* reduced_ = nullptr;
  // The unit that WriteTensor gathered last, kept until that part changes, as its other tensors are asked for next. Its
  // numbers are empty on ranks other than 0.
  struct Written {
    PolicyPart part = PolicyPart::kParameters;
    int unit = -1;
    at::Tensor numbers;
  };
  Written written_;
  // What a base in bfloat16 adds to the sums of all buckets, [buckets] int64. The base does not change, and is summed
  // by the first digest after the weights have come to the device.
  mutable at::Tensor base_sums_;
  std::function<absl::Status()> reader_;  // that is to be finished; null: there is none
  SideStream reading_;                    // beside the current stream
  SideStream::Mark read_from_;            // what is read is there at this point of the current stream
  int64_t updates_ = 0;
};

}  // namespace syncopate::trainer
