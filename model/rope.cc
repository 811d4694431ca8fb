#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace syncopate::model {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// Llama 3.1: long waves are stretched, short waves are kept, and waves between are interpolated smoothly.
double Llama3(const RopeScaling& scaling, double frequency) {
  const double turns = scaling.original_context * frequency / kTurn;  // turns within the original context
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// The pair of dimensions, as a fraction, whose wave makes `turns` turns within the original context.
double YarnDimension(const RopeScaling& scaling, double theta, double dimensions, double turns) {
  return dimensions * std::log(scaling.original_context / (turns * kTurn)) / (2 * std::log(theta));
}

double YarnMagnitude(double factor, double multiplier) {
  return factor <= 1 ? 1.0 : 0.1 * multiplier * std::log(factor) + 1.0;
}

// arXiv 2309.00071, equations 17 to 23: a ramp from plain frequencies (fast waves) to stretched ones (slow waves).
void Yarn(const RopeScaling& scaling, double theta, absl::Span<float> frequencies) {
  const double dimensions = 2.0 * static_cast<double>(frequencies.size());
  double low = YarnDimension(scaling, theta, dimensions, scaling.beta_fast);
  double high = YarnDimension(scaling, theta, dimensions, scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dimensions - 1);
  if (low == high) high += 0.001;  // as transformers does: a step instead of a division by zero
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = static_cast<float>(frequencies[i] * (stretched / scaling.factor + (1 - stretched)));
  }
}

}  // namespace

void ScaleFrequencies(const RopeScaling& scaling, double theta, absl::Span<float> frequencies) {
  switch (scaling.type) {
    case RopeScaling::Type::kDefault:
      return;
    case RopeScaling::Type::kLinear:
      for (float& frequency : frequencies) frequency = static_cast<float>(frequency / scaling.factor);
      return;
    case RopeScaling::Type::kLlama3:
      for (float& frequency : frequencies) frequency = static_cast<float>(Llama3(scaling, frequency));
      return;
    case RopeScaling::Type::kYarn:
      return Yarn(scaling, theta, frequencies);
  }
}

double YarnAttentionFactor(double factor, double mscale, double mscale_all_dim) {
  if (mscale != 0 && mscale_all_dim != 0) return YarnMagnitude(factor, mscale) / YarnMagnitude(factor, mscale_all_dim);
  return YarnMagnitude(factor, 1);
}

}  // namespace syncopate::model
