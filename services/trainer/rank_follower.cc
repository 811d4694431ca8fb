#include "services/trainer/rank_follower.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/daemon/card_name.h"
#include "base/daemon/daemon_endpoints.h"
#include "base/file_system.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/mutex.h"
#include "ranks/meeting.h"
#include "services/auth/rank_sockets.h"
#include "services/config/ranks.h"
#include "services/daemon/attend_rank0.h"
#include "services/member/weight_service.h"
#include "services/rpc/rank_attendance.h"
#include "services/trainer/rank_service.h"
#include "services/trainer/run_paths.h"
#include "services/trainer/train_device.h"
#include "services/trainer/trainer_membership.h"
#include "services/wire/codec.h"
#include "syncopate/v1/rank.grpc.pb.h"
#include "trainer/checkpoint/policy_files.h"
#include "trainer/checkpoint/shard_saver.h"
#include "trainer/ranks/follower_stager.h"
#include "trainer/ranks/leading_policy.h"
#include "trainer/turns/card_turns.h"

namespace syncopate::trainerd {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kStopGrace = absl::Seconds(1);
constexpr absl::Duration kReasonWithin = absl::Seconds(2);      // of a lost connection, from rank 0
constexpr absl::Duration kDismissedWithin = absl::Seconds(10);  // after rank 0 has heard of a refusal

using Attendance = rpc::RankAttendance<v1::RankService, v1::AttendRequest, v1::AttendResponse>;

class FollowingTrainerRank {
 public:
  FollowingTrainerRank(daemon::Daemon* daemon, config::RunModel model, int32_t rank)
      : daemon_(daemon),
        model_(std::move(model)),
        rank_(rank),
        world_(static_cast<int32_t>(daemon->config().trainer().world())) {}
  ~FollowingTrainerRank() {
    if (saver_ != nullptr) saver_->Abort();
    if (exporter_ != nullptr) exporter_->Abort();
    if (membership_ != nullptr) membership_->Leave("the run is over");
    if (membership_ != nullptr) membership_->Stop();
    if (server_ != nullptr) server_->Stop(kStopGrace);
  }
  // Runs on the computing thread.
  absl::Status Run() {
    // All ranks make their shards of the same initial weights from the seed, or read them from the same files: no
    // weights are sent.
    SYNCOPATE_ASSIGN_OR_RETURN(device_, OpenTrainDevice(daemon_->config(), std::move(model_), rank_));
    saver_ = std::make_unique<trainer::ShardSaver>(
        FileSystem::Real(), CheckpointFolder(),
        [this](const std::string& folder, const auto& written) { SendSaved(folder, written); });
    // A thread for exports alone, so that no checkpoint's copy waits for an export.
    exporter_ = std::make_unique<trainer::ShardSaver>(
        FileSystem::Real(), daemon_->Path(kExportsFolder),
        [this](const std::string& folder, const auto& written) { SendSaved(folder, written); });
    stagings_ = std::make_unique<trainer::FollowerStager>(
        device_.stager.get(),
        [this](const PolicyVersion& version, const auto& staged) { SendStaged(version, staged); });
    SYNCOPATE_ASSIGN_OR_RETURN(const config::ListenAddress listen,
                               config::GetTrainerRanksListen(daemon_->config().trainer()));
    SYNCOPATE_ASSIGN_OR_RETURN(listener_, RankListener::Open(device_.device.place, listen.address, listen.key));
    SYNCOPATE_RETURN_IF_ERROR(Listen());
    SYNCOPATE_ASSIGN_OR_RETURN(const v1::AttendResponse::Welcome welcome,
                               attendance_.Begin(MakeAttendanceOptions(), kRanksMeetWithin));
    SYNCOPATE_LOG(kInfo, "trainer rank %d of run %s, epoch %d", rank_, welcome.run_id(), welcome.epoch());
    SYNCOPATE_RETURN_IF_ERROR(Join(welcome));
    SYNCOPATE_RETURN_IF_ERROR(Restore(wire::FromProto(welcome.restore())));
    turn_bytes_ = CountTurnBytes(device_);
    const absl::Status ended = MeetAndObey(welcome);
    // Connections between ranks break sooner than rank 0 says on this rank's stream why it ends the group.
    return ErrorReason(ended) == "RANK_LOST" ? attendance_.AwaitEnd(kReasonWithin, ended) : ended;
  }

  // OK, or why the synchronizer has refused this rank. Thread-safe.
  absl::Status refused() {
    MutexLock lock(&mutex_);
    return refused_;
  }
  Attendance& attendance() { return attendance_; }
  // Valid after Run() has returned OK.
  bool completed() const { return completed_; }

 private:
  absl::Status MeetAndObey(const v1::AttendResponse::Welcome& welcome) {
    SYNCOPATE_RETURN_IF_ERROR(Meet(welcome));
    attendance_.SetReady();
    return Obey();
  }

  // Serves this rank's send slots and health at trainer.listen.
  absl::Status Listen() {
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string metrics,
                               daemon_->StartMetrics(daemon_->config().metrics().trainer_listen()));
    weight_service_ = std::make_unique<member::WeightServiceImpl>(device_.stager->store());
    SYNCOPATE_ASSIGN_OR_RETURN(server_, daemon_->StartServer(daemon_->config().trainer().listen(),
                                                             {weight_service_.get()}, {"syncopate.v1.WeightService"}));
    const std::string& advertised = daemon_->config().trainer().advertise();
    membership_ = std::make_unique<TrainerMembership>(
        TrainerMembership::Options{.daemon = daemon_,
                                   .device = &device_,
                                   .address = advertised.empty() ? server_->address() : advertised,
                                   .metrics_address = metrics,
                                   .on_refused = [this](const absl::Status& why) { SendRefused(why); }});
    return absl::OkStatus();
  }

  // Joins the synchronizer as a rank of rank 0's start, in its epoch. A refusal goes to rank 0, which ends the group
  // with it.
  absl::Status Join(const v1::AttendResponse::Welcome& welcome) {
    const absl::Status joined = membership_
                                    ->Join({.run_id = welcome.run_id(),
                                            .checkpoint_epoch = welcome.epoch(),
                                            .start = welcome.start(),
                                            .held_epoch = welcome.epoch()})
                                    .status();
    if (joined.ok() || absl::IsCancelled(joined)) return joined;
    SendRefused(joined);
    return attendance_.AwaitEnd(kDismissedWithin, joined);
  }

  // Any thread.
  void SendRefused(const absl::Status& why) {
    SYNCOPATE_LOG(kError, "this rank is refused: %s", why.ToString());
    {
      MutexLock lock(&mutex_);
      if (refused_.ok()) refused_ = why;
    }
    v1::AttendRequest message;
    message.mutable_refused()->set_code(static_cast<int32_t>(why.code()));
    message.mutable_refused()->set_reason(ErrorReason(why));
    message.mutable_refused()->set_message(std::string(why.message()));
    attendance_.Write(message);
  }

  // Reports to rank 0 what became of this rank's part of a version.
  void SendStaged(const PolicyVersion& version, const absl::StatusOr<trainer::WeightStager::Staged>& staged) {
    v1::AttendRequest message;
    v1::AttendRequest::Staged* const report = message.mutable_staged();
    *report->mutable_version() = wire::ToProto(version);
    if (staged.ok()) {
      report->mutable_bucket_digests()->Assign(staged->bucket_digests.begin(), staged->bucket_digests.end());
      report->set_seconds(staged->seconds);
    } else {
      SYNCOPATE_LOG(kError, "this rank's part of version %s is not there: %s", version.ToString(),
                    staged.status().ToString());
      report->set_code(static_cast<int32_t>(staged.status().code()));
      report->set_reason(ErrorReason(staged.status()));
      report->set_message(std::string(staged.status().message()));
      const ErrorMetadata details = ErrorDetails(staged.status());
      if (const auto tensor = details.find("tensor"); tensor != details.end()) report->set_tensor(tensor->second);
    }
    attendance_.Write(message);
  }

  // Reports to rank 0 whether this rank's part of a checkpoint or an export was written.
  void SendSaved(const std::string& folder, const absl::StatusOr<trainer::CheckpointStore::Files>& written) {
    v1::AttendRequest message;
    v1::AttendRequest::Saved* const saved = message.mutable_saved();
    saved->set_folder(folder);
    if (written.ok()) {
      for (const auto& [name, file] : *written) {
        v1::AttendRequest::Saved::File* const one = saved->add_files();
        one->set_name(name);
        one->set_bytes(file.bytes);
        one->set_sha256(file.sha256);
      }
    } else {
      SYNCOPATE_LOG(kError, "this rank's part of %s is not there: %s", folder, written.status().ToString());
      saved->set_code(static_cast<int32_t>(written.status().code()));
      saved->set_reason(ErrorReason(written.status()));
      saved->set_message(std::string(written.status().message()));
    }
    attendance_.Write(message);
  }

  Attendance::Options MakeAttendanceOptions() const {
    const v1::RunConfig& config = daemon_->config();
    return {.rank0_key = "trainer.rank0",
            .rank0 = config.trainer().rank0(),
            .role = "trainer",
            .security = daemon_->security(),
            .facts = {.rank = rank_,
                      .world = world_,
                      .config_digest = config::RankConfigDigest(config),
                      .manifest_fingerprint = device_.policy->manifest().fingerprint(),
                      .build = daemon::BuildVersion(),
                      .gpu = device_.device.place.gpu,
                      .ranks_address = listener_.address(),
                      .card = daemon::CardName(device_.facts.gpu_uuid)},
            .secret = [run_dir = daemon_->run_dir()] { return daemon::ReadRanksSecret(run_dir); },
            .on_lost = [ranks = device_.ranks](const absl::Status& why) { ranks->Abort(std::string(why.message())); }};
  }

  std::string CheckpointFolder() const {
    const std::string& dir = daemon_->config().checkpoint().dir();
    return dir.empty() ? daemon_->Path("checkpoints") : dir;
  }

  // Reads this rank's shards from the files of the checkpoint that rank 0 has verified.
  absl::Status Restore(const PolicyVersion& version) {
    if (version.IsNone()) return absl::OkStatus();
    const std::string folder = JoinPath(CheckpointFolder(), version.ToString());
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string text,
                               ReadFile(FileSystem::Real(), JoinPath(folder, trainer::kCheckpointManifestName),
                                        trainer::kMaxCheckpointManifestBytes));
    SYNCOPATE_ASSIGN_OR_RETURN(const trainer::CheckpointManifest checkpoint, trainer::ParseCheckpointManifest(text));
    SYNCOPATE_ASSIGN_OR_RETURN(const trainer::MappedPolicy saved, trainer::MapPolicy(
                                                                      device_.policy->trained(), checkpoint,
                                                                      [&folder](const std::string& name) {
                                                                        return MappedFile::Open(JoinPath(folder, name));
                                                                      },
                                                                      /*looks_at_numbers=*/false));
    SYNCOPATE_LOG(kInfo, "restored checkpoint %s", version.ToString());
    return device_.policy->Restore(saved.policy);
  }

  absl::Status Meet(const v1::AttendResponse::Welcome& welcome) {
    SYNCOPATE_ASSIGN_OR_RETURN(const HostPort rank0, ParseHostPort(daemon_->config().trainer().rank0()));
    SYNCOPATE_ASSIGN_OR_RETURN(
        auto joined,
        FollowInvitation(device_.device.place,
                         {.rank = rank_,
                          .world = world_,
                          .call_deadline = kRankCallDeadline,
                          .security = auth::RankSocketSecurity(daemon_->security(), auth::AuthRole::kTrainer)},
                         &listener_, rank0.host,
                         {.id = welcome.nccl_id(),
                          .addresses = {welcome.ranks_addresses().begin(), welcome.ranks_addresses().end()},
                          .secret = welcome.ranks_secret()},
                         [this] { return attendance_.GoOn(); }));
    listener_ = RankListener();  // nobody else may come
    device_.ranks->Connect(std::move(joined));
    return absl::OkStatus();
  }

  absl::Status Obey() {
    std::vector<TrajectoryGroup> groups;
    SYNCOPATE_ASSIGN_OR_RETURN(const v1::AttendResponse::Stop stop,
                               attendance_.ObeyUntilStopped([&](const v1::AttendResponse& order) -> absl::Status {
                                 if (order.has_group()) {
                                   SYNCOPATE_ASSIGN_OR_RETURN(groups.emplace_back(), wire::FromProto(order.group()));
                                   return absl::OkStatus();
                                 }
                                 SYNCOPATE_RETURN_IF_ERROR(ObeyOne(order, groups));
                                 groups.clear();
                                 return absl::OkStatus();
                               }));
    completed_ = stop.completed();
    return absl::OkStatus();
  }

  absl::Status ObeyOne(const v1::AttendResponse& said, std::vector<TrajectoryGroup>& groups) {
    using Kind = trainer::PolicyCommand::Kind;
    trainer::PolicyCommand command;
    std::vector<const TrajectoryGroup*> batch;
    switch (said.message_case()) {
      case v1::AttendResponse::kStep:
        command.kind = said.step().held_out()     ? Kind::kMeasureSupervised
                       : said.step().supervised() ? Kind::kSupervisedStep
                                                  : Kind::kStep;
        command.step = said.step().step();
        for (TrajectoryGroup& group : groups) {
          batch.push_back(&group);
          if (!said.step().supervised()) continue;
          for (Trajectory& sample : group.samples) sample.logprobs.clear();  // they had none before sending
        }
        // Each group is one message, because a whole batch could exceed the size limit of a message.
        if (static_cast<int32_t>(batch.size()) != said.step().groups()) return RankLost("a batch is not whole");
        break;
      case v1::AttendResponse::kWriteTensor:
        command = {.kind = Kind::kWriteTensor,
                   .part = static_cast<trainer::PolicyPart>(said.write_tensor().part()),
                   .tensor = static_cast<size_t>(said.write_tensor().tensor())};
        if (command.tensor >= device_.policy->trained().tensors().size()) return RankLost("no such tensor");
        break;
      case v1::AttendResponse::kStage:
        stagings_->Stage(wire::FromProto(said.stage().version()));
        return absl::OkStatus();
      case v1::AttendResponse::kDigest:
        command.kind = Kind::kDigest;
        break;
      case v1::AttendResponse::kSave:
        // The buffer of the previous snapshot is used again.
        SYNCOPATE_RETURN_IF_ERROR(saver_->Wait());
        saver_->Save(said.save().folder(), device_.policy->TakeSnapshot(said.save().folder()));
        return absl::OkStatus();
      case v1::AttendResponse::kExportWeights:
        // Rank 0 orders the next one when this one is written.
        exporter_->Save(said.export_weights().folder(), device_.policy->TakeWeights(said.export_weights().folder()));
        return absl::OkStatus();
      case v1::AttendResponse::kCheckFinite:
        command.kind = Kind::kCheckFinite;
        break;
      case v1::AttendResponse::kMoveState:
        command = {.kind = Kind::kMoveState, .move = static_cast<trainer::PolicyCommand::Move>(said.move_state().to())};
        if (said.move_state().to() < 0 || command.move > trainer::PolicyCommand::Move::kStagedLeaves) {
          return RankLost("rank 0 orders no move that there is");
        }
        if (command.move == trainer::PolicyCommand::Move::kStagedLeaves) {
          stagings_->Leave(device_.device.hold_card);
          return absl::OkStatus();
        }
        if (command.move == trainer::PolicyCommand::Move::kTrainerMode) SYNCOPATE_RETURN_IF_ERROR(BeginTurn());
        break;
      default:
        return Error(absl::StatusCode::kInternal, "RANK_MISMATCH", "rank 0 says what this build does not know");
    }
    return trainer::ObeyCommand(*device_.policy, command, batch);
  }

  // The rollouters on this rank's device have left it, but memory of a process goes later than the process.
  absl::Status BeginTurn() {
    stagings_->Stay();
    if (!daemon_->config().run().share_gpu()) return absl::OkStatus();
    const absl::Time deadline = Clock::Real()->Now() + trainer::CardTurns::Options().room_limit;
    for (;;) {
      const absl::Status room = CheckTurnRoom(device_, turn_bytes_);
      if (!absl::IsResourceExhausted(room)) return room;
      if (daemon_->StopRequested(kTick)) {
        return Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop before the device had room for a turn");
      }
      if (Clock::Real()->Now() >= deadline) {
        return Error(absl::StatusCode::kFailedPrecondition, "TURN_STUCK",
                     absl::StrCat("the device of trainer rank ", rank_,
                                  " has no room for its turn: ", std::string(room.message())));
      }
    }
  }

  daemon::Daemon* const daemon_;
  config::RunModel model_;
  const int32_t rank_, world_;
  int64_t turn_bytes_ = 0;
  Mutex mutex_;
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
  TrainDevice device_;
  RankListener listener_;
  Attendance attendance_;
  bool completed_ = false;
  std::unique_ptr<member::WeightServiceImpl> weight_service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<TrainerMembership> membership_;
  // Last: their threads use the stream.
  std::unique_ptr<trainer::ShardSaver> saver_, exporter_;
  std::unique_ptr<trainer::FollowerStager> stagings_;
};

}  // namespace

absl::Status FollowRank0(daemon::Daemon* daemon, config::RunModel model, int32_t rank) {
  FollowingTrainerRank follower(daemon, std::move(model), rank);
  absl::Status ended =
      daemon::AttendRank0(daemon, &follower.attendance(), "trainer rank 0", [&follower] { return follower.Run(); });
  // Stays alive like rank 0 after a complete run: it goes on serving its shard to rollouters that come late, and a
  // supervisor would start a process again that ended.
  while (ended.ok() && follower.completed() && !daemon->exit_on_completion() && !daemon->StopRequested(kTick)) {
    daemon->health().Moved();
    ended = follower.refused();
  }
  daemon->BeginStop("this rank's work is over", ended);
  return ended;
}

}  // namespace syncopate::trainerd
