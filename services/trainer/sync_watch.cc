#include "services/trainer/sync_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/rpc/channel.h"
#include "services/rpc/status.h"
#include "synchronizer/sync_outcome.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "trainer/loop/sync_patience.h"

namespace syncopate::trainerd {
namespace {

constexpr int32_t kLooksBack = 100;  // records, for one that failed

}  // namespace

class SyncWatch::Caller {
 public:
  Caller(std::shared_ptr<grpc::Channel> channel, absl::Duration timeout)
      : stub_(v1::SynchronizerService::NewStub(std::move(channel))), timeout_(timeout) {}

  absl::StatusOr<trainer::SyncPatience::Tally> Ask() {
    SYNCOPATE_ASSIGN_OR_RETURN(const v1::SynchronizerServiceGetStatusResponse status,
                               rpc::CallUnary(stub_.get(), &v1::SynchronizerService::Stub::GetStatus,
                                              v1::SynchronizerServiceGetStatusRequest(), timeout_));
    return trainer::SyncPatience::Tally{status.syncs_ok(), status.syncs_failed(), status.rollouters_alive()};
  }

  // "" if it cannot be had.
  std::string LastFailure() {
    grpc::ClientContext context;
    context.set_deadline(rpc::CallDeadline(timeout_));
    v1::WatchSyncsRequest request;
    request.set_last(kLooksBack);
    auto stream = stub_->WatchSyncs(&context, request);
    std::string last;
    v1::WatchSyncsResponse response;
    while (stream->Read(&response)) {
      const v1::SyncRecord& record = response.record();
      if (synchronizer::ClassifySyncResult(record.result()) != synchronizer::SyncOutcome::kFailed) continue;
      last = absl::StrCat(record.replica_id(), ": ", record.result(), " ", record.detail());
    }
    return stream->Finish().ok() ? last : "";
  }

 private:
  const std::unique_ptr<v1::SynchronizerService::Stub> stub_;
  const absl::Duration timeout_;
};

absl::StatusOr<std::unique_ptr<SyncWatch>> SyncWatch::Start(Options options) {
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto channel,
      rpc::MakeChannel(options.synchronizer_address, {.security = options.security, .peer_role = "synchronizer"}));
  auto caller = std::make_unique<Caller>(std::move(channel), options.call_timeout);
  return std::unique_ptr<SyncWatch>(new SyncWatch(std::move(options), std::move(caller)));
}

SyncWatch::SyncWatch(Options options, std::unique_ptr<Caller> caller)
    : options_(std::move(options)), caller_(std::move(caller)), thread_([this] { Run(); }) {}

SyncWatch::~SyncWatch() { Stop(); }

void SyncWatch::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void SyncWatch::Run() {
  trainer::SyncPatience patience(options_.give_up_after);
  while (!AwaitStop()) {
    absl::StatusOr<trainer::SyncPatience::Tally> tally = caller_->Ask();
    if (!tally.ok()) continue;
    absl::Status verdict = patience.Observe(*tally, Clock::Real()->Now());
    failing_ = patience.failing_since() < absl::InfiniteFuture();
    if (verdict.ok()) continue;
    const std::string why = caller_->LastFailure();
    if (!why.empty()) verdict = Error(verdict.code(), ErrorReason(verdict), absl::StrCat(verdict.message(), ": ", why));
    options_.on_failing(verdict);
    return;
  }
}

bool SyncWatch::AwaitStop() {
  MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(Condition(&stopping_), std::min(options_.poll, options_.give_up_after / 10));
}

}  // namespace syncopate::trainerd
