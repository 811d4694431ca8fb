#pragma once

#include "absl/types/span.h"
#include "model/model_config.h"

namespace syncopate::model {

// Turns the plain rotary frequencies theta^(-2i/d), i < d/2, into those of `scaling`. Pure; in double precision,
// rounded once.
void ScaleFrequencies(const RopeScaling& scaling, double theta, absl::Span<float> frequencies);

// YaRN's factor of cosines and sines where the model names none: 0.1 m ln(factor) + 1, or the quotient of two of those
// when both multipliers are given (arXiv 2309.00071, section 3.4).
double YarnAttentionFactor(double factor, double mscale, double mscale_all_dim);

}  // namespace syncopate::model
