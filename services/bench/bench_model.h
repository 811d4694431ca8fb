#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/digest.h"
#include "base/manifest.h"

namespace syncopate::services {

// Models of which only the shapes matter: those of synchronizer/plan/model_shapes.h, and "tiny" (about 1 MB) for tests.
std::vector<std::string> BenchModelNames();
// The manifest of their weights. NOT_FOUND reason UNKNOWN_MODEL listing the names.
absl::StatusOr<Manifest> BenchManifest(const std::string& model);
// Elements of one attention head.
absl::StatusOr<int64_t> BenchHeadDim(const std::string& model);

// The weights themselves: a pure function of tensor, element and step, so that a receiver can compare what it got with
// what was meant, whatever lay in between. Finite, never zero, without pattern; one in sixteen changes with each step.
// The bits of a float; a weight in bf16 is the nearest.
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

}  // namespace syncopate::services
