#include "base/digest.h"

#include <cstring>

#include "base/status.h"

namespace syncopate {

void PartsDigest::Add(const void* data, int64_t size) {
  SYNCOPATE_CHECK(size_ % 8 == 0);
  const char* bytes = static_cast<const char*>(data);
  uint64_t sum = sum_, position = position_;
  int64_t at = 0;
  for (; at + 8 <= size; at += 8, position += kDigestStride) {
    uint64_t word;
    std::memcpy(&word, bytes + at, 8);
    sum += Mix64(word + position);
  }
  if (at < size) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, static_cast<size_t>(size - at));
    sum += Mix64(word + position);
  }
  sum_ = sum;
  position_ = position;
  size_ += size;
}

uint64_t PartsDigest::Finish() const { return Mix64(static_cast<uint64_t>(size_) + sum_); }

uint64_t DigestBytes(const void* data, int64_t size) {
  PartsDigest digest;
  digest.Add(data, size);
  return digest.Finish();
}

std::vector<uint64_t> DigestBuckets(const Manifest& manifest, const void* arena) {
  std::vector<uint64_t> digests;
  digests.reserve(manifest.buckets().size());
  for (const ByteRange& bucket : manifest.buckets()) {
    digests.push_back(DigestBytes(static_cast<const char*>(arena) + bucket.begin, bucket.size()));
  }
  return digests;
}

uint64_t CombineDigests(const std::vector<uint64_t>& bucket_digests) {
  uint64_t combined = bucket_digests.size();
  for (uint64_t digest : bucket_digests) combined = HashCombine(combined, digest);
  return combined;
}

}  // namespace syncopate
