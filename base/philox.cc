#include "base/philox.h"

#include <cmath>

namespace syncopate {

std::array<uint32_t, 4> Philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                               static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t product0 = uint64_t{kMultiplier0} * c[0];
    uint64_t product1 = uint64_t{kMultiplier1} * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(product0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

float PhiloxUniform(uint64_t key, uint64_t counter) {
  return static_cast<float>(Philox4x32(key, counter)[0] >> 8) * (1.0f / (1 << 24));
}

float PhiloxNormal(uint64_t key, uint64_t counter) {
  std::array<uint32_t, 4> words = Philox4x32(key, counter);
  double radius_uniform = (static_cast<double>(words[0]) + 1.0) / 4294967297.0;  // in (0, 1): log stays finite
  double angle = 2.0 * M_PI * (static_cast<double>(words[1]) / 4294967296.0);
  return static_cast<float>(std::sqrt(-2.0 * std::log(radius_uniform)) * std::cos(angle));
}

}  // namespace syncopate
