#pragma once

#include <cmath>

#include "model/cuda/device_code.cuh"
#include "rollouter/cuda/decode/sample_kernels.h"

// Device functions that the sampling kernels share. Include it in .cu files only.
namespace syncopate::rollouter {

// Returns PhiloxUniform of base/philox.h as an integer of 24 bits.
__device__ __forceinline__ uint32_t UniformBits(uint64_t key, uint32_t counter) {
  uint32_t c[4] = {counter, 0, 0, 0};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {  // Philox4x32 of base/philox.h
    const uint64_t product0 = uint64_t{0xD2511F53} * c[0], product1 = uint64_t{0xCD9E8D57} * c[2];
    c[0] = static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<uint32_t>(product1);
    c[2] = static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c[0] >> 8;
}

__device__ __forceinline__ float LogitScale(const SlotSampling& how) {
  return how.inverse_temperature > 0 ? how.inverse_temperature : 1.0f;
}

// Returns exp((logit - highest) * scale), and 0 for a logit of -inf whatever `highest` is. NaN and +inf make the sum
// NaN.
__device__ __forceinline__ float Mass(float logit, float highest, float scale) {
  return logit == -INFINITY ? 0.0f : __expf((logit - highest) * scale);
}

// Writes the result; called by the one thread that has it.
__device__ __forceinline__ void WriteDrawn(const SlotSampling& how, int token, float logprob, Drawn* result,
                                           int32_t* place) {
  int stopped = 0;
#pragma unroll
  for (int i = 0; i < kMaxStopTokens; ++i) stopped |= i < how.stops && how.stop_tokens[i] == token ? 1 : 0;
  *result = {token, logprob, stopped};
  *place = token;
}

}  // namespace syncopate::rollouter
