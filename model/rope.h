#pragma once

#include "absl/types/span.h"
#include "model/model_config.h"

namespace syncopate::model {

// Changes the plain rotary frequencies theta^(-2i/d), i < d/2, into those of `scaling`. Pure; computes in double
// precision and rounds once.
void ScaleFrequencies(const RopeScaling& scaling, double theta, absl::Span<float> frequencies);

// YaRN's factor of cosines and sines if the model gives none: 0.1 m ln(factor) + 1, or the quotient of two such terms
// if both multipliers are given (arXiv 2309.00071, section 3.4).
double YarnAttentionFactor(double factor, double mscale, double mscale_all_dim);

}  // namespace syncopate::model
