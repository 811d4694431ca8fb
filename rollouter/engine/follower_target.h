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

// The weights of another rank than rank 0 as the target of weight syncs: what is verified here serves when rank 0 has all
// ranks exchange it. The receiver's thread waits in Install() for what the thread that obeys rank 0 says.
class FollowerTarget final : public synchronizer::WeightTarget {
 public:
  struct Options {
    // Says to rank 0 that the version is ready, or that it is given up. Must not block.
    std::function<void(const PolicyVersion&)> send_ready, send_withdrawn;
    // Rank 0 has not answered a withdrawal: it is lost.
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
  void ExpectInstall() override;
  void RestoreShadow() override;
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(synchronizer::ShadowContents contents) override;
  bool can_copy_live() const override { return true; }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override;
  synchronizer::ReceiverWeights LastSleep() const override;

  // Of the thread that obeys rank 0. An exchange of what is not ready here: INTERNAL (reason RANK_MISMATCH).
  absl::Status CheckReady(const PolicyVersion& version);
  void Exchanged(const PolicyVersion& version);
  // The end of a version that was not exchanged.
  void EndWithoutExchange(const PolicyVersion& version, bool relabelled);
  // Before the memory of the weights is given back: no attempt begins from here on, and the present one has ended.
  // UNAVAILABLE (reason BUSY) if it does not within `deadline`.
  absl::Status BeginSleep(bool keeps_weights, absl::Duration deadline);
  void EndSleep();
  // Nobody settles anything any more.
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
  void RecordOutcomeLocked(const PolicyVersion& version, Outcome outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<EngineBackend> backend_;
  WeightArenas& arenas_;
  const Options options_;
  mutable Mutex mutex_;
  PolicyVersion pending_ ABSL_GUARDED_BY(mutex_);  // none: nobody waits
  uint64_t pending_digest_ ABSL_GUARDED_BY(mutex_) = 0;
  Outcome outcome_ ABSL_GUARDED_BY(mutex_) = Outcome::kNone;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  Serving serving_ ABSL_GUARDED_BY(mutex_);
  synchronizer::ReceiverWeights last_sleep_ ABSL_GUARDED_BY(mutex_);
  int receiving_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncopate::rollouter
