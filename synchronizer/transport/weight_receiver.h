#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/manifest.h"
#include "base/mutex.h"
#include "synchronizer/messages.h"
#include "synchronizer/transport/plan_cache.h"
#include "synchronizer/transport/rehearsal_part.h"
#include "synchronizer/transport/transport.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::synchronizer {

// A receiver's part in sync attempts: prepare -> transfer into the shadow -> verify -> install -> finish, one attempt
// at a time. A failure before the install leaves the live weights untouched, and the serving version never goes back.
// With a target without a shadow (in_place) generation stops when the sources have the version. Generation continues if
// they lose it before the first byte; after a later failure no weights serve.
//
// Rehearsals run beside the attempts: they touch no weights, and no call waits for them.
//
// One thread calls Prepare, Transfer, Install and WorkAfterReport in the order of the commands; any thread may call
// Finish and the getters.
class WeightReceiver {
 public:
  struct Options {
    Manifest manifest;
    MemberId member = {};     // this process; its rank and world determine the slice
    std::string layout = {};  // the target's layout; "": whole
    const Clock* clock = Clock::Real();
    // Bytes have arrived, of a transfer that may still fail. Quick; may be called by several threads.
    std::function<void(int64_t bytes)> on_arrived = nullptr;
    std::function<void()> on_lost = nullptr;  // an attempt left no live weights; called by any thread, must not block
    // A check found that the live weights have changed since they arrived; must not block. The process must end: what
    // it goes on generating comes from wrong weights.
    std::function<void(const absl::Status&)> on_damaged = nullptr;
    // Gets the memory in which a source on this host lends its base weights, by SyncMember::base_rendezvous. Blocks at
    // most until `deadline` or `stop`. Null: base weights are never mapped. After an error they are sent.
    std::function<absl::StatusOr<LentMemory>(const std::string& rendezvous, absl::Time deadline,
                                             const std::stop_token& stop)>
        borrow_base = nullptr;
  };

  // `target` and `transports` are borrowed.
  WeightReceiver(Options options, WeightTarget* target, std::vector<ReceiverTransport*> transports);

  struct Prepared {
    bool already_serves = false;  // the live bits are those of the version: the next step is Install
    std::string rendezvous;       // where other members find this receiver, if they need to
    ReceiverWeights weights;      // decides whether base weights are sent
  };
  // With Prepare::check_weights, and after a sleep of a target that shares its base, digests the live weights first: DATA_LOSS reason WEIGHTS_DAMAGED if they have changed
  // since they arrived. From then on this receiver has neither a version nor base weights, and refuses every attempt.
  // A refusal touches nothing: FAILED_PRECONDITION reason MODEL_MISMATCH, LAYOUT_MISMATCH, PLAN_MISMATCH,
  // TRANSPORT_UNKNOWN or OLD_VERSION (not above the served version; if the weights are checked, below it), UNAVAILABLE
  // reason BUSY (another attempt has not been finished) or HELD (the target takes no installs now), or the transport's
  // error (NCCL_MISMATCH, ...).
  absl::StatusOr<Prepared> Prepare(const synchronizer::Prepare& command);

  struct Received {
    PayloadBytes bytes;
    std::vector<int64_t> bytes_by_source;  // by rank of the source; their sum is that of `bytes`
    double connect_seconds = 0;            // forming communicators, mapping memory; 0.0 if there is none to form
    double transfer_seconds = 0;
    double verify_seconds = 0;
  };
  // Blocks until the bytes have arrived and are verified, until the attempt's deadline, or until Finish. Errors: the
  // transport's; DATA_LOSS reason DIGEST_MISMATCH naming the bucket, or NON_FINITE; FAILED_PRECONDITION reason
  // NOT_PREPARED, or NOT_A_RECEIVER if the command does not name this member.
  absl::StatusOr<Received> Transfer(const synchronizer::Transfer& command);

  struct Installed {
    double install_seconds = 0;
    double pause_seconds = 0;
    bool relabelled = false;
    bool unchanged = false;  // the version served already, and its weights were only checked
  };
  // Blocks as WeightTarget::Install does, at most until the attempt's deadline. FAILED_PRECONDITION reason
  // NOT_VERIFIED.
  absl::StatusOr<Installed> Install(const synchronizer::Install& command);
  // Call when the report of Install has been sent: runs WeightTarget::RestoreShadow.
  void WorkAfterReport();

  // Prepare of a rehearsal; returns the rendezvous of this receiver. Refuses for the same reasons as Prepare.
  absl::StatusOr<std::string> PrepareRehearsal(const synchronizer::Prepare& command);
  // Whether `attempt` is the present rehearsal, so that Connect must follow instead of Transfer.
  bool Rehearses(int64_t attempt) const { return rehearsal_.Concerns(attempt); }
  // Transfer of a rehearsal. Does not block. `done` is called exactly once, by any thread, with the seconds that
  // forming took, or the transport's error; FAILED_PRECONDITION reason NOT_PREPARED or NOT_A_RECEIVER.
  void Connect(const synchronizer::Transfer& command, std::function<void(absl::StatusOr<double>)> done);

  // Call when the attempt is over: a transfer in progress is cancelled, a shadow that was not installed is forgotten.
  // Does not block. Ignores attempts other than the present one and the present rehearsal.
  void Finish(int64_t attempt);
  // Finishes any attempt: the stream to the synchronizer has broken.
  void FinishAny();

  // The version that serves and its digest. None, and 0, before the first install, after an in-place transfer that
  // failed, and after a sleep that dropped the weights.
  PolicyVersion serving() const;
  uint64_t serving_digest() const;
  // Names the base weights that need not be sent (Subset::base_digest); 0: none. 0 in the same cases as
  // serving_digest().
  uint64_t base_digest() const;

 private:
  enum class Phase : uint8_t { kIdle, kPreparing, kPrepared, kTransferring, kVerified, kInstalling, kEnding };

  // The state of a target with one weight set in this attempt.
  enum class InPlace : uint8_t { kNo, kStopped, kOverwritten };

  absl::StatusOr<std::shared_ptr<const PlannedLayouts>> CheckPlan(const synchronizer::Prepare& command);
  // Sets expected_, against which a transfer is checked; reuses it for the same plan.
  void Expect(const std::shared_ptr<const PlannedLayouts>& planned);
  absl::StatusOr<ReceiverTransport*> FindTransport(const std::string& name) const;
  absl::Status Begin(int64_t attempt);
  // The rest of Prepare. After an error, ClearUp or ReleaseTarget undoes what it has begun.
  absl::StatusOr<Prepared> PrepareTarget(const synchronizer::Prepare& command, ReceiverTransport* transport);
  absl::Status ClaimTarget();
  // Makes sure that the shadow has memory for the rest of the attempt; notes if that has lost its contents.
  absl::Status TakeShadow(absl::Duration deadline);
  void ReleaseTarget();
  // A sleep has dropped the weights: forgets what was known about the arenas' contents.
  void ForgetLostWeights(const ReceiverWeights& weights);
  absl::Status CheckNewer(const synchronizer::Prepare& command) const;
  // Digests the live weights again, by a copy in the shadow unless the target is in place. After an error
  // WEIGHTS_DAMAGED nothing serves any more.
  absl::Status CheckLive(absl::Duration deadline);
  // Returns the state of this receiver's weights for the offer; it decides whether base weights must be sent.
  ReceiverWeights WeightsFor(const synchronizer::Prepare& command) const;
  absl::StatusOr<const SyncMember*> FindSelf(const synchronizer::Transfer& command) const;
  // The contents of one Prepare. Used by the commands' thread only.
  struct Offer {
    synchronizer::Prepare prepare;
    absl::Time deadline;
    std::shared_ptr<const PlannedLayouts> planned;
  };
  ReceiveRequest RequestFor(const Offer& offer, const synchronizer::Transfer& command, const SyncMember& self,
                            std::vector<Copy> copies) const;
  absl::StatusOr<Received> ReceiveAndVerify(const synchronizer::Transfer& command);
  // Whether a transfer overwrites what serves.
  bool IsInPlace(bool sends_base) const { return target_->in_place() || (target_->shares_base() && sends_base); }
  // Whether only adapters are written and verified, because the target shares the base that it has.
  bool TakesAdaptersAlone(bool sends_base) const { return target_->shares_base() && !sends_base; }
  // Checks a target that shares its base: OK if exactly its adapters are what versions of this run differ in.
  absl::Status CheckSubset(const Subset& subset) const;
  // The memory that the source lends for the base; nullopt: the base is sent.
  std::optional<LentMemory> BorrowBase(const synchronizer::Transfer& command, const SyncMember& self);
  // Puts memory behind the base of a target that maps it: what is lent, or its own, for what is sent.
  absl::Status PlaceBase(std::optional<LentMemory> lent);
  // Digests of all buckets, of those that arrived now and those that were verified when the base arrived.
  absl::StatusOr<std::vector<uint64_t>> AllDigests(std::vector<uint64_t> arrived, bool adapters_alone) const;
  // Copies base weights that are not sent into the shadow, if they are not there yet.
  absl::Status KeepBase(const std::vector<ByteRange>& kept);
  std::stop_token StopToken() const;
  static absl::Status CheckDigests(const std::vector<WireBucket>& buckets, const std::vector<uint64_t>& announced,
                                   const std::vector<uint64_t>& arrived);
  // Stops generation if the target is in place, but only for a version that the sources still have.
  absl::Status PauseIfInPlace(const ReceiveRequest& request, bool sends_base);
  void NoteOverwriting();
  bool Overwrites() const;
  // If this attempt has begun to overwrite the live weights, no weights serve any more; else generation continues.
  void AbandonInPlace();
  absl::StatusOr<Installed> CallTarget(bool relabel);
  // Moves from one phase to the next; an error if the present attempt or phase is another one.
  absl::Status Enter(int64_t attempt, Phase from, Phase to);
  // Ends a blocking phase; forgets the attempt if it was finished meanwhile.
  void Leave(Phase to);
  // Ends the attempt if `wanted` returns true: at once, or as soon as the blocking phase in progress has returned.
  void FinishIf(const std::function<bool(int64_t attempt)>& wanted);
  // Call after kEnding was entered: releases the attempt's resources.
  void ClearUp();

  const Options options_;
  WeightTarget* const target_;
  const std::vector<ReceiverTransport*> transports_;

  // Used by the commands' thread only.
  PlanCache plans_;
  Offer offer_;      // the offer of the present attempt
  Offer rehearsed_;  // the offer of the present rehearsal
  struct Expected {
    std::shared_ptr<const PlannedLayouts> planned;
    std::vector<WireBucket> buckets;
    ShadowContents contents;
    // For targets that share the base, the part of `contents` that is adapters, whose first bucket has the number
    // `first_adapter`. No bucket is of both.
    size_t first_adapter = 0;
    ShadowContents adapters;
    int64_t adapters_begin = std::numeric_limits<int64_t>::max();  // in the shadow
  };
  std::shared_ptr<const Expected> expected_;  // for the last plan
  // What a weight set contained when it was verified.
  struct Verified {
    std::shared_ptr<const Expected> expected;  // null: nothing was verified
    std::vector<uint64_t> digests;             // by bucket
  };
  Verified live_verified_;
  Verified shadow_verified_;
  ReceiverTransport* transport_ = nullptr;
  bool already_serves_ = false;
  bool checked_since_sleep_ = false;  // the live weights, of a target that shares its base
  bool base_unmappable_ = false;      // a MapBase has failed: the base is sent until it is there again
  std::atomic<uint64_t> live_base_ =
      0;                      // Subset::base_digest of the live weights; 0: none; written by this thread alone
  uint64_t shadow_base_ = 0;  // Subset::base_digest of the weights in the shadow

  mutable Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kIdle;
  int64_t attempt_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // during a blocking phase: forget the attempt when the phase ends
  bool claimed_ ABSL_GUARDED_BY(mutex_) = false;   // the target's BeginAttempt succeeded
  ReceiverTransport* opened_ ABSL_GUARDED_BY(mutex_) = nullptr;  // must be closed when the attempt ends
  InPlace in_place_ ABSL_GUARDED_BY(mutex_) = InPlace::kNo;
  std::stop_source stop_ ABSL_GUARDED_BY(mutex_);
  PolicyVersion served_ ABSL_GUARDED_BY(mutex_);   // the newest ever served: versions do not go back
  PolicyVersion serving_ ABSL_GUARDED_BY(mutex_);  // equal to served_, or none
  uint64_t serving_digest_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status damaged_ ABSL_GUARDED_BY(mutex_);  // the error of the check that found damage

  RehearsalPart rehearsal_;
};

}  // namespace syncopate::synchronizer
