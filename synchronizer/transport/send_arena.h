#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/manifest.h"
#include "base/mutex.h"
#include "base/policy_version.h"
#include "synchronizer/lent_memory.h"
#include "synchronizer/plan/sync_plan.h"
#include "synchronizer/transport/host_buffer.h"
#include "synchronizer/transport/shared_base_memory.h"
#include "synchronizer/transport/weight_store.h"

namespace syncopate::synchronizer {

// The trainer's copies of its newest weights in host memory. Receivers are served from them while training goes on.
//
// A slot contains one staged version. Readers pin a slot. Staging takes a slot without pins; if there is none, it takes
// the oldest slot from its readers, whose next Read returns SUPERSEDED. So the trainer never waits for a receiver, only
// for the copy of at most one chunk that is in progress. Thread-safe; one thread stages at a time.
//
// With Options::lends_base there is one base for all slots. It is written for the first version, and from then on no
// byte of it changes: other processes may map it (LendBase).
class SendArena final : public WeightStore {
 public:
  struct Options {
    int slots = 2;
    // Keeps the base weights once for all slots, in memory that can be lent. Takes a manifest with adapters, and a
    // source that sends all weights to whole receivers; else there is a base in each slot, and none is lent.
    bool lends_base = false;
    const Clock* clock = Clock::Real();
    absl::Status Validate() const;  // INVALID_ARGUMENT reason BAD_OPTIONS unless 1 <= slots <= 64
  };

  // For a source with all weights: the arena is the manifest's. Allocates slots x manifest.arena_bytes().
  static absl::StatusOr<std::unique_ptr<SendArena>> Create(Manifest manifest, const Options& options);
  // For one rank of a sharded source: the arena is in the plan's wire order. Allocates slots x plan.send_bytes(source).
  static absl::StatusOr<std::unique_ptr<SendArena>> CreateForPlan(Manifest manifest, const SyncPlan& plan,
                                                                  int32_t source, const Options& options);
  ~SendArena() override;  // requires that no reader is left

  // Writes every tensor to its place in `arena` (arena_bytes() bytes); padding is zero and must stay zero. With a plan,
  // use PackOnHost with SyncPlan::pack.
  using Fill = std::function<absl::Status(char* arena)>;

  struct Staged {
    PolicyVersion version;
    std::vector<uint64_t> bucket_digests;
    uint64_t digest = 0;
    double seconds = 0;  // waiting for a chunk's copy, filling, checking and digesting
  };

  // Begins to stage `version`: takes a slot, which FinishCopy or Await fills by `fill`. FAILED_PRECONDITION reason
  // VERSION_ORDER unless `version` is above all versions staged before; reason STAGING if the previous Launch was not
  // awaited.
  //
  // `fill_adapters`, if given, writes at least the adapters (TensorSpec::adapter), and says that all else is the same in
  // all versions: a slot that has had a version is filled by it, and of the base nothing is copied or digested again.
  // Without it FAILED_PRECONDITION reason BASE_LENT once LendBase has succeeded.
  absl::Status Launch(PolicyVersion version, Fill fill, Fill fill_adapters = nullptr);
  // Calls the `fill` of the last Launch, unless a thread has called it; waits while another thread runs it. Returns its
  // error. Any thread may call this: the first one that needs the copy makes it.
  absl::Status FinishCopy();
  // Calls FinishCopy, then checks and digests the copy; after that the version can be opened. Called by any thread, but
  // one at a time and not during a Launch. After an error (that of `fill`, or DATA_LOSS reason NON_FINITE naming the
  // tensor) nothing is staged, and the older versions that are still there stay.
  absl::StatusOr<Staged> Await();
  // Launch, then Await.
  absl::StatusOr<Staged> Stage(PolicyVersion version, Fill fill);

  const Manifest& manifest() const { return manifest_; }
  int64_t arena_bytes() const { return wire_.bytes; }
  int64_t allocated_bytes() const;  // of all slots
  // The bytes with which a slot of the plan's source begins that are base weights and can be lent: receivers have them at
  // the same offsets, and what they may write there (TensorSpec::spare_rows) is no part of what is sent and digested. 0
  // if there are none.
  static int64_t LendableBytes(const Manifest& manifest, const SyncPlan& plan);
  uint64_t fingerprint() const override { return manifest_.fingerprint(); }
  uint64_t plan_hash() const override { return wire_.plan_hash; }
  absl::StatusOr<std::unique_ptr<WeightReader>> Open(PolicyVersion version) override;
  // The memory of the base, whose bytes are those of all versions and change no more. FAILED_PRECONDITION reason NOT_LENT
  // without Options::lends_base and before the first version is staged; INTERNAL reason SYSTEM_ERROR.
  absl::StatusOr<SharedMemory> LendBase();

  int64_t superseded_readers() const;  // readers that have lost their slot so far

 private:
  class Reader;

  // The layout of a slot.
  struct Wire {
    int64_t bytes = 0;
    uint64_t plan_hash = 0;          // 0: the manifest's own order
    std::vector<ByteRange> buckets;  // in the order of their digests
    std::vector<PackOp> ops;         // with a plan: where numbers are
    std::vector<bool> adapters;      // with a plan: SyncPlan::StagedAdapters
    int64_t base = 0;                // bytes of the base, which all slots have together; 0: each has its own
  };

  struct Slot {
    HostBuffer buffer;       // empty if the slots share a base
    char* bytes = nullptr;   // in `buffer`, or in `shared_`
    PolicyVersion version;   // none: empty, or being staged
    bool has_base = false;   // of the run, wholly
    uint64_t occupancy = 0;  // number of stagings in this slot; a reader of an older one is superseded
    int pins = 0;            // readers of the present occupancy
    int copies = 0;          // chunk copies in progress, of any occupancy
  };

  // What Launch has left to FinishCopy and Await.
  //
  //   kLaunched --a thread begins `fill`--> kFilling --it ends--> kFilled --Await--> none
  struct Staging {
    enum class State : uint8_t { kLaunched, kFilling, kFilled };
    PolicyVersion version;
    Slot* slot = nullptr;
    char* bytes = nullptr;
    Fill fill = nullptr;
    bool adapters_alone = false;
    State state = State::kLaunched;
    absl::Status filled = absl::OkStatus();  // kFilled
    double seconds = 0;
  };

  SendArena(Manifest manifest, Wire wire, const Options& options);
  static bool LeavesRowsFree(const Manifest& manifest, const SyncPlan& plan);
  absl::Status CheckNumbers(const char* bytes, bool adapters_alone) const;
  // Digests of all buckets. With adapters alone those of the base are the ones of the first version.
  std::vector<uint64_t> Digest(const char* bytes, bool adapters_alone) const;
  Slot* TakeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Read(Slot* slot, uint64_t occupancy, ByteRange range, char* to);
  void Unpin(Slot* slot, uint64_t occupancy);

  const Manifest manifest_;
  const Wire wire_;
  const Options options_;
  mutable Mutex mutex_;
  std::optional<Staging> staging_ ABSL_GUARDED_BY(mutex_);
  // The structure and the buffers' addresses are constant. Only the thread that calls `fill` writes a buffer's bytes,
  // while its slot is empty; `copies` counts the copies that read them.
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<SharedBaseMemory> shared_ ABSL_GUARDED_BY(mutex_);  // null: each slot has a base of its own
  PolicyVersion newest_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> first_digests_;  // of the first version that was staged; used by Await alone
  int64_t superseded_readers_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncopate::synchronizer
