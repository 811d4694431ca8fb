#include "rollouter/reward/math_number.h"

#include <cmath>
#include <numbers>
#include <numeric>

namespace syncopate::rollouter {
namespace {

constexpr int64_t kMaxUnderRoot = 10'000'000'000;  // SplitSquare tries each factor up to its root, at most 10^5 of them
constexpr int64_t kMaxExponent = 512;

Int128 Gcd(Int128 a, Int128 b) {
  if (a < 0) a = -a;
  if (b < 0) b = -b;
  while (b != 0) {
    const Int128 rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

std::optional<Int128> Product(Int128 a, Int128 b) {
  Int128 product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// n = square^2 * rest with squarefree rest.
struct SquareParts {
  int64_t square = 1;
  int64_t rest = 1;
};

SquareParts SplitSquare(int64_t n) {
  SquareParts parts;
  for (int64_t factor = 2; factor * factor <= n; ++factor) {
    while (n % (factor * factor) == 0) {
      n /= factor * factor;
      parts.square *= factor;
    }
    if (n % factor == 0) {
      n /= factor;
      parts.rest *= factor;
    }
  }
  parts.rest *= n;
  return parts;
}

std::optional<Rational> IntegerPower(const Rational& base, int64_t exponent) {
  Rational power(1);
  for (int64_t i = 0; i < exponent; ++i) {
    std::optional<Rational> next = power.Times(base);
    if (!next.has_value()) return std::nullopt;
    power = *next;
  }
  return power;
}

// Returns the integer r with r^degree = n, or none; n >= 0.
std::optional<int64_t> PerfectRoot(Int128 n, int64_t degree) {
  const double near = std::pow(static_cast<double>(n), 1.0 / static_cast<double>(degree));
  if (near > 1e18) return std::nullopt;
  const int64_t guess = std::llround(near);
  for (int64_t root = guess > 0 ? guess - 1 : 0; root <= guess + 1; ++root) {
    const std::optional<Rational> power = IntegerPower(Rational(root), degree);
    if (power.has_value() && power->numerator() == n) return root;
  }
  return std::nullopt;
}

}  // namespace

// -- Rational

std::optional<Rational> Rational::Make(Int128 numerator, Int128 denominator) {
  constexpr Int128 kMin = static_cast<Int128>(1) << 127;  // the smallest 128-bit integer has no opposite
  if (denominator == 0 || numerator == kMin || denominator == kMin) return std::nullopt;
  const Int128 common = Gcd(numerator, denominator) * (denominator < 0 ? -1 : 1);
  Rational made;
  made.numerator_ = numerator / common;
  made.denominator_ = denominator / common;
  return made;
}

std::optional<Rational> Rational::Plus(const Rational& other) const {
  const auto left = Product(numerator_, other.denominator_);
  const auto right = Product(other.numerator_, denominator_);
  const auto below = Product(denominator_, other.denominator_);
  Int128 above = 0;
  if (!left || !right || !below || __builtin_add_overflow(*left, *right, &above)) return std::nullopt;
  return Make(above, *below);
}

std::optional<Rational> Rational::Times(const Rational& other) const {
  const auto above = Product(numerator_, other.numerator_);
  const auto below = Product(denominator_, other.denominator_);
  if (!above || !below) return std::nullopt;
  return Make(*above, *below);
}

// -- MathNumber

MathNumber::MathNumber(const Rational& value) {
  if (!value.IsZero()) terms_[{}] = value;
}

MathNumber MathNumber::Pi() {
  MathNumber pi;
  pi.terms_[{.under_root = 1, .pi_power = 1}] = Rational(1);
  return pi;
}

bool MathNumber::Add(const Rational& coefficient, int64_t a, int64_t b, int64_t pi_power) {
  // For squarefree a and b: sqrt(a) * sqrt(b) = g * sqrt(a/g * b/g) with g = gcd(a, b).
  const int64_t common = std::gcd(a, b);
  int64_t under_root = 0;
  if (__builtin_mul_overflow(a / common, b / common, &under_root)) return false;
  const std::optional<Rational> scaled = coefficient.Times(Rational(common));
  if (!scaled.has_value()) return false;
  Rational& term = terms_[{under_root, pi_power}];
  const std::optional<Rational> sum = term.Plus(*scaled);
  if (!sum.has_value()) return false;
  term = *sum;
  if (term.IsZero()) terms_.erase({under_root, pi_power});
  return terms_.size() <= kMaxTerms;
}

std::optional<MathNumber> MathNumber::Plus(const MathNumber& other) const {
  MathNumber sum = *this;
  for (const auto& [basis, value] : other.terms_) {
    if (!sum.Add(value, basis.under_root, 1, basis.pi_power)) return std::nullopt;
  }
  return sum;
}

std::optional<MathNumber> MathNumber::Times(const MathNumber& other) const {
  MathNumber product;
  for (const auto& [mine, a] : terms_) {
    for (const auto& [theirs, b] : other.terms_) {
      const std::optional<Rational> coefficient = a.Times(b);
      if (!coefficient.has_value()) return std::nullopt;
      if (!product.Add(*coefficient, mine.under_root, theirs.under_root, mine.pi_power + theirs.pi_power)) {
        return std::nullopt;
      }
    }
  }
  return product;
}

MathNumber MathNumber::Negated() const {
  MathNumber negated = *this;
  for (auto& [basis, value] : negated.terms_) value = *Rational::Make(-value.numerator(), value.denominator());
  return negated;
}

std::optional<MathNumber> MathNumber::Inverse() const {
  if (terms_.size() == 1) {
    // 1 / (q sqrt(n) pi^k) = sqrt(n) / (q n) pi^-k
    const auto& [basis, value] = *terms_.begin();
    const std::optional<Rational> scaled = value.Times(Rational(basis.under_root));
    const std::optional<Rational> inverse = scaled.has_value() ? scaled->Inverse() : std::nullopt;
    MathNumber result;
    if (!inverse.has_value() || !result.Add(*inverse, basis.under_root, 1, -basis.pi_power)) return std::nullopt;
    return result;
  }
  if (terms_.size() != 2 || terms_.begin()->first.pi_power != terms_.rbegin()->first.pi_power) return std::nullopt;
  // 1 / (a + b) = (a - b) / (a^2 - b^2), whose denominator is one term.
  MathNumber conjugate = *this;
  Rational& second = conjugate.terms_.rbegin()->second;
  second = *Rational::Make(-second.numerator(), second.denominator());
  const std::optional<MathNumber> norm = Times(conjugate);
  if (!norm.has_value() || norm->terms_.size() != 1) return std::nullopt;
  const std::optional<MathNumber> inverse = norm->Inverse();
  return inverse.has_value() ? conjugate.Times(*inverse) : std::nullopt;
}

std::optional<MathNumber> MathNumber::Power(const Rational& exponent) const {
  const Int128 above = exponent.numerator();
  if (above > kMaxExponent || above < -kMaxExponent || exponent.denominator() > kMaxExponent) return std::nullopt;
  if (above < 0) {
    const std::optional<MathNumber> inverse = Inverse();
    return inverse.has_value() ? inverse->Power(*Rational::Make(-above, exponent.denominator())) : std::nullopt;
  }
  // 0^0 and roots of negative numbers have no agreed value.
  if (terms_.empty() && above == 0) return std::nullopt;
  std::optional<MathNumber> base = *this;
  if (!exponent.IsInteger()) {
    const std::optional<Rational> rational = AsRational();
    if (!rational.has_value() || rational->numerator() < 0) return std::nullopt;
    base = Root(static_cast<int64_t>(exponent.denominator()));
  }
  MathNumber power{Rational(1)};
  for (Int128 i = 0; i < above && base.has_value(); ++i) {
    const std::optional<MathNumber> next = power.Times(*base);
    if (!next.has_value()) return std::nullopt;
    power = *next;
  }
  return base.has_value() ? std::optional<MathNumber>(power) : std::nullopt;
}

std::optional<MathNumber> MathNumber::Root(int64_t degree) const {
  const std::optional<Rational> value = AsRational();
  if (!value.has_value() || degree < 2) return std::nullopt;
  const bool negative = value->numerator() < 0;
  if (negative && degree % 2 == 0) return std::nullopt;
  const std::optional<int64_t> above = PerfectRoot(negative ? -value->numerator() : value->numerator(), degree);
  const std::optional<int64_t> below = PerfectRoot(value->denominator(), degree);
  if (above.has_value() && below.has_value()) {
    return MathNumber(*Rational::Make(negative ? -*above : *above, *below));
  }
  if (degree != 2) return std::nullopt;
  // sqrt(a/b) = sqrt(ab) / b
  const std::optional<Int128> under = Product(value->numerator(), value->denominator());
  if (!under.has_value() || *under > kMaxUnderRoot) return std::nullopt;
  const SquareParts parts = SplitSquare(static_cast<int64_t>(*under));
  const std::optional<Rational> coefficient = Rational::Make(parts.square, value->denominator());
  MathNumber root;
  if (!coefficient.has_value() || !root.Add(*coefficient, parts.rest, 1, 0)) return std::nullopt;
  return root;
}

std::optional<Rational> MathNumber::AsRational() const {
  if (terms_.empty()) return Rational();
  if (terms_.size() > 1 || terms_.begin()->first != Basis{}) return std::nullopt;
  return terms_.begin()->second;
}

double MathNumber::ToDouble() const {
  double sum = 0;
  for (const auto& [basis, value] : terms_) {
    sum += value.ToDouble() * std::sqrt(static_cast<double>(basis.under_root)) *
           std::pow(std::numbers::pi, static_cast<double>(basis.pi_power));
  }
  return sum;
}

}  // namespace syncopate::rollouter
