#include "trainer/actor/actor.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/digest.h"
#include "model/arena_parts.h"
#include "model/decoder_spec.h"
#include "model/transformer.h"
#include "trainer/actor/arena_checks.h"
#include "trainer/actor/host_pieces.h"

namespace syncopate::trainer {
namespace {

at::Tensor ArenaTensor(const StateArena* arena, int64_t elements, at::Device device, at::ScalarType type = at::kFloat) {
  const at::TensorOptions options = at::TensorOptions(type).device(device);
  return arena == nullptr ? at::zeros({elements}, options) : at::from_blob(arena->data(), {elements}, options);
}

// Numbers per copy between host and device: bounds a host buffer that such a copy needs to 64 MiB.
constexpr int64_t kCopiedAtOnce = 16 << 20;

// Fills `to`, flat and float32, with `bytes`, which need not be aligned.
void CopyBytes(absl::string_view bytes, at::Tensor to) {
  SYNCOPATE_CHECK(bytes.size() == to.nbytes());
  if (to.is_cpu()) {
    std::memcpy(to.data_ptr(), bytes.data(), bytes.size());
    return;
  }
  at::Tensor buffer = at::empty({std::min(kCopiedAtOnce, to.numel())}, at::kFloat);
  for (int64_t begin = 0; begin < to.numel(); begin += kCopiedAtOnce) {
    const at::Tensor piece = buffer.narrow(0, 0, std::min(kCopiedAtOnce, to.numel() - begin));
    std::memcpy(piece.data_ptr(), bytes.data() + static_cast<size_t>(begin) * sizeof(float), piece.nbytes());
    to.narrow(0, begin, piece.numel()).copy_(piece);
  }
}

// The constructor's caller has checked that these ranks can share the model, so an error here is a bug.
FlatShards MustCut(const model::ModelConfig& config, const Manifest& manifest, const Communicator& ranks) {
  auto shards = FlatShards::Create(config, manifest, ranks.rank(), ranks.world());
  SYNCOPATE_CHECK(shards.ok());
  return *std::move(shards);
}

// The tensors of `manifest` from `first` on.
Manifest CutManifest(const Manifest& manifest, size_t first) {
  if (first == 0) return manifest;
  std::vector<TensorSpec> tensors(manifest.tensors().begin() + static_cast<int64_t>(first), manifest.tensors().end());
  auto cut = Manifest::Create(std::move(tensors), manifest.bucket_bytes());
  SYNCOPATE_CHECK(cut.ok());
  return *std::move(cut);
}

// Units of `whole`, whose views are those without adapters.
class BaseUnits final : public UnitAccess {
 public:
  explicit BaseUnits(UnitAccess* whole) : whole_(whole), views_(model::WithoutAdapters(whole->views())) {}
  absl::Status Acquire(int unit) override { return whole_->Acquire(unit); }
  absl::Status Release(int unit) override { return whole_->Release(unit); }
  absl::Status Expect(int unit) override { return whole_->Expect(unit); }
  const model::TransformerWeights& views() const override { return views_; }

 private:
  UnitAccess* const whole_;
  const model::TransformerWeights views_;
};

// The elements of a rank's float32 parameters. A frozen base is not among them if it computes in bfloat16.
int64_t CountMasters(const FlatShards& shards, bool has_copy) {
  return has_copy ? shards.trained_elements() : shards.local_elements();
}

// Returns `factor`, or NaN if `norm` or `guard` is not finite.
at::Tensor OnlyIfFinite(const at::Tensor& factor, const at::Tensor& norm, const at::Tensor& guard) {
  // x * 0 is 0 for what is finite and NaN for everything else.
  return factor + (norm * 0 + guard * 0);
}

}  // namespace

std::vector<Actor::Range> Actor::DecayRanges(const Manifest& manifest, bool decay_all, const FlatShards& shards) {
  const int64_t elements = manifest.arena_bytes() / static_cast<int64_t>(sizeof(float));
  // Each range costs one kernel launch, so a single one is best. Adapters are matrices, all of them.
  if (decay_all || shards.trained_begin() > 0) return {{shards.trained_begin(), shards.trained_elements(), true}};
  std::vector<Range> ranges;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const int64_t begin = manifest.ranges()[i].begin / static_cast<int64_t>(sizeof(float));
    // Only matrices and embeddings decay; norms and biases are vectors.
    const bool decays = manifest.tensors()[i].shape.size() > 1;
    if (!ranges.empty()) ranges.back().count = begin - ranges.back().begin;  // with the padding behind it
    if (ranges.empty() || ranges.back().decays != decays) ranges.push_back({begin, 0, decays});
  }
  ranges.back().count = elements - ranges.back().begin;
  std::vector<Range> local;
  for (const Range& range : ranges) {
    // The pieces of the range in this rank's shard. Adjacent pieces are merged; otherwise each layer would need a
    // kernel launch of its own.
    for (const FlatShards::Piece& piece : shards.MakePieces(range.begin, range.count)) {
      const bool goes_on = !local.empty() && local.back().decays == range.decays &&
                           local.back().begin + local.back().count == piece.local_begin;
      if (goes_on) {
        local.back().count += piece.count;
      } else {
        local.push_back({piece.local_begin, piece.count, range.decays});
      }
    }
  }
  return local;
}

Actor::Actor(const model::ModelConfig& config, const Manifest& manifest, const AdamWOptions& options, uint64_t seed,
             at::Device device, const model::WeightFiles* files, at::ScalarType compute, Communicator* ranks,
             ActorArenas arenas, at::ScalarType reduce, const model::AdapterFiles* adapters, const PlacedBase& base)
    : manifest_(manifest),
      trained_(CutManifest(manifest, config.lora.enabled() ? model::CountBaseTensors(manifest) : 0)),
      first_trained_(manifest.tensors().size() - trained_.tensors().size()),
      options_(options),
      ops_(model::OpsFor(device)),
      transformer_(config, device),
      ranks_(ranks == nullptr ? single_ : *ranks),
      shards_(MustCut(config, manifest, ranks_)),
      ranges_(DecayRanges(manifest, options.decay_all, shards_)),
      reduce_(reduce),
      arenas_(std::move(arenas)),
      parameters_(ArenaTensor(arenas_.parameters.get(), CountMasters(shards_, compute != at::kFloat), device)),
      gradients_(ArenaTensor(arenas_.gradients.get(), shards_.trained_elements(), device)),
      first_moment_(ArenaTensor(arenas_.first_moment.get(), shards_.trained_elements(), device)),
      second_moment_(ArenaTensor(arenas_.second_moment.get(), shards_.trained_elements(), device)),
      base_tensors_(ViewBase(base, device)),
      // In float32 forward reads the parameters themselves; there is nothing to keep in step.
      copy_(compute == at::kFloat
                ? at::Tensor()
                : ArenaTensor(arenas_.copy.get(),
                              base_is_elsewhere() ? shards_.trained_elements() : shards_.local_elements(), device,
                              compute)),
      parameter_state_(copy_.defined() ? std::vector<StateArena*>{arenas_.parameters.get(), arenas_.copy.get()}
                                       : std::vector<StateArena*>{arenas_.parameters.get()},
                       static_cast<int64_t>(parameters_.nbytes() + (copy_.defined() ? copy_.nbytes() : 0)),
                       {.before_offload = [this]() -> absl::Status {
                          SYNCOPATE_RETURN_IF_ERROR(FinishRead());
                          ReleaseWeightUnits();
                          return absl::OkStatus();
                        },
                        .after_load = [this] { RenewWeights(); }}),
      optimizer_state_({arenas_.first_moment.get(), arenas_.second_moment.get()},
                       static_cast<int64_t>(first_moment_.nbytes() + second_moment_.nbytes())),
      gradient_state_({arenas_.gradients.get()}, static_cast<int64_t>(gradients_.nbytes()),
                      {.before_offload = [this]() -> absl::Status {
                         ReleaseGradientUnits();
                         return absl::OkStatus();
                       },
                       .after_load = [this] { MakeGradientUnits(); }}),
      reading_(device, SideStream::Priority::kLow) {
  SYNCOPATE_CHECK(!base_is_elsewhere() || (compute == at::kBFloat16 && shards_.is_whole() && first_trained_ > 0));
  MakeWeightUnits();
  MakeGradientUnits();
  // Files of weights have no adapters, which are drawn beside them.
  if (files == nullptr || config.lora.enabled()) Initialise(config, seed, files == nullptr ? 0 : first_trained_);
  if (files != nullptr) {
    CopyTensors(0, files->size(), [this, files](size_t i, absl::Span<float> values) {
      files->Read(i, values);
      if (!base_is_rounded() || !shards_.is_whole()) return;
      base_digests_.push_back(DigestBytes(values.data(), static_cast<int64_t>(values.size() * sizeof(float))));
    });
  }
  if (adapters != nullptr) {
    CopyTensors(first_trained_, trained_.tensors().size(),
                [adapters](size_t i, absl::Span<float> values) { adapters->Read(i, values); });
  }
  RenewCopy();
}

bool CanHoldBase(const Manifest& policy, const Manifest& layout) {
  if (policy.tensors().size() != layout.tensors().size()) return false;
  const std::vector<TensorSpec>& tensors = policy.tensors();
  for (size_t i = 0; i < tensors.size() && !layout.tensors()[i].adapter; ++i) {
    const TensorSpec& there = layout.tensors()[i];
    if (there.name != tensors[i].name || there.shape != tensors[i].shape || there.dtype != DType::kBFloat16)
      return false;
    if (i + 1 == tensors.size()) continue;
    const bool adjoins = policy.ranges()[i].end == policy.ranges()[i + 1].begin;
    const bool joins = !there.joint.empty() && there.joint == layout.tensors()[i + 1].joint;
    if (joins && adjoins && layout.ranges()[i].end != layout.ranges()[i + 1].begin) return false;
  }
  return true;
}

std::vector<at::Tensor> Actor::ViewBase(const PlacedBase& base, at::Device device) {
  std::vector<at::Tensor> tensors;
  if (base.bytes == nullptr) return tensors;
  const Manifest& layout = *base.layout;
  // Views of one storage, as linears that lie side by side are read as one tensor.
  const at::Tensor all = at::for_blob(base.bytes, {layout.adapters_begin() / DTypeBytes(DType::kBFloat16)})
                             .options(at::TensorOptions(at::kBFloat16).device(device))
                             .target_device(device)
                             .make_tensor();
  for (size_t i = 0; i < layout.tensors().size() && !layout.tensors()[i].adapter; ++i) {
    const int64_t begin = layout.ranges()[i].begin / DTypeBytes(DType::kBFloat16);
    tensors.push_back(all.narrow(0, begin, layout.tensors()[i].NumElements()));
  }
  return tensors;
}

at::Tensor Actor::RoundedBase() const {
  if (!base_is_elsewhere()) return copy_.narrow(0, 0, shards_.trained_begin());
  at::Tensor base = at::zeros({shards_.trained_begin()}, copy_.options());
  for (size_t i = 0; i < base_tensors_.size(); ++i) {
    const int64_t begin = manifest_.ranges()[i].begin / static_cast<int64_t>(sizeof(float));
    base.narrow(0, begin, base_tensors_[i].numel()).copy_(base_tensors_[i]);
  }
  return base;
}

at::Tensor Actor::GetInitialPlace(size_t index, int64_t local, int64_t count) const {
  if (!base_is_rounded()) return parameters_.narrow(0, local, count);
  if (index >= first_trained_) return parameters_.narrow(0, ToTrained(local), count);
  if (!base_is_elsewhere()) return copy_.narrow(0, local, count);
  const int64_t begin = manifest_.ranges()[index].begin / static_cast<int64_t>(sizeof(float));
  return base_tensors_[index].narrow(0, local - begin, count);
}

std::vector<const void*> Actor::GetPlaces() const {
  SYNCOPATE_CHECK(shards_.is_whole());
  const at::Tensor& computing = copy_.defined() ? copy_ : parameters_;
  const int64_t missing = base_is_elsewhere() ? shards_.trained_begin() : 0;
  std::vector<const void*> places;
  for (size_t i = 0; i < manifest_.tensors().size(); ++i) {
    if (i < base_tensors_.size()) {
      places.push_back(base_tensors_[i].const_data_ptr());
      continue;
    }
    const int64_t begin = manifest_.ranges()[i].begin / static_cast<int64_t>(sizeof(float)) - missing;
    const int64_t width = computing.element_size();
    places.push_back(static_cast<const char*>(computing.const_data_ptr()) + begin * width);
  }
  return places;
}

absl::StatusOr<ActorArenas> ActorArenas::Create(const StateArenaFactory& factory, const FlatShards& shards,
                                                bool has_copy, bool base_elsewhere) {
  ActorArenas arenas;
  if (factory == nullptr) return arenas;
  const auto bytes = CountMasters(shards, has_copy) * static_cast<int64_t>(sizeof(float));
  const auto trained = shards.trained_elements() * static_cast<int64_t>(sizeof(float));
  using Kind = StateArena::Kind;
  SYNCOPATE_ASSIGN_OR_RETURN(arenas.parameters, factory(bytes, Kind::kChanging, "the parameters"));
  SYNCOPATE_ASSIGN_OR_RETURN(arenas.gradients, factory(trained, Kind::kDerived, "the gradients"));
  SYNCOPATE_ASSIGN_OR_RETURN(arenas.first_moment, factory(trained, Kind::kChanging, "the first moment"));
  SYNCOPATE_ASSIGN_OR_RETURN(arenas.second_moment, factory(trained, Kind::kChanging, "the second moment"));
  if (has_copy) {
    // What the copy has of a base is nowhere else.
    const Kind kind = shards.trained_begin() > 0 && !base_elsewhere ? Kind::kChanging : Kind::kDerived;
    const int64_t elements = base_elsewhere ? shards.trained_elements() : shards.local_elements();
    SYNCOPATE_ASSIGN_OR_RETURN(arenas.copy, factory(elements * 2, kind, "the copy that computes"));
  }
  return arenas;
}

int64_t Actor::arena_bytes_on_device() const {
  int64_t bytes = 0;
  for (const auto* arena :
       {&arenas_.parameters, &arenas_.copy, &arenas_.gradients, &arenas_.first_moment, &arenas_.second_moment}) {
    if (*arena != nullptr) bytes += (*arena)->device_bytes();
  }
  return bytes;
}

void Actor::MakeWeightUnits() {
  const at::Tensor& computing = copy_.defined() ? copy_ : parameters_;
  if (base_is_elsewhere()) {
    std::vector<model::ArenaPart> parts;
    for (size_t i = 0; i < base_tensors_.size(); ++i) {
      parts.push_back({{manifest_.ranges()[i].begin, manifest_.ranges()[i + 1].begin}, base_tensors_[i]});
    }
    parts.push_back({{manifest_.ranges()[first_trained_].begin, manifest_.arena_bytes()}, copy_});
    weights_ = std::make_unique<WholeUnits>(model::ViewWeights(transformer_.config(), manifest_, parts));
    base_ = std::make_unique<BaseUnits>(weights_.get());
    return;
  }
  if (shards_.is_whole()) {
    weights_ = std::make_unique<WholeUnits>(model::ViewWeights(transformer_.config(), manifest_, computing));
    base_ = std::make_unique<BaseUnits>(weights_.get());
    return;
  }
  auto gathered = std::make_unique<GatheredWeights>(transformer_.config(), manifest_, shards_, computing, ranks_);
  gathered_ = gathered.get();
  weights_ = std::move(gathered);
  base_ = std::make_unique<BaseUnits>(weights_.get());
}

void Actor::MakeGradientUnits() {
  if (shards_.is_whole()) {
    const auto begin = shards_.trained_begin() * static_cast<int64_t>(sizeof(float));
    const std::vector<model::ArenaPart> trained = {{{begin, manifest_.arena_bytes()}, gradients_}};
    gradient_units_ = std::make_unique<WholeUnits>(model::ViewWeights(transformer_.config(), manifest_, trained));
    return;
  }
  auto reduced =
      std::make_unique<ReducedGradients>(transformer_.config(), manifest_, shards_, gradients_, ranks_, reduce_);
  reduced_ = reduced.get();
  gradient_units_ = std::move(reduced);
}

// With several ranks the buffers in which units are gathered are freed with the units.
void Actor::ReleaseWeightUnits() {
  WaitForDevice();  // exchanges between ranks run on another stream than the one that a move of memory waits for
  gathered_ = nullptr;
  base_ = nullptr;
  weights_ = nullptr;
  written_ = Written();
}

void Actor::ReleaseGradientUnits() {
  WaitForDevice();
  reduced_ = nullptr;
  gradient_units_ = nullptr;
}

void Actor::RenewWeights() {
  base_sums_ = at::Tensor();  // so that the next digest finds what has happened to the base meanwhile
  MakeWeightUnits();
  RenewCopy();
  WaitForDevice();  // so that the time of Load() includes the copy
}

void Actor::WaitForDevice() const {
  if (parameters_.is_cpu()) return;
  c10::impl::VirtualGuardImpl(parameters_.device().type()).synchronizeDevice(parameters_.device().index());
}

void Actor::Initialise(const model::ModelConfig& config, uint64_t seed, size_t first) {
  // One rank on the CPU: initialises the arena in place.
  if (shards_.is_whole() && parameters_.is_cpu() && !base_is_rounded() && first == 0) {
    model::InitialiseWeights(config, manifest_, seed, parameters_.data_ptr<float>());
    return;
  }
  // Each number depends only on its place in the model, so the weights are the same on every device and with any number
  // of ranks. This rank makes its shard piece by piece.
  parameters_.zero_();
  if (copy_.defined()) copy_.zero_();
  const bool digests = base_is_rounded() && shards_.is_whole();
  at::Tensor buffer = at::empty({kCopiedAtOnce}, at::kFloat);
  for (size_t i = first; i < manifest_.tensors().size(); ++i) {
    const int64_t tensor = manifest_.ranges()[i].begin / static_cast<int64_t>(sizeof(float));
    PartsDigest digest;
    for (const FlatShards::Piece& piece : shards_.MakePieces(tensor, manifest_.tensors()[i].NumElements())) {
      for (int64_t begin = 0; begin < piece.count; begin += kCopiedAtOnce) {
        const int64_t count = std::min(kCopiedAtOnce, piece.count - begin);
        model::InitialiseElements(config, seed, i, piece.whole_begin - tensor + begin, count, buffer.data_ptr<float>());
        if (digests && i < first_trained_) digest.Add(buffer.data_ptr(), count * int64_t{sizeof(float)});
        // A GPU rounds what it is sent: the host's one thread would take longer than all of its threads for drawing.
        GetInitialPlace(i, piece.local_begin + begin, count).copy_(buffer.narrow(0, 0, count).to(parameters_.device()));
      }
    }
    if (digests && i < first_trained_) base_digests_.push_back(digest.Finish());
  }
}

// Copies one tensor at a time, so that weights for a GPU or for a shard never need host memory for the whole model.
void Actor::CopyTensors(size_t first, size_t count,
                        const std::function<void(size_t index, absl::Span<float> values)>& read) {
  for (size_t i = first; i < first + count; ++i) {
    const int64_t begin = manifest_.ranges()[i].begin / static_cast<int64_t>(sizeof(float));
    const int64_t elements = manifest_.tensors()[i].NumElements();
    const auto pieces = shards_.MakePieces(begin, elements);
    if (pieces.empty()) continue;
    // On the CPU with one rank the file is read straight into the arena.
    const bool in_place = shards_.is_whole() && parameters_.is_cpu() && !base_is_rounded();
    at::Tensor here = in_place ? parameters_.narrow(0, begin, elements) : at::empty({elements}, at::kFloat);
    read(i - first, absl::MakeSpan(here.data_ptr<float>(), static_cast<size_t>(elements)));
    if (in_place) continue;
    for (const FlatShards::Piece& piece : pieces) {
      GetInitialPlace(i, piece.local_begin, piece.count).copy_(here.narrow(0, piece.whole_begin - begin, piece.count));
    }
  }
}

void Actor::ZeroGradients() {
  if (reduced_ != nullptr) {
    reduced_->Zero();
  } else {
    gradients_.zero_();
  }
}

// One rank alone has nothing to sum.
absl::Status Actor::FlushGradients() { return reduced_ != nullptr ? reduced_->Flush() : absl::OkStatus(); }

void Actor::RenewCopy() {
  if (copy_.defined()) TrainedCopy().copy_(TrainedParameters());
  if (gathered_ != nullptr) gathered_->Expire();
  written_ = Written();
}

absl::StatusOr<Actor::Norms> Actor::MeasureNorms() const {
  // The CPU adds floats up in long rows: with float32 sums the norm would be right to five digits, and ranks would clip
  // by norms that differ.
  Norms norms{gradients_.is_cpu() ? at::norm(gradients_, 2, at::kDouble) : at::norm(gradients_), {}};
  if (remembers()) {
    // On a GPU a float64 sum would first copy the whole moment to float64. A float32 sum there is a tree of partial
    // sums, which is exact enough.
    norms.moment_sum = at::sum(second_moment_, second_moment_.is_cpu() ? at::kDouble : at::kFloat).to(at::kDouble);
  }
  if (shards_.is_whole()) return norms;
  at::Tensor sums = at::zeros({2}, gradients_.options().dtype(at::kDouble));
  sums[0].copy_(norms.gradient.to(at::kDouble).square());
  if (remembers()) sums[1].copy_(norms.moment_sum);
  // One call reduces both sums. Squares add up over ranks and norms do not, so the root is taken afterwards.
  SYNCOPATE_RETURN_IF_ERROR(ranks_.AllReduce(sums.data_ptr(), 2, Element::kFloat64, Reduction::kSum));
  return Norms{sums[0].sqrt(), sums[1]};
}

// The smaller of two limits, as a factor on the gradient: the norm that was asked for, and how far it may grow beyond
// what the second moment remembers of it. Nothing here waits for the device, so the factor is a tensor and goes into
// the update as one; NaN in it makes the update do nothing.
at::Tensor Actor::ClipFactor(const Norms& norms, const at::Tensor& guard) const {
  const double most = options_.max_grad_norm > 0 ? options_.max_grad_norm : std::numeric_limits<double>::infinity();
  at::Tensor wide = norms.gradient.to(at::kDouble);
  at::Tensor limit = at::scalar_tensor(most, wide.options());
  if (remembers()) {
    // AdamW's bias correction of the second moment: its sum is then the expected square of the norm.
    const double correction = 1.0 - std::pow(options_.beta2, static_cast<double>(updates_));
    at::Tensor remembered = at::sqrt(norms.moment_sum / correction);
    // Gradients that were all 0 say nothing about the next one.
    limit = at::where(remembered.gt(0), at::minimum(limit, remembered * options_.max_grad_growth), limit);
  }
  // A norm of 0 is never over the limit.
  at::Tensor factor = at::where(wide.gt(limit), limit / wide, at::ones_like(limit));
  return OnlyIfFinite(factor, wide, guard.to(at::kDouble)).to(at::kFloat);
}

absl::StatusOr<Actor::UpdateNorms> Actor::QueueUpdate(const at::Tensor& guard) {
  at::NoGradGuard no_grad;
  SYNCOPATE_ASSIGN_OR_RETURN(const Norms norms, MeasureNorms());
  const at::Tensor factor = ClipFactor(norms, guard);
  SYNCOPATE_RETURN_IF_ERROR(FinishSnapshot());
  SYNCOPATE_RETURN_IF_ERROR(FinishRead());
  const int64_t update = updates_ + 1;
  model::Ops::AdamW adamw;
  adamw.learning_rate = LearningRateAt(options_, update);
  adamw.beta1 = options_.beta1;
  adamw.beta2 = options_.beta2;
  adamw.eps = options_.eps;
  // In float64 on the host: beta2^t near 1 loses its digits in float32 over the first updates.
  adamw.correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(update));
  adamw.correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(update));
  at::Tensor squares = at::zeros({}, gradients_.options().dtype(at::kDouble));
  for (const Range& range : ranges_) {
    adamw.weight_decay = range.decays ? options_.weight_decay : 0;
    auto part = [&range](const at::Tensor& arena) {
      return arena.defined() ? arena.narrow(0, range.begin, range.count) : at::Tensor();
    };
    auto trained = [&](const at::Tensor& arena) { return arena.narrow(0, ToTrained(range.begin), range.count); };
    squares += ops_.UpdateByAdamW(
        adamw, factor,
        {base_is_rounded() ? trained(parameters_) : part(parameters_), trained(first_moment_), trained(second_moment_),
         trained(gradients_), base_is_elsewhere() ? trained(copy_) : part(copy_)});
  }
  if (gathered_ != nullptr) gathered_->Expire();
  written_ = Written();
  if (!shards_.is_whole()) {
    SYNCOPATE_RETURN_IF_ERROR(ranks_.AllReduce(squares.data_ptr(), 1, Element::kFloat64, Reduction::kSum));
  }
  return UpdateNorms{norms.gradient, squares.sqrt()};
}

const at::Tensor& Actor::GetPart(PolicyPart part) const {
  switch (part) {
    case PolicyPart::kParameters:
      return parameters_;
    case PolicyPart::kFirstMoment:
      return first_moment_;
    case PolicyPart::kSecondMoment:
      return second_moment_;
    case PolicyPart::kReference:
      break;
  }
  SYNCOPATE_CHECK(part != PolicyPart::kReference);  // ReferencePolicy has it
  return parameters_;
}

StateArena* Actor::GetArena(PolicyPart part) const {
  switch (part) {
    case PolicyPart::kParameters:
      return arenas_.parameters.get();
    case PolicyPart::kFirstMoment:
      return arenas_.first_moment.get();
    case PolicyPart::kSecondMoment:
      return arenas_.second_moment.get();
    case PolicyPart::kReference:
      break;
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<PolicySnapshot>> Actor::CopyParts(absl::Span<const PolicyPart> parts) const {
  auto snapshot = std::make_shared<PolicySnapshot>();
  snapshot->manifest = trained_;
  snapshot->rank = shards_.rank();
  snapshot->world = shards_.world();
  snapshot->updates = updates_;
  for (size_t i = 0; i < trained_.tensors().size(); ++i) {
    const int64_t first = manifest_.ranges()[first_trained_ + i].begin / static_cast<int64_t>(sizeof(float));
    for (const FlatShards::Piece& piece : shards_.MakePieces(first, trained_.tensors()[i].NumElements())) {
      snapshot->pieces.push_back({i, piece.whole_begin - first, piece.count, ToTrained(piece.local_begin)});
    }
  }
  for (PolicyPart part : parts) {
    std::shared_ptr<const char>& copy = snapshot->arenas[static_cast<size_t>(part)];
    // The arena of parameters may contain the base too, which no checkpoint contains.
    const bool is_whole = part != PolicyPart::kParameters || shards_.trained_begin() == 0 || base_is_rounded();
    if (StateArena* const arena = GetArena(part); arena != nullptr && (is_whole || !arena->on_device())) {
      SYNCOPATE_ASSIGN_OR_RETURN(HostCopy begun, arena->BeginCopy());
      const int64_t base = is_whole ? 0 : shards_.trained_begin() * static_cast<int64_t>(sizeof(float));
      copy = std::shared_ptr<const char>(begun.bytes, begun.bytes.get() + base);
      if (begun.finish != nullptr) snapshot->under_way.push_back(std::move(begun.finish));
    } else {
      const auto host =
          std::make_shared<at::Tensor>(GetTrainedPart(part).to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
      copy = std::shared_ptr<const char>(host, static_cast<const char*>(host->data_ptr()));
    }
  }
  return snapshot;
}

absl::Status Actor::FinishSnapshot() const {
  for (PolicyPart part : kPolicyParts) {
    if (StateArena* const arena = GetArena(part)) SYNCOPATE_RETURN_IF_ERROR(arena->FinishCopies());
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> Actor::GatherUnit(PolicyPart part, int unit) {
  if (shards_.is_whole()) {
    return GetTrainedPart(part).narrow(0, ToTrained(shards_.unit(unit).begin), shards_.unit(unit).count);
  }
  // Tensors are written in the manifest's order, so those of one unit follow each other and share one gathering.
  if (written_.part == part && written_.unit == unit) return written_.numbers;
  const int64_t local_begin = shards_.unit(unit).local_begin;
  const at::Tensor mine = GetTrainedPart(part).narrow(0, ToTrained(local_begin), shards_.unit(unit).shard);
  SYNCOPATE_ASSIGN_OR_RETURN(at::Tensor numbers, GatherShards(mine, ranks_));
  SYNCOPATE_RETURN_IF_ERROR(ranks_.Finish());
  written_ = {part, unit, shards_.rank() == 0 ? numbers : at::Tensor()};
  return written_.numbers;
}

absl::Status Actor::WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink) {
  at::NoGradGuard no_grad;
  const int64_t begin_of_tensor =
      manifest_.ranges()[first_trained_ + index].begin / static_cast<int64_t>(sizeof(float));
  const int unit = shards_.UnitAt(begin_of_tensor);
  SYNCOPATE_ASSIGN_OR_RETURN(const at::Tensor gathered, GatherUnit(part, unit));
  // Rank 0 needs the other ranks for the gathering only.
  if (shards_.rank() != 0) return absl::OkStatus();
  const at::Tensor numbers =
      gathered.narrow(0, begin_of_tensor - shards_.unit(unit).begin, trained_.tensors()[index].NumElements());
  // Memory of the host is passed to the sink as it is; memory of a device is copied piece by piece.
  const int64_t most = numbers.is_cpu() ? std::max<int64_t>(numbers.numel(), 1) : kCopiedAtOnce;
  return UseOnHost((numbers.numel() + most - 1) / most,
                   [&](int64_t i) { return numbers.narrow(0, i * most, std::min(most, numbers.numel() - i * most)); },
                   [&](int64_t, absl::string_view bytes) { return sink(bytes); });
}

void Actor::SetReader(std::function<absl::Status()> finish) {
  reader_ = std::move(finish);
  read_from_ = reading_.MarkCurrent();
}

absl::Status Actor::FinishRead() {
  const std::function<absl::Status()> finish = std::exchange(reader_, nullptr);
  return finish == nullptr ? absl::OkStatus() : finish();
}

absl::Status Actor::ReadShard(DType dtype, const std::function<absl::Status(int64_t, absl::string_view)>& sink,
                              bool trained_alone) const {
  at::NoGradGuard no_grad;
  const int64_t elements = shards_.local_elements();
  if (elements == 0) return absl::OkStatus();
  if (parameters_.is_cpu() && !base_is_rounded() && dtype == DType::kFloat32) {
    return sink(0, {static_cast<const char*>(parameters_.data_ptr()), parameters_.nbytes()});
  }
  // With base_is_rounded() the base exists in bfloat16 alone, so no piece has numbers of both the base and the adapters.
  const int64_t base = base_is_rounded() ? shards_.trained_begin() : 0;
  const std::vector<int64_t> borders =
      CutPieces(trained_alone ? shards_.trained_begin() : 0, base, elements, kCopiedAtOnce);
  // On a stream beside the step's: there a copy would wait for all that the step has queued.
  return reading_.RunAfter(read_from_, [&]() -> absl::Status {
    const at::Tensor rounded = base > 0 && !trained_alone ? RoundedBase() : at::Tensor();
    const auto make = [&](int64_t i) {
      const int64_t begin = borders[static_cast<size_t>(i)], count = borders[static_cast<size_t>(i) + 1] - begin;
      const at::Tensor piece =
          begin < base ? rounded.narrow(0, begin, count) : parameters_.narrow(0, begin - base, count);
      return piece.to(model::ToScalarType(dtype));
    };
    return UseOnHost(static_cast<int64_t>(borders.size()) - 1, make, [&](int64_t i, absl::string_view bytes) {
      return sink(borders[static_cast<size_t>(i)] * DTypeBytes(dtype), bytes);
    });
  });
}

absl::StatusOr<uint64_t> Actor::Digest() const {
  at::NoGradGuard no_grad;
  if (shards_.is_whole() && !base_is_rounded()) return CombineDigests(BucketDigests(manifest_, parameters_));
  // A bucket's digest is computed from a sum over its words. Each rank sums its own words, then the sums are added.
  const auto count = static_cast<int64_t>(manifest_.buckets().size());
  at::Tensor mine = SumsOfPieces(manifest_, shards_, parameters_, base_is_rounded() ? shards_.trained_begin() : 0);
  if (base_is_rounded()) {
    if (!base_sums_.defined()) {
      base_sums_ = base_is_elsewhere() ? SumsOfTensors(manifest_, base_tensors_)
                                       : SumsOfPieces(manifest_, shards_, copy_.narrow(0, 0, shards_.trained_begin()));
    }
    mine.add_(base_sums_);
  }
  if (shards_.is_whole()) return CombineDigests(DigestsOfSums(manifest_, mine));
  at::Tensor all = at::empty({shards_.world(), count}, mine.options());
  SYNCOPATE_RETURN_IF_ERROR(ranks_.AllGather(mine.data_ptr(), all.data_ptr(), static_cast<int64_t>(mine.nbytes())));
  SYNCOPATE_RETURN_IF_ERROR(ranks_.Finish());
  return CombineDigests(DigestsOfSums(manifest_, all.sum(0)));
}

namespace {

// NotFinite() of the first tensor of `manifest` that has such a number on any rank; `mine`: the first one on this
// rank. All ranks must call it, with options of memory where they meet.
absl::Status JoinNonFinite(Communicator& ranks, const at::TensorOptions& place, const Manifest& manifest,
                           const std::optional<size_t>& mine) {
  // A reduction for the largest of minus the indices.
  const double index = mine.has_value() ? static_cast<double>(*mine) : std::numeric_limits<double>::infinity();
  const at::Tensor first = at::full({1}, -index, place.dtype(at::kDouble));
  SYNCOPATE_RETURN_IF_ERROR(ranks.AllReduce(first.data_ptr(), 1, Element::kFloat64, Reduction::kMax));
  SYNCOPATE_RETURN_IF_ERROR(ranks.Finish());
  const double found = -first.item<double>();
  return std::isinf(found) ? absl::OkStatus() : NotFinite(manifest.tensors()[static_cast<size_t>(found)]);
}

}  // namespace

absl::Status Actor::CheckFinite() const {
  at::NoGradGuard no_grad;
  if (shards_.is_whole() && !base_is_rounded()) return trainer::CheckFinite(manifest_, parameters_);
  for (size_t i = 0; i < base_tensors_.size(); ++i) {
    if (!at::isfinite(base_tensors_[i]).all().item<bool>()) return NotFinite(manifest_.tensors()[i]);
  }
  if (base_is_elsewhere()) return CheckFiniteByOperators(trained_, copy_);
  if (shards_.is_whole()) return CheckFiniteByOperators(manifest_, copy_);
  const at::Tensor& weights = base_is_rounded() ? copy_ : parameters_;
  return JoinNonFinite(ranks_, parameters_.options(), manifest_, FirstNonFinitePiece(manifest_, shards_, weights));
}

absl::Status Actor::CheckFiniteOnHost() const {
  at::NoGradGuard no_grad;
  SYNCOPATE_ASSIGN_OR_RETURN(const std::shared_ptr<PolicySnapshot> weights, TakeWeights());
  auto* const numbers = const_cast<char*>(weights->arenas[static_cast<size_t>(PolicyPart::kParameters)].get());
  if (shards_.is_whole()) {
    return trainer::CheckFinite(trained_, at::from_blob(numbers, {shards_.trained_elements()}, at::kFloat));
  }
  std::optional<size_t> first;
  for (const PolicySnapshot::Piece& piece : weights->pieces) {
    auto* const begin = reinterpret_cast<float*>(numbers) + piece.offset;
    if (at::isfinite(at::from_blob(begin, {piece.count}, at::kFloat)).all().item<bool>()) continue;
    const auto tensor = static_cast<size_t>(piece.tensor);
    first = std::min(first.value_or(tensor), tensor);
  }
  return JoinNonFinite(ranks_, parameters_.options(), trained_, first);
}

void Actor::Restore(const PolicySource& source) {
  at::NoGradGuard no_grad;
  for (PolicyPart part : kPolicyParts) {
    for (size_t i = 0; i < trained_.tensors().size(); ++i) {
      const int64_t begin = manifest_.ranges()[first_trained_ + i].begin / static_cast<int64_t>(sizeof(float));
      for (const FlatShards::Piece& piece : shards_.MakePieces(begin, trained_.tensors()[i].NumElements())) {
        int64_t at = ToTrained(piece.local_begin);
        source.Read(part, i, piece.whole_begin - begin, piece.count, [&](absl::string_view numbers) {
          const auto count = static_cast<int64_t>(numbers.size() / sizeof(float));
          CopyBytes(numbers, GetTrainedPart(part).narrow(0, at, count));
          at += count;
        });
      }
    }
  }
  RenewCopy();
  updates_ = source.updates();
}

}  // namespace syncopate::trainer
