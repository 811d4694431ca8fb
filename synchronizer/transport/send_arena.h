#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/manifest.h"
#include "base/mutex.h"
#include "base/policy_version.h"
#include "synchronizer/plan/sync_plan.h"
#include "synchronizer/transport/host_buffer.h"
#include "synchronizer/transport/weight_store.h"

namespace syncopate::synchronizer {

// The trainer's copies of its newest weights, in host memory, from which receivers are served while training goes on.
//
// A slot holds one staged version. Readers pin a slot; staging takes a slot that nobody pins, and if there is none it
// takes the oldest one from its readers, whose next Read says SUPERSEDED. So the trainer never waits for a receiver:
// at most for the copy of one chunk that is under way. Thread-safe; one thread stages at a time.
class SendArena final : public WeightStore {
 public:
  struct Options {
    int slots = 2;
    const Clock* clock = Clock::Real();
    absl::Status Validate() const;  // INVALID_ARGUMENT reason BAD_OPTIONS unless 1 <= slots <= 16
  };

  // For a source that holds everything: the arena is the manifest's. Allocates slots x manifest.arena_bytes().
  static absl::StatusOr<std::unique_ptr<SendArena>> Create(Manifest manifest, const Options& options);
  // For one rank of a sharded source: the arena is in the plan's wire order. Allocates slots x plan.send_bytes(source).
  static absl::StatusOr<std::unique_ptr<SendArena>> CreateForPlan(Manifest manifest, const SyncPlan& plan,
                                                                  int32_t source, const Options& options);
  ~SendArena() override;  // no reader may be left

  // Writes every tensor to its place in `arena` (arena_bytes() bytes); padding is zero and stays so. With a plan that
  // is PackOnHost of SyncPlan::pack.
  using Fill = std::function<absl::Status(char* arena)>;

  struct Staged {
    PolicyVersion version;
    std::vector<uint64_t> bucket_digests;
    uint64_t digest = 0;
    double seconds = 0;  // waiting for a chunk, filling, checking, digesting
  };

  // After OK the version can be opened. An error of `fill`, or DATA_LOSS reason NON_FINITE naming the tensor, stages
  // nothing; the older versions that are still there stay. FAILED_PRECONDITION reason VERSION_ORDER unless `version`
  // is above all that were staged.
  absl::StatusOr<Staged> Stage(PolicyVersion version, const Fill& fill);

  const Manifest& manifest() const { return manifest_; }
  int64_t arena_bytes() const { return wire_.bytes; }
  uint64_t fingerprint() const override { return manifest_.fingerprint(); }
  uint64_t plan_hash() const override { return wire_.plan_hash; }
  absl::StatusOr<std::unique_ptr<WeightReader>> Open(PolicyVersion version) override;

  int64_t superseded_readers() const;  // how many lost their slot so far

 private:
  class Reader;

  // What lies where in a slot.
  struct Wire {
    int64_t bytes = 0;
    uint64_t plan_hash = 0;          // 0: the manifest's own order
    std::vector<ByteRange> buckets;  // in the order of their digests
    std::vector<PackOp> ops;         // with a plan: where numbers lie
  };

  struct Slot {
    HostBuffer buffer;
    PolicyVersion version;   // none: empty, or being staged
    uint64_t occupancy = 0;  // counts what was staged here; a reader of an older one is superseded
    int pins = 0;            // readers of the present occupancy
    int copies = 0;          // chunk copies under way, of whatever occupancy
  };

  SendArena(Manifest manifest, Wire wire, const Options& options);
  absl::Status CheckNumbers(const char* bytes) const;
  Slot* TakeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Read(Slot* slot, uint64_t occupancy, ByteRange range, char* to);
  void Unpin(Slot* slot, uint64_t occupancy);

  const Manifest manifest_;
  const Wire wire_;
  const Options options_;
  mutable Mutex mutex_;
  // The structure and the buffers' addresses are constant. A buffer's bytes are written by Stage alone while its slot
  // is empty, and read by copies that `copies` counts.
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  PolicyVersion newest_ ABSL_GUARDED_BY(mutex_);
  int64_t superseded_readers_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncopate::synchronizer
