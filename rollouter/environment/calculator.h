// The built-in environment `calculator`: the policy may have expressions computed before it answers.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "rollouter/environment/environment.h"

namespace syncopate::rollouter {

// INVALID_ARGUMENT (reason NO_TRUTH) if the row's ground_truth holds no number.
absl::StatusOr<std::unique_ptr<EnvironmentGame>> MakeCalculator(const std::string& row_json);

// Computes sums, products, quotients and parentheses of decimal numbers exactly, in 128 bits: "-3 * (4 + 0.5)" is
// "-13.5". A result with no short decimal form is a fraction in lowest terms: "2 / 6" is "1/3". INVALID_ARGUMENT
// (reason BAD_EXPRESSION), saying what is wrong, for any other text, for a division by zero, for numbers beyond 128
// bits, and for more than kMaxExpressionBytes bytes or kMaxExpressionDepth open parentheses and signs.
inline constexpr size_t kMaxExpressionBytes = 1024;
inline constexpr int kMaxExpressionDepth = 64;
absl::StatusOr<std::string> Calculate(absl::string_view expression);

}  // namespace syncopate::rollouter
