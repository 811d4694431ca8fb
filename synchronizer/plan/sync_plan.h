#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/plan/pack.h"

namespace syncopate::synchronizer {

// One message of a weight sync: `bytes` bytes from a source rank's send arena to a destination rank's shadow arena.
struct Copy {
  int32_t source = 0;
  int32_t destination = 0;
  int64_t source_offset = 0;
  int64_t destination_offset = 0;
  int64_t bytes = 0;
  friend bool operator==(const Copy&, const Copy&) = default;
};

// A part of a message with its own digest: DigestBytes over all its bytes.
struct WireBucket {
  int32_t source = 0;
  int32_t destination = 0;
  int64_t source_offset = 0;
  int64_t destination_offset = 0;
  int64_t bytes = 0;
  int64_t digest_index = 0;  // index in the version's digests; destinations that share bytes share the index
  friend bool operator==(const WireBucket&, const WireBucket&) = default;
};

// Digests [begin, end) of a version.
struct DigestSpan {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const DigestSpan&, const DigestSpan&) = default;
};

// The bytes that each rank sends to each other rank in every weight sync between two layouts of one manifest. A pure
// function of these three: every member computes the plan itself and compares hashes; no member gets offsets from a
// peer. Bytes go from shard to shard; nothing is gathered. Immutable.
//
// A source rank packs its shard into a *send arena* in wire order: for destination rank 0, 1, ... the bytes that this
// rank needs from the source, in the order of the destination's arena. So each message is one contiguous range on both
// sides. Neighbours are merged across equal padding (fewer than kAlignment bytes, zero on both sides). Each message
// starts at the same offset modulo kAlignment on both sides. A destination rank that needs the same bytes at the same
// places as an earlier rank reads that rank's bytes. If several source ranks store an element, the work is divided
// evenly between them. From one source to one destination rank, the send arena is the destination's arena, gaps included;
// from one source with all weights to one whole replica without gaps (adapters, TensorSpec::spare_rows), one message moves
// it, and its buckets are the manifest's.
class SyncPlan {
 public:
  // FAILED_PRECONDITION reason PLAN_INCOMPLETE, naming the tensor, if a destination needs elements that no source has;
  // reason DTYPE_MISMATCH if shards are neither fp32 nor in the dtype in which the tensor is sent. INVALID_ARGUMENT
  // reason BAD_LAYOUT if the destination's arena is not in the manifest's dtypes.
  static absl::StatusOr<SyncPlan> Create(const Manifest& manifest, const Layout& source, const Layout& destination);

  int32_t sources() const { return static_cast<int32_t>(packs_.size()); }
  int32_t destinations() const { return destinations_; }

  // The operations that fill a source rank's send arena of send_bytes() bytes. No two write the same byte; bytes that
  // none writes are zero. The list is short: a split by columns is one operation.
  const std::vector<PackOp>& pack(int32_t source) const { return packs_[source]; }
  int64_t send_bytes(int32_t source) const { return send_bytes_[source]; }

  const std::vector<Copy>& copies() const { return copies_; }  // by (destination, destination_offset)
  std::vector<Copy> CopiesTo(int32_t destination) const;
  int64_t bytes() const;  // total bytes sent to one replica

  // The copies, cut where the destination's offset is a multiple of manifest.bucket_bytes(), by (source, source_offset,
  // destination). Every bucket except a message's first starts on a kAlignment boundary of both arenas.
  const std::vector<WireBucket>& buckets() const { return buckets_; }
  std::vector<WireBucket> BucketsTo(int32_t destination) const;  // by destination_offset
  // The number of digests of a version. CombineDigests of all of them, in order, is the version's digest. A source rank
  // computes those with the indices ComputeDigests(source): DigestBytes of each of StagedBuckets(source) in its send
  // arena.
  int64_t digests() const { return digest_spans_.empty() ? 0 : digest_spans_.back().end; }
  DigestSpan ComputeDigests(int32_t source) const { return digest_spans_[source]; }
  std::vector<ByteRange> StagedBuckets(int32_t source) const;
  // Says for each staged bucket of the source whether it contains adapters (TensorSpec::adapter). No bucket has both
  // adapters and parts of the base, because adapters begin at a bucket of their own in every destination.
  std::vector<bool> StagedAdapters(const Manifest& manifest, int32_t source) const;

  // Equal iff manifest, buffer sizes, pack operations and copies are equal.
  uint64_t hash() const { return hash_; }
  // For people: totals, one line for each source, one line for each pair of ranks, the first copies.
  std::string ToString() const;

 private:
  SyncPlan() = default;

  int32_t destinations_ = 0;
  std::vector<std::vector<PackOp>> packs_;  // by source rank; the next two members too
  std::vector<int64_t> send_bytes_;
  std::vector<DigestSpan> digest_spans_;
  std::vector<Copy> copies_;
  std::vector<WireBucket> buckets_;
  uint64_t hash_ = 0;
};

}  // namespace syncopate::synchronizer
