#include "rollouter/engine/leading_target.h"

#include <functional>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace syncopate::rollouter {
namespace {

using synchronizer::InstallResult;

class LeadingTarget final : public synchronizer::WeightTarget {
 public:
  LeadingTarget(synchronizer::WeightTarget* engine, InstallRanks* ranks) : engine_(engine), ranks_(ranks) {}

  char* shadow() override { return engine_->shadow(); }
  absl::StatusOr<InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                        absl::Duration deadline) override {
    return Jointly(version, deadline, InstallRanks::End::kExchanged,
                   [&](absl::Duration left) { return engine_->Install(version, digest, left); });
  }
  absl::StatusOr<InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override {
    return Jointly(version, deadline, InstallRanks::End::kRelabelled,
                   [&](absl::Duration left) { return engine_->Relabel(version, left); });
  }
  absl::Status BeginAttempt() override { return engine_->BeginAttempt(); }
  void EndAttempt() override { engine_->EndAttempt(); }
  void ExpectInstall() override { engine_->ExpectInstall(); }
  void RestoreShadow() override { engine_->RestoreShadow(); }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return engine_->BeginCheck(std::move(contents));
  }
  bool can_copy_live() const override { return engine_->can_copy_live(); }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override { return engine_->CopyLive(ranges); }
  synchronizer::ReceiverWeights LastSleep() const override { return engine_->LastSleep(); }

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

  synchronizer::WeightTarget* const engine_;
  InstallRanks* const ranks_;
};

}  // namespace

std::unique_ptr<synchronizer::WeightTarget> MakeLeadingTarget(synchronizer::WeightTarget* engine, InstallRanks* ranks) {
  return std::make_unique<LeadingTarget>(engine, ranks);
}

}  // namespace syncopate::rollouter
