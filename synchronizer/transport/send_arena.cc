#include "synchronizer/transport/send_arena.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/reasons.h"
#include "base/status.h"
#include "synchronizer/superseded.h"
#include "synchronizer/transport/finite_check.h"

namespace syncopate::synchronizer {

class SendArena::Reader final : public WeightReader {
 public:
  Reader(SendArena* arena, Slot* slot, uint64_t occupancy) : arena_(arena), slot_(slot), occupancy_(occupancy) {}
  ~Reader() override { arena_->Unpin(slot_, occupancy_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  absl::Status Read(ByteRange range, char* to) override { return arena_->Read(slot_, occupancy_, range, to); }

 private:
  SendArena* const arena_;
  Slot* const slot_;
  const uint64_t occupancy_;
};

absl::Status SendArena::Options::Validate() const {
  if (slots >= 1 && slots <= 64) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               absl::StrFormat("%d send slots: 1 to 64 are possible", slots));
}

absl::StatusOr<std::unique_ptr<SendArena>> SendArena::Create(Manifest manifest, const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  Wire wire{manifest.arena_bytes(), 0, manifest.buckets(), {}, {}, 0};
  return std::unique_ptr<SendArena>(new SendArena(std::move(manifest), std::move(wire), options));
}

absl::StatusOr<std::unique_ptr<SendArena>> SendArena::CreateForPlan(Manifest manifest, const SyncPlan& plan,
                                                                    int32_t source, const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  Wire wire{plan.send_bytes(source),
            plan.hash(),
            plan.StagedBuckets(source),
            plan.pack(source),
            plan.StagedAdapters(manifest, source),
            options.lends_base ? LendableBytes(manifest, plan) : 0};
  return std::unique_ptr<SendArena>(new SendArena(std::move(manifest), std::move(wire), options));
}

SendArena::SendArena(Manifest manifest, Wire wire, const Options& options)
    : manifest_(std::move(manifest)), wire_(std::move(wire)), options_(options), slots_(options.slots) {
  if (wire_.base > 0) {
    shared_ = std::make_unique<SharedBaseMemory>(options_.slots,
                                                 SharedBaseMemory::Sizes{.base = wire_.base, .range = wire_.bytes});
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (shared_ == nullptr) slots_[i].buffer = HostBuffer(wire_.bytes);
    slots_[i].bytes = shared_ == nullptr ? slots_[i].buffer.data() : shared_->range(static_cast<int32_t>(i));
  }
}

// Whether a receiver may write to the rows that matrices of the base leave free, without changing a byte that is sent. A
// message has the padding behind a tensor, up to Manifest::kAlignment, so it may reach into the first of these rows.
// Nobody writes to those behind a vector.
bool SendArena::LeavesRowsFree(const Manifest& manifest, const SyncPlan& plan) {
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    if (spec.adapter || spec.spare_rows == 0 || spec.shape.size() < 2) continue;
    const int64_t begin = manifest.ranges()[i].end, end = begin + spec.SpareBytes();
    for (const Copy& copy : plan.copies()) {
      if (copy.destination_offset < end && copy.destination_offset + copy.bytes > begin) return false;
    }
  }
  return true;
}

int64_t SendArena::LendableBytes(const Manifest& manifest, const SyncPlan& plan) {
  const int64_t begin = manifest.adapters_begin();
  const bool has_both = begin > 0 && begin < manifest.arena_bytes();
  // From one source to one rank the send arena is the receiver's arena (SyncPlan).
  const bool is_whole = plan.sources() == 1 && plan.destinations() == 1 && begin < plan.send_bytes(0);
  return has_both && is_whole && LeavesRowsFree(manifest, plan) ? begin : 0;
}

int64_t SendArena::allocated_bytes() const {
  MutexLock lock(&mutex_);
  return shared_ != nullptr ? shared_->own_bytes() : options_.slots * wire_.bytes;
}

absl::StatusOr<SharedMemory> SendArena::LendBase() {
  MutexLock lock(&mutex_);
  if (shared_ == nullptr || newest_.IsNone()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_LENT", "this source has no base weights to lend");
  }
  return shared_->Lend();
}

absl::Status SendArena::CheckNumbers(const char* bytes, bool adapters_alone) const {
  if (wire_.plan_hash == 0) return CheckFinite(manifest_, bytes);
  for (const PackOp& op : wire_.ops) {
    if (adapters_alone && !manifest_.tensors()[op.tensor].adapter) continue;
    for (int64_t row = 0; row < op.rows; ++row) {
      const char* numbers = bytes + op.send_offset + row * op.send_stride;
      if (!FindNonFinite(op.to, numbers, op.row_elements).has_value()) continue;
      const std::string& tensor = manifest_.tensors()[op.tensor].name;
      return Error(absl::StatusCode::kDataLoss, reason::kNonFinite,
                   absl::StrFormat("this rank's part of %s is not finite; these weights must not be served", tensor),
                   {{"tensor", tensor}});
    }
  }
  return absl::OkStatus();
}

std::vector<uint64_t> SendArena::Digest(const char* bytes, bool adapters_alone) const {
  if (!adapters_alone) return DigestRanges(wire_.buckets, bytes);
  std::vector<ByteRange> buckets;
  for (size_t i = 0; i < wire_.buckets.size(); ++i) {
    if (wire_.adapters[i]) buckets.push_back(wire_.buckets[i]);
  }
  const std::vector<uint64_t> fresh = DigestRanges(buckets, bytes);
  std::vector<uint64_t> digests = first_digests_;
  for (size_t i = 0, next = 0; i < digests.size(); ++i) {
    if (wire_.adapters[i]) digests[i] = fresh[next++];
  }
  return digests;
}

SendArena::~SendArena() {
  MutexLock lock(&mutex_);
  for (const Slot& slot : slots_) SYNCOPATE_CHECK(slot.pins == 0 && slot.copies == 0);
}

absl::Status SendArena::Launch(PolicyVersion version, Fill fill, Fill fill_adapters) {
  const absl::Time begun = options_.clock->Now();
  MutexLock lock(&mutex_);
  if (staging_.has_value()) {
    return Error(absl::StatusCode::kFailedPrecondition, "STAGING",
                 absl::StrFormat("version %s is still being staged", staging_->version.ToString()));
  }
  // Readers identify versions by name: the same name with other bytes would be mixed with the earlier version.
  if (version <= newest_) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "VERSION_ORDER",
        absl::StrFormat("version %s is not above %s, which was staged before", version.ToString(), newest_.ToString()));
  }
  if (shared_ != nullptr && shared_->lent() && fill_adapters == nullptr) {
    return Error(absl::StatusCode::kFailedPrecondition, "BASE_LENT",
                 "the base weights are lent, so only adapters can be staged");
  }
  Slot* const slot = TakeSlot();
  const bool has_base = shared_ != nullptr ? !newest_.IsNone() : slot->has_base;
  const bool adapters_alone = fill_adapters != nullptr && has_base && !wire_.adapters.empty();
  slot->has_base = adapters_alone;  // while it is overwritten
  if (adapters_alone) fill = std::move(fill_adapters);
  staging_ = Staging{.version = version,
                     .slot = slot,
                     .bytes = slot->bytes,
                     .fill = std::move(fill),
                     .adapters_alone = adapters_alone,
                     .seconds = absl::ToDoubleSeconds(options_.clock->Now() - begun)};
  return absl::OkStatus();
}

absl::Status SendArena::FinishCopy() {
  const absl::Time begun = options_.clock->Now();
  Fill fill;
  char* bytes = nullptr;
  {
    MutexLock lock(&mutex_);
    if (!staging_.has_value()) return absl::OkStatus();
    // Bounded by the fill of the other thread: a copy within the host's memory, or from its device.
    auto is_free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !staging_.has_value() || staging_->state != Staging::State::kFilling;
    };
    mutex_.Await(Condition(&is_free));
    if (!staging_.has_value()) return absl::OkStatus();
    if (staging_->state == Staging::State::kFilled) return staging_->filled;
    staging_->state = Staging::State::kFilling;
    fill = std::exchange(staging_->fill, nullptr);
    bytes = staging_->bytes;
  }
  // Without the lock. The slot is empty, so no other thread touches its bytes.
  const absl::Status filled = fill(bytes);
  MutexLock lock(&mutex_);
  staging_->state = Staging::State::kFilled;
  staging_->filled = filled;
  staging_->seconds += absl::ToDoubleSeconds(options_.clock->Now() - begun);
  return filled;
}

absl::StatusOr<SendArena::Staged> SendArena::Await() {
  {
    MutexLock lock(&mutex_);
    if (!staging_.has_value()) {
      return Error(absl::StatusCode::kFailedPrecondition, "STAGING", "no version is being staged");
    }
  }
  FinishCopy().IgnoreError();  // `filled` keeps it
  const absl::Time begun = options_.clock->Now();
  Staging staging;
  {
    MutexLock lock(&mutex_);
    staging = *std::exchange(staging_, std::nullopt);
  }
  SYNCOPATE_RETURN_IF_ERROR(staging.filled);
  SYNCOPATE_RETURN_IF_ERROR(CheckNumbers(staging.bytes, staging.adapters_alone));
  Staged staged;
  staged.version = staging.version;
  staged.bucket_digests = Digest(staging.bytes, staging.adapters_alone);
  if (first_digests_.empty()) first_digests_ = staged.bucket_digests;
  staged.digest = CombineDigests(staged.bucket_digests);
  {
    MutexLock lock(&mutex_);
    staging.slot->version = newest_ = staging.version;
    staging.slot->has_base = true;
  }
  staged.seconds = staging.seconds + absl::ToDoubleSeconds(options_.clock->Now() - begun);
  return staged;
}

absl::StatusOr<SendArena::Staged> SendArena::Stage(PolicyVersion version, Fill fill) {
  SYNCOPATE_RETURN_IF_ERROR(Launch(version, std::move(fill)));
  return Await();
}

SendArena::Slot* SendArena::TakeSlot() {
  // Prefers slots without pins, then older versions; an empty slot counts as the oldest version.
  Slot* slot = &*std::min_element(slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) {
    return std::pair(a.pins > 0, a.version) < std::pair(b.pins > 0, b.version);
  });
  // The slot's readers learn at their next read that they are superseded; the trainer does not wait for the slowest
  // one.
  superseded_readers_ += slot->pins;
  ++slot->occupancy;
  slot->version = PolicyVersion();
  slot->pins = 0;
  auto no_copy_under_way = [slot] { return slot->copies == 0; };
  mutex_.Await(Condition(&no_copy_under_way));  // bounded: a copy is at most one chunk, and no new one begins
  return slot;
}

absl::StatusOr<std::unique_ptr<WeightReader>> SendArena::Open(PolicyVersion version) {
  MutexLock lock(&mutex_);
  for (Slot& slot : slots_) {
    if (version.IsNone() || slot.version != version) continue;
    ++slot.pins;
    return std::unique_ptr<WeightReader>(new Reader(this, &slot, slot.occupancy));
  }
  return Error(absl::StatusCode::kNotFound, kVersionNotStaged,
               absl::StrFormat("version %s is not staged; the newest is %s", version.ToString(), newest_.ToString()));
}

absl::Status SendArena::Read(Slot* slot, uint64_t occupancy, ByteRange range, char* to) {
  if (range.begin < 0 || range.end < range.begin || range.end > wire_.bytes) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_RANGE",
                 absl::StrFormat("bytes [%d, %d) of an arena of %d", range.begin, range.end, wire_.bytes));
  }
  const char* from = nullptr;
  {
    MutexLock lock(&mutex_);
    if (slot->occupancy != occupancy) {
      return SupersededError("the send slot was needed for a newer version; the next attempt brings that one");
    }
    // The copy runs without the lock; TakeSlot waits until `copies` is 0.
    ++slot->copies;
    from = slot->bytes + range.begin;
  }
  std::memcpy(to, from, static_cast<size_t>(range.size()));
  MutexLock lock(&mutex_);
  --slot->copies;
  return absl::OkStatus();
}

void SendArena::Unpin(Slot* slot, uint64_t occupancy) {
  MutexLock lock(&mutex_);
  if (slot->occupancy == occupancy) --slot->pins;
}

int64_t SendArena::superseded_readers() const {
  MutexLock lock(&mutex_);
  return superseded_readers_;
}

}  // namespace syncopate::synchronizer
