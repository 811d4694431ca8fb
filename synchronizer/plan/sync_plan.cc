#include "synchronizer/plan/sync_plan.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/status.h"
#include "synchronizer/plan/needs.h"

// Both sides of a sync compute the plan from two layouts: the trainer packs by it, rollouters fetch by it, and equal
// hashes show that they agree. So nothing here may depend on the order of a hash map or on the machine.
namespace syncopate::synchronizer {
namespace {

// The smallest offset >= `at` that is congruent to `reference` modulo kAlignment.
int64_t Congruent(int64_t at, int64_t reference) {
  int64_t step = (reference - at) % Manifest::kAlignment;
  return at + (step < 0 ? step + Manifest::kAlignment : step);
}

// Builds one source's send arena from the needs of one destination after the other.
class SendArenaPlanner {
 public:
  // `mirrors`: there is one destination, whose arena the send arena equals, gaps included.
  explicit SendArenaPlanner(bool mirrors) : mirrors_(mirrors) {}

  // The copies of one destination's need. An equal need that was placed before shares its bytes.
  std::vector<Copy> Place(int32_t source, int32_t destination, const Need& need) {
    // Replicas of data-parallel layouts need the same bytes, which are packed once and read by all. There are few
    // needs, so comparing them one by one is enough.
    size_t known = 0;
    while (known < placed_.size() && !(*placed_[known].need == need)) ++known;
    if (known == placed_.size()) placed_.push_back({&need, Lay(need)});
    std::vector<Copy> copies;
    for (size_t i = 0; i < need.messages.size(); ++i) {
      const Message& message = need.messages[i];
      copies.push_back({source, destination, placed_[known].offsets[i], message.destination_offset, message.bytes});
    }
    return copies;
  }

  std::vector<PackOp> TakeOps() { return std::move(ops_); }
  int64_t bytes() const { return AlignUp(used_); }

 private:
  struct Placed {
    const Need* need;
    std::vector<int64_t> offsets;  // the places of the need's messages in the send arena
  };

  std::vector<int64_t> Lay(const Need& need) {
    std::vector<int64_t> offsets;
    for (const Message& message : need.messages) {
      // Aligned as in the destination, so that a copy of 16-byte words needs no shift.
      offsets.push_back(mirrors_ ? message.destination_offset : Congruent(used_, message.destination_offset));
      used_ = offsets.back() + message.bytes;
    }
    for (const Need::Op& packed : need.ops) {
      ops_.push_back(packed.op);
      ops_.back().send_offset += offsets[packed.message] - need.messages[packed.message].destination_offset;
    }
    return offsets;
  }

  const bool mirrors_;
  std::vector<Placed> placed_;
  std::vector<PackOp> ops_;
  int64_t used_ = 0;
};

std::vector<WireBucket> CutIntoBuckets(const std::vector<Copy>& copies, int64_t bucket_bytes) {
  std::vector<WireBucket> buckets;
  for (const Copy& copy : copies) {
    for (int64_t done = 0; done < copy.bytes;) {
      int64_t at = copy.destination_offset + done;
      // Cut at the destination's bucket boundaries: a bucket is the unit of verification, and of fetching again after
      // damage.
      int64_t bytes = std::min(copy.bytes - done, bucket_bytes - at % bucket_bytes);
      buckets.push_back({copy.source, copy.destination, copy.source_offset + done, at, bytes, 0});
      done += bytes;
    }
  }
  std::sort(buckets.begin(), buckets.end(), [](const WireBucket& a, const WireBucket& b) {
    return std::tie(a.source, a.source_offset, a.destination) < std::tie(b.source, b.source_offset, b.destination);
  });
  for (size_t i = 1; i < buckets.size(); ++i) {
    const WireBucket& last = buckets[i - 1];
    // Bytes that several destinations read have one digest.
    bool shared = last.source == buckets[i].source && last.source_offset == buckets[i].source_offset;
    buckets[i].digest_index = last.digest_index + (shared ? 0 : 1);
  }
  return buckets;
}

std::vector<DigestSpan> GetSpans(const std::vector<WireBucket>& buckets, int32_t sources) {
  std::vector<DigestSpan> spans;
  auto bucket = buckets.begin();
  for (int32_t source = 0; source < sources; ++source) {
    int64_t begin = spans.empty() ? 0 : spans.back().end;
    int64_t end = begin;
    for (; bucket != buckets.end() && bucket->source == source; ++bucket) end = bucket->digest_index + 1;
    spans.push_back({begin, end});
  }
  return spans;
}

class Hasher {
 public:
  explicit Hasher(uint64_t seed) : hash_(seed) {}

  void Add(const Layout& layout) {
    AddAll({layout.ranks()});
    for (int32_t rank = 0; rank < layout.ranks(); ++rank) AddAll({layout.arena_bytes(rank)});
  }
  void Add(int64_t send_bytes, const std::vector<PackOp>& ops) {
    AddAll({send_bytes, static_cast<int64_t>(ops.size())});
    for (const PackOp& op : ops) {
      AddAll({op.tensor, static_cast<int64_t>(op.from), static_cast<int64_t>(op.to), op.source_offset, op.source_stride,
              op.send_offset, op.send_stride, op.rows, op.row_elements});
    }
  }
  void Add(const Copy& copy) {
    AddAll({copy.source, copy.destination, copy.source_offset, copy.destination_offset, copy.bytes});
  }

  uint64_t hash() const { return hash_; }

 private:
  void AddAll(std::initializer_list<int64_t> fields) {
    for (int64_t field : fields) hash_ = HashCombine(hash_, static_cast<uint64_t>(field));
  }

  uint64_t hash_;
};

std::string Size(int64_t bytes) {
  if (bytes >= 1000000000) return absl::StrFormat("%.2f GB", static_cast<double>(bytes) / 1e9);
  if (bytes >= 1000000) return absl::StrFormat("%.2f MB", static_cast<double>(bytes) / 1e6);
  return absl::StrFormat("%d B", bytes);
}

}  // namespace

absl::StatusOr<SyncPlan> SyncPlan::Create(const Manifest& manifest, const Layout& source, const Layout& destination) {
  if (destination.dtype()) return BadLayout("a destination's arena has the manifest's dtypes; name no other");
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<std::vector<Need>> needs, FindNeeds(manifest, source, destination));
  SyncPlan plan;
  plan.destinations_ = destination.ranks();
  for (int32_t from = 0; from < source.ranks(); ++from) {
    SendArenaPlanner arena(/*mirrors=*/source.ranks() == 1 && destination.ranks() == 1);
    for (int32_t to = 0; to < destination.ranks(); ++to) {
      std::vector<Copy> copies = arena.Place(from, to, needs[to][from]);
      plan.copies_.insert(plan.copies_.end(), copies.begin(), copies.end());
    }
    plan.packs_.push_back(arena.TakeOps());
    plan.send_bytes_.push_back(arena.bytes());
  }
  // Sorted by the destination's memory: a receiver checks arriving bytes in this order.
  std::sort(plan.copies_.begin(), plan.copies_.end(), [](const Copy& a, const Copy& b) {
    return std::tie(a.destination, a.destination_offset) < std::tie(b.destination, b.destination_offset);
  });
  plan.buckets_ = CutIntoBuckets(plan.copies_, manifest.bucket_bytes());
  plan.digest_spans_ = GetSpans(plan.buckets_, source.ranks());
  Hasher hasher(manifest.fingerprint());
  hasher.Add(source);
  hasher.Add(destination);
  for (int32_t from = 0; from < source.ranks(); ++from) hasher.Add(plan.send_bytes_[from], plan.packs_[from]);
  for (const Copy& copy : plan.copies_) hasher.Add(copy);
  plan.hash_ = hasher.hash();
  return plan;
}

std::vector<Copy> SyncPlan::CopiesTo(int32_t destination) const {
  std::vector<Copy> mine;
  std::copy_if(copies_.begin(), copies_.end(), std::back_inserter(mine),
               [destination](const Copy& copy) { return copy.destination == destination; });
  return mine;
}

std::vector<WireBucket> SyncPlan::BucketsTo(int32_t destination) const {
  std::vector<WireBucket> mine;
  std::copy_if(buckets_.begin(), buckets_.end(), std::back_inserter(mine),
               [destination](const WireBucket& bucket) { return bucket.destination == destination; });
  std::sort(mine.begin(), mine.end(),
            [](const WireBucket& a, const WireBucket& b) { return a.destination_offset < b.destination_offset; });
  return mine;
}

std::vector<ByteRange> SyncPlan::StagedBuckets(int32_t source) const {
  std::vector<ByteRange> staged;
  int64_t next = digest_spans_[source].begin;
  for (const WireBucket& bucket : buckets_) {
    if (bucket.source != source || bucket.digest_index != next) continue;
    staged.push_back({bucket.source_offset, bucket.source_offset + bucket.bytes});
    ++next;
  }
  return staged;
}

std::vector<bool> SyncPlan::StagedAdapters(const Manifest& manifest, int32_t source) const {
  const std::vector<ByteRange> buckets = StagedBuckets(source);
  std::vector<bool> adapters(buckets.size(), false);
  for (const PackOp& op : packs_[source]) {
    if (!manifest.tensors()[op.tensor].adapter) continue;
    const int64_t end = op.send_offset + (op.rows - 1) * op.send_stride + op.row_elements * DTypeBytes(op.to);
    auto bucket = std::upper_bound(buckets.begin(), buckets.end(), op.send_offset,
                                   [](int64_t at, const ByteRange& range) { return at < range.end; });
    for (; bucket != buckets.end() && bucket->begin < end; ++bucket) {
      adapters[static_cast<size_t>(bucket - buckets.begin())] = true;
    }
  }
  return adapters;
}

int64_t SyncPlan::bytes() const {
  int64_t sum = 0;
  for (const Copy& copy : copies_) sum += copy.bytes;
  return sum;
}

std::string SyncPlan::ToString() const {
  constexpr size_t kShown = 8;
  std::string text = absl::StrFormat("plan %016x: %d sources, %d destinations, %s in %d messages, %d digests\n", hash_,
                                     sources(), destinations_, Size(bytes()), copies_.size(), digests());
  for (int32_t source = 0; source < sources(); ++source) {
    absl::StrAppendFormat(&text, "  source %d: send arena %s, %d pack operations, digests [%d, %d)\n", source,
                          Size(send_bytes_[source]), packs_[source].size(), digest_spans_[source].begin,
                          digest_spans_[source].end);
  }
  std::map<std::pair<int32_t, int32_t>, std::pair<int64_t, int64_t>> pairs;  // (source, destination) -> count, bytes
  for (const Copy& copy : copies_) {
    auto& [count, bytes] = pairs[{copy.source, copy.destination}];
    ++count;
    bytes += copy.bytes;
  }
  for (const auto& [ranks, moved] : pairs) {
    absl::StrAppendFormat(&text, "  source %d -> destination %d: %s in %d\n", ranks.first, ranks.second,
                          Size(moved.second), moved.first);
  }
  for (size_t i = 0; i < std::min(kShown, copies_.size()); ++i) {
    const Copy& copy = copies_[i];
    absl::StrAppendFormat(&text, "  source %d [%d, %d) -> destination %d [%d, %d)\n", copy.source, copy.source_offset,
                          copy.source_offset + copy.bytes, copy.destination, copy.destination_offset,
                          copy.destination_offset + copy.bytes);
  }
  if (copies_.size() > kShown) absl::StrAppendFormat(&text, "  and %d more\n", copies_.size() - kShown);
  return text;
}

}  // namespace syncopate::synchronizer
