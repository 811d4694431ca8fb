#include "services/rollouter/leading_rank.h"

#include <unistd.h>

#include <utility>

#include "base/daemon/daemon_endpoints.h"
#include "base/log.h"
#include "services/auth/audit.h"
#include "services/auth/rank_sockets.h"
#include "services/config/model_options.h"
#include "services/config/ranks.h"

namespace syncopate::rollouterd {
namespace {

// Gives a refused rank time to read why before the server ends; without the reason it would dial until its deadline.
constexpr absl::Duration kRefusalsWithin = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<LeadingRank>> LeadingRank::Gather(daemon::Daemon* daemon, const v1::RunConfig& config,
                                                                 const model::ModelConfig& shape) {
  std::unique_ptr<LeadingRank> rank(new LeadingRank(daemon));
  rank->world_ = static_cast<int32_t>(config.rollout().tensor_parallel());
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest wire, config::MakeWireManifest(config, shape));
  SYNCOPATE_ASSIGN_OR_RETURN(rank->slice_, rollouter::MakeRankSlice(shape, wire, rank->world_));
  SYNCOPATE_ASSIGN_OR_RETURN(rank->place_, FindRolloutPlace(config));
  SYNCOPATE_RETURN_IF_ERROR(rank->Listen(config, wire.fingerprint()));
  auto go_on = [rank = rank.get()] { return rank->GoOn(); };
  SYNCOPATE_RETURN_IF_ERROR(rank->leader_->AwaitRanks(kRanksMeetWithin, go_on));
  return rank;
}

absl::Status LeadingRank::Connect() {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> ranks, Meet());
  {
    MutexLock lock(&mutex_);
    ranks_ = ranks.get();
  }
  part_ = std::make_unique<ReplicaPart>(ReplicaPart{*std::move(slice_), std::move(ranks)});
  SYNCOPATE_RETURN_IF_ERROR(leader_->lost());  // a loss before this point could abort no communicator
  SYNCOPATE_LOG(kInfo, "all %d ranks of this replica are there", world_);
  return absl::OkStatus();
}

LeadingRank::~LeadingRank() {
  if (leader_ != nullptr) leader_->Stop(absl::OkStatus());
  if (server_ != nullptr) server_->Stop(kRefusalsWithin);  // no callback runs after this
}

absl::Status LeadingRank::Listen(const v1::RunConfig& config, uint64_t manifest_fingerprint) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string secret, config::FindReplicaSecret(daemon_->security() != nullptr));
  leader_ = std::make_unique<ReplicaLeader>(
      rpc::RankStreamsOptions{.rank0 = {.world = world_,
                                        .config_digest = config::RankConfigDigest(daemon_->config()),
                                        .manifest_fingerprint = manifest_fingerprint,
                                        .build = daemon::BuildVersion(),
                                        .gpu = place_.gpu},
                              .secret = secret,
                              .security = daemon_->security(),
                              // A step that waits for the lost rank would do so until its deadline.
                              .on_lost = [this](const absl::Status& why) {
                                SYNCOPATE_LOG(kError, "this replica is at its end: %s", why.ToString());
                                MutexLock lock(&mutex_);
                                if (ranks_ != nullptr) ranks_->Abort(std::string(why.message()));
                              }});
  rpc::Server::Options options;
  options.address = config.rollouter().ranks_listen();
  options.insecure_bind = config.run().insecure_bind();
  options.security = daemon_->security();
  options.interceptors = {auth::AuditInterceptors(daemon_->security())};
  SYNCOPATE_ASSIGN_OR_RETURN(server_, rpc::Server::Start(options, {leader_.get()}));
  SYNCOPATE_LOG(kInfo, "waits for %d other ranks at %s", world_ - 1, server_->address());
  return daemon::WriteDaemonEndpoint(daemon_->Path(daemon::kReplicasFolder), {.role = "rollouter",
                                                                              .index = daemon_->index(),
                                                                              .grpc = server_->address(),
                                                                              .metrics = "",
                                                                              .pid = static_cast<int64_t>(::getpid())});
}

absl::Status LeadingRank::GoOn() const {
  daemon_->health().Moved();
  if (!daemon_->StopRequested(absl::ZeroDuration())) return leader_->lost();
  return Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop before all ranks of the replica had come");
}

absl::StatusOr<std::unique_ptr<Communicator>> LeadingRank::Meet() {
  SYNCOPATE_ASSIGN_OR_RETURN(const config::ListenAddress listen,
                             config::GetRolloutRanksListen(daemon_->config().rollouter()));
  SYNCOPATE_ASSIGN_OR_RETURN(RankListener listener, RankListener::Open(place_, listen.address, listen.key));
  auto invite = [this](const RankInvitation& invitation) {
    v1::ReplicaServiceAttendResponse::Welcome welcome;
    welcome.set_nccl_id(invitation.id);
    welcome.mutable_ranks_addresses()->Assign(invitation.addresses.begin(), invitation.addresses.end());
    welcome.set_ranks_secret(invitation.secret);
    return leader_->Welcome(welcome);
  };
  return MeetRanks(place_,
                   {.world = world_,
                    .call_deadline = kRankStepDeadline,
                    .security = auth::RankSocketSecurity(daemon_->security(), auth::AuthRole::kRollouter)},
                   &listener, leader_->ranks_addresses(), invite, [this] { return GoOn(); });
}

}  // namespace syncopate::rollouterd
