#pragma once

#include <bit>
#include <cstdint>

// The two 16-bit floating-point formats, as bits.
namespace syncopate {

// The nearest bf16, ties to even; NaN stays NaN, and a value beyond the largest finite bf16 becomes an infinity.
inline uint16_t RoundToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float WidenBFloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Widens IEEE 754 binary16; infinities and NaN are kept.
inline float WidenFloat16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Scaling by a power of two is exact and makes subnormal numbers normal.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

}  // namespace syncopate
