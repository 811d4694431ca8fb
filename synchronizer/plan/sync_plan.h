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

// A part of a message that has a digest of its own: DigestBytes of its bytes as one string.
struct WireBucket {
  int32_t source = 0;
  int32_t destination = 0;
  int64_t source_offset = 0;
  int64_t destination_offset = 0;
  int64_t bytes = 0;
  int64_t digest_index = 0;  // in the digests of the version; destinations that share bytes share it
  friend bool operator==(const WireBucket&, const WireBucket&) = default;
};

// Digests [begin, end) of a version.
struct DigestSpan {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const DigestSpan&, const DigestSpan&) = default;
};

// Which bytes go from where to where in every weight sync between two layouts of one manifest. A pure function of the
// three: every party computes it and compares hashes, nobody is told offsets by a peer. Shard to shard, nothing is
// gathered. Immutable.
//
// A source rank packs its shard into a *send arena* in wire order: for destination rank 0, 1, ... what that rank needs
// from this source, in the order of the destination's arena. So each message is one contiguous range on both sides;
// neighbours are merged over equal padding (fewer than kAlignment bytes, zero on both sides), and each message starts
// at the same offset modulo kAlignment on both sides. A destination rank that needs the same bytes at the same places
// as an earlier one is served from that one's. Where several source ranks hold an element, what a destination needs is
// cut evenly between them. From one source that holds all to one whole replica the send arena is the manifest's arena,
// one message moves it, and its buckets are the manifest's.
class SyncPlan {
 public:
  // FAILED_PRECONDITION reason PLAN_INCOMPLETE, naming the tensor, if a destination wants elements that no source has;
  // reason DTYPE_MISMATCH if shards are not fp32 and not of the dtype that the tensor travels in. INVALID_ARGUMENT
  // reason BAD_LAYOUT if the destination's arena is not in the manifest's dtypes.
  static absl::StatusOr<SyncPlan> Create(const Manifest& manifest, const Layout& source, const Layout& destination);

  int32_t sources() const { return static_cast<int32_t>(packs_.size()); }
  int32_t destinations() const { return destinations_; }

  // How a source rank fills its send arena of send_bytes() bytes; no two write the same byte, and what none writes is
  // zero. Few: a split by columns is one operation.
  const std::vector<PackOp>& pack(int32_t source) const { return packs_[source]; }
  int64_t send_bytes(int32_t source) const { return send_bytes_[source]; }

  const std::vector<Copy>& copies() const { return copies_; }  // by (destination, destination_offset)
  std::vector<Copy> CopiesTo(int32_t destination) const;
  int64_t bytes() const;  // moved in all, to one replica

  // The copies cut where the destination's offset is a multiple of manifest.bucket_bytes(), by (source, source_offset,
  // destination): all but the first of a message start on a kAlignment boundary of both arenas.
  const std::vector<WireBucket>& buckets() const { return buckets_; }
  std::vector<WireBucket> BucketsTo(int32_t destination) const;  // by destination_offset
  // How many digests a version has: CombineDigests of all of them, in order, is the version's. A source rank makes
  // those of DigestsOf(), which are DigestBytes of StagedBuckets() in its send arena.
  int64_t digests() const { return digest_spans_.empty() ? 0 : digest_spans_.back().end; }
  DigestSpan DigestsOf(int32_t source) const { return digest_spans_[source]; }
  std::vector<ByteRange> StagedBuckets(int32_t source) const;

  // Equal iff manifest, buffer sizes, pack operations and copies are equal.
  uint64_t hash() const { return hash_; }
  // For people: totals, a line a source, a line a pair of ranks, the first copies.
  std::string ToString() const;

 private:
  SyncPlan() = default;

  int32_t destinations_ = 0;
  std::vector<std::vector<PackOp>> packs_;  // by source rank, as the two below
  std::vector<int64_t> send_bytes_;
  std::vector<DigestSpan> digest_spans_;
  std::vector<Copy> copies_;
  std::vector<WireBucket> buckets_;
  uint64_t hash_ = 0;
};

}  // namespace syncopate::synchronizer
