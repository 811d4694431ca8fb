#include "bench/train/train_world.h"

#include <cmath>

#include "base/status.h"
#include "model/ops.h"

namespace syncopate::bench {
namespace {

constexpr double kClip = 0.2;
constexpr double kEntropyBonus = 0.001;

Manifest ManifestFor(const model::ModelConfig& config) {
  absl::StatusOr<Manifest> manifest = model::MakeManifest(config, DType::kFloat32);
  SYNCOPATE_CHECK(manifest.ok());
  return *manifest;
}

at::TensorOptions Float32On(at::Device device) { return at::TensorOptions(at::kFloat).device(device); }

}  // namespace

TrainWorld::TrainWorld(const Options& options)
    : options_(options),
      manifest_(ManifestFor(options.model)),
      parameters_(at::randn({manifest_.arena_bytes() / 4}, Float32On(options.device)).mul_(0.02)),
      first_moment_(at::zeros_like(parameters_)),
      second_moment_(at::zeros_like(parameters_)),
      gradients_(at::zeros_like(parameters_)),
      copy_(options.device.is_cuda() ? parameters_.to(at::kBFloat16) : at::Tensor()),
      weights_(model::ViewWeights(options.model, manifest_, copy_.defined() ? copy_ : parameters_)),
      gradient_views_(model::ViewWeights(options.model, manifest_, gradients_)),
      transformer_(options.model, options.device),
      program_(transformer_, options.device, options.recompute, options.deterministic),
      head_(options.device, {.float32_logits = options.float32_logits}),
      sequences_(options.lengths, options.device) {
  const at::TensorOptions whole = at::TensorOptions(at::kLong).device(options.device);
  ids_ = at::randint(options.model.vocab_size, {sequences_.rows()}, whole);
  targets_ = at::randint(options.model.vocab_size, {sequences_.rows()}, whole);
  entropy_ = at::zeros({sequences_.rows()}, Float32On(options.device));
  advantage_ = at::randn_like(entropy_);
  const at::Tensor hidden = program_.Forward(weights_, ids_, sequences_, nullptr);
  // The noise makes some ratios leave the clip band, as in a real step.
  behaviour_ = head_.Forward(hidden, weights_.head, targets_).logprob + at::randn_like(entropy_) * 0.1;
}

// The loss -min(u A, clip(u) A) - bonus * entropy, averaged over the tokens.
trainer::FusedHead::RowGradients TrainWorld::Loss(int64_t begin, const trainer::FusedHead::Rows& rows) {
  const int64_t size = rows.logprob.size(0);
  const double share = 1.0 / static_cast<double>(sequences_.rows());
  at::Tensor advantage = advantage_.narrow(0, begin, size);
  at::Tensor ratio = at::exp(rows.logprob - behaviour_.narrow(0, begin, size));
  at::Tensor plain = ratio * advantage, clipped = at::clamp(ratio, 1 - kClip, 1 + kClip) * advantage;
  entropy_.narrow(0, begin, size).copy_(rows.entropy);
  return {at::where(plain.le(clipped), plain, at::zeros_like(plain)).mul_(-share),
          at::full_like(plain, -kEntropyBonus * share)};
}

void TrainWorld::Update() {
  ++updates_;
  const at::Tensor norm = at::norm(gradients_);
  const at::Tensor factor = at::clamp_max(at::reciprocal(norm), 1);
  const model::Ops::AdamW update = {.learning_rate = 1e-6,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .eps = 1e-8,
                                    .weight_decay = 0.1,
                                    .correction1 = 1 - std::pow(0.9, static_cast<double>(updates_)),
                                    .correction2 = 1 - std::pow(0.95, static_cast<double>(updates_))};
  model::OpsFor(options_.device)
      .UpdateByAdamW(update, factor, {parameters_, first_moment_, second_moment_, gradients_, copy_});
}

void TrainWorld::Step() {
  gradients_.zero_();
  trainer::DecoderProgram::Tape tape;
  const at::Tensor hidden = program_.Forward(weights_, ids_, sequences_, &tape);
  const at::Tensor dhidden = head_.ForwardBackward(
      hidden, weights_.head, targets_,
      [this](int64_t begin, const trainer::FusedHead::Rows& rows) { return Loss(begin, rows); }, gradient_views_.head);
  program_.Backward(weights_, ids_, sequences_, dhidden, &tape, gradient_views_);
  Update();
}

void TrainWorld::LogProbs() {
  const at::Tensor hidden = program_.Forward(weights_, ids_, sequences_, nullptr);
  entropy_ = head_.Forward(hidden, weights_.head, targets_).entropy;
}

}  // namespace syncopate::bench
