#include "trainer/actor/actor.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace syncopate::trainer {
namespace {

at::Tensor FlatArena(const Manifest& manifest, at::Device device) {
  return at::zeros({manifest.arena_bytes() / static_cast<int64_t>(sizeof(float))},
                   at::TensorOptions(at::kFloat).device(device));
}

// Numbers that are in host memory at a time when they go to or come from another device.
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

// Tensor by tensor, so that a GPU's weights need little host memory on their way.
void CopyWeights(const model::WeightFiles& files, const Manifest& manifest, at::Tensor& arena) {
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const int64_t begin = manifest.ranges()[i].begin / static_cast<int64_t>(sizeof(float));
    at::Tensor there = arena.narrow(0, begin, manifest.tensors()[i].NumElements());
    at::Tensor here = arena.is_cpu() ? there : at::empty(there.sizes(), at::kFloat);
    files.Read(i, absl::MakeSpan(here.data_ptr<float>(), static_cast<size_t>(here.numel())));
    if (!arena.is_cpu()) there.copy_(here);
  }
}

// `factor`, or NaN if one of the others is not finite.
at::Tensor OnlyIfFinite(const at::Tensor& factor, const at::Tensor& norm, const at::Tensor& guard) {
  // x * 0 is 0 for what is finite and NaN for everything else.
  return factor + (norm * 0 + guard * 0);
}

}  // namespace

std::vector<Actor::Range> Actor::DecayRanges(const Manifest& manifest, bool decay_all) {
  const int64_t elements = manifest.arena_bytes() / static_cast<int64_t>(sizeof(float));
  if (decay_all) return {{0, elements, true}};
  std::vector<Range> ranges;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const int64_t begin = manifest.ranges()[i].begin / static_cast<int64_t>(sizeof(float));
    const bool decays = manifest.tensors()[i].shape.size() > 1;
    if (!ranges.empty()) ranges.back().count = begin - ranges.back().begin;  // with the padding behind it
    if (ranges.empty() || ranges.back().decays != decays) ranges.push_back({begin, 0, decays});
  }
  ranges.back().count = elements - ranges.back().begin;
  return ranges;
}

Actor::Actor(const model::ModelConfig& config, const Manifest& manifest, const AdamWOptions& options, uint64_t seed,
             at::Device device, const model::WeightFiles* files, at::ScalarType compute)
    : manifest_(manifest),
      options_(options),
      ops_(model::OpsFor(device)),
      transformer_(config, device),
      ranges_(DecayRanges(manifest, options.decay_all)),
      parameters_(FlatArena(manifest, device)),
      gradients_(FlatArena(manifest, device)),
      first_moment_(FlatArena(manifest, device)),
      second_moment_(FlatArena(manifest, device)),
      copy_(compute == at::kFloat ? at::Tensor() : at::empty_like(parameters_, parameters_.options().dtype(compute))),
      weights_(model::ViewWeights(config, manifest, copy_.defined() ? copy_ : parameters_)),
      gradient_views_(model::ViewWeights(config, manifest, gradients_)) {
  if (files != nullptr) {
    CopyWeights(*files, manifest, parameters_);
  } else {
    at::Tensor initial = device.is_cpu() ? parameters_ : FlatArena(manifest, at::kCPU);
    model::InitialiseWeights(config, manifest, seed, initial.data_ptr<float>());
    if (!initial.is_same(parameters_)) parameters_.copy_(initial);
  }
  RenewCopy();
}

void Actor::RenewCopy() {
  if (copy_.defined()) copy_.copy_(parameters_);
}

at::Tensor Actor::ClipFactor(const at::Tensor& norm, const at::Tensor& guard) const {
  const double most = options_.max_grad_norm > 0 ? options_.max_grad_norm : std::numeric_limits<double>::infinity();
  at::Tensor wide = norm.to(at::kDouble);
  at::Tensor limit = at::scalar_tensor(most, wide.options());
  if (options_.max_grad_growth > 0 && updates_ > 0) {
    const double correction = 1.0 - std::pow(options_.beta2, static_cast<double>(updates_));
    // On a GPU a sum in float64 would first copy all of it to float64; one in float32 is a tree, and exact enough.
    at::Tensor sum = at::sum(second_moment_, second_moment_.is_cpu() ? at::kDouble : at::kFloat).to(at::kDouble);
    at::Tensor remembered = at::sqrt(sum / correction);
    // Gradients that were all 0 say nothing about the next one.
    limit = at::where(remembered.gt(0), at::minimum(limit, remembered * options_.max_grad_growth), limit);
  }
  // A norm of 0 is never over the limit.
  at::Tensor factor = at::where(wide.gt(limit), limit / wide, at::ones_like(limit));
  return OnlyIfFinite(factor, wide, guard.to(at::kDouble)).to(at::kFloat);
}

at::Tensor Actor::QueueUpdate(const at::Tensor& guard) {
  at::NoGradGuard no_grad;
  const at::Tensor norm = at::norm(gradients_);
  const at::Tensor factor = ClipFactor(norm, guard);
  const int64_t update = updates_ + 1;
  model::Ops::AdamW adamw;
  adamw.learning_rate = LearningRateAt(options_, update);
  adamw.beta1 = options_.beta1;
  adamw.beta2 = options_.beta2;
  adamw.eps = options_.eps;
  adamw.correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(update));
  adamw.correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(update));
  for (const Range& range : ranges_) {
    adamw.weight_decay = range.decays ? options_.weight_decay : 0;
    auto part = [&range](const at::Tensor& arena) {
      return arena.defined() ? arena.narrow(0, range.begin, range.count) : at::Tensor();
    };
    ops_.UpdateByAdamW(adamw, factor,
                       {part(parameters_), part(first_moment_), part(second_moment_), part(gradients_), part(copy_)});
  }
  return norm;
}

const at::Tensor& Actor::PartOf(PolicyPart part) const {
  switch (part) {
    case PolicyPart::kParameters:
      return parameters_;
    case PolicyPart::kFirstMoment:
      return first_moment_;
    case PolicyPart::kSecondMoment:
      return second_moment_;
  }
  return parameters_;
}

at::Tensor Actor::FlatTensor(PolicyPart part, size_t index) const {
  return PartOf(part).narrow(0, manifest_.ranges()[index].begin / static_cast<int64_t>(sizeof(float)),
                             manifest_.tensors()[index].NumElements());
}

absl::Status Actor::WriteTensor(PolicyPart part, size_t index, const model::ByteSink& sink) const {
  at::NoGradGuard no_grad;
  const at::Tensor numbers = FlatTensor(part, index);
  // What is on the host is handed on as it is, the rest piece by piece.
  const int64_t most = numbers.is_cpu() ? numbers.numel() : kCopiedAtOnce;
  for (int64_t begin = 0; begin < numbers.numel(); begin += most) {
    const at::Tensor piece = numbers.narrow(0, begin, std::min(most, numbers.numel() - begin)).cpu();
    SYNCOPATE_RETURN_IF_ERROR(sink({static_cast<const char*>(piece.data_ptr()), piece.nbytes()}));
  }
  return absl::OkStatus();
}

void Actor::Restore(const PolicySource& source) {
  at::NoGradGuard no_grad;
  for (PolicyPart part : kPolicyParts) {
    for (size_t i = 0; i < manifest_.tensors().size(); ++i) {
      CopyBytes(source.Tensor(part, i), FlatTensor(part, i));
    }
  }
  RenewCopy();
  updates_ = source.updates();
}

}  // namespace syncopate::trainer
