#include "services/synchronizer/synchronizer_service.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/identity.h"
#include "base/log.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/server_stream.h"
#include "services/rpc/unary.h"
#include "services/synchronizer/join_session.h"
#include "services/wire/codec.h"
#include "services/wire/sync_codec.h"

namespace syncopate::synchronizerd {
namespace {

using synchronizer::ControlLoop;
using synchronizer::ControlPlane;
using synchronizer::kRollouterRole;
using synchronizer::kTrainerRole;
using synchronizer::Member;
using synchronizer::MemberKey;
using synchronizer::MemberState;

constexpr int kMaxReplay = 1000;

// A suspect member is silent but still counts: most suspects come back.
bool Present(const Member& member) {
  return member.state == MemberState::kAlive || member.state == MemberState::kSuspect;
}

int64_t CountPresent(const ControlPlane& plane, const char* role) {
  const auto& members = plane.membership().members();
  return std::count_if(members.begin(), members.end(),
                       [role](const auto& entry) { return entry.first.role == role && Present(entry.second); });
}

v1::MemberState StateToProto(MemberState state) {
  switch (state) {
    case MemberState::kAlive:
      return v1::MEMBER_STATE_ALIVE;
    case MemberState::kSuspect:
      return v1::MEMBER_STATE_SUSPECT;
    case MemberState::kDead:
      return v1::MEMBER_STATE_DEAD;
    case MemberState::kLeft:
      return v1::MEMBER_STATE_LEFT;
  }
  return v1::MEMBER_STATE_UNSPECIFIED;
}

// A rollouter has one detail, the most important: that it serves an unpublished version; else why syncs leave it out;
// else, if it is gone, why it died or left.
v1::MemberStatus Describe(const ControlPlane& plane, const MemberKey& key, const Member& member, absl::Time now) {
  v1::MemberStatus status;
  *status.mutable_member() = wire::ToProto(member.hello.member);
  status.set_state(StateToProto(member.state));
  status.set_address(member.hello.address);
  status.set_metrics_address(member.hello.metrics_address);
  status.set_endpoint_address(member.hello.endpoint_address);
  *status.mutable_serving() = wire::ToProto(member.hello.serving);
  status.set_serving_digest(member.hello.serving_digest);
  status.set_silent_seconds(absl::ToDoubleSeconds(now - member.last_heard));
  status.set_detail(member.detail);
  if (key.role != kRollouterRole) return status;
  status.set_attempt(plane.coordinator().MakeAttempt(key.replica_id));
  if (Present(member)) status.set_detail(plane.coordinator().WhyLeftAlone(key.replica_id));
  if (Present(member) && !member.unbacked.IsNone()) {
    status.set_detail(
        absl::StrCat("reports that it serves ", member.unbacked.ToString(), ", which no trainer has published"));
  }
  return status;
}

RunEvent MakeEvent(const synchronizer::SyncRecord& record) {
  RunEvent event{record.rehearsal() ? "rehearsal" : "sync", record.version, record.attempt};
  event.fields = {{"replica", record.replica_id},
                  {"transport", record.transport},
                  {"reason", record.transport_reason},
                  {"result", record.result()},
                  {"bytes", absl::StrCat(record.bytes)}};
  if (!record.detail.empty()) event.fields["detail"] = record.detail;
  const synchronizer::PayloadBytes& bytes = record.bytes_by_kind;
  const std::pair<const char*, int64_t> kinds[] = {
      {"bytes_full", bytes.full}, {"bytes_lora", bytes.lora}, {"bytes_mapped", bytes.mapped}};
  for (const auto& [name, count] : kinds) {
    if (count > 0) event.fields[name] = absl::StrCat(count);
  }
  for (const auto& [stage, seconds] : synchronizer::kStages) {
    event.fields[absl::StrCat(stage, "_seconds")] = absl::StrCat(record.seconds.*seconds);
  }
  return event;
}

void FillVersions(const ControlPlane& plane, v1::ListVersionsResponse* response) {
  const auto& versions = plane.ledger().versions();
  // Newest first.
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    v1::VersionStatus* status = response->add_versions();
    *status->mutable_version() = wire::ToProto(version->version);
    status->set_digest(version->digest);
    status->set_published_unix_seconds(version->unix_seconds);
    // Count replicas, not ranks: all ranks of a replica serve the same version.
    std::set<std::string> replicas;
    for (const auto& [key, member] : plane.membership().members()) {
      bool serves = key.role == kRollouterRole && Present(member) && member.hello.serving == version->version;
      if (serves) replicas.insert(key.replica_id);
    }
    status->set_served_by(static_cast<int32_t>(replicas.size()));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SynchronizerServiceImpl>> SynchronizerServiceImpl::Start(Options options) {
  // The loop knows no protobuf messages; only this line connects both.
  options.loop.codec = wire::ProtoStateCodec();
  auto service = std::unique_ptr<SynchronizerServiceImpl>(new SynchronizerServiceImpl(std::move(options)));
  SYNCOPATE_ASSIGN_OR_RETURN(service->loop_, ControlLoop::Start(service->options_.loop, service.get()));
  return service;
}

SynchronizerServiceImpl::SynchronizerServiceImpl(Options options)
    : options_(std::move(options)), started_(options_.loop.clock->Now()) {}

SynchronizerServiceImpl::~SynchronizerServiceImpl() = default;

void SynchronizerServiceImpl::EndStreams() {
  loop_->CloseAll(Error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "the synchronizer is stopping"));
  // Runs on the loop's thread, which alone uses the history.
  loop_->Post([this](ControlPlane&, absl::Time) { history_.EndAll(); });
}

grpc::ServerBidiReactor<v1::JoinRequest, v1::JoinResponse>* SynchronizerServiceImpl::Join(
    grpc::CallbackServerContext* context) {
  return JoinSession::Serve(JoinSession::Stream::Create(context), auth::HelloCaller(options_.security.get(), *context),
                            loop_.get());
}

// Runs `ask` on the loop's thread and answers when its consequences are durable: a caller that gets OK may rely on it
// after a crash.
grpc::ServerUnaryReactor* SynchronizerServiceImpl::Answer(Ask ask) {
  auto call = rpc::UnaryCall::Create();
  auto status = std::make_shared<absl::Status>();
  loop_->Post(
      [ask = std::move(ask), status](ControlPlane& plane, absl::Time now) { *status = ask(plane, now); },
      [call, status](const absl::Status& carried_out) { call->Finish(carried_out.ok() ? *status : carried_out); });
  return call->Start({});
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* SynchronizerServiceImpl::AnswerOnce(
    const char* method, const Request& request, Response* response,
    std::function<absl::Status(const Request&, Response*, ControlPlane&, absl::Time)> ask) {
  return rpc::AnswerOnce(request_ids_, method, request, response, [&](Response* answer, rpc::RequestIds::Done done) {
    auto status = std::make_shared<absl::Status>();
    loop_->Post([request, answer, ask = std::move(ask), status](
                    ControlPlane& plane, absl::Time now) { *status = ask(request, answer, plane, now); },
                [done = std::move(done), status](const absl::Status& carried_out) {
                  done(carried_out.ok() ? *status : carried_out);
                });
  });
}

grpc::ServerUnaryReactor* SynchronizerServiceImpl::PublishVersion(grpc::CallbackServerContext*,
                                                                  const v1::PublishVersionRequest* request,
                                                                  v1::PublishVersionResponse* response) {
  return AnswerOnce<v1::PublishVersionRequest, v1::PublishVersionResponse>(
      "PublishVersion", *request, response,
      [this](const auto& request, auto* response, ControlPlane& plane, absl::Time now) -> absl::Status {
        ControlPlane::Publication publication;
        SYNCOPATE_ASSIGN_OR_RETURN(publication.member, wire::FromProto(request.member()));
        // A member's name is public; a caller that publishes in its name must show the secret of its incarnation.
        SYNCOPATE_RETURN_IF_ERROR(CheckSpeaksFor(publication.member, request.secret()));
        publication.version = wire::FromProto(request.version());
        publication.bucket_digests.assign(request.bucket_digests().begin(), request.bucket_digests().end());
        publication.manifest_fingerprint = request.manifest_fingerprint();
        // The peer chose this number, and it is added to sums.
        const double stage_seconds = request.stage_seconds();
        publication.stage_seconds = std::isfinite(stage_seconds) ? std::max(0.0, stage_seconds) : 0.0;
        publication.unix_seconds = options_.loop.clock->UnixSeconds();
        publication.subset = wire::FromProto(request.subset());
        SYNCOPATE_ASSIGN_OR_RETURN(int receivers, plane.OnPublish(publication, now));
        response->set_receivers(receivers);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* SynchronizerServiceImpl::CompleteRun(grpc::CallbackServerContext*,
                                                               const v1::CompleteRunRequest* request,
                                                               v1::CompleteRunResponse* response) {
  return AnswerOnce<v1::CompleteRunRequest, v1::CompleteRunResponse>(
      "CompleteRun", *request, response,
      [](const auto& request, auto*, ControlPlane& plane, absl::Time) -> absl::Status {
        SYNCOPATE_ASSIGN_OR_RETURN(MemberId member, wire::FromProto(request.member()));
        SYNCOPATE_RETURN_IF_ERROR(CheckSpeaksFor(member, request.secret()));
        return plane.OnComplete(member, wire::FromProto(request.version()));
      });
}

grpc::ServerUnaryReactor* SynchronizerServiceImpl::GetStatus(grpc::CallbackServerContext*,
                                                             const v1::SynchronizerServiceGetStatusRequest* request,
                                                             v1::SynchronizerServiceGetStatusResponse* response) {
  return Answer([this, response, with_syncs = request->with_syncs()](ControlPlane& plane, absl::Time now) {
    response->set_run_id(plane.ledger().run_id());
    response->set_epoch(plane.ledger().epoch());
    if (plane.ledger().newest() != nullptr)
      *response->mutable_newest() = wire::ToProto(plane.ledger().newest()->version);
    response->set_trainers_alive(static_cast<int32_t>(CountPresent(plane, kTrainerRole)));
    response->set_rollouters_alive(static_cast<int32_t>(CountPresent(plane, kRollouterRole)));
    response->set_attempts_under_way(plane.coordinator().attempts_under_way());
    response->set_syncs_ok(history_.ok());
    response->set_syncs_failed(history_.failed());
    response->set_syncs_superseded(history_.superseded());
    response->set_completed(plane.ledger().completed());
    if (with_syncs) *response->mutable_syncs() = wire::ToProto(loop_->syncs());
    response->set_uptime_seconds(absl::ToDoubleSeconds(now - started_));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* SynchronizerServiceImpl::ListMembers(grpc::CallbackServerContext*,
                                                               const v1::ListMembersRequest*,
                                                               v1::ListMembersResponse* response) {
  return Answer([response](ControlPlane& plane, absl::Time now) {
    for (const auto& [key, member] : plane.membership().members()) {
      *response->add_members() = Describe(plane, key, member, now);
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* SynchronizerServiceImpl::ListVersions(grpc::CallbackServerContext*,
                                                                const v1::ListVersionsRequest*,
                                                                v1::ListVersionsResponse* response) {
  return Answer([response](ControlPlane& plane, absl::Time) {
    FillVersions(plane, response);
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::WatchSyncsResponse>* SynchronizerServiceImpl::WatchSyncs(
    grpc::CallbackServerContext* context, const v1::WatchSyncsRequest* request) {
  auto stream = rpc::ServerWriteStream<v1::WatchSyncsResponse>::Create(context);
  // Identified by number, because the stream may end before the loop has run `replay`.
  int64_t id = next_watcher_++;
  int32_t last = std::clamp(request->last(), 0, kMaxReplay);
  bool follow = request->follow();
  auto refused = std::make_shared<std::atomic<bool>>(false);
  auto* reactor = stream->Start({.on_done = [this, id, refused](const absl::Status&) {
    if (*refused) return;  // the loop does not know this watcher
    loop_->Post([this, id](ControlPlane&, absl::Time) { history_.Forget(id); });
  }});
  auto replay = [this, stream, id, last, follow](ControlPlane&, absl::Time) {
    SyncHistory::Watcher watcher;
    watcher.write = [stream](const v1::SyncRecord& record) {
      v1::WatchSyncsResponse response;
      *response.mutable_record() = record;
      return stream->Write(std::move(response));
    };
    watcher.end = [stream] { stream->Finish(absl::OkStatus()); };
    history_.Replay(last, watcher);
    // On the loop's thread, as is Replay: no record is missed between the two, and none is sent twice.
    if (follow) history_.Follow(id, watcher);
    if (!follow) watcher.end();
  };
  loop_->Post(std::move(replay), [stream, refused](const absl::Status& carried_out) {
    if (carried_out.ok()) return;
    *refused = true;
    stream->Finish(carried_out);
  });
  return reactor;
}

grpc::ServerUnaryReactor* SynchronizerServiceImpl::TriggerSync(grpc::CallbackServerContext*,
                                                               const v1::TriggerSyncRequest* request,
                                                               v1::TriggerSyncResponse* response) {
  return AnswerOnce<v1::TriggerSyncRequest, v1::TriggerSyncResponse>(
      "TriggerSync", *request, response,
      [](const auto&, auto* response, ControlPlane& plane, absl::Time now) -> absl::Status {
        SYNCOPATE_ASSIGN_OR_RETURN(int receivers, plane.OnTrigger(now));
        *response->mutable_version() = wire::ToProto(plane.ledger().newest()->version);
        response->set_receivers(receivers);
        response->set_checked(plane.coordinator().unchecked());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* SynchronizerServiceImpl::EvictMember(grpc::CallbackServerContext*,
                                                               const v1::EvictMemberRequest* request,
                                                               v1::EvictMemberResponse* response) {
  return AnswerOnce<v1::EvictMemberRequest, v1::EvictMemberResponse>(
      "EvictMember", *request, response, [](const auto& request, auto*, ControlPlane& plane, absl::Time now) {
        return plane.OnEvict(request.replica_id(), request.rank(), request.reason(), now);
      });
}

void SynchronizerServiceImpl::RecordSync(const synchronizer::SyncRecord& record) {
  double now = options_.loop.clock->UnixSeconds();
  // Not a warning: this is normal when a trainer publishes faster than a link can send.
  if (record.superseded()) {
    SYNCOPATE_LOG(kInfo, "sync of %s to %s gave way to a newer version", record.version.ToString(), record.replica_id);
  } else if (record.failed()) {
    SYNCOPATE_LOG(kWarning, "sync of %s to %s ended with %s: %s", record.version.ToString(), record.replica_id,
                  record.result(), record.detail);
  }
  if (record.rehearsal()) {
    SYNCOPATE_LOG(kInfo, "rehearsal of a sync to %s by %s: %s %s", record.replica_id, record.transport, record.result(),
                  record.detail);
    if (options_.metrics != nullptr) options_.metrics->RecordRehearsal(record.reason == synchronizer::kConnected);
  } else if (options_.metrics != nullptr) {
    options_.metrics->Record({record.transport, record.result(), record.seconds, record.bytes_by_kind, now});
  }
  if (options_.events != nullptr) options_.events->Record(MakeEvent(record));
  history_.Add(wire::ToProto(record, now));
}

SynchronizerServiceImpl::Progress SynchronizerServiceImpl::progress() const {
  MutexLock lock(&mutex_);
  return progress_;
}

void SynchronizerServiceImpl::RecordState(const ControlPlane& plane) {
  {
    MutexLock lock(&mutex_);
    progress_.completed = plane.ledger().completed();
    progress_.members = CountPresent(plane, kTrainerRole) + CountPresent(plane, kRollouterRole);
  }
  if (options_.metrics == nullptr) return;
  options_.metrics->SetMembers(CountPresent(plane, kTrainerRole), CountPresent(plane, kRollouterRole));
  if (plane.ledger().newest() != nullptr) options_.metrics->SetNewest(plane.ledger().newest()->version);
}

void SynchronizerServiceImpl::RecordFailure(const absl::Status& status) {
  if (options_.on_failed) options_.on_failed(status);
}

}  // namespace syncopate::synchronizerd
