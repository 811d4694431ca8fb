#include "trainer/loop/policy_publisher.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
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

absl::Status PolicyPublisher::Launch(const PolicyVersion& version) {
  if (launched() == version) return failure();
  SYNCOPATE_RETURN_IF_ERROR(Await());
  const absl::Time begun = Clock::Real()->Now();
  // Here, as the policy is this thread's: the queue's thread must not ask it.
  Publication publication;
  const absl::Status launched = InUse(*parts_.policy, [&]() -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(publication, Describe(version));
    return parts_.stager->Launch(version);
  });
  AddWait(absl::ToDoubleSeconds(Clock::Real()->Now() - begun));
  SYNCOPATE_RETURN_IF_ERROR(launched);
  {
    MutexLock lock(&mutex_);
    launched_ = version;
    is_staging_ = true;
  }
  parts_.queue->Post([this, publication = std::move(publication)]() mutable { Finish(std::move(publication)); });
  return absl::OkStatus();
}

absl::StatusOr<Publication> PolicyPublisher::Describe(const PolicyVersion& version) const {
  Publication publication{.version = version, .manifest_fingerprint = parts_.stager->manifest().fingerprint()};
  publication.tensors = parts_.policy->manifest().tensors().size();
  publication.first_adapter = publication.tensors - parts_.policy->trained().tensors().size();
  SYNCOPATE_ASSIGN_OR_RETURN(publication.base_digest, parts_.policy->BaseDigest());
  return publication;
}

void PolicyPublisher::Finish(Publication publication) {
  const PolicyVersion version = publication.version;
  absl::StatusOr<WeightStager::Staged> staged = parts_.stager->Await();
  if (staged.ok()) {
    // Before anybody is told to serve it: its first answers may come at once.
    parts_.data->RecordPublished(version);
    parts_.observer->RecordPublication(version, staged->digest, staged->seconds);
    publication.bucket_digests = staged->bucket_digests;
    publication.stage_seconds = staged->seconds;
    parts_.publish(std::move(publication));
  }
  MutexLock lock(&mutex_);
  is_staging_ = false;
  if (staged.ok()) {
    published_ = *std::move(staged);
  } else {
    failed_ = Explained(staged.status(), version);
  }
}

absl::Status PolicyPublisher::Await() {
  const absl::Time begun = Clock::Real()->Now();
  parts_.queue->AwaitIdle();
  AddWait(absl::ToDoubleSeconds(Clock::Real()->Now() - begun));
  return failure();
}

absl::Status PolicyPublisher::Publish(const PolicyVersion& version) {
  SYNCOPATE_RETURN_IF_ERROR(Launch(version));
  return Await();
}

absl::Status PolicyPublisher::failure() const {
  MutexLock lock(&mutex_);
  return failed_;
}

absl::Status PolicyPublisher::CheckWeights(const PolicyVersion& version) const {
  if (launched() == version) return failure();
  return Explained(parts_.policy->CheckFinite(), version);
}

absl::Status PolicyPublisher::AwaitFinite(const PolicyVersion& version) const {
  MutexLock lock(&mutex_);
  // Ends by itself: each staging has a deadline, or is a copy within the host's memory.
  auto is_known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return launched_ != version || !is_staging_; };
  mutex_.Await(Condition(&is_known));
  // A version that another one has followed was good.
  return launched_ == version ? failed_ : absl::OkStatus();
}

PolicyVersion PolicyPublisher::launched() const {
  MutexLock lock(&mutex_);
  return launched_;
}

PolicyVersion PolicyPublisher::published() const {
  MutexLock lock(&mutex_);
  return published_.version;
}

void PolicyPublisher::RecordStep(StepReport report) {
  parts_.queue->Post([this, report = std::move(report)]() mutable {
    {
      MutexLock lock(&mutex_);
      if (!failed_.ok()) return;
      if (published_.version == report.version) {
        report.figures.stage_seconds = published_.seconds;
        // The digest of what travels, which depends on the wire's dtype and on the receivers' layout.
        report.published_digest = published_.digest;
      }
    }
    parts_.observer->RecordStep(report);
  });
}

void PolicyPublisher::AddWait(double seconds) {
  wait_seconds_ += seconds;
  parts_.phases->Add(LoopPhase::kStage, seconds);
}

double PolicyPublisher::AccountUpdateWaits() {
  const double seconds = parts_.stager->TakeWaitSeconds();
  AddWait(seconds);
  return seconds;
}

double PolicyPublisher::TakeWaitSeconds() {
  AccountUpdateWaits();
  return std::exchange(wait_seconds_, 0);
}

}  // namespace syncopate::trainer
