#include "bench/train/train_world.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>

#include "base/status.h"
#include "model/cuda/train_kernels.h"

namespace syncopate::bench {
namespace {

constexpr double kClip = 0.2;
constexpr double kEntropyBonus = 0.001;

Manifest ManifestOf(const model::ModelConfig& config) {
  absl::StatusOr<Manifest> manifest = model::MakeManifest(config, DType::kFloat32);
  SYNCOPATE_CHECK(manifest.ok());
  return *manifest;
}

}  // namespace

TrainWorld::TrainWorld(const Options& options)
    : options_(options),
      manifest_(ManifestOf(options.model)),
      device_(options.device),
      parameters_(at::randn({manifest_.arena_bytes() / 4}, at::TensorOptions(at::kFloat).device(device_)).mul_(0.02)),
      first_moment_(at::zeros_like(parameters_)),
      second_moment_(at::zeros_like(parameters_)),
      gradients_(at::zeros_like(parameters_)),
      computed_(parameters_.to(at::kBFloat16)),
      weights_(model::ViewWeights(options.model, manifest_, computed_)),
      gradient_views_(model::ViewWeights(options.model, manifest_, gradients_)),
      transformer_(options.model, device_),
      program_(transformer_, device_, options.recompute),
      head_(device_, {.float32_logits = options.float32_logits}),
      sequences_(options.lengths, device_) {
  const at::TensorOptions whole = at::TensorOptions(at::kLong).device(device_);
  ids_ = at::randint(options.model.vocab_size, {tokens()}, whole);
  targets_ = at::randint(options.model.vocab_size, {tokens()}, whole);
  entropy_ = at::zeros({tokens()}, at::TensorOptions(at::kFloat).device(device_));
  advantage_ = at::randn_like(entropy_);
  const at::Tensor hidden = program_.Forward(weights_, ids_, sequences_, nullptr);
  behaviour_ = head_.Forward(hidden, weights_.head, targets_).logprob + at::randn_like(entropy_) * 0.1;
}

double TrainWorld::step_flops() const {
  const model::ModelConfig& config = options_.model;
  const double layer =
      static_cast<double>(config.hidden_size) *
      static_cast<double>(2 * config.query_size() + 2 * config.key_value_size() + 3 * config.intermediate_size);
  const double weights = layer * static_cast<double>(config.num_hidden_layers) +
                         static_cast<double>(config.vocab_size * config.hidden_size);
  double attention = 0;
  for (int64_t length : options_.lengths) attention += 2.0 * static_cast<double>(config.query_size() * length * length);
  return 3 * (2 * weights * static_cast<double>(tokens()) + attention * static_cast<double>(config.num_hidden_layers));
}

// -min(u A, clip(u) A) - bonus * entropy, averaged over the tokens.
trainer::FusedHead::RowGradients TrainWorld::Loss(int64_t begin, const trainer::FusedHead::Rows& rows) {
  const int64_t size = rows.logprob.size(0);
  const double share = 1.0 / static_cast<double>(tokens());
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
  model::kernels::AdamWArguments update;
  update.learning_rate = 1e-6F;
  update.beta1 = 0.9F;
  update.beta2 = 0.95F;
  update.eps = 1e-8F;
  update.decay = 1 - 1e-6F * 0.1F;
  update.correction1 = 1 - std::pow(update.beta1, static_cast<float>(updates_));
  update.correction2 = 1 - std::pow(update.beta2, static_cast<float>(updates_));
  update.max_norm = 1;
  update.norm = norm.const_data_ptr<float>();
  C10_CUDA_CHECK(model::kernels::AdamW(update, parameters_.numel(), parameters_.mutable_data_ptr<float>(),
                                       first_moment_.mutable_data_ptr<float>(),
                                       second_moment_.mutable_data_ptr<float>(), gradients_.const_data_ptr<float>(),
                                       computed_.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream().stream()));
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
