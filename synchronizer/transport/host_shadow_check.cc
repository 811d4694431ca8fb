#include "synchronizer/transport/host_shadow_check.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "synchronizer/transport/finite_check.h"

// Each bucket is checked as soon as its last byte has arrived, while others are still on their way. So after the last
// byte only one bucket is left to check.
namespace syncopate::synchronizer {
namespace {

std::vector<size_t> OrderByBegin(const std::vector<ByteRange>& buckets) {
  std::vector<size_t> order(buckets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&buckets](size_t a, size_t b) { return buckets[a].begin < buckets[b].begin; });
  return order;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShadowCheck>> WeightTarget::BeginCheck(ShadowContents contents) {
  return std::make_unique<HostShadowCheck>(shadow(), std::move(contents));
}

HostShadowCheck::HostShadowCheck(const char* shadow, ShadowContents contents)
    : shadow_(shadow),
      contents_(std::move(contents)),
      order_(OrderByBegin(contents_.buckets)),
      digests_(contents_.buckets.size(), 0) {
  for (const ByteRange& bucket : contents_.buckets) missing_.push_back(bucket.size());
}

void HostShadowCheck::Arrived(ByteRange destination, void*) {
  // Runs without the lock: several threads may check different buckets, and each bucket becomes complete only once.
  for (size_t bucket : Count(destination)) {
    const ByteRange range = contents_.buckets[bucket];
    const uint64_t digest = DigestBytes(shadow_ + range.begin, range.size());
    const absl::Status finite = CheckNumbers(range);
    MutexLock lock(&mutex_);
    digests_[bucket] = digest;
    non_finite_.Update(finite);
  }
}

std::vector<size_t> HostShadowCheck::Count(ByteRange arrived) {
  std::vector<size_t> complete;
  auto at = std::upper_bound(order_.begin(), order_.end(), arrived.begin,
                             [this](int64_t begin, size_t b) { return begin < contents_.buckets[b].end; });
  MutexLock lock(&mutex_);
  for (; at != order_.end() && contents_.buckets[*at].begin < arrived.end; ++at) {
    const ByteRange bucket = contents_.buckets[*at];
    missing_[*at] -= std::min(bucket.end, arrived.end) - std::max(bucket.begin, arrived.begin);
    // Each byte is announced once, so counting bytes is enough.
    if (missing_[*at] == 0) complete.push_back(*at);
  }
  return complete;
}

absl::Status HostShadowCheck::CheckNumbers(ByteRange bucket) const {
  auto at = std::upper_bound(contents_.numbers.begin(), contents_.numbers.end(), bucket.begin,
                             [](int64_t begin, const TypedRange& numbers) { return begin < numbers.range.end; });
  // A tensor may extend over several buckets; each check covers the part in its bucket.
  for (; at != contents_.numbers.end() && at->range.begin < bucket.end; ++at) {
    SYNCOPATE_RETURN_IF_ERROR(CheckFinite(*at, bucket, shadow_));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> HostShadowCheck::Finish(absl::Duration) {
  MutexLock lock(&mutex_);
  for (size_t bucket = 0; bucket < missing_.size(); ++bucket) {
    if (missing_[bucket] == 0) continue;
    return Error(absl::StatusCode::kDataLoss, "INCOMPLETE",
                 absl::StrFormat("%d bytes of bucket %d were never announced", missing_[bucket], bucket));
  }
  SYNCOPATE_RETURN_IF_ERROR(non_finite_);
  return digests_;
}

}  // namespace syncopate::synchronizer
