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
  auto is_bad = [bytes, exponent](int64_t i) {
    Word word;
    std::memcpy(&word, bytes + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    return (word & exponent) == exponent;
  };
  bool bad = false;  // no early exit, so that the loop is vectorised
  for (int64_t i = 0; i < count; ++i) bad |= is_bad(i);
  if (!bad) return std::nullopt;
  int64_t first = 0;
  while (!is_bad(first)) ++first;
  return first;
}

}  // namespace syncopate
