#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "rollouter/reward/math_number.h"

namespace syncopate::rollouter {

inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Returns an answer in LaTeX without the parts that do not change its meaning: dollar signs, LaTeX spacing, \left and
// \right, sizes, units and words in \text, degrees, thousands separators, a leading "x =", a trailing full stop.
// \dfrac, \tfrac and \cfrac become \frac. Words that stand for numbers stay.
std::string NormalizeMath(absl::string_view latex);

// A mathematical answer that was parsed completely.
struct MathValue {
  enum class Kind : uint8_t {
    kNumber,
    kInfinity,   // `negative` gives its sign
    kList,       // a, b, ...
    kSet,        // {a, b, ...}
    kBracketed,  // (a, b, ...), [a, b], (a, b] and so on: tuples and intervals
  };
  Kind kind = Kind::kNumber;
  MathNumber number;
  bool decimal = false;   // the number has a decimal point, so it may have been rounded
  bool percent = false;   // a percent sign follows the number; it is not applied
  bool negative = false;  // the sign of an infinity
  char open = 0, close = 0;
  std::vector<MathValue> items;
};

// Parses normalised LaTeX: numbers, fractions, mixed numbers, powers, roots, pi, sums, products, quotients, and lists,
// sets, tuples and intervals of them. Returns none for any other text, for an ambiguous text (1/2\pi), for numbers
// beyond 128 bits and for a text longer than kMaxMathBytes.
inline constexpr size_t kMaxMathBytes = 1024;
std::optional<MathValue> ParseMath(absl::string_view normalized);

}  // namespace syncopate::rollouter
