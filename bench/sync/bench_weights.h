#pragma once

#include <cstdint>

#include "base/mix64.h"

// The weights of a benchmark: a pure function of tensor, element and step, so that a receiver can compare its weights
// with the intended ones, whatever transported them. Finite, never zero, without a pattern; one in sixteen changes with
// each step. Hosts and GPUs compute bit-identical values.
namespace syncopate::bench {

// The bits of a float. The bf16 weight is the nearest one.
constexpr uint32_t BenchWeightBits(uint64_t tensor, uint64_t element, uint64_t step) {
  constexpr uint32_t kSmallestExponent = 118;  // 2^-9
  uint64_t hash = Mix64((element + 1) * kDigestStride + (tensor << 48));
  if (hash >> 60 == 0) hash = Mix64(hash + (step + 1) * kDigestStride);
  const auto mantissa = static_cast<uint32_t>(hash & 0x7fffff);
  const auto exponent = kSmallestExponent + static_cast<uint32_t>(hash >> 23 & 7);
  const auto sign = static_cast<uint32_t>(hash >> 26 & 1);
  return sign << 31 | exponent << 23 | mantissa;
}

constexpr uint16_t BenchWeightBFloat16(uint64_t tensor, uint64_t element, uint64_t step) {
  const uint32_t bits = BenchWeightBits(tensor, element, step);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace syncopate::bench
