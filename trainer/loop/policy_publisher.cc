#include "trainer/loop/policy_publisher.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"

namespace syncopate::trainer {
namespace {

// Says what can be done about weights that are not finite; other errors stay as they are.
absl::Status Explained(const absl::Status& status, const PolicyVersion& version) {
  if (ErrorReason(status) != reason::kNonFinite) return status;
  return Annotate(status, absl::StrCat("training has spoilt the weights of ", version.ToString(),
                                       "; go on from the last checkpoint with "
                                       "a lower train.learning_rate or "
                                       "train.max_grad_norm"));
}

}  // namespace

absl::Status PolicyPublisher::Publish(const PolicyVersion& version) {
  if (published_.version == version) return absl::OkStatus();
  auto staged = InUse(*parts_.policy, [&] { return parts_.stager->Stage(version); });
  if (!staged.ok()) return Explained(staged.status(), version);
  published_ = *std::move(staged);
  parts_.phases->Add(LoopPhase::kStage, published_.seconds);
  // Recorded before any rollouter is told to serve it, because its first answers may come at once.
  parts_.data->RecordPublished(version);
  parts_.observer->RecordPublication(version, published_.digest, published_.seconds);
  SYNCOPATE_ASSIGN_OR_RETURN(const uint64_t base, parts_.policy->BaseDigest());
  const size_t tensors = parts_.policy->manifest().tensors().size();
  parts_.publish({.version = version,
                  .bucket_digests = published_.bucket_digests,
                  .manifest_fingerprint = parts_.stager->manifest().fingerprint(),
                  .stage_seconds = published_.seconds,
                  .first_adapter = tensors - parts_.policy->trained().tensors().size(),
                  .tensors = tensors,
                  .base_digest = base});
  return absl::OkStatus();
}

absl::Status PolicyPublisher::CheckWeights(const PolicyVersion& version) const {
  if (published_.version == version) return absl::OkStatus();
  return Explained(parts_.policy->CheckFinite(), version);
}

}  // namespace syncopate::trainer
