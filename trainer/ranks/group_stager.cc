#include "trainer/ranks/group_stager.h"

#include <algorithm>

#include "base/digest.h"
#include "base/reasons.h"

namespace syncopate::trainer {

absl::Status GroupStager::Launch(const PolicyVersion& version) {
  version_ = version;
  others_leave_ = false;
  // The command goes out first, so that the other ranks copy at the same time as this one.
  SYNCOPATE_RETURN_IF_ERROR(followers_->Send({.kind = PolicyCommand::Kind::kStage, .version = version}, {}));
  return mine_->Launch(version);
}

absl::StatusOr<bool> GroupStager::LeaveDevice() {
  if (!others_leave_) {
    SYNCOPATE_RETURN_IF_ERROR(
        followers_->Send({.kind = PolicyCommand::Kind::kMoveState, .move = PolicyCommand::Move::kStagedLeaves}, {}));
    others_leave_ = true;
  }
  return mine_->LeaveDevice();
}

absl::StatusOr<GroupStager::Staged> GroupStager::Await() {
  absl::StatusOr<Staged> whole = mine_->Await();
  absl::StatusOr<StagingReports::OfRanks> reports = reports_->AwaitStaged(version_);
  if (!reports.ok()) return whole.ok() ? reports.status() : whole.status();
  // NON_FINITE takes precedence over the other ranks' errors: it ends the run with that reason.
  absl::Status failed = whole.status();
  for (const auto& [rank, staged] : *reports) {
    const bool is_worse =
        ErrorReason(staged.status()) == reason::kNonFinite && ErrorReason(failed) != reason::kNonFinite;
    if (!staged.ok() && (failed.ok() || is_worse)) failed = staged.status();
  }
  SYNCOPATE_RETURN_IF_ERROR(failed);
  for (const auto& [rank, staged] : *reports) {
    whole->bucket_digests.insert(whole->bucket_digests.end(), staged->bucket_digests.begin(),
                                 staged->bucket_digests.end());
    whole->seconds = std::max(whole->seconds, staged->seconds);
  }
  whole->digest = CombineDigests(whole->bucket_digests);
  return whole;
}

}  // namespace syncopate::trainer
