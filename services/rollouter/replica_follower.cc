#include "services/rollouter/replica_follower.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/daemon/card_account.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/mutex.h"
#include "ranks/meeting.h"
#include "rollouter/engine/engine_commands.h"
#include "rollouter/engine/follower_target.h"
#include "services/auth/rank_sockets.h"
#include "services/config/duration.h"
#include "services/config/model_options.h"
#include "services/config/ranks.h"
#include "services/daemon/attend_rank0.h"
#include "services/member/member_client.h"
#include "services/rollouter/rank_codec.h"
#include "services/rollouter/rollout_device.h"
#include "services/rpc/rank_attendance.h"
#include "services/wire/codec.h"
#include "synchronizer/member/sync_participant.h"
#include "synchronizer/transport/weight_receiver.h"
#include "syncopate/v1/replica.grpc.pb.h"

namespace syncopate::rollouterd {
namespace {

constexpr absl::Duration kStopGrace = absl::Seconds(1);
// A weight sync that rank 0 has ended ends on this rank within this time.
constexpr absl::Duration kSleepWithin = absl::Seconds(10);

using Attendance =
    rpc::RankAttendance<v1::ReplicaService, v1::ReplicaServiceAttendRequest, v1::ReplicaServiceAttendResponse>;
using rollouter::EngineCommand;

class FollowingRollouterRank {
 public:
  FollowingRollouterRank(daemon::Daemon* daemon, const v1::RunConfig& config, const model::ModelConfig& shape,
                         int32_t rank)
      : daemon_(daemon),
        config_(config),
        shape_(shape),
        rank_(rank),
        world_(static_cast<int32_t>(config.rollout().tensor_parallel())) {}

  // Runs on the computing thread.
  absl::Status Run() {
    SYNCOPATE_ASSIGN_OR_RETURN(wire_, config::MakeWireManifest(config_, shape_));
    SYNCOPATE_ASSIGN_OR_RETURN(rollouter::RankSlice slice, rollouter::MakeRankSlice(shape_, wire_, world_));
    SYNCOPATE_ASSIGN_OR_RETURN(place_, FindRolloutPlace(config_));
    if (config_.run().share_gpu()) {
      SYNCOPATE_ASSIGN_OR_RETURN(card_, FindRolloutCard(config_));
    }
    SYNCOPATE_ASSIGN_OR_RETURN(const config::ListenAddress listen, config::GetRolloutRanksListen(config_.rollouter()));
    SYNCOPATE_ASSIGN_OR_RETURN(listener_, RankListener::Open(place_, listen.address, listen.key));
    SYNCOPATE_ASSIGN_OR_RETURN(const v1::ReplicaServiceAttendResponse::Welcome welcome,
                               attendance_.Begin(MakeAttendanceOptions(), kRanksMeetWithin));
    SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> ranks, Meet(welcome));
    listener_ = RankListener();  // nobody else may come
    part_ = std::make_unique<ReplicaPart>(ReplicaPart{std::move(slice), std::move(ranks)});
    SYNCOPATE_RETURN_IF_ERROR(UseRanks());
    SYNCOPATE_ASSIGN_OR_RETURN(device_, OpenRolloutDevice(config_, shape_, daemon_->security(), part_.get()));
    engine_ = std::make_unique<rollouter::FollowingEngine>(device_->backend);
    MakeReceiver();
    SYNCOPATE_LOG(kInfo, "rank %d of %s attends rank 0", rank_, daemon_->Member().replica_id);
    const absl::Status obeyed = Obey();
    target_->End(obeyed);  // makes waits for rank 0 return
    if (member_ != nullptr) member_->Stop(kStopGrace);
    return obeyed;
  }

  Attendance& attendance() { return attendance_; }

 private:
  // From here on callbacks can abort the communicator. A loss before this point is returned here.
  absl::Status UseRanks() {
    {
      MutexLock lock(&ended_->mutex);
      ended_->ranks = part_->ranks.get();
    }
    return attendance_.state();
  }

  Attendance::Options MakeAttendanceOptions() const {
    return {.rank0_key = "rollouter.rank0",
            .rank0 = config_.rollouter().rank0(),
            .role = "rollouter",
            .security = daemon_->security(),
            .facts = {.rank = rank_,
                      .world = world_,
                      .config_digest = config::RankConfigDigest(daemon_->config()),
                      .manifest_fingerprint = wire_.fingerprint(),
                      .build = daemon::BuildVersion(),
                      .gpu = place_.gpu,
                      .ranks_address = listener_.address(),
                      .card = card_},
            .secret = [secured = daemon_->security() != nullptr] { return config::FindReplicaSecret(secured); },
            .on_lost = [ended = ended_](const absl::Status& why) { ended->Abort(why); }};
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Meet(const v1::ReplicaServiceAttendResponse::Welcome& welcome) {
    SYNCOPATE_ASSIGN_OR_RETURN(const HostPort rank0, ParseHostPort(config_.rollouter().rank0()));
    return FollowInvitation(place_,
                            {.rank = rank_,
                             .world = world_,
                             .call_deadline = kRankStepDeadline,
                             .security = auth::RankSocketSecurity(daemon_->security(), auth::AuthRole::kRollouter)},
                            &listener_, rank0.host,
                            {.id = welcome.nccl_id(),
                             .addresses = {welcome.ranks_addresses().begin(), welcome.ranks_addresses().end()},
                             .secret = welcome.ranks_secret()},
                            [this] { return attendance_.GoOn(); });
  }

  void MakeReceiver() {
    using Message = v1::ReplicaServiceAttendRequest;
    rollouter::FollowerTarget::Options target;
    target.send_ready = [this](const PolicyVersion& version) {
      Message message;
      *message.mutable_weights_ready()->mutable_version() = wire::ToProto(version);
      attendance_.Write(message);
    };
    target.send_withdrawn = [this](const PolicyVersion& version) {
      Message message;
      *message.mutable_weights_withdrawn()->mutable_version() = wire::ToProto(version);
      attendance_.Write(message);
    };
    target.send_stop_awaited = [this](const PolicyVersion& version) {
      Message message;
      *message.mutable_stop_awaited()->mutable_version() = wire::ToProto(version);
      attendance_.Write(message);
    };
    target.send_abandoned = [this](const PolicyVersion& version, bool overwritten) {
      Message message;
      *message.mutable_transfer_abandoned()->mutable_version() = wire::ToProto(version);
      message.mutable_transfer_abandoned()->set_overwritten(overwritten);
      attendance_.Write(message);
    };
    target.on_lost = [this](const absl::Status& why) {
      ended_->Abort(why);
      attendance_.Stop();
    };
    target_ = std::make_unique<rollouter::FollowerTarget>(device_->backend, std::move(target));
    synchronizer::WeightReceiver::Options receiver;
    receiver.manifest = wire_;
    receiver.member = daemon_->Member();
    receiver.layout = config::MakeRolloutLayout(config_, shape_);
    receiver.on_damaged = [this](const absl::Status& why) {
      ended_->Abort(why);
      attendance_.Stop();
    };
    std::vector<synchronizer::ReceiverTransport*> transports;
    for (const auto& transport : device_->transports) transports.push_back(transport.get());
    receiver_ = std::make_unique<synchronizer::WeightReceiver>(receiver, target_.get(), transports);
    participant_ = std::make_unique<member::ReceiverParticipant>(receiver_.get());
  }

  absl::Status JoinRun() {
    member::MemberClient::Options member;
    member.synchronizer_address = config_.synchronizer().address();
    member.security = daemon_->security();
    member.hello.member = daemon_->Member();
    member.secret = daemon_->secret();
    member.hello.run_id = config_.run().id();
    member.hello.manifest = std::make_shared<const Manifest>(wire_);
    member.hello.layout = config::MakeRolloutLayout(config_, shape_);
    for (const auto& transport : device_->transports) member.hello.transports.push_back(transport->name());
    member.hello.facts = device_->facts;
    member.hello.build = daemon::BuildVersion();
    member.events = daemon_->events();
    // The version that rank 0 has exchanged, not the one that this rank has received: a replica serves as one.
    member.serving = [this] {
      const rollouter::FollowerTarget::Serving serving = target_->serving();
      return member::MemberClient::Serving{serving.version, serving.digest, serving.asleep ? "ASLEEP" : "",
                                           receiver_->base_digest()};
    };
    member.on_refused = [this](const absl::Status& why) {
      ended_->Abort(why);
      attendance_.Stop();
    };
    member.lost_after = config::CheckedDuration(config_.synchronizer().lost_after());
    SYNCOPATE_ASSIGN_OR_RETURN(member_, member::MemberClient::Start(std::move(member), participant_.get()));
    return absl::OkStatus();
  }

  absl::Status Obey() {
    return ended_->Why(
        attendance_.ObeyUntilStopped([this](const v1::ReplicaServiceAttendResponse& order) { return ObeyOrder(order); })
            .status());
  }

  absl::Status ObeyOrder(const v1::ReplicaServiceAttendResponse& order) {
    if (order.has_weights_settled()) {
      target_->EndWithoutExchange(wire::FromProto(order.weights_settled().version()),
                                  order.weights_settled().relabelled());
      return absl::OkStatus();
    }
    if (order.has_weights_lost()) {
      target_->LoseWeights();
      return absl::OkStatus();
    }
    if (order.has_confirm()) {
      v1::ReplicaServiceAttendRequest answer;
      answer.mutable_confirmed()->set_number(order.confirm().number());
      answer.mutable_confirmed()->set_no_room(std::string(engine_->room().message()));
      attendance_.Write(answer);
      return absl::OkStatus();
    }
    SYNCOPATE_ASSIGN_OR_RETURN(const EngineCommand command, FromProto(order));
    SYNCOPATE_RETURN_IF_ERROR(ObeyOne(command));
    if (command.kind != EngineCommand::Kind::kMakeRunner) return absl::OkStatus();
    // The measurement began when the device was opened. Until it ends nobody else measures there, and what a trainer
    // has staged stays there.
    if (device_->card != nullptr) daemon::EndMeasurement(device_->card.get(), engine_->device_bytes());
    // Not earlier: a member of the run may get weights at once, and by now rank 0 has made its runner.
    SYNCOPATE_RETURN_IF_ERROR(JoinRun());
    attendance_.SetReady();
    return absl::OkStatus();
  }

  absl::Status ObeyOne(const EngineCommand& command) {
    // Rank 0 orders an exchange only when every rank has reported that it is ready. If this rank is not, the ranks have
    // diverged and would serve different versions.
    if (command.kind == EngineCommand::Kind::kExchange) SYNCOPATE_RETURN_IF_ERROR(target_->CheckReady(command.version));
    if (command.kind == EngineCommand::Kind::kReleaseWeights) {
      SYNCOPATE_RETURN_IF_ERROR(target_->BeginSleep(command.keep_live, kSleepWithin));
    }
    SYNCOPATE_RETURN_IF_ERROR(engine_->Obey(command));
    if (command.kind == EngineCommand::Kind::kExchange) target_->Exchanged(command.version);
    if (command.kind == EngineCommand::Kind::kBeginInPlace) target_->Stopped(command.version);
    if (command.kind == EngineCommand::Kind::kRestoreWeights && engine_->room().ok()) target_->EndSleep();
    // The synchronizer gives the replica its next version when all ranks take one: it hears of that now, and before
    // rank 0 does, not with a heartbeat.
    const bool changes_held =
        command.kind == EngineCommand::Kind::kReleaseWeights || command.kind == EngineCommand::Kind::kRestoreWeights;
    if (changes_held && member_ != nullptr) member_->Announcer()();
    return absl::OkStatus();
  }

  // Why the replica ends; shared, because callbacks may outlive the follower.
  struct Ended {
    Mutex mutex;
    absl::Status why ABSL_GUARDED_BY(mutex);
    Communicator* ranks ABSL_GUARDED_BY(mutex) = nullptr;  // null while there is none

    void Abort(const absl::Status& reason) {
      MutexLock lock(&mutex);
      if (why.ok()) why = reason;
      if (ranks != nullptr) ranks->Abort(std::string(reason.message()));
    }
    // The first reason if `status` is an error, else OK.
    absl::Status Why(const absl::Status& status) {
      MutexLock lock(&mutex);
      return status.ok() || why.ok() ? status : why;
    }
  };
  // Stops callbacks from using a destroyed communicator; destroyed before it.
  struct Forget {
    std::shared_ptr<Ended> ended;
    ~Forget() {
      MutexLock lock(&ended->mutex);
      ended->ranks = nullptr;
    }
  };

  daemon::Daemon* const daemon_;
  const v1::RunConfig config_;
  const model::ModelConfig shape_;
  const int32_t rank_, world_;
  const std::shared_ptr<Ended> ended_ = std::make_shared<Ended>();
  Manifest wire_;
  RankPlace place_;
  std::string card_;  // that it may share with the trainer; empty: none
  RankListener listener_;
  Attendance attendance_;
  std::unique_ptr<ReplicaPart> part_;
  const Forget forget_{ended_};
  std::shared_ptr<RolloutDevice> device_;
  std::unique_ptr<rollouter::FollowingEngine> engine_;
  std::unique_ptr<rollouter::FollowerTarget> target_;
  std::unique_ptr<synchronizer::WeightReceiver> receiver_;
  std::unique_ptr<member::ReceiverParticipant> participant_;
  std::unique_ptr<member::MemberClient> member_;  // destroyed first: it uses the others
};

}  // namespace

absl::Status FollowReplica(daemon::Daemon* daemon, const v1::RunConfig& config, const model::ModelConfig& shape,
                           int32_t rank) {
  FollowingRollouterRank follower(daemon, config, shape, rank);
  const absl::Status ended = daemon::AttendRank0(daemon, &follower.attendance(), "rank 0 of this replica",
                                                 [&follower] { return follower.Run(); });
  daemon->BeginStop("this rank's work is over", ended);
  return ended;
}

}  // namespace syncopate::rollouterd
