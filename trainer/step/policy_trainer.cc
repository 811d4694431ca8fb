#include "trainer/step/policy_trainer.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "model/torch_error.h"
#include "trainer/actor/actor.h"
#include "trainer/actor/reference_policy.h"
#include "trainer/step/state_residency.h"
#include "trainer/step/train_step.h"

namespace syncopate::trainer {
namespace {

// bfloat16 is fast on GPUs alone.
DType DefaultDType(const std::string& device) {
  return at::Device(device).is_cpu() ? DType::kFloat32 : DType::kBFloat16;
}

// What a rank's state takes of its device, in bytes.
struct StateSize {
  int64_t weights = 0, gradients = 0, moments = 0, copy = 0, reference = 0, gathered = 0, slots = 0;
  int64_t total() const { return weights + gradients + moments + copy + reference + gathered + slots; }
  std::string ToString() const;
};

std::string InMiB(int64_t bytes) { return absl::StrCat((bytes + (1 << 20) - 1) >> 20, " MiB"); }

std::string StateSize::ToString() const {
  std::string sum =
      absl::StrCat("weights ", InMiB(weights), " + gradients ", InMiB(gradients), " + two moments ", InMiB(moments));
  if (copy > 0) absl::StrAppend(&sum, " + bfloat16 copy ", InMiB(copy));
  if (reference > 0) absl::StrAppend(&sum, " + reference policy ", InMiB(reference));
  if (gathered > 0) absl::StrAppend(&sum, " + gathered units ", InMiB(gathered));
  if (slots > 0) absl::StrAppend(&sum, " + send slots ", InMiB(slots));
  return absl::StrCat(sum, " = ", InMiB(total()));
}

DType ComputeDType(const PolicyTrainer::Options& options) {
  return options.compute_dtype.value_or(DefaultDType(options.device));
}

// Bytes of the units that a rank gathers at once (those of the vocabulary, and the largest layer twice), as weights and
// as gradients, and of what the sum of the largest one goes through.
int64_t GatheredBytes(const FlatShards& shards, int64_t computing, DType reduce) {
  int64_t layer = 0;
  for (int unit = 1; unit < shards.output_unit(); ++unit) layer = std::max(layer, shards.unit(unit).shard);
  const int64_t embeddings = shards.unit(FlatShards::kEmbeddings).shard;
  const int64_t output = shards.unit(shards.output_unit()).shard;
  const bool has_adapters = shards.first_trained_unit() > FlatShards::kEmbeddings;
  const int64_t adapters = has_adapters ? shards.unit(shards.first_trained_unit()).shard : 0;
  const int64_t base = embeddings + output + 2 * layer;
  const int64_t trained = has_adapters ? adapters : base;
  const int64_t largest = has_adapters ? adapters : std::max({layer, embeddings, output});
  const auto gradient = static_cast<int64_t>(sizeof(float));
  const int64_t sums = reduce == DType::kFloat32 ? gradient * largest : gradient / 2 * (shards.world() + 1) * largest;
  return shards.world() * ((base + adapters) * computing + trained * gradient) + sums;
}

// Whether the loss asks for a reference policy that has weights of its own.
bool CopiesReference(const PolicyTrainer::Options& options) {
  return options.step.loss.needs_reference() && !options.model.lora.enabled();
}

StateSize GetStateSize(const FlatShards& shards, const PolicyTrainer::Options& options) {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  const bool has_copy = ComputeDType(options) == DType::kBFloat16;
  const int64_t elements = shards.local_elements(), computing = has_copy ? kFloat / 2 : kFloat;
  StateSize size;
  // A base of adapters that computes in bfloat16 is in the copy alone.
  size.weights = (has_copy ? shards.trained_elements() : elements) * kFloat;
  size.gradients = shards.trained_elements() * kFloat;
  size.moments = 2 * shards.trained_elements() * kFloat;
  // A base in BaseMemory is in the send slots.
  size.copy = has_copy ? (options.base_memory != nullptr ? shards.trained_elements() : elements) * computing : 0;
  // In host memory while its pass is not made; the state beside it is whole at an update.
  const loss::LossOptions& loss = options.step.loss;
  const bool away = options.memory.offload_reference && loss.kl_in_reward;
  // With adapters the reference is the base, which is there.
  size.reference = CopiesReference(options) && !away ? elements * computing : 0;
  // What is kept for checkpoints is in host memory.
  const bool keeps = CopiesReference(options) && options.reference_after_supervised;
  if (keeps && at::Device(options.device).is_cpu()) size.reference += elements * kFloat;
  size.slots = options.send_bytes;
  if (!shards.is_whole()) size.gathered = GatheredBytes(shards, computing, options.reduce_dtype);
  return size;
}

absl::Status CheckStateFits(const StateSize& size, const PolicyTrainer::Options& options) {
  if (options.device_bytes == 0 || size.total() <= options.device_bytes) return absl::OkStatus();
  return Error(absl::StatusCode::kResourceExhausted, "STATE_TOO_LARGE",
               absl::StrCat("the model does not fit: ", size.ToString(), ", before any activation, and ",
                            options.device, " has ", InMiB(options.device_bytes),
                            "; use more trainer ranks, another device or a smaller model"));
}

absl::StatusOr<StateArenaFactory> GetArenas(const PolicyTrainer::Options& options) {
  if (options.arenas != nullptr) return options.arenas;
  if (at::Device(options.device).is_cpu()) return StateArenaFactory(MakeHostStateArena);
  if (!options.memory.offload_params && !options.memory.offload_optimizer_for_logprob &&
      !options.memory.offload_reference) {
    return StateArenaFactory();
  }
  return Error(absl::StatusCode::kInvalidArgument, "NOT_MOVABLE",
               absl::StrCat("nothing can be offloaded from ", options.device, ": its state is not in arenas"));
}

// With libtorch's errors as ours.
template <typename Work>
auto Guarded(const char* what, Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    return model::TorchError(error, what);
  }
}

}  // namespace

class PolicyTrainer::Core {
 public:
  // Memory that was made before anything that may throw.
  struct Arenas {
    ActorArenas actor;
    std::unique_ptr<StateArena> reference;
    std::shared_ptr<char> base;  // of Options::base_memory
  };
  static absl::StatusOr<Arenas> MakeArenas(const Options& options, const FlatShards& shards) {
    SYNCOPATE_ASSIGN_OR_RETURN(const StateArenaFactory factory, GetArenas(options));
    const bool has_copy = ComputeDType(options) == DType::kBFloat16;
    Arenas arenas;
    const bool base_elsewhere = options.base_memory != nullptr;
    SYNCOPATE_ASSIGN_OR_RETURN(arenas.actor, ActorArenas::Create(factory, shards, has_copy, base_elsewhere));
    if (base_elsewhere) {
      SYNCOPATE_ASSIGN_OR_RETURN(arenas.base, options.base_memory->allocate());
    }
    if (factory != nullptr && CopiesReference(options)) {
      SYNCOPATE_ASSIGN_OR_RETURN(arenas.reference, factory(shards.local_elements() * (has_copy ? 2 : 4),
                                                           StateArena::Kind::kFrozen, "the reference policy"));
    }
    return arenas;
  }

  Core(const Options& options, const Manifest& manifest, Arenas arenas)
      : compute(ComputeDType(options)),
        ranks(options.mesh.along(Mesh::Axis::kShard)),
        weights(options.model.lora.enabled() ? options.weights : nullptr),
        seed(options.seed),
        adapter_config(options.adapter_config),
        base(std::move(arenas.base)),
        actor(options.model, manifest, options.optimizer, options.seed, at::Device(options.device),
              options.weights.get(), model::ToScalarType(compute), &ranks, std::move(arenas.actor),
              model::ToScalarType(options.reduce_dtype), options.adapters.get(),
              {options.base_memory != nullptr ? &options.base_memory->layout : nullptr, base.get()}),
        reference(options.step.loss.needs_reference()
                      ? std::make_unique<ReferencePolicy>(actor, options.model, model::ToScalarType(compute), &ranks,
                                                          std::move(arenas.reference))
                      : nullptr),
        renews(options.reference_after_supervised && CopiesReference(options)),
        awaits_reference(renews),
        // The base of adapters is where the actor's weights are, and moves with them.
        residency(actor, CopiesReference(options) ? reference.get() : nullptr, options.memory, options.device),
        step(actor, options.mesh, options.step, reference.get(), &residency),
        supervised(actor, options.mesh, options.step.Supervised(), nullptr, &residency) {}

  // With the policy's GPU as the thread's current one.
  template <typename Work>
  auto OnDevice(const char* what, Work work) -> decltype(work()) {
    return Guarded(what, [&] {
      const c10::DeviceGuard guard(actor.device());
      return work();
    });
  }
  // A call that reads or writes the state.
  template <typename Work>
  auto Use(const char* what, Work work) -> decltype(work()) {
    return OnDevice(what, [&] { return InUse(residency, [&] { return Guarded(what, work); }); });
  }

  // A call that copies the state, or what host memory has of it.
  template <typename Work>
  auto Read(const char* what, bool on_host, Work work) -> decltype(work()) {
    return on_host ? OnDevice(what, work) : Use(what, work);
  }

  uint64_t DigestBase();
  absl::Status AwaitOtherRanks() { return ranks.world() > 1 ? ranks.Barrier() : absl::OkStatus(); }

  // The first step on rewards begins: what the supervised steps have made is the reference.
  absl::Status KeepReference() {
    if (!awaits_reference) return absl::OkStatus();
    SYNCOPATE_RETURN_IF_ERROR(residency.BeginReference());
    reference->Renew(actor);
    awaits_reference = false;
    return residency.EndReference();
  }
  absl::Status RestoreReference(const PolicySource& source) {
    if (!renews) return absl::OkStatus();
    awaits_reference = !source.has_reference();
    if (awaits_reference) {
      reference->Forget();
      return absl::OkStatus();
    }
    SYNCOPATE_RETURN_IF_ERROR(residency.BeginReference());
    reference->Restore(actor, source);
    return residency.EndReference();
  }

  const DType compute;
  Communicator& ranks;                                      // that store the state together
  const std::shared_ptr<const model::WeightFiles> weights;  // of the base; null without adapters
  const uint64_t seed;
  const std::string adapter_config;
  std::optional<uint64_t> base_digest;  // once it was asked for
  const std::shared_ptr<char> base;     // null: the actor has its own
  Actor actor;
  const std::unique_ptr<ReferencePolicy> reference;
  const bool renews;      // the reference is the policy at the end of the supervised steps
  bool awaits_reference;  // which have not ended
  StateResidency residency;
  TrainStep step;
  TrainStep supervised;
};

PolicyTrainer::PolicyTrainer(std::unique_ptr<Core> core) : core_(std::move(core)) {}
PolicyTrainer::~PolicyTrainer() = default;

absl::Status PolicyTrainer::CheckFits(const Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest manifest,
                             model::MakeManifest(options.model, DType::kFloat32, options.bucket_bytes));
  const Communicator& ranks = options.mesh.along(Mesh::Axis::kShard);
  SYNCOPATE_ASSIGN_OR_RETURN(const FlatShards shards,
                             FlatShards::Create(options.model, manifest, ranks.rank(), ranks.world()));
  return CheckStateFits(GetStateSize(shards, options), options);
}

absl::StatusOr<std::unique_ptr<PolicyTrainer>> PolicyTrainer::Create(const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.optimizer.Validate());
  SYNCOPATE_RETURN_IF_ERROR(options.step.Validate());
  SYNCOPATE_RETURN_IF_ERROR(model::CheckLayerKinds(options.model, options.device));
  SYNCOPATE_ASSIGN_OR_RETURN(Manifest manifest,
                             model::MakeManifest(options.model, DType::kFloat32, options.bucket_bytes));
  const Communicator& ranks = options.mesh.along(Mesh::Axis::kShard);
  SYNCOPATE_ASSIGN_OR_RETURN(const FlatShards shards,
                             FlatShards::Create(options.model, manifest, ranks.rank(), ranks.world()));
  const StateSize size = GetStateSize(shards, options);
  // Computed before anything is allocated, so that the error can say how much memory each part takes.
  SYNCOPATE_RETURN_IF_ERROR(CheckStateFits(size, options));
  if (options.weights != nullptr) SYNCOPATE_RETURN_IF_ERROR(options.weights->CheckFinite());
  at::set_num_threads(options.threads);
  const std::string needs = absl::StrCat("the model's state on ", options.device, ": ", size.ToString());
  try {
    const c10::DeviceGuard guard{at::Device(options.device)};
    auto arenas = Core::MakeArenas(options, shards);
    if (!arenas.ok()) return Annotate(arenas.status(), needs);
    auto core = std::make_unique<Core>(options, manifest, *std::move(arenas));
    SYNCOPATE_RETURN_IF_ERROR(core->residency.Begin());
    return std::unique_ptr<PolicyTrainer>(new PolicyTrainer(std::move(core)));
  } catch (const std::exception& error) {
    return model::TorchError(error, needs);
  }
}

const Manifest& PolicyTrainer::manifest() const { return core_->actor.manifest(); }
const Manifest& PolicyTrainer::trained() const { return core_->actor.trained(); }

uint64_t PolicyTrainer::Core::DigestBase() {
  if (!actor.base_digests().empty()) return model::CombineBaseDigests(actor.base_digests());
  const Manifest& manifest = actor.manifest();
  // From where the base was read, if this rank has not all of it as it was read.
  const bool is_here = actor.shards().is_whole() && !actor.base_is_rounded();
  if (!is_here && weights != nullptr) return model::DigestBase(*weights, actor.transformer().config());
  at::Tensor numbers;
  return model::DigestBase(manifest.tensors().size() - actor.trained().tensors().size(), [&](size_t i) {
    const int64_t elements = manifest.tensors()[i].NumElements();
    if (is_here) {
      const int64_t begin = manifest.ranges()[i].begin / static_cast<int64_t>(sizeof(float));
      numbers = actor.parameters().narrow(0, begin, elements).cpu();
    } else {
      numbers = at::empty({elements}, at::kFloat);
      model::InitialiseElements(actor.transformer().config(), seed, i, 0, elements, numbers.mutable_data_ptr<float>());
    }
    return absl::string_view(static_cast<const char*>(numbers.const_data_ptr()), numbers.nbytes());
  });
}

absl::StatusOr<uint64_t> PolicyTrainer::BaseDigest() const {
  if (trained().tensors().size() == manifest().tensors().size()) return 0;
  if (core_->base_digest.has_value()) return *core_->base_digest;
  return core_->Use("the base cannot be digested", [&]() -> absl::StatusOr<uint64_t> {
    core_->base_digest = core_->DigestBase();
    return *core_->base_digest;
  });
}

template <typename Work>
absl::StatusOr<StepFigures> PolicyTrainer::RunStep(const char* what, Work work) {
  return core_->Use(what, [&]() -> absl::StatusOr<StepFigures> {
    SYNCOPATE_RETURN_IF_ERROR(core_->residency.BeginStep());
    absl::StatusOr<StepFigures> made = Guarded(what, work);
    // Called also after a step that failed, so that the next step finds every part in its place.
    const absl::Status ended = core_->residency.EndStep();
    if (made.ok() && !ended.ok()) return ended;
    if (!ended.ok()) SYNCOPATE_LOG(kError, "after a step that failed: %s", ended.ToString());
    return made;
  });
}

absl::StatusOr<StepFigures> PolicyTrainer::Step(const std::vector<const TrajectoryGroup*>& groups, int64_t step) {
  return RunStep("the training step has failed", [&]() -> absl::StatusOr<StepFigures> {
    SYNCOPATE_RETURN_IF_ERROR(core_->KeepReference());
    return core_->step.Run(groups, step);
  });
}

absl::StatusOr<StepFigures> PolicyTrainer::SupervisedStep(const std::vector<const TrajectoryGroup*>& groups) {
  return RunStep("the supervised step has failed", [&] { return core_->supervised.RunSupervised(groups); });
}

absl::StatusOr<HeldOutLoss> PolicyTrainer::MeasureSupervised(const std::vector<const TrajectoryGroup*>& groups) {
  SYNCOPATE_ASSIGN_OR_RETURN(const StepFigures measured, RunStep("the held-out loss cannot be measured", [&] {
                               return core_->supervised.MeasureSupervised(groups);
                             }));
  return HeldOutLoss{measured.loss, measured.trained_tokens};
}

absl::Status PolicyTrainer::WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink) const {
  return core_->Use("the policy cannot be copied to the host", [&]() -> absl::Status {
    if (part != PolicyPart::kParameters) SYNCOPATE_RETURN_IF_ERROR(core_->residency.NeedOptimizer());
    return core_->actor.WriteTensor(part, index, sink);
  });
}

absl::StatusOr<std::shared_ptr<const PolicySnapshot>> PolicyTrainer::TakeSnapshot(const std::string&) const {
  auto copy = [&]() -> absl::StatusOr<std::shared_ptr<const PolicySnapshot>> {
    if (!reads_on_host()) SYNCOPATE_RETURN_IF_ERROR(core_->residency.NeedOptimizer());
    auto copied = core_->actor.TakeSnapshot();
    if (copied.ok() && core_->renews) core_->reference->AddTo(copied->get());
    return WithBase(std::move(copied));
  };
  return core_->Read("the policy cannot be copied to the host", reads_on_host(), copy);
}

absl::StatusOr<std::shared_ptr<const PolicySnapshot>> PolicyTrainer::WithBase(
    absl::StatusOr<std::shared_ptr<PolicySnapshot>> copied) const {
  SYNCOPATE_RETURN_IF_ERROR(copied.status());
  (*copied)->adapter_config = core_->adapter_config;
  SYNCOPATE_ASSIGN_OR_RETURN((*copied)->base_digest, BaseDigest());
  return *std::move(copied);
}

absl::StatusOr<std::shared_ptr<const PolicySnapshot>> PolicyTrainer::TakeWeights(const std::string&) const {
  return core_->Read("the weights cannot be copied to the host", reads_on_host(),
                     [&] { return WithBase(core_->actor.TakeWeights()); });
}

absl::Status PolicyTrainer::SetReader(std::function<absl::Status()> finish) {
  return core_->OnDevice("the weights cannot be read", [&]() -> absl::Status {
    core_->actor.SetReader(std::move(finish));
    return absl::OkStatus();
  });
}

// On any thread, so it touches nothing that the policy's thread changes, such as the count of uses.
absl::Status PolicyTrainer::ReadTrained(DType dtype, const ShardSink& sink) const {
  return core_->OnDevice("the weights cannot be copied to the host",
                         [&] { return core_->actor.ReadShard(dtype, sink, /*trained_alone=*/true); });
}

absl::Status PolicyTrainer::ReadShard(DType dtype, const ShardSink& sink) const {
  return core_->OnDevice("the weights cannot be copied to the host",
                         [&] { return core_->actor.ReadShard(dtype, sink); });
}

DType PolicyTrainer::GetShardDType(const Manifest& wire) const {
  const bool rounds = !core_->actor.device().is_cpu() && wire.HasOnly(DType::kBFloat16);
  return rounds ? DType::kBFloat16 : DType::kFloat32;
}

absl::StatusOr<uint64_t> PolicyTrainer::Digest() const {
  return core_->Use("the weights cannot be digested", [&] { return core_->actor.Digest(); });
}

absl::Status PolicyTrainer::CheckFinite() const {
  const bool on_host = reads_on_host();
  return core_->Read("the weights cannot be looked at", on_host,
                     [&] { return on_host ? core_->actor.CheckFiniteOnHost() : core_->actor.CheckFinite(); });
}

int64_t PolicyTrainer::updates() const { return core_->actor.updates(); }

absl::Status PolicyTrainer::Restore(const PolicySource& source) {
  return core_->Use("the checkpoint cannot be copied to the device", [&]() -> absl::Status {
    SYNCOPATE_RETURN_IF_ERROR(core_->residency.NeedOptimizer());
    SYNCOPATE_RETURN_IF_ERROR(core_->actor.FinishSnapshot());
    SYNCOPATE_RETURN_IF_ERROR(core_->actor.FinishRead());
    core_->actor.Restore(source);
    return core_->RestoreReference(source);
  });
}

absl::Status PolicyTrainer::BeginUse() {
  return core_->OnDevice("the weights cannot be brought to the device", [&] { return core_->residency.BeginUse(); });
}

absl::Status PolicyTrainer::EndUse() {
  return core_->OnDevice("the weights cannot leave the device", [&] { return core_->residency.EndUse(); });
}

absl::StatusOr<StateMoves> PolicyTrainer::EnterRolloutMode() {
  SYNCOPATE_ASSIGN_OR_RETURN(const StateMoves moves, core_->OnDevice("the state cannot leave the device", [&] {
    return core_->residency.EnterRolloutMode();
  }));
  SYNCOPATE_RETURN_IF_ERROR(core_->AwaitOtherRanks());
  return moves;
}

absl::StatusOr<StateMoves> PolicyTrainer::EnterTrainerMode() {
  SYNCOPATE_ASSIGN_OR_RETURN(const StateMoves moves, core_->OnDevice("the state cannot be brought back", [&] {
    return core_->residency.EnterTrainerMode();
  }));
  SYNCOPATE_RETURN_IF_ERROR(core_->AwaitOtherRanks());
  return moves;
}

bool PolicyTrainer::reads_on_host() const { return core_->residency.is_away() && core_->actor.has_arenas(); }

PolicyMemory PolicyTrainer::memory() const { return core_->residency.memory(); }

PolicyMoves PolicyTrainer::TakeMoves() { return core_->residency.TakeMoves(); }

const void* PolicyTrainer::device_shard(DType dtype) const {
  return core_->actor.shard(model::ToScalarType(dtype)).data_ptr();
}

std::vector<const void*> PolicyTrainer::device_tensors() const { return core_->actor.GetPlaces(); }

DType PolicyTrainer::compute_dtype() const { return core_->compute; }

bool PolicyTrainer::is_sharded() const { return !core_->actor.shards().is_whole(); }

}  // namespace syncopate::trainer
