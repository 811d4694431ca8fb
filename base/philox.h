#pragma once

#include <array>
#include <cstdint>

namespace syncopate {

// Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
// the value is a pure function of (key, counter), so a token's random number depends on its request's seed and its
// position and on nothing else.
std::array<uint32_t, 4> Philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0);

// Uniform in [0, 1) with 24 random bits, from the first word of Philox4x32(key, counter).
float PhiloxUniform(uint64_t key, uint64_t counter);

// Standard normal by Box-Muller from the first two words of Philox4x32(key, counter).
float PhiloxNormal(uint64_t key, uint64_t counter);

}  // namespace syncopate
