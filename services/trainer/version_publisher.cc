#include "services/trainer/version_publisher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/uuid.h"
#include "services/rpc/channel.h"
#include "services/rpc/status.h"
#include "services/wire/codec.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"

namespace syncopate::trainerd {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);

}  // namespace

class VersionPublisher::Caller {
 public:
  explicit Caller(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::SynchronizerService::NewStub(std::move(channel))) {}

  absl::Status Call(const Options& options, const Publication& publication) {
    v1::PublishVersionRequest request;
    request.set_request_id(RandomUuid());
    *request.mutable_member() = wire::ToProto(options.member);
    request.set_secret(options.secret.Reveal());
    *request.mutable_version() = wire::ToProto(publication.version);
    request.mutable_bucket_digests()->Assign(publication.bucket_digests.begin(), publication.bucket_digests.end());
    request.set_manifest_fingerprint(publication.manifest_fingerprint);
    request.set_stage_seconds(publication.stage_seconds);
    return rpc::CallUnary(stub_.get(), &v1::SynchronizerService::Stub::PublishVersion, request, options.call_timeout)
        .status();
  }

 private:
  const std::unique_ptr<v1::SynchronizerService::Stub> stub_;
};

absl::StatusOr<std::unique_ptr<VersionPublisher>> VersionPublisher::Start(Options options) {
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto channel,
      rpc::MakeChannel(options.synchronizer_address, {.security = options.security, .peer_role = "synchronizer"}));
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
    const absl::Status status = caller_->Call(options_, publication);
    if (status.ok()) {
      backoff = kFirstBackoff;
      continue;
    }
    if (rpc::IsRefusal(status)) {
      options_.on_refused(
          Annotate(status, absl::StrCat("the synchronizer refused version ", publication.version.ToString())));
      return;
    }
    SYNCOPATE_LOG(kWarning, "version %s is not published yet: %s", publication.version.ToString(), status.ToString());
    MutexLock lock(&mutex_);
    auto newer = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || pending_.has_value(); };
    if (!mutex_.AwaitWithTimeout(Condition(&newer), backoff)) pending_ = std::move(publication);
    backoff = std::min(2 * backoff, kLongestBackoff);
  }
}

}  // namespace syncopate::trainerd
