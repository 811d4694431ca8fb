#include "synchronizer/transport/weight_receiver.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/status.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/transport/finite_check.h"

namespace syncopate::synchronizer {
namespace {

absl::Status Refuse(absl::string_view reason, const std::string& message) {
  return Error(absl::StatusCode::kFailedPrecondition, reason, message);
}

}  // namespace

WeightReceiver::WeightReceiver(Options options, WeightTarget* target, std::vector<ReceiverTransport*> transports)
    : options_(std::move(options)), target_(target), transports_(std::move(transports)) {}

absl::StatusOr<WeightReceiver::Prepared> WeightReceiver::Prepare(const synchronizer::Prepare& command) {
  SYNCOPATE_ASSIGN_OR_RETURN(ReceiverTransport * transport, CheckPrepare(command));
  MutexLock lock(&mutex_);
  if (phase_ != Phase::kIdle) {
    return Error(absl::StatusCode::kUnavailable, "BUSY", absl::StrFormat("attempt %d has not been finished", attempt_));
  }
  if (command.version <= serving_) {
    return Refuse("OLD_VERSION", absl::StrFormat("version %s is not above %s, which serves", command.version.ToString(),
                                                 serving_.ToString()));
  }
  offer_ = command;
  transport_ = transport;
  deadline_ = options_.clock->Now() + command.deadline;
  already_held_ = !serving_.IsNone() && serving_digest_ == command.digest;
  attempt_ = command.attempt;
  finished_ = false;
  stop_ = std::stop_source();
  phase_ = already_held_ ? Phase::kVerified : Phase::kPrepared;
  return Prepared{already_held_};
}

absl::StatusOr<ReceiverTransport*> WeightReceiver::CheckPrepare(const synchronizer::Prepare& command) {
  if (command.manifest_fingerprint != options_.manifest.fingerprint()) {
    return Refuse("MODEL_MISMATCH", "the attempt is of another model than this receiver was made for");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const SyncPlan* plan, PlanFor(command.sources));
  if (plan->hash() != command.plan_hash) {
    return Refuse("PLAN_MISMATCH", absl::StrFormat("the plan for %d sources is %016x here and %016x there; run the "
                                                   "same build on all members",
                                                   command.sources, plan->hash(), command.plan_hash));
  }
  for (ReceiverTransport* transport : transports_) {
    if (transport->name() == command.transport) return transport;
  }
  return Refuse("TRANSPORT_UNKNOWN", absl::StrFormat("this receiver cannot receive by %s", command.transport));
}

absl::StatusOr<const SyncPlan*> WeightReceiver::PlanFor(int32_t sources) {
  auto known = plans_.find(sources);
  if (known != plans_.end()) return &known->second;
  if (sources < 1) return Refuse("PLAN_MISMATCH", "an attempt needs a source");
  SYNCOPATE_ASSIGN_OR_RETURN(SyncPlan plan,
                             SyncPlan::Create(options_.manifest, Layout::FlatShards(options_.manifest, sources),
                                              Layout::Whole(options_.manifest, options_.world)));
  plans_.clear();  // the number of sources changes with a restart of the trainer, if ever
  return &plans_.emplace(sources, std::move(plan)).first->second;
}

absl::StatusOr<WeightReceiver::Received> WeightReceiver::Transfer(const synchronizer::Transfer& command) {
  SYNCOPATE_RETURN_IF_ERROR(Enter(command.attempt, Phase::kPrepared, Phase::kTransferring));
  absl::StatusOr<Received> received = ReceiveAndVerify(command);
  Leave(received.ok() ? Phase::kVerified : Phase::kPrepared);
  return received;
}

absl::StatusOr<WeightReceiver::Received> WeightReceiver::ReceiveAndVerify(const synchronizer::Transfer& command) {
  bool announced = command.bucket_digests.size() == options_.manifest.buckets().size() &&
                   CombineDigests(command.bucket_digests) == offer_.digest;
  if (!announced) {
    return Error(absl::StatusCode::kDataLoss, "DIGEST_MISMATCH", "the bucket digests are not those of the version");
  }
  ReceiveRequest request;
  request.attempt = offer_.attempt;
  request.version = offer_.version;
  request.manifest_fingerprint = offer_.manifest_fingerprint;
  request.rendezvous = command.rendezvous;
  request.copies = plans_.at(offer_.sources).CopiesTo(options_.rank);
  request.deadline = deadline_;
  std::stop_token stop;
  {
    MutexLock lock(&mutex_);
    stop = stop_.get_token();
  }
  Received received;
  for (const Copy& copy : request.copies) received.bytes += copy.bytes;
  char* shadow = target_->shadow();
  absl::Time begun = options_.clock->Now();
  SYNCOPATE_RETURN_IF_ERROR(transport_->Receive(request, shadow, stop));
  absl::Time arrived = options_.clock->Now();
  SYNCOPATE_RETURN_IF_ERROR(Verify(command.bucket_digests, shadow));
  received.transfer_seconds = absl::ToDoubleSeconds(arrived - begun);
  received.verify_seconds = absl::ToDoubleSeconds(options_.clock->Now() - arrived);
  return received;
}

absl::Status WeightReceiver::Verify(const std::vector<uint64_t>& bucket_digests, const char* shadow) const {
  std::vector<uint64_t> arrived = DigestBuckets(options_.manifest, shadow);
  for (size_t i = 0; i < arrived.size(); ++i) {
    if (arrived[i] == bucket_digests[i]) continue;
    return Error(absl::StatusCode::kDataLoss, "DIGEST_MISMATCH",
                 absl::StrFormat("bucket %d of %d arrived damaged; it is fetched again", i, arrived.size()),
                 {{"bucket", absl::StrFormat("%d", i)}});
  }
  return CheckFinite(options_.manifest, shadow);
}

absl::StatusOr<WeightReceiver::Installed> WeightReceiver::Install(const synchronizer::Install& command) {
  SYNCOPATE_RETURN_IF_ERROR(Enter(command.attempt, Phase::kVerified, Phase::kInstalling));
  absl::StatusOr<Installed> installed = CallTarget(already_held_);
  if (installed.ok()) {
    MutexLock lock(&mutex_);
    serving_ = offer_.version;
    serving_digest_ = offer_.digest;
  }
  // The shadow holds the older weights now, or garbage: nothing more can come of this attempt.
  Leave(Phase::kPrepared);
  return installed;
}

absl::StatusOr<WeightReceiver::Installed> WeightReceiver::CallTarget(bool relabel) {
  absl::Time begun = options_.clock->Now();
  absl::Duration left = deadline_ - begun;
  SYNCOPATE_ASSIGN_OR_RETURN(InstallResult result, relabel ? target_->Relabel(offer_.version, left)
                                                           : target_->Install(offer_.version, offer_.digest, left));
  return Installed{absl::ToDoubleSeconds(options_.clock->Now() - begun), result.pause_seconds, relabel};
}

void WeightReceiver::Finish(int64_t attempt) {
  std::stop_source stop(std::nostopstate);
  {
    MutexLock lock(&mutex_);
    if (attempt == attempt_) stop = EndLocked();
  }
  stop.request_stop();
}

void WeightReceiver::FinishAny() {
  std::stop_source stop(std::nostopstate);
  {
    MutexLock lock(&mutex_);
    stop = EndLocked();
  }
  stop.request_stop();
}

std::stop_source WeightReceiver::EndLocked() {
  bool blocking = phase_ == Phase::kTransferring || phase_ == Phase::kInstalling;
  finished_ = true;
  if (!blocking) phase_ = Phase::kIdle;
  return stop_;
}

absl::Status WeightReceiver::Enter(int64_t attempt, Phase from, Phase to) {
  MutexLock lock(&mutex_);
  if (attempt != attempt_ || phase_ != from) {
    return Refuse(to == Phase::kInstalling ? "NOT_VERIFIED" : "NOT_PREPARED",
                  absl::StrFormat("attempt %d is not ready for this command", attempt));
  }
  phase_ = to;
  return absl::OkStatus();
}

void WeightReceiver::Leave(Phase to) {
  MutexLock lock(&mutex_);
  phase_ = finished_ ? Phase::kIdle : to;
}

PolicyVersion WeightReceiver::serving() const {
  MutexLock lock(&mutex_);
  return serving_;
}

uint64_t WeightReceiver::serving_digest() const {
  MutexLock lock(&mutex_);
  return serving_digest_;
}

}  // namespace syncopate::synchronizer
