#include "services/trainer/rank_follower.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/mutex.h"
#include "model/model_config.h"
#include "services/config/trainer_ranks.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/channel.h"
#include "services/trainer/rank_service.h"
#include "services/trainer/train_device.h"
#include "services/wire/codec.h"
#include "syncopate/v1/rank.grpc.pb.h"
#include "trainer/checkpoint/policy_files.h"
#include "trainer/checkpoint/shard_saver.h"
#include "trainer/ranks/late_ranks.h"
#include "trainer/ranks/leading_policy.h"
#include "trainer/ranks/socket_ranks.h"

namespace syncopate::trainerd {
namespace {

constexpr absl::Duration kHeartbeatEvery = absl::Seconds(1);
constexpr absl::Duration kDialEvery = absl::Milliseconds(200);
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr int64_t kMaxMessageBytes = 64 << 20;  // as much as a group may have

using Stream = rpc::ClientBidiStream<v1::AttendRequest, v1::AttendResponse>;

// What rank 0 has said and is not yet done, and whether it still speaks. Filled by gRPC's threads.
class Inbox {
 public:
  void Put(v1::AttendResponse message) {
    MutexLock lock(&mutex_);
    begun_ = true;
    messages_.push_back(std::move(message));
  }
  bool has_begun() {
    MutexLock lock(&mutex_);
    return begun_;
  }
  // OK, or how it ended if nobody says anything any more.
  absl::Status state() {
    MutexLock lock(&mutex_);
    if (!ended_) return absl::OkStatus();
    return why_.ok() ? trainer::RankLost("rank 0 has ended the stream before the ranks had met") : why_;
  }
  void End(const absl::Status& why) {
    MutexLock lock(&mutex_);
    ended_ = true;
    why_ = why;
  }
  // The next message; once all are taken, how the stream ended. Blocks: heartbeats and keepalive bound it.
  absl::StatusOr<v1::AttendResponse> Take() {
    MutexLock lock(&mutex_);
    auto is_there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ || !messages_.empty(); };
    mutex_.Await(Condition(&is_there));
    if (messages_.empty()) {
      return why_.ok() ? trainer::RankLost("rank 0 has ended the stream without saying that the run is over") : why_;
    }
    v1::AttendResponse message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

 private:
  Mutex mutex_;
  std::deque<v1::AttendResponse> messages_ ABSL_GUARDED_BY(mutex_);
  bool begun_ ABSL_GUARDED_BY(mutex_) = false, ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
};

// Nobody listens yet, or somebody else does.
bool MayComeLater(const absl::Status& status) {
  return (absl::IsUnavailable(status) || absl::IsUnimplemented(status)) && ErrorReason(status).empty();
}

// A stream that broke is rank 0 lost; what rank 0 said itself is the reason.
absl::Status AsLost(const absl::Status& why) {
  if (why.ok() || !ErrorReason(why).empty()) return why;
  return trainer::RankLost(absl::StrCat("rank 0 is lost: ", why.ToString()));
}

class Follower {
 public:
  Follower(daemon::Daemon* daemon, config::RunModel model, int32_t rank)
      : daemon_(daemon),
        model_(std::move(model)),
        rank_(rank),
        world_(static_cast<int32_t>(daemon->config().trainer().world())),
        ranks_(std::make_shared<trainer::LateRanks>(rank_, world_)) {}
  ~Follower() {
    if (saver_ != nullptr) saver_->Abort();
    if (const auto stream = CurrentStream(); stream != nullptr) stream->Cancel();
  }

  // The computing thread.
  absl::Status Run() {
    SYNCOPATE_ASSIGN_OR_RETURN(device_, OpenRankDevice(daemon_->config(), rank_));
    SYNCOPATE_ASSIGN_OR_RETURN(auto options, InitialPolicyOptions(daemon_->config(), model_, device_));
    options.ranks = ranks_.get();
    SYNCOPATE_ASSIGN_OR_RETURN(policy_, trainer::PolicyTrainer::Create(options));
    saver_ = std::make_unique<trainer::ShardSaver>(
        FileSystem::Real(), CheckpointFolder(),
        [this](const std::string& folder, const auto& written) { SendSaved(folder, written); });
    SYNCOPATE_ASSIGN_OR_RETURN(const v1::AttendResponse::Welcome welcome, AwaitWelcome());
    SYNCOPATE_LOG(kInfo, "trainer rank %d of run %s, epoch %d", rank_, welcome.run_id(), welcome.epoch());
    SYNCOPATE_RETURN_IF_ERROR(Restore(wire::FromProto(welcome.restore())));
    SYNCOPATE_RETURN_IF_ERROR(Meet(welcome));
    ready_.store(true);
    return Obey();
  }

  // From another thread.
  void SendHeartbeat() {
    v1::AttendRequest message;
    message.mutable_heartbeat();
    if (const auto stream = CurrentStream(); stream != nullptr) stream->Write(std::move(message));
  }
  // What became of this rank's part of a checkpoint.
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
      SYNCOPATE_LOG(kError, "this rank's part of a checkpoint is not there: %s", written.status().ToString());
      saved->set_code(static_cast<int32_t>(written.status().code()));
      saved->set_reason(ErrorReason(written.status()));
      saved->set_message(std::string(written.status().message()));
    }
    if (const auto stream = CurrentStream(); stream != nullptr) stream->Write(std::move(message));
  }
  bool ready() const { return ready_.load(); }
  // Once Run() has returned OK.
  bool completed() const { return completed_.load(); }
  // Ends the waits of Run() soon.
  void Stop() {
    stopped_.store(true);
    if (const auto stream = CurrentStream(); stream != nullptr) stream->Cancel();
  }

 private:
  std::shared_ptr<Stream> CurrentStream() {
    MutexLock lock(&mutex_);
    return stream_;
  }

  // Dials until rank 0 answers: it may be started later than this process.
  absl::StatusOr<v1::AttendResponse::Welcome> AwaitWelcome() {
    const absl::Time until = Clock::Real()->Now() + kRanksMeetWithin;
    while (true) {
      SYNCOPATE_RETURN_IF_ERROR(Dial());
      absl::StatusOr<v1::AttendResponse> first = inbox_->Take();
      if (first.ok() && first->has_welcome()) return first->welcome();
      if (first.ok()) return trainer::RankLost("rank 0 began with something else than its welcome");
      if (stopped_.load()) return Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop before it had begun");
      if (!MayComeLater(first.status())) return AsLost(first.status());
      if (Clock::Real()->Now() >= until) {
        return trainer::RankLost(absl::StrCat("nobody answers at trainer.rank0 ", daemon_->config().trainer().rank0(),
                                              ": ", first.status().ToString()));
      }
      MutexLock lock(&mutex_);
      const bool never = false;
      mutex_.AwaitWithTimeout(Condition(&never), kDialEvery);
    }
  }

  absl::Status Dial() {
    SYNCOPATE_ASSIGN_OR_RETURN(
        auto channel, rpc::MakeChannel(daemon_->config().trainer().rank0(), {.max_receive_bytes = kMaxMessageBytes,
                                                                             .security = daemon_->security(),
                                                                             .peer_role = "trainer"}));
    const auto stub = v1::RankService::NewStub(channel);
    auto inbox = std::make_shared<Inbox>();
    auto stream = Stream::Create();
    v1::AttendRequest message;
    v1::AttendRequest::Hello* hello = message.mutable_hello();
    hello->set_rank(rank_);
    hello->set_world(world_);
    hello->set_config_digest(config::RankConfigDigest(daemon_->config()));
    hello->set_manifest_fingerprint(policy_->manifest().fingerprint());
    hello->set_build(daemon::BuildVersion());
    hello->set_gpu(device_.gpu);
    stream->Write(std::move(message));
    stream->Start([&stub](auto* context, auto* reactor) { stub->async()->Attend(context, reactor); },
                  {.on_message = [inbox](v1::AttendResponse said) { inbox->Put(std::move(said)); },
                   .on_done =
                       [inbox, ranks = ranks_](const absl::Status& why) {
                         // A collective would wait for rank 0 until its deadline. One that never answered is dialled
                         // again.
                         if (!why.ok() && inbox->has_begun()) ranks->Abort(std::string(AsLost(why).message()));
                         inbox->End(why);
                       }});
    MutexLock lock(&mutex_);
    stream_ = std::move(stream);
    inbox_ = std::move(inbox);
    return absl::OkStatus();
  }

  std::string CheckpointFolder() const {
    const std::string& dir = daemon_->config().checkpoint().dir();
    return dir.empty() ? daemon_->Path("checkpoints") : dir;
  }

  // From the files of the checkpoint that rank 0 has verified; this rank reads its shards of them.
  absl::Status Restore(const PolicyVersion& version) {
    if (version.IsNone()) return absl::OkStatus();
    const std::string folder = JoinPath(CheckpointFolder(), version.ToString());
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string text,
                               ReadFile(FileSystem::Real(), JoinPath(folder, trainer::kCheckpointManifestName),
                                        trainer::kMaxCheckpointManifestBytes));
    SYNCOPATE_ASSIGN_OR_RETURN(const trainer::CheckpointManifest checkpoint, trainer::ParseCheckpointManifest(text));
    SYNCOPATE_ASSIGN_OR_RETURN(const trainer::MappedPolicy saved, trainer::MapPolicy(
                                                                      policy_->manifest(), checkpoint.ranks,
                                                                      [&folder](const std::string& name) {
                                                                        return MappedFile::Open(JoinPath(folder, name));
                                                                      },
                                                                      /*looks_at_numbers=*/false));
    SYNCOPATE_LOG(kInfo, "restored checkpoint %s", version.ToString());
    return policy_->Restore(saved.policy);
  }

  absl::Status Meet(const v1::AttendResponse::Welcome& welcome) {
    if (device_.join != nullptr) {
      auto go_on = [this]() -> absl::Status {
        if (stopped_.load()) return Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop before it had begun");
        return AsLost(inbox_->state());
      };
      SYNCOPATE_ASSIGN_OR_RETURN(auto joined, device_.join(welcome.nccl_id(), rank_, go_on));
      ranks_->Connect(std::move(joined));
      return absl::OkStatus();
    }
    SYNCOPATE_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(welcome.ranks_address()));
    trainer::RankSecret secret;
    if (welcome.ranks_secret().size() != secret.size()) return trainer::RankLost("rank 0's welcome is damaged");
    std::copy(welcome.ranks_secret().begin(), welcome.ranks_secret().end(), secret.begin());
    SYNCOPATE_ASSIGN_OR_RETURN(auto joined,
                               trainer::JoinRanks(address, secret, rank_, world_, kRanksMeetWithin, kRankCallDeadline));
    ranks_->Connect(std::move(joined));
    return absl::OkStatus();
  }

  absl::Status Obey() {
    std::vector<TrajectoryGroup> groups;
    while (true) {
      absl::StatusOr<v1::AttendResponse> said = inbox_->Take();
      if (!said.ok()) return AsLost(said.status());
      if (said->has_stop()) {
        completed_.store(said->stop().completed());
        return absl::OkStatus();
      }
      if (said->has_group()) {
        SYNCOPATE_ASSIGN_OR_RETURN(groups.emplace_back(), wire::FromProto(said->group()));
        continue;
      }
      SYNCOPATE_RETURN_IF_ERROR(ObeyOne(*said, groups));
      groups.clear();
    }
  }

  absl::Status ObeyOne(const v1::AttendResponse& said, std::vector<TrajectoryGroup>& groups) {
    using Kind = trainer::RankCommand::Kind;
    trainer::RankCommand command;
    std::vector<const TrajectoryGroup*> batch;
    switch (said.message_case()) {
      case v1::AttendResponse::kStep:
        command.kind = said.step().supervised() ? Kind::kSupervisedStep : Kind::kStep;
        command.step = said.step().step();
        for (TrajectoryGroup& group : groups) {
          batch.push_back(&group);
          if (!said.step().supervised()) continue;
          for (Trajectory& sample : group.samples) sample.logprobs.clear();  // they had none before they travelled
        }
        if (static_cast<int32_t>(batch.size()) != said.step().groups())
          return trainer::RankLost("a batch is not whole");
        break;
      case v1::AttendResponse::kWriteTensor:
        command = {.kind = Kind::kWriteTensor,
                   .part = static_cast<trainer::PolicyPart>(said.write_tensor().part()),
                   .tensor = static_cast<size_t>(said.write_tensor().tensor())};
        if (command.tensor >= policy_->manifest().tensors().size()) return trainer::RankLost("no such tensor");
        break;
      case v1::AttendResponse::kCopyParameters:
        command.kind = Kind::kCopyParameters;
        command.dtype = static_cast<DType>(said.copy_parameters().dtype());
        break;
      case v1::AttendResponse::kDigest:
        command.kind = Kind::kDigest;
        break;
      case v1::AttendResponse::kSave:
        // The copy before is used again.
        saver_->Wait();
        saver_->Save(said.save().folder(), policy_->TakeSnapshot(said.save().folder()));
        return absl::OkStatus();
      case v1::AttendResponse::kCheckFinite:
        command.kind = Kind::kCheckFinite;
        break;
      case v1::AttendResponse::kMoveState:
        command = {.kind = Kind::kMoveState, .move = static_cast<trainer::RankCommand::Move>(said.move_state().to())};
        if (said.move_state().to() < 0 || command.move > trainer::RankCommand::Move::kTrainerMode) {
          return trainer::RankLost("rank 0 orders no move that there is");
        }
        break;
      default:
        return Error(absl::StatusCode::kInternal, "RANK_MISMATCH", "rank 0 says what this build does not know");
    }
    return trainer::ObeyCommand(*policy_, command, batch);
  }

  daemon::Daemon* const daemon_;
  const config::RunModel model_;
  const int32_t rank_, world_;
  RankDevice device_;
  const std::shared_ptr<trainer::LateRanks> ranks_;  // the stream's callbacks have it too
  std::unique_ptr<trainer::PolicyTrainer> policy_;
  std::shared_ptr<Inbox> inbox_;  // of the stream; the computing thread's
  std::atomic<bool> ready_ = false, stopped_ = false, completed_ = false;
  Mutex mutex_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<trainer::ShardSaver> saver_;  // last: its thread uses the stream
};

absl::Status NotThereYet() {
  return Error(absl::StatusCode::kUnavailable, "STARTING", "waits for trainer rank 0 and the other ranks");
}

}  // namespace

absl::Status FollowRank0(daemon::Daemon* daemon, config::RunModel model, int32_t rank) {
  SYNCOPATE_RETURN_IF_ERROR(daemon->StartMetrics(daemon->config().metrics().trainer_listen()).status());
  Follower follower(daemon, std::move(model), rank);
  std::future<absl::Status> running = std::async(std::launch::async, [&follower] { return follower.Run(); });
  absl::Time next_heartbeat = Clock::Real()->Now();
  while (running.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    daemon->health().Moved();
    daemon->health().SetReady(follower.ready() ? absl::OkStatus() : NotThereYet());
    if (const absl::Time now = Clock::Real()->Now(); now >= next_heartbeat) {
      next_heartbeat = now + kHeartbeatEvery;
      follower.SendHeartbeat();
    }
    // Before the ranks have met nobody else would end this wait.
    if (daemon->StopRequested(kTick) && !follower.ready()) follower.Stop();
    running.wait_for(absl::ToChronoMilliseconds(kTick));
  }
  const absl::Status ended = running.get();
  // As rank 0 does: whoever runs this would start it again.
  while (ended.ok() && follower.completed() && !daemon->exit_on_completion() && !daemon->StopRequested(kTick)) {
    daemon->health().Moved();
  }
  daemon->BeginStop("this rank's work is over", ended);
  return ended;
}

}  // namespace syncopate::trainerd
