#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/manifest.h"
#include "base/mutex.h"
#include "synchronizer/messages.h"
#include "synchronizer/plan/sync_plan.h"
#include "synchronizer/transport/transport.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::synchronizer {

// A receiver's part in sync attempts: prepare -> transfer into the shadow -> verify -> install -> finish, one attempt
// at a time. Whatever fails before the install leaves what serves untouched, and the serving version never goes back.
//
// Prepare, Transfer and Install are called by one thread in the order of the commands; Finish and the getters by any.
class WeightReceiver {
 public:
  struct Options {
    Manifest manifest;
    int32_t rank = 0;
    int32_t world = 1;
    const Clock* clock = Clock::Real();
  };

  // `target` and `transports` are borrowed.
  WeightReceiver(Options options, WeightTarget* target, std::vector<ReceiverTransport*> transports);

  struct Prepared {
    bool already_held = false;  // the bits that serve are those of the version: the next step is Install
  };
  // Refuses, touching nothing: FAILED_PRECONDITION reason MODEL_MISMATCH, PLAN_MISMATCH, TRANSPORT_UNKNOWN or
  // OLD_VERSION (not above what serves), UNAVAILABLE reason BUSY (another attempt has not been finished).
  absl::StatusOr<Prepared> Prepare(const synchronizer::Prepare& command);

  struct Received {
    int64_t bytes = 0;
    double transfer_seconds = 0;
    double verify_seconds = 0;
  };
  // Blocks until the bytes are there and verified, the attempt's deadline, or Finish. What the transport says;
  // DATA_LOSS reason DIGEST_MISMATCH naming the bucket, or NON_FINITE; FAILED_PRECONDITION reason NOT_PREPARED.
  absl::StatusOr<Received> Transfer(const synchronizer::Transfer& command);

  struct Installed {
    double install_seconds = 0;
    double pause_seconds = 0;
    bool relabelled = false;
  };
  // Blocks as WeightTarget::Install does, at most until the attempt's deadline. FAILED_PRECONDITION reason
  // NOT_VERIFIED.
  absl::StatusOr<Installed> Install(const synchronizer::Install& command);

  // The attempt is over: a transfer under way is cancelled, a shadow that was not installed is forgotten. Does not
  // block. Ignores other attempts than the present one.
  void Finish(int64_t attempt);
  // Whatever attempt there is: the stream to the synchronizer has broken.
  void FinishAny();

  PolicyVersion serving() const;
  uint64_t serving_digest() const;

 private:
  enum class Phase : uint8_t { kIdle, kPrepared, kTransferring, kVerified, kInstalling };

  absl::StatusOr<ReceiverTransport*> CheckPrepare(const synchronizer::Prepare& command);
  absl::StatusOr<const SyncPlan*> PlanFor(int32_t sources);
  absl::Status Verify(const std::vector<uint64_t>& bucket_digests, const char* shadow) const;
  absl::StatusOr<Received> ReceiveAndVerify(const synchronizer::Transfer& command);
  absl::StatusOr<Installed> CallTarget(bool relabel);
  // What to request once the lock is released: stopping calls into the transport.
  std::stop_source EndLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves from one phase to the next; an error if the attempt or its phase is another one.
  absl::Status Enter(int64_t attempt, Phase from, Phase to);
  // The end of a blocking phase; an attempt that was finished meanwhile is forgotten.
  void Leave(Phase to);

  const Options options_;
  WeightTarget* const target_;
  const std::vector<ReceiverTransport*> transports_;

  // Written by the commands' thread while no blocking phase is under way.
  std::map<int32_t, SyncPlan> plans_;  // by number of sources
  synchronizer::Prepare offer_;
  ReceiverTransport* transport_ = nullptr;
  absl::Time deadline_;
  bool already_held_ = false;

  mutable Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kIdle;
  int64_t attempt_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // during a blocking phase: forget the attempt when it ends
  std::stop_source stop_ ABSL_GUARDED_BY(mutex_);
  PolicyVersion serving_ ABSL_GUARDED_BY(mutex_);
  uint64_t serving_digest_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncopate::synchronizer
