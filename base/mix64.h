#pragma once

#include <cstdint>

// The arithmetic of digests, shared by host code and GPU kernels. Needs no other header.
namespace syncopate {

// A 64-bit mix (the finaliser of MurmurHash3): bijective, all bits depend on all bits.
constexpr uint64_t Mix64(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return x;
}

constexpr uint64_t kDigestStride = 0x9e3779b97f4a7c15ULL;

}  // namespace syncopate
