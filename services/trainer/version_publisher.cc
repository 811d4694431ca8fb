#include "services/trainer/version_publisher.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/uuid.h"
#include "services/codec/codec.h"
#include "services/rpc/channel.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::services {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);

}  // namespace

class VersionPublisher::Caller {
 public:
  explicit Caller(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::SynchronizerService::NewStub(std::move(channel))) {}

  absl::Status Call(const MemberId& member, const Publication& publication, absl::Duration timeout) {
    v1::PublishVersionRequest request;
    request.set_request_id(RandomUuid());
    *request.mutable_member() = ToProto(member);
    *request.mutable_version() = ToProto(publication.version);
    request.mutable_bucket_digests()->Assign(publication.bucket_digests.begin(), publication.bucket_digests.end());
    request.set_manifest_fingerprint(publication.manifest_fingerprint);
    request.set_stage_seconds(publication.stage_seconds);
    return CallUnary(stub_.get(), &v1::SynchronizerService::Stub::PublishVersion, request, timeout).status();
  }

 private:
  const std::unique_ptr<v1::SynchronizerService::Stub> stub_;
};

absl::StatusOr<std::unique_ptr<VersionPublisher>> VersionPublisher::Start(Options options) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, MakeChannel(options.synchronizer_address,
                                                       {.security = options.security, .peer_role = "synchronizer"}));
  auto caller = std::make_unique<Caller>(std::move(channel));
  return std::unique_ptr<VersionPublisher>(new VersionPublisher(std::move(options), std::move(caller)));
}

VersionPublisher::VersionPublisher(Options options, std::unique_ptr<Caller> caller)
    : options_(std::move(options)), caller_(std::move(caller)), thread_([this] { Run(); }) {}

VersionPublisher::~VersionPublisher() { Stop(); }

void VersionPublisher::Publish(Publication publication) {
  MutexLock lock(&mutex_);
  pending_ = std::move(publication);
}

void VersionPublisher::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void VersionPublisher::Run() {
  absl::Duration backoff = kFirstBackoff;
  while (true) {
    Publication publication;
    {
      MutexLock lock(&mutex_);
      auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || pending_.has_value(); };
      mutex_.Await(Condition(&wanted));
      if (stopping_) return;
      publication = *std::exchange(pending_, std::nullopt);
    }
    const absl::Status status = caller_->Call(options_.member, publication, options_.call_timeout);
    const bool retry = ShouldRetry(publication, status);
    if (ErrorReason(status) == "FENCED") {
      options_.on_fenced(status);
      return;
    }
    if (!retry) {
      backoff = kFirstBackoff;
      continue;
    }
    MutexLock lock(&mutex_);
    auto newer = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || pending_.has_value(); };
    if (!mutex_.AwaitWithTimeout(Condition(&newer), backoff)) pending_ = std::move(publication);
    backoff = std::min(2 * backoff, kLongestBackoff);
  }
}

bool VersionPublisher::ShouldRetry(const Publication& publication, const absl::Status& status) {
  if (status.ok()) return false;
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    SYNCOPATE_LOG(kWarning, "version %s is not published yet: %s", publication.version.ToString(), status.ToString());
    return true;
  }
  SYNCOPATE_LOG(kError, "the synchronizer refused version %s: %s", publication.version.ToString(), status.ToString());
  return false;
}

}  // namespace syncopate::services
