#include "rollouter/reward/math_verdict.h"

#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "rollouter/reward/math_value.h"

namespace syncopate::rollouter {
namespace {

using Kind = MathValue::Kind;

// Decimals may have been rounded: a difference below this limit gives kUndecided.
constexpr double kRounding = 2e-6;
// The largest number of boxes tried, from the end of the text: a box that is never closed is read to the end each time.
constexpr int kMaxBoxes = 16;

Verdict CompareNumbers(const MathNumber& a, const MathNumber& b, bool decimal) {
  if (a == b) return Verdict::kYes;
  if (decimal && std::fabs(a.ToDouble() - b.ToDouble()) <= kRounding) return Verdict::kUndecided;
  return Verdict::kNo;
}

Verdict CompareNumberValues(const MathValue& a, const MathValue& b) {
  const bool decimal = a.decimal || b.decimal;
  const Verdict plain = CompareNumbers(a.number, b.number, decimal);
  if (plain == Verdict::kYes || a.percent == b.percent) return plain;
  const MathNumber hundredth(*Rational::Make(1, 100));
  const std::optional<MathNumber> part = (a.percent ? a : b).number.Times(hundredth);
  if (!part.has_value()) return Verdict::kUndecided;
  const Verdict applied = CompareNumbers(*part, (a.percent ? b : a).number, decimal);
  return applied == Verdict::kNo ? plain : applied;
}

bool IsSetLike(const MathValue& value) { return value.kind == Kind::kList || value.kind == Kind::kSet; }

Verdict Compare(const MathValue& a, const MathValue& b);

Verdict CompareInOrder(const MathValue& a, const MathValue& b) {
  Verdict all = Verdict::kYes;
  for (size_t i = 0; i < a.items.size(); ++i) {
    const Verdict one = Compare(a.items[i], b.items[i]);
    if (one == Verdict::kNo) return one;
    if (one == Verdict::kUndecided) all = one;
  }
  return all;
}

// Whether each item of `a` is in `b`.
Verdict IsSubset(const MathValue& a, const MathValue& b) {
  Verdict all = Verdict::kYes;
  for (const MathValue& item : a.items) {
    Verdict best = Verdict::kNo;
    for (const MathValue& other : b.items) {
      const Verdict one = Compare(item, other);
      if (one == Verdict::kYes || best == Verdict::kNo) best = one;
      if (one == Verdict::kYes) break;
    }
    if (best == Verdict::kNo) return best;
    if (best == Verdict::kUndecided) all = best;
  }
  return all;
}

Verdict CompareBracketed(const MathValue& a, const MathValue& b) {
  if (a.items.size() != b.items.size()) return Verdict::kNo;
  const Verdict items = CompareInOrder(a, b);
  if (items != Verdict::kYes || (a.open == b.open && a.close == b.close)) return items;
  // Two numbers in other brackets are another interval. With more numbers it is a tuple, which people write with either
  // bracket.
  return a.items.size() == 2 ? Verdict::kNo : Verdict::kUndecided;
}

Verdict Compare(const MathValue& a, const MathValue& b) {
  if (a.kind == Kind::kNumber && b.kind == Kind::kNumber) return CompareNumberValues(a, b);
  if (a.kind == Kind::kInfinity && b.kind == Kind::kInfinity) {
    return a.negative == b.negative ? Verdict::kYes : Verdict::kNo;
  }
  if ((a.kind == Kind::kNumber && b.kind == Kind::kInfinity) ||
      (a.kind == Kind::kInfinity && b.kind == Kind::kNumber)) {
    return Verdict::kNo;
  }
  if (IsSetLike(a) && IsSetLike(b)) {
    const Verdict there = IsSubset(a, b);
    const Verdict back = IsSubset(b, a);
    if (there == Verdict::kNo || back == Verdict::kNo) return Verdict::kNo;
    return there == Verdict::kYes && back == Verdict::kYes ? Verdict::kYes : Verdict::kUndecided;
  }
  if (a.kind == Kind::kBracketed && b.kind == Kind::kBracketed) return CompareBracketed(a, b);
  // A number does not equal a list of several items, but {5} may mean 5.
  const MathValue& many = a.kind == Kind::kNumber ? b : a;
  const MathValue& one = a.kind == Kind::kNumber ? a : b;
  const bool certain = one.kind == Kind::kNumber && many.items.size() > 1;
  return certain ? Verdict::kNo : Verdict::kUndecided;
}

}  // namespace

Verdict CompareMath(absl::string_view expected, absl::string_view given) {
  if (expected.size() > 4 * kMaxMathBytes || given.size() > 4 * kMaxMathBytes) return Verdict::kUndecided;
  const std::string a = NormalizeMath(expected);
  const std::string b = NormalizeMath(given);
  // An empty text after normalisation may have lost its content, so two empty texts are not known to be equal.
  if (a.empty() || b.empty()) return a == b ? Verdict::kUndecided : Verdict::kNo;
  if (a == b) return Verdict::kYes;
  const std::optional<MathValue> left = ParseMath(a);
  if (!left.has_value()) return Verdict::kUndecided;
  const std::optional<MathValue> right = ParseMath(b);
  return right.has_value() ? Compare(*left, *right) : Verdict::kUndecided;
}

std::optional<std::string> LastBoxed(absl::string_view text) {
  size_t end = text.size();
  for (int tries = 0; tries < kMaxBoxes; ++tries) {
    const size_t boxed = text.substr(0, end).rfind("\\boxed");
    const size_t fbox = text.substr(0, end).rfind("\\fbox");
    const bool is_fbox = boxed == absl::string_view::npos || (fbox != absl::string_view::npos && fbox > boxed);
    const size_t at = is_fbox ? fbox : boxed;
    if (at == absl::string_view::npos) return std::nullopt;
    size_t open = text.find_first_not_of(' ', at + (is_fbox ? 5 : 6));
    if (open != absl::string_view::npos && text[open] == '{') {
      int depth = 0;
      for (size_t i = open; i < text.size(); ++i) {
        if (text[i] == '\\') {
          ++i;
        } else if (text[i] == '{') {
          ++depth;
        } else if (text[i] == '}' && --depth == 0) {
          return std::string(text.substr(open + 1, i - open - 1));
        }
      }
    }
    end = at;
  }
  return std::nullopt;
}

std::optional<std::string> FinalNumber(absl::string_view text) {
  const size_t mark = text.rfind("####");
  const bool marked = mark != absl::string_view::npos;
  if (marked) text.remove_prefix(mark + 4);
  std::optional<std::string> found;
  for (size_t i = 0; i < text.size();) {
    if (!IsDigit(text[i])) {
      ++i;
      continue;
    }
    size_t before = i;
    std::string number;
    if (before > 0 && text[before - 1] == '.') {  // .5
      number = "0.";
      --before;
    }
    if (before > 0 && text[before - 1] == '$') --before;
    const bool minus = before > 0 && text[before - 1] == '-' &&
                       (before == 1 || (!absl::ascii_isalnum(static_cast<unsigned char>(text[before - 2])) &&
                                        text[before - 2] != ')' && text[before - 2] != '.'));
    bool point = !number.empty();
    for (; i < text.size(); ++i) {
      const bool more = i + 1 < text.size() && IsDigit(text[i + 1]);
      if (IsDigit(text[i])) {
        number.push_back(text[i]);
      } else if (text[i] == '.' && !point && more) {
        point = true;
        number.push_back('.');
      } else if (text[i] != ',' || !more) {
        break;
      }
    }
    found = minus ? "-" + number : number;
    if (marked) return found;
  }
  return found;
}

bool SameNumber(const std::string& a, const std::string& b) {
  const std::optional<MathValue> left = ParseMath(a);
  const std::optional<MathValue> right = ParseMath(b);
  return left.has_value() && right.has_value() && left->number == right->number;
}

}  // namespace syncopate::rollouter
