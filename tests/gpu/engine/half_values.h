#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/philox.h"
#include "cuda/stream.h"
#include "tests/gpu/gpu_support.h"

// bf16 numbers on the host, and copies of them to the GPU and back.
namespace syncopate::rollouter::testing {

using Half = uint16_t;

inline float Widen(Half half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); }

inline Half Narrow(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<Half>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}

inline float Rounded(float value) { return Widen(Narrow(value)); }

inline constexpr Half kHalfNan = 0x7fc0;

inline std::vector<Half> RandomHalves(int64_t count, uint64_t seed, float deviation = 1, float mean = 0) {
  std::vector<Half> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = Narrow(mean + deviation * PhiloxNormal(seed, static_cast<uint64_t>(i)));
  }
  return values;
}

template <typename T>
cuda::DeviceBuffer Upload(const std::vector<T>& values) {
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
  cuda::DeviceBuffer buffer = *cuda::DeviceBuffer::Create(0, bytes, "a test's table");
  if (bytes > 0) synchronizer::ToDevice(0, buffer.data(), values.data(), bytes);
  return buffer;
}

template <typename T>
std::vector<T> Download(const void* from, int64_t count) {
  const std::vector<char> bytes =
      synchronizer::ToHost(0, static_cast<const char*>(from), count * static_cast<int64_t>(sizeof(T)));
  const T* values = reinterpret_cast<const T*>(bytes.data());
  return std::vector<T>(values, values + count);
}

// ||a - b|| / ||b||; infinite if `a` contains a NaN or infinity.
template <typename A, typename B>
double RelativeError(const A& a, const B& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

inline std::vector<float> WidenAll(const std::vector<Half>& halves) {
  std::vector<float> values;
  values.reserve(halves.size());
  for (Half half : halves) values.push_back(Widen(half));
  return values;
}

}  // namespace syncopate::rollouter::testing
