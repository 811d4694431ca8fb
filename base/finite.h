#pragma once

#include <cstdint>
#include <cstring>
#include <optional>

namespace syncopate {

// A floating-point number is not finite iff all bits of its exponent are set.
inline constexpr uint32_t kFloat32Exponent = 0x7f800000u;
inline constexpr uint16_t kBFloat16Exponent = 0x7f80u;
inline constexpr uint16_t kFloat16Exponent = 0x7c00u;

// Index of the first of `count` numbers at `bytes` (no alignment needed) that is a NaN or an infinity; `exponent` is
// the constant above for their format. Reads each byte once if all are finite.
template <typename Word>
std::optional<int64_t> FindNonFinite(const char* bytes, int64_t count, Word exponent) {
  constexpr int64_t kWidth = sizeof(Word), kAtOnce = static_cast<int64_t>(sizeof(uint64_t)) / kWidth;
  // `kAtOnce` numbers in one word. Adding `lowest` sets a number's sign bit iff all bits of its exponent are set, and
  // never carries into the next number.
  constexpr uint64_t kOnes = ~uint64_t{0} / static_cast<Word>(-1), kSigns = kOnes << (8 * kWidth - 1);
  const uint64_t exponents = kOnes * exponent, lowest = kSigns - exponents;
  uint64_t carried = 0;
  int64_t at = 0;
  for (; at + kAtOnce <= count; at += kAtOnce) {  // no early exit, which would make it slower
    uint64_t word;
    std::memcpy(&word, bytes + at * kWidth, sizeof(word));
    carried |= (word & exponents) + lowest;
  }
  if ((carried & kSigns) != 0) at = 0;
  for (; at < count; ++at) {
    Word word;
    std::memcpy(&word, bytes + at * kWidth, sizeof(word));
    if ((word & exponent) == exponent) return at;
  }
  return std::nullopt;
}

}  // namespace syncopate
