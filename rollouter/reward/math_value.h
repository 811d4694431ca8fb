#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "rollouter/reward/math_number.h"

namespace syncopate::rollouter {

inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// An answer as LaTeX, without what does not change its meaning: dollars, spaces that LaTeX writes, \left and \right,
// sizes, units and words in \text, degrees, thousands separators, "x =" before it, a full stop behind it. \dfrac and
// its kin are \frac. Words that stand for numbers stay.
std::string NormalizeMath(absl::string_view latex);

// A mathematical answer that was understood to its last sign.
struct MathValue {
  enum class Kind : uint8_t {
    kNumber,
    kInfinity,   // negative: below everything
    kList,       // a, b, ...
    kSet,        // {a, b, ...}
    kBracketed,  // (a, b, ...), [a, b], (a, b] and so on: tuples and intervals
  };
  Kind kind = Kind::kNumber;
  MathNumber number;
  bool decimal = false;   // it has a decimal point, so it may have been rounded
  bool percent = false;   // it stands before a percent sign, which is not applied
  bool negative = false;  // infinity
  char open = 0, close = 0;
  std::vector<MathValue> items;
};

// Reads normalised LaTeX: numbers, fractions, mixed numbers, powers, roots, pi, sums, products, quotients, and lists,
// sets, tuples and intervals of them. None for whatever else, for what people read in two ways (1/2\pi), for numbers
// beyond 128 bits and for more than kMaxMathBytes.
inline constexpr size_t kMaxMathBytes = 1024;
std::optional<MathValue> ParseMath(absl::string_view normalized);

}  // namespace syncopate::rollouter
