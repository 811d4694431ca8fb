#include "rollouter/engine/leading_target.h"

#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "rollouter/engine/joint_pause.h"

namespace syncopate::rollouter {
namespace {

using synchronizer::InstallResult;

class LeadingTarget final : public synchronizer::WeightTarget {
 public:
  LeadingTarget(synchronizer::WeightTarget* engine, InstallRanks* ranks, std::function<void()> on_lost)
      : engine_(engine), ranks_(ranks), on_lost_(std::move(on_lost)), pause_(ranks->world()) {
    ranks_->SetAbandonListener(
        [this](int32_t rank, const PolicyVersion& version, bool overwritten) { GiveUp(rank, version, overwritten); });
  }
  ~LeadingTarget() override { ranks_->SetAbandonListener(nullptr); }

  char* shadow() override { return engine_->shadow(); }
  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                        absl::Duration deadline) override {
    return Jointly(version, deadline, InstallRanks::End::kExchanged, [&](absl::Duration left) {
      absl::StatusOr<InstallResult> result = engine_->Install(version, digest, left);
      if (result.ok()) EndPause();
      return result;
    });
  }
  absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override {
    return Jointly(version, deadline, InstallRanks::End::kRelabelled,
                   [&](absl::Duration left) { return engine_->Relabel(version, left); });
  }
  absl::Status BeginAttempt() override { return engine_->BeginAttempt(); }
  void EndAttempt() override { engine_->EndAttempt(); }
  void RestoreShadow() override { engine_->RestoreShadow(); }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return engine_->BeginCheck(std::move(contents));
  }
  bool can_copy_live() const override { return engine_->can_copy_live(); }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override { return engine_->CopyLive(ranges); }
  synchronizer::ReceiverWeights LastSleep() const override { return engine_->LastSleep(); }

  bool in_place() const override { return engine_->in_place(); }
  bool shares_base() const override { return engine_->shares_base(); }
  absl::Status BeginInPlace(const PolicyVersion& version, absl::Duration deadline) override {
    const absl::Time until = Clock::Real()->Now() + deadline;
    SYNCOPATE_RETURN_IF_ERROR(ranks_->AwaitStopAwaited(version, deadline));
    {
      MutexLock lock(&mutex_);
      pause_.Begin(version);
    }
    // The engine's thread tells the other ranks, between the last plan and whatever comes next.
    const absl::Status stopped = engine_->BeginInPlace(version, until - Clock::Real()->Now());
    if (stopped.ok()) ranks_->EndStopAwaited(version);
    MutexLock lock(&mutex_);
    if (!stopped.ok()) {
      pause_.End();
      return stopped;
    }
    if (!ApplyLocked(pause_.Stand(), version, /*by_other=*/true)) return absl::OkStatus();
    return Error(absl::StatusCode::kAborted, "TRANSFER_ABANDONED",
                 absl::StrCat("another rank of this replica has given ", version.ToString(), " up"));
  }
  void CancelInPlace() override { GiveUp(/*rank=*/0, PauseVersion(), /*overwritten=*/false); }
  void Invalidate() override { GiveUp(/*rank=*/0, PauseVersion(), /*overwritten=*/true); }
  bool HasWeights() const override {
    MutexLock lock(&mutex_);
    return !lost_;
  }

 private:
  using Change = std::function<absl::StatusOr<InstallResult>(absl::Duration left)>;
  absl::StatusOr<InstallResult> Jointly(const PolicyVersion& version, absl::Duration deadline, InstallRanks::End end,
                                        const Change& change) {
    const absl::Time until = Clock::Real()->Now() + deadline;
    // Only the time left after the claim may be spent on the change.
    SYNCOPATE_RETURN_IF_ERROR(ranks_->Claim(version, deadline));
    absl::StatusOr<InstallResult> result = change(until - Clock::Real()->Now());
    ranks_->EndClaim(version, result.ok() ? end : InstallRanks::End::kGivenUp);
    return result;
  }

  PolicyVersion PauseVersion() const {
    MutexLock lock(&mutex_);
    return pause_.version();
  }
  void EndPause() {
    MutexLock lock(&mutex_);
    pause_.End();
    lost_ = false;
  }
  void GiveUp(int32_t rank, const PolicyVersion& version, bool overwritten) {
    MutexLock lock(&mutex_);
    ApplyLocked(pause_.GiveUp(rank, version, overwritten), version, /*by_other=*/rank != 0);
  }
  // Returns true if the replica has lost its weights by this. Calls out under the lock: an outcome that is applied late
  // could end the pause of the next version. None of these calls blocks or calls back.
  bool ApplyLocked(JointPause::Outcome outcome, const PolicyVersion& version, bool by_other)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (outcome == JointPause::Outcome::kGoOn) engine_->CancelInPlace();
    if (outcome != JointPause::Outcome::kLost) return false;
    lost_ = true;
    engine_->Invalidate();
    ranks_->SendWeightsLost(version);
    if (by_other && on_lost_) on_lost_();
    return true;
  }

  synchronizer::WeightTarget* const engine_;
  InstallRanks* const ranks_;
  const std::function<void()> on_lost_;
  mutable Mutex mutex_;
  JointPause pause_ ABSL_GUARDED_BY(mutex_);
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;  // a transfer in place has failed since the latest install
};

}  // namespace

std::unique_ptr<synchronizer::WeightTarget> MakeLeadingTarget(synchronizer::WeightTarget* engine, InstallRanks* ranks,
                                                              std::function<void()> on_lost) {
  return std::make_unique<LeadingTarget>(engine, ranks, std::move(on_lost));
}

}  // namespace syncopate::rollouter
