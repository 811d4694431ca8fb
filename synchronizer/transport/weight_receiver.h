#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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
// at a time. Whatever fails before the install leaves what serves untouched, and the serving version never goes back.
// With a target that has no shadow (in_place) generation stops when the sources have the version, and goes on if they
// lose it before the first byte; whatever fails after that leaves nothing that serves.
//
// Rehearsals go beside the attempts: they touch no weights, and nobody waits for them.
//
// Prepare, Transfer, Install and WorkAfterReport are called by one thread in the order of the commands; Finish and the
// getters by any.
class WeightReceiver {
 public:
  struct Options {
    Manifest manifest;
    MemberId member = {};     // of the process that this receiver is part of; its rank and world choose its slice
    std::string layout = {};  // of the target; "": whole
    const Clock* clock = Clock::Real();
    std::function<void()> on_lost = nullptr;  // an attempt has left nothing that serves; by any thread, must not block
  };

  // `target` and `transports` are borrowed.
  WeightReceiver(Options options, WeightTarget* target, std::vector<ReceiverTransport*> transports);

  struct Prepared {
    bool already_held = false;  // the bits that serve are those of the version: the next step is Install
    std::string rendezvous;     // where the others find this receiver, if they need to
    ReceiverWeights weights;    // what decides whether it is sent base weights
  };
  // Refuses, touching nothing: FAILED_PRECONDITION reason MODEL_MISMATCH, LAYOUT_MISMATCH, PLAN_MISMATCH,
  // TRANSPORT_UNKNOWN or OLD_VERSION (not above what serves), UNAVAILABLE reason BUSY (another attempt has not been
  // finished) or HELD (the target holds installs back), or what the transport says (NCCL_MISMATCH, ...).
  absl::StatusOr<Prepared> Prepare(const synchronizer::Prepare& command);

  struct Received {
    PayloadBytes bytes;
    double connect_seconds = 0;  // forming communicators, mapping memory; 0.0 where there is none to form
    double transfer_seconds = 0;
    double verify_seconds = 0;
  };
  // Blocks until the bytes are there and verified, the attempt's deadline, or Finish. What the transport says;
  // DATA_LOSS reason DIGEST_MISMATCH naming the bucket, or NON_FINITE; FAILED_PRECONDITION reason NOT_PREPARED, or
  // NOT_A_RECEIVER if the command does not name this member.
  absl::StatusOr<Received> Transfer(const synchronizer::Transfer& command);

  struct Installed {
    double install_seconds = 0;
    double pause_seconds = 0;
    bool relabelled = false;
  };
  // Blocks as WeightTarget::Install does, at most until the attempt's deadline. FAILED_PRECONDITION reason
  // NOT_VERIFIED.
  absl::StatusOr<Installed> Install(const synchronizer::Install& command);
  // What Transfer or Install said is on its way to the synchronizer: WeightTarget::ExpectInstall or RestoreShadow.
  void WorkAfterReport();

  // Prepare of a rehearsal; the answer says where the others find this receiver. Refuses as Prepare does.
  absl::StatusOr<std::string> PrepareRehearsal(const synchronizer::Prepare& command);
  // Whether `attempt` is the present rehearsal: what follows then is Connect.
  bool Rehearses(int64_t attempt) const { return rehearsal_.Concerns(attempt); }
  // Transfer of a rehearsal. Does not block. `done` is called exactly once, by any thread: how many seconds it took to
  // form what a sync needs, or what the transport says; FAILED_PRECONDITION reason NOT_PREPARED or NOT_A_RECEIVER.
  void Connect(const synchronizer::Transfer& command, std::function<void(absl::StatusOr<double>)> done);

  // The attempt is over: a transfer under way is cancelled, a shadow that was not installed is forgotten. Does not
  // block. Ignores other attempts than the present one and the present rehearsal.
  void Finish(int64_t attempt);
  // Whatever attempt there is: the stream to the synchronizer has broken.
  void FinishAny();

  // None, and 0, before the first install, after an in-place transfer that failed, and after a sleep that dropped the
  // weights.
  PolicyVersion serving() const;
  uint64_t serving_digest() const;

 private:
  enum class Phase : uint8_t { kIdle, kPreparing, kPrepared, kTransferring, kVerified, kInstalling, kEnding };

  // What this attempt has done to a target with one weight set.
  enum class InPlace : uint8_t { kNo, kStopped, kOverwritten };

  absl::StatusOr<std::shared_ptr<const PlannedLayouts>> CheckPlan(const synchronizer::Prepare& command);
  // Makes what a transfer is checked by; the same plan's serves again.
  void Expect(const std::shared_ptr<const PlannedLayouts>& planned);
  absl::StatusOr<ReceiverTransport*> FindTransport(const std::string& name) const;
  absl::Status Begin(int64_t attempt);
  // The rest of Prepare; what it has begun by an error ClearUp or ReleaseTarget ends.
  absl::StatusOr<Prepared> PrepareTarget(const synchronizer::Prepare& command, ReceiverTransport* transport);
  absl::Status ClaimTarget();
  void ReleaseTarget();
  // A sleep has dropped the weights: what is known of the arenas' contents is no longer true.
  void ForgetLostWeights(const ReceiverWeights& weights);
  absl::Status CheckNewer(const PolicyVersion& version) const;
  // What the present attempt would be spared: whether the base weights that the offer names need not be sent.
  ReceiverWeights WeightsFor(const synchronizer::Prepare& command) const;
  absl::StatusOr<const SyncMember*> FindSelf(const synchronizer::Transfer& command) const;
  // What one Prepare asked for. Of the commands' thread.
  struct Offer {
    synchronizer::Prepare prepare;
    absl::Time deadline;
    std::shared_ptr<const PlannedLayouts> planned;
  };
  ReceiveRequest RequestFor(const Offer& offer, const synchronizer::Transfer& command, const SyncMember& self,
                            std::vector<Copy> copies) const;
  absl::StatusOr<Received> ReceiveAndVerify(const synchronizer::Transfer& command);
  // Brings the base weights that are not sent into the shadow, if they are not there yet.
  absl::Status KeepBase(const std::vector<ByteRange>& kept);
  std::stop_token StopToken() const;
  static absl::Status CheckDigests(const std::vector<WireBucket>& buckets, const std::vector<uint64_t>& announced,
                                   const std::vector<uint64_t>& arrived);
  // Generation is stopped only for a version that is there.
  absl::Status PauseIfInPlace(const ReceiveRequest& request);
  void NoteOverwriting();
  bool Overwrites() const;
  // Nothing serves any more, if this attempt has begun to overwrite what served; else generation goes on.
  void AbandonInPlace();
  absl::StatusOr<Installed> CallTarget(bool relabel);
  // Moves from one phase to the next; an error if the attempt or its phase is another one.
  absl::Status Enter(int64_t attempt, Phase from, Phase to);
  // The end of a blocking phase; an attempt that was finished meanwhile is forgotten.
  void Leave(Phase to);
  // Ends the attempt if `wanted` says so: at once, or as soon as the blocking phase under way has returned.
  void FinishIf(const std::function<bool(int64_t attempt)>& wanted);
  // After kEnding was entered: lets go of what the attempt holds.
  void ClearUp();

  const Options options_;
  WeightTarget* const target_;
  const std::vector<ReceiverTransport*> transports_;

  // Of the commands' thread.
  PlanCache plans_;
  Offer offer_;      // the present attempt's
  Offer rehearsed_;  // the present rehearsal's
  struct Expected {
    std::shared_ptr<const PlannedLayouts> planned;
    std::vector<WireBucket> buckets;
    ShadowContents contents;
  };
  Expected expected_;  // by the last plan
  ReceiverTransport* transport_ = nullptr;
  bool already_held_ = false;
  uint64_t live_base_ = 0;    // Subset::base_digest of the weights that serve; 0: none
  uint64_t shadow_base_ = 0;  // of those in the shadow

  mutable Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kIdle;
  int64_t attempt_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // during a blocking phase: forget the attempt when it ends
  bool claimed_ ABSL_GUARDED_BY(mutex_) = false;   // the target knows of the attempt
  ReceiverTransport* opened_ ABSL_GUARDED_BY(mutex_) = nullptr;  // to be closed when the attempt ends
  InPlace in_place_ ABSL_GUARDED_BY(mutex_) = InPlace::kNo;
  std::stop_source stop_ ABSL_GUARDED_BY(mutex_);
  PolicyVersion served_ ABSL_GUARDED_BY(mutex_);   // the newest ever: versions do not go back
  PolicyVersion serving_ ABSL_GUARDED_BY(mutex_);  // that, or none
  uint64_t serving_digest_ ABSL_GUARDED_BY(mutex_) = 0;

  RehearsalPart rehearsal_;
};

}  // namespace syncopate::synchronizer
