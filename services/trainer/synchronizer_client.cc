#include "services/trainer/synchronizer_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/uuid.h"
#include "services/rpc/channel.h"
#include "services/wire/codec.h"
#include "services/wire/sync_codec.h"

namespace syncopate::trainerd {
namespace {

using Stub = v1::SynchronizerService::Stub;

constexpr absl::Duration kTimeout = absl::Seconds(2);
constexpr absl::Duration kPublishTimeout = absl::Seconds(5);  // the synchronizer makes it durable before it answers
constexpr int32_t kLooksBack = 100;                           // the number of records searched for a failed sync

}  // namespace

absl::StatusOr<std::unique_ptr<SynchronizerClient>> SynchronizerClient::Create(Options options) {
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto channel, rpc::MakeChannel(options.address, {.security = options.security, .peer_role = "synchronizer"}));
  return std::unique_ptr<SynchronizerClient>(new SynchronizerClient(std::move(options), channel));
}

SynchronizerClient::SynchronizerClient(Options options, const std::shared_ptr<grpc::Channel>& channel)
    : options_(std::move(options)), stub_(v1::SynchronizerService::NewStub(channel)) {}

template <typename Request, typename Response>
absl::StatusOr<Response> SynchronizerClient::Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                                               Response*),
                                                  const Request& request, absl::Duration timeout) const {
  return rpc::CallUnary(stub_.get(), method, request, timeout);
}

absl::Status SynchronizerClient::Publish(const trainer::Publication& publication) {
  v1::PublishVersionRequest request;
  request.set_request_id(RandomUuid());
  *request.mutable_member() = wire::ToProto(options_.member);
  request.set_secret(options_.secret.Reveal());
  *request.mutable_version() = wire::ToProto(publication.version);
  request.mutable_bucket_digests()->Assign(publication.bucket_digests.begin(), publication.bucket_digests.end());
  request.set_manifest_fingerprint(publication.manifest_fingerprint);
  request.set_stage_seconds(publication.stage_seconds);
  if (publication.base_digest != 0) {
    const synchronizer::TensorRange adapters{static_cast<int32_t>(publication.first_adapter),
                                             static_cast<int32_t>(publication.tensors)};
    *request.mutable_subset() = wire::ToProto(synchronizer::Subset{{adapters}, publication.base_digest});
  }
  return Call(&Stub::PublishVersion, request, kPublishTimeout).status();
}

absl::Status SynchronizerClient::CompleteRun(const PolicyVersion& last) {
  v1::CompleteRunRequest request;
  request.set_request_id(RandomUuid());
  *request.mutable_member() = wire::ToProto(options_.member);
  request.set_secret(options_.secret.Reveal());
  *request.mutable_version() = wire::ToProto(last);
  return Call(&Stub::CompleteRun, request, kTimeout).status();
}

absl::StatusOr<trainer::SyncPatience::Tally> SynchronizerClient::CountSyncs() {
  SYNCOPATE_ASSIGN_OR_RETURN(const auto status,
                             Call(&Stub::GetStatus, v1::SynchronizerServiceGetStatusRequest(), kTimeout));
  return trainer::SyncPatience::Tally{status.syncs_ok(), status.syncs_failed(), status.rollouters_alive()};
}

std::string SynchronizerClient::LastSyncFailure() {
  grpc::ClientContext context;
  context.set_deadline(rpc::CallDeadline(kTimeout));
  v1::WatchSyncsRequest request;
  request.set_last(kLooksBack);
  auto stream = stub_->WatchSyncs(&context, request);
  std::string last;
  v1::WatchSyncsResponse response;
  while (stream->Read(&response)) {
    const v1::SyncRecord& record = response.record();
    // Keeps the newest failed record: the stream gives the oldest first.
    if (synchronizer::ClassifySyncResult(record.result()) != synchronizer::SyncOutcome::kFailed) continue;
    last = absl::StrCat(record.replica_id(), ": ", record.result(), " ", record.detail());
  }
  return stream->Finish().ok() ? last : "";
}

absl::StatusOr<synchronizer::SyncTally> SynchronizerClient::TallySyncs() {
  v1::SynchronizerServiceGetStatusRequest request;
  request.set_with_syncs(true);
  SYNCOPATE_ASSIGN_OR_RETURN(const auto status, Call(&Stub::GetStatus, request, kTimeout));
  return wire::FromProto(status.syncs());
}

absl::StatusOr<std::vector<v1::MemberStatus>> SynchronizerClient::ListRollouters() {
  SYNCOPATE_ASSIGN_OR_RETURN(const auto answer, Call(&Stub::ListMembers, v1::ListMembersRequest(), kTimeout));
  std::vector<v1::MemberStatus> rollouters;
  for (const v1::MemberStatus& member : answer.members()) {
    const bool alive = member.state() == v1::MEMBER_STATE_ALIVE || member.state() == v1::MEMBER_STATE_SUSPECT;
    // Only the first rank of a replica answers calls.
    const bool answers = member.member().role() == v1::ROLE_ROLLOUTER && member.member().rank() == 0;
    if (alive && answers) rollouters.push_back(member);
  }
  return rollouters;
}

}  // namespace syncopate::trainerd
