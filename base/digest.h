#pragma once

#include <cstdint>
#include <vector>

#include "base/manifest.h"
#include "base/mix64.h"

namespace syncopate {

// Order-dependent combination of two hashes.
constexpr uint64_t HashCombine(uint64_t seed, uint64_t value) {
  return Mix64(seed * kDigestStride + Mix64(value + kDigestStride));
}

// Position-sensitive digest of a byte string:
//   Mix64(size + sum over i of Mix64(word_i + (i+1) * kDigestStride))  mod 2^64,
// word_i the i-th little-endian 64-bit word, the last padded with zeros. The sum is associative, so a GPU computes the
// same value in any order. The digest detects flips, swaps and shifts; it is no defence against forged weights.
uint64_t DigestBytes(const void* data, int64_t size);

// DigestBytes of a byte string that comes in parts, in order. The size of each part but the last is a multiple of 8.
class PartsDigest {
 public:
  void Add(const void* data, int64_t size);
  uint64_t Finish() const;

 private:
  uint64_t sum_ = 0;
  uint64_t position_ = kDigestStride;  // advances with each word, so that exchanged words change the sum
  int64_t size_ = 0;
};

// DigestBytes of each bucket of an arena of manifest.arena_bytes() bytes.
std::vector<uint64_t> DigestBuckets(const Manifest& manifest, const void* arena);

// The digest of a version: its buckets' digests combined in order.
uint64_t CombineDigests(const std::vector<uint64_t>& bucket_digests);

}  // namespace syncopate
