#include "rollouter/engine/follower_target.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ranks/collective.h"
#include "rollouter/engine/engine_backend.h"
#include "synchronizer/superseded.h"

// The states of one version on this rank. Two threads meet here: the receiver's, in Install(), and the one that
// executes rank 0's commands.
//
//   Install(): pending, said to be ready --exchange ordered--> serves
//                                        --relabelled, or given up by rank 0--> serves, or given up
//                                        --deadline--> withdrawn, answered by rank 0 with one of the above
//
// A withdrawal is a question, not a fact: rank 0 may have ordered the exchange while the withdrawal was on its way. So
// a rank that withdraws waits for the answer, and no rank ever stays behind the others.
//
// With one weight set the same two threads meet before the first byte:
//
//   BeginInPlace(): waits, said so to rank 0 --generation stopped--> receives --exchanged--> nothing
//   waits or receives --given up: said to rank 0, with whether weights were overwritten--> nothing
//
// Rank 0 may have stopped generation for a rank that has just given up. It then hears of that, and generation goes on
// when all ranks have given up, if none has overwritten anything.
namespace syncopate::rollouter {

using synchronizer::InstallResult;

FollowerTarget::FollowerTarget(std::shared_ptr<EngineBackend> backend, Options options)
    : backend_(std::move(backend)), arenas_(backend_->arenas()), options_(std::move(options)) {}

char* FollowerTarget::shadow() { return arenas_.shadow(); }
void FollowerTarget::RestoreShadow() { arenas_.shadow(); }
absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> FollowerTarget::BeginCheck(
    synchronizer::ShadowContents contents) {
  return arenas_.BeginCheck(std::move(contents));
}
absl::Status FollowerTarget::CopyLive(const std::vector<ByteRange>& ranges) { return arenas_.CopyLive(ranges); }

absl::StatusOr<InstallResult> FollowerTarget::Relabel(const PolicyVersion& version, absl::Duration deadline) {
  return AwaitRank0(version, serving().digest, deadline);
}

absl::StatusOr<InstallResult> FollowerTarget::AwaitRank0(const PolicyVersion& version, uint64_t digest,
                                                         absl::Duration deadline) {
  {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(ended_);
    pending_ = version;
    pending_digest_ = digest;
    outcome_ = Outcome::kNone;
  }
  // Called outside the lock: it writes to a stream, and rank 0's answer takes the lock on another thread.
  options_.send_ready(version);
  auto is_settled = [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return outcome_ != Outcome::kNone || !ended_.ok(); };
  bool settled = false;
  {
    MutexLock lock(&mutex_);
    settled = mutex_.AwaitWithTimeout(Condition(&is_settled), deadline);
  }
  if (!settled) options_.send_withdrawn(version);  // rank 0 may have ordered the exchange meanwhile; its answer says so
  absl::Status lost;
  {
    MutexLock lock(&mutex_);
    // Returns at once if the outcome is known. After a withdrawal rank 0 must answer with one of the outcomes.
    settled = mutex_.AwaitWithTimeout(Condition(&is_settled), options_.answer_within);
    // From here on an order to exchange this version is an error of rank 0 (CheckReady).
    pending_ = PolicyVersion();
    // An exchange ordered after the deadline counts: the other ranks serve the version too.
    if (outcome_ == Outcome::kServes) return InstallResult();
    SYNCOPATE_RETURN_IF_ERROR(ended_);
    if (!settled) lost = RankLost(absl::StrCat("rank 0 does not say whether ", version.ToString(), " serves"));
  }
  if (!lost.ok()) {
    options_.on_lost(lost);
    return lost;
  }
  return Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE",
               absl::StrCat("not all ranks of this replica have installed ", version.ToString(),
                            " in time; the older version goes on serving"));
}

bool FollowerTarget::in_place() const { return arenas_.in_place(); }
bool FollowerTarget::shares_base() const { return arenas_.adapter_sets() > 0; }

absl::Status FollowerTarget::BeginInPlace(const PolicyVersion& version, absl::Duration deadline) {
  if (!in_place() && !shares_base()) return WeightTarget::BeginInPlace(version, deadline);
  bool begins = false;
  {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(ended_);
    begins = in_place_ != version;
    if (begins) stopped_ = false;
    in_place_ = version;
  }
  if (begins) options_.send_stop_awaited(version);
  MutexLock lock(&mutex_);
  auto is_settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !ended_.ok(); };
  if (!mutex_.AwaitWithTimeout(Condition(&is_settled), deadline)) {
    return Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE",
                 absl::StrCat("not all ranks of this replica have stopped within ", absl::FormatDuration(deadline),
                              " to receive ", version.ToString(), "; the older version goes on serving"));
  }
  return stopped_ ? absl::OkStatus() : ended_;
}

void FollowerTarget::Stopped(const PolicyVersion& version) {
  MutexLock lock(&mutex_);
  if (in_place_ == version) stopped_ = true;
}

void FollowerTarget::Abandon(bool overwritten) {
  PolicyVersion version;
  {
    MutexLock lock(&mutex_);
    if (in_place_.IsNone()) return;
    version = std::exchange(in_place_, PolicyVersion());
    stopped_ = false;
    if (overwritten) LoseWeightsLocked();
  }
  options_.send_abandoned(version, overwritten);
}

void FollowerTarget::LoseWeights() {
  MutexLock lock(&mutex_);
  LoseWeightsLocked();
}

void FollowerTarget::LoseWeightsLocked() {
  lost_ = true;
  serving_.version = PolicyVersion();
  serving_.digest = 0;
}

bool FollowerTarget::HasWeights() const {
  MutexLock lock(&mutex_);
  return !lost_;
}

absl::Status FollowerTarget::CheckReady(const PolicyVersion& version) {
  MutexLock lock(&mutex_);
  if (pending_ == version && outcome_ == Outcome::kNone) return absl::OkStatus();
  return Error(absl::StatusCode::kInternal, "RANK_MISMATCH",
               absl::StrCat("rank 0 has all exchange ", version.ToString(), ", which is not ready here"));
}

void FollowerTarget::RecordOutcomeLocked(const PolicyVersion& version, Outcome outcome) {
  if (outcome == Outcome::kServes) {
    serving_.version = version;
    // Relabelled weights keep their digest, because the bytes are the same.
    if (pending_ == version) serving_.digest = pending_digest_;
    last_sleep_.slept = false;
    if (in_place_ == version) in_place_ = PolicyVersion();
    lost_ = false;
  }
  if (pending_ == version) outcome_ = outcome;
}

void FollowerTarget::Exchanged(const PolicyVersion& version) {
  MutexLock lock(&mutex_);
  RecordOutcomeLocked(version, Outcome::kServes);
}

void FollowerTarget::EndWithoutExchange(const PolicyVersion& version, bool relabelled) {
  MutexLock lock(&mutex_);
  RecordOutcomeLocked(version, relabelled ? Outcome::kServes : Outcome::kGivenUp);
}

absl::Status FollowerTarget::BeginAttempt() {
  MutexLock lock(&mutex_);
  // The memory of the shadow may be released. HELD is not a failure: the synchronizer asks again later.
  if (serving_.asleep) {
    return Error(absl::StatusCode::kUnavailable, synchronizer::kHeld,
                 "this replica sleeps; it takes weights again when it is woken");
  }
  if (shares_base() && arenas_.shadow_set() == kNoSet) {
    return Error(absl::StatusCode::kUnavailable, synchronizer::kHeld,
                 "plans and evaluations still use all adapter sets; weights are taken again when one is free");
  }
  ++receiving_;
  return absl::OkStatus();
}

void FollowerTarget::EndAttempt() {
  {
    MutexLock lock(&mutex_);
    if (--receiving_ > 0) return;
  }
  // A transfer in place that has begun is over by now; this ends a wait for generation to stop.
  Abandon(/*overwritten=*/false);
}

absl::Status FollowerTarget::BeginSleep(bool keeps_weights, absl::Duration deadline) {
  MutexLock lock(&mutex_);
  // Set before the wait: an attempt that begins meanwhile is refused; otherwise the wait might never end.
  serving_.asleep = true;
  auto is_free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return receiving_ == 0 || !ended_.ok(); };
  if (!mutex_.AwaitWithTimeout(Condition(&is_free), deadline)) {
    serving_.asleep = false;  // nothing was released, so later attempts may come
    return Error(absl::StatusCode::kUnavailable, "BUSY", "a weight sync of this rank does not end");
  }
  last_sleep_ = synchronizer::AfterSleep(last_sleep_, keeps_weights ? 1 : 2);
  // The serving weights are lost with the memory; until the next install this rank has no version.
  if (!keeps_weights) serving_ = {.version = {}, .digest = 0, .asleep = true};
  return absl::OkStatus();
}

void FollowerTarget::EndSleep() {
  MutexLock lock(&mutex_);
  serving_.asleep = false;
}

void FollowerTarget::End(const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (ended_.ok()) ended_ = why.ok() ? Error(absl::StatusCode::kCancelled, "STOPPING", "this rank stops") : why;
}

synchronizer::ReceiverWeights FollowerTarget::LastSleep() const {
  MutexLock lock(&mutex_);
  return last_sleep_;
}

FollowerTarget::Serving FollowerTarget::serving() const {
  MutexLock lock(&mutex_);
  return serving_;
}

}  // namespace syncopate::rollouter
