#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status.h"
#include "synchronizer/transport/weight_target.h"

namespace syncopate::rollouter {

class EngineBackend;
class WeightArenas;

// The target of weight syncs on a rank other than rank 0: a version that was verified here serves when rank 0 makes all
// ranks exchange it. The receiver's thread waits in Install() for the outcome, which the thread that executes rank 0's
// commands reports. Thread-safe.
class FollowerTarget final : public synchronizer::WeightTarget {
 public:
  struct Options {
    // Tells rank 0 that the version is ready, or that this rank withdraws it. Must not block.
    std::function<void(const PolicyVersion&)> send_ready, send_withdrawn;
    // With one weight set: tell rank 0 that this rank waits for generation to stop, or that it receives the version no
    // longer and has not installed it. Must not block.
    std::function<void(const PolicyVersion&)> send_stop_awaited = nullptr;
    std::function<void(const PolicyVersion&, bool overwritten)> send_abandoned = nullptr;
    // Called if rank 0 did not answer a withdrawal within answer_within: rank 0 counts as lost.
    std::function<void(const absl::Status&)> on_lost;
    absl::Duration answer_within = absl::Seconds(10);
  };
  FollowerTarget(std::shared_ptr<EngineBackend> backend, Options options);

  char* shadow() override;
  absl::StatusOr<synchronizer::InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                                      absl::Duration deadline) override {
    return AwaitRank0(version, digest, deadline);
  }
  absl::StatusOr<synchronizer::InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override;
  absl::Status BeginAttempt() override;
  void EndAttempt() override;
  void RestoreShadow() override;
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(synchronizer::ShadowContents contents) override;
  bool can_copy_live() const override { return true; }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override;
  synchronizer::ReceiverWeights LastSleep() const override;
  bool in_place() const override;
  bool shares_base() const override;
  // After DEADLINE_EXCEEDED this rank goes on waiting until EndAttempt: the next call finds what happened meanwhile.
  absl::Status BeginInPlace(const PolicyVersion& version, absl::Duration deadline) override;
  void CancelInPlace() override { Abandon(/*overwritten=*/false); }
  void Invalidate() override { Abandon(/*overwritten=*/true); }
  bool HasWeights() const override;

  // Called by the thread that executes rank 0's commands, before an exchange. INTERNAL (reason RANK_MISMATCH) if the
  // version is not ready here.
  absl::Status CheckReady(const PolicyVersion& version);
  // Records that the version was exchanged and serves.
  void Exchanged(const PolicyVersion& version);
  // Records the end of a version that was not exchanged: it was relabelled or given up.
  void EndWithoutExchange(const PolicyVersion& version, bool relabelled);
  // Records that generation has stopped for a transfer of `version`: no plan runs on this rank.
  void Stopped(const PolicyVersion& version);
  // Records that a transfer in place has failed on another rank: nothing serves until the next exchange.
  void LoseWeights();
  // Call before the memory of the weights is released: no attempt begins afterwards, and the current one has ended when
  // this returns OK. Blocks for at most `deadline`; UNAVAILABLE (reason BUSY) if the attempt has not ended by then.
  absl::Status BeginSleep(bool keeps_weights, absl::Duration deadline);
  void EndSleep();
  // Ends all waits with `why` (OK: CANCELLED, reason STOPPING): no further outcome will arrive.
  void End(const absl::Status& why);

  struct Serving {
    PolicyVersion version;
    uint64_t digest = 0;
    bool asleep = false;
  };
  Serving serving() const;

 private:
  enum class Outcome { kNone, kServes, kGivenUp };
  absl::StatusOr<synchronizer::InstallResult> AwaitRank0(const PolicyVersion& version, uint64_t digest,
                                                         absl::Duration deadline);
  // Tells rank 0 that this rank receives in place no longer, unless it does not or has installed the version.
  void Abandon(bool overwritten);
  void LoseWeightsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordOutcomeLocked(const PolicyVersion& version, Outcome outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<EngineBackend> backend_;
  WeightArenas& arenas_;
  const Options options_;
  mutable Mutex mutex_;
  PolicyVersion pending_ ABSL_GUARDED_BY(mutex_);  // none: no install waits
  uint64_t pending_digest_ ABSL_GUARDED_BY(mutex_) = 0;
  Outcome outcome_ ABSL_GUARDED_BY(mutex_) = Outcome::kNone;
  PolicyVersion in_place_ ABSL_GUARDED_BY(mutex_);  // waits for generation to stop, or receives; none: neither
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;    // generation has stopped for in_place_
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;       // a transfer in place has failed since the latest exchange
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  Serving serving_ ABSL_GUARDED_BY(mutex_);
  synchronizer::ReceiverWeights last_sleep_ ABSL_GUARDED_BY(mutex_);
  int receiving_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncopate::rollouter
