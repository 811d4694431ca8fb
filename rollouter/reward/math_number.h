#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace syncopate::rollouter {

__extension__ typedef __int128 Int128;

// A fraction of 128-bit integers in lowest terms with a positive denominator. An operation whose result would overflow
// returns none.
class Rational {
 public:
  Rational() = default;
  explicit Rational(int64_t value) : numerator_(value) {}
  // Returns none for a denominator of 0, and for the smallest 128-bit integer, which has no opposite.
  static std::optional<Rational> Make(Int128 numerator, Int128 denominator);

  Int128 numerator() const { return numerator_; }
  Int128 denominator() const { return denominator_; }
  bool IsZero() const { return numerator_ == 0; }
  bool IsInteger() const { return denominator_ == 1; }
  double ToDouble() const { return static_cast<double>(numerator_) / static_cast<double>(denominator_); }

  std::optional<Rational> Plus(const Rational& other) const;
  std::optional<Rational> Times(const Rational& other) const;
  std::optional<Rational> Inverse() const { return Make(denominator_, numerator_); }

  friend bool operator==(const Rational&, const Rational&) = default;

 private:
  Int128 numerator_ = 0;
  Int128 denominator_ = 1;
};

// An exact real number: a sum of q * sqrt(n) * pi^k with rational q, squarefree n >= 1 and integer k. Such terms are
// linearly independent over the rationals (for fixed k: Besicovitch 1940; pi is transcendental), so two numbers are
// equal exactly if their terms are equal. An operation returns none if its result has no such form, or exceeds 128 bits
// or kMaxTerms terms.
class MathNumber {
 public:
  static constexpr size_t kMaxTerms = 16;

  MathNumber() = default;
  explicit MathNumber(const Rational& value);
  static MathNumber Pi();

  std::optional<MathNumber> Plus(const MathNumber& other) const;
  std::optional<MathNumber> Times(const MathNumber& other) const;
  // Returns none for 0, for a sum of more than two terms, and for terms with different powers of pi.
  std::optional<MathNumber> Inverse() const;
  MathNumber Negated() const;
  // Supports the exponents n and n/2, and other fractions for perfect powers; |n| <= 512.
  std::optional<MathNumber> Power(const Rational& exponent) const;
  // Returns the real root of a rational number: a square root of any number that is not negative, or another root of a
  // perfect power.
  std::optional<MathNumber> Root(int64_t degree) const;

  // Returns none if the number is not rational.
  std::optional<Rational> AsRational() const;
  double ToDouble() const;

  friend bool operator==(const MathNumber&, const MathNumber&) = default;

 private:
  struct Basis {
    int64_t under_root = 1;
    int64_t pi_power = 0;
    friend auto operator<=>(const Basis&, const Basis&) = default;
  };

  // Adds coefficient * sqrt(a) * sqrt(b) * pi^pi_power; a and b are squarefree. False if the result exceeds the limits.
  bool Add(const Rational& coefficient, int64_t a, int64_t b, int64_t pi_power);

  std::map<Basis, Rational> terms_;  // no coefficient is 0
};

}  // namespace syncopate::rollouter
