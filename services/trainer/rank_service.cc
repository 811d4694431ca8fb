#include "services/trainer/rank_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "services/wire/codec.h"
#include "trainer/ranks/collective.h"

namespace syncopate::trainerd {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(100);

absl::Status Mismatch(int32_t rank, const std::string& what) {
  return Error(absl::StatusCode::kFailedPrecondition, "RANK_MISMATCH",
               absl::StrCat("trainer rank ", rank, " has ", what,
                            " than rank 0; start all ranks with the same "
                            "configuration and the same build"));
}

// A batch may be many messages, which wait here while a rank still computes.
rpc::StreamOptions AttendStream(absl::Duration silent_after) {
  return {.max_queued_messages = 1 << 20, .max_queued_bytes = int64_t{4} << 30, .silent_after = silent_after};
}

}  // namespace

// One stream; callbacks never overlap.
class RankServiceImpl::Session {
 public:
  Session(RankServiceImpl* service, std::shared_ptr<Stream> stream) : service_(service), stream_(std::move(stream)) {}

  void Handle(const v1::AttendRequest& message) {
    if (rank_ > 0) {
      if (message.has_saved()) service_->NoteSaved(rank_, message.saved());
      return;  // else a heartbeat
    }
    const absl::Status admitted = service_->Admit(message, stream_);
    if (admitted.ok()) {
      rank_ = message.hello().rank();
    } else {
      SYNCOPATE_LOG(kError, "refused the stream of %s: %s", stream_->peer(), admitted.ToString());
      stream_->Finish(admitted);
    }
  }
  void End(const absl::Status& why) {
    if (rank_ > 0) service_->Leave(rank_, why);
  }

 private:
  RankServiceImpl* const service_;
  const std::shared_ptr<Stream> stream_;
  int32_t rank_ = 0;
};

grpc::ServerBidiReactor<v1::AttendRequest, v1::AttendResponse>* RankServiceImpl::Attend(
    grpc::CallbackServerContext* context) {
  auto stream = Stream::Create(context, AttendStream(options_.silent_after));
  auto session = std::make_shared<Session>(this, stream);
  return stream->Start({.on_message = [session](v1::AttendRequest message) { session->Handle(message); },
                        .on_done = [session](const absl::Status& status) { session->End(status); }});
}

absl::Status RankServiceImpl::Admit(const v1::AttendRequest& first, const std::shared_ptr<Stream>& stream) {
  if (!first.has_hello()) {
    return Error(absl::StatusCode::kInvalidArgument, "HELLO_EXPECTED", "the first message of a stream is its hello");
  }
  const v1::AttendRequest::Hello& hello = first.hello();
  absl::Status refusal;
  if (hello.world() != options_.world || hello.rank() < 1 || hello.rank() >= options_.world) {
    refusal = Mismatch(hello.rank(), absl::StrCat("another trainer.world (", hello.world(), ")"));
  } else if (hello.build() != options_.build) {
    refusal = Mismatch(hello.rank(), absl::StrCat("another build (", hello.build(), ")"));
  } else if (hello.manifest_fingerprint() != options_.manifest_fingerprint) {
    refusal = Mismatch(hello.rank(), "another model");
  } else if (hello.config_digest() != options_.config_digest) {
    refusal = Mismatch(hello.rank(), "another configuration");
  } else if (hello.gpu().empty() != options_.gpu.empty()) {
    refusal = Mismatch(hello.rank(), "another kind of device (train.device)");
  }
  {
    MutexLock lock(&mutex_);
    for (const auto& [rank, gpu] : gpus_) {
      if (!refusal.ok() || gpu != hello.gpu() || gpu.empty() || rank == hello.rank()) continue;
      refusal = Error(absl::StatusCode::kFailedPrecondition, "RANK_MISMATCH",
                      absl::StrCat("trainer ranks ", rank, " and ", hello.rank(), " both compute on ", gpu,
                                   "; each needs a GPU of its own: have fewer ranks (trainer.world), or give this "
                                   "host or pod another GPU"));
    }
    // One that comes too late harms nobody who is at work.
    if (stopped_ || streams_.count(hello.rank()) > 0) {
      return Error(absl::StatusCode::kFailedPrecondition, "RANK_TAKEN",
                   absl::StrCat("trainer rank ", hello.rank(), " is there already, or the run is over"));
    }
    if (refusal.ok()) {
      streams_[hello.rank()] = stream;
      gpus_[hello.rank()] = hello.gpu();
    }
  }
  if (!refusal.ok()) Lose(refusal);
  return refusal;
}

void RankServiceImpl::Leave(int32_t rank, const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    if (stopped_) return;
  }
  Lose(trainer::RankLost(absl::StrCat("trainer rank ", rank, " is lost: ", why.ok() ? "it ended" : why.ToString())));
}

void RankServiceImpl::Lose(const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    if (!lost_.ok() || stopped_) return;
    lost_ = why;
  }
  options_.on_lost(why);
}

std::string RankServiceImpl::Missing() const {
  std::string missing;
  for (int32_t rank = 1; rank < options_.world; ++rank) {
    if (streams_.count(rank) == 0) absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
  }
  return missing;
}

absl::Status RankServiceImpl::AwaitRanks(absl::Duration deadline, const std::function<absl::Status()>& go_on) {
  const absl::Time until = Clock::Real()->Now() + deadline;
  while (true) {
    {
      MutexLock lock(&mutex_);
      auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !lost_.ok() || static_cast<int32_t>(streams_.size()) == options_.world - 1;
      };
      if (mutex_.AwaitWithTimeout(Condition(&is_over), kLookEvery)) return lost_;
      if (Clock::Real()->Now() >= until) {
        return trainer::RankLost(absl::StrCat("trainer rank ", Missing(), " of ", options_.world,
                                              " has not come within ", absl::FormatDuration(deadline),
                                              "; is it started, with trainer.rank0?"));
      }
    }
    SYNCOPATE_RETURN_IF_ERROR(go_on());
  }
}

absl::Status RankServiceImpl::Write(const v1::AttendResponse& message) {
  std::map<int32_t, std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(lost_);
    streams = streams_;
  }
  for (const auto& [rank, stream] : streams) {
    if (!stream->Write(message)) return trainer::RankLost(absl::StrCat("trainer rank ", rank, " takes no commands"));
  }
  return absl::OkStatus();
}

absl::Status RankServiceImpl::Welcome(const v1::AttendResponse::Welcome& welcome) {
  v1::AttendResponse message;
  *message.mutable_welcome() = welcome;
  return Write(message);
}

absl::Status RankServiceImpl::Send(const trainer::RankCommand& command,
                                   const std::vector<const TrajectoryGroup*>& groups) {
  for (const TrajectoryGroup* group : groups) {
    v1::AttendResponse message;
    *message.mutable_group() = wire::ToProto(*group);
    // Answers that were given have none, and a message of a trajectory has one for each token.
    for (v1::Trajectory& sample : *message.mutable_group()->mutable_samples()) {
      sample.mutable_logprobs()->Resize(sample.tokens_size(), 0.0f);
    }
    SYNCOPATE_RETURN_IF_ERROR(Write(message));
  }
  v1::AttendResponse message;
  switch (command.kind) {
    case trainer::RankCommand::Kind::kStep:
    case trainer::RankCommand::Kind::kSupervisedStep:
      message.mutable_step()->set_supervised(command.kind == trainer::RankCommand::Kind::kSupervisedStep);
      message.mutable_step()->set_step(command.step);
      message.mutable_step()->set_groups(static_cast<int32_t>(groups.size()));
      break;
    case trainer::RankCommand::Kind::kWriteTensor:
      message.mutable_write_tensor()->set_part(static_cast<int32_t>(command.part));
      message.mutable_write_tensor()->set_tensor(static_cast<int64_t>(command.tensor));
      break;
    case trainer::RankCommand::Kind::kDigest:
      message.mutable_digest();
      break;
    case trainer::RankCommand::Kind::kCopyParameters:
      message.mutable_copy_parameters()->set_dtype(static_cast<int32_t>(command.dtype));
      break;
    case trainer::RankCommand::Kind::kCheckFinite:
      message.mutable_check_finite();
      break;
    case trainer::RankCommand::Kind::kSave:
      message.mutable_save()->set_folder(command.folder);
      break;
    case trainer::RankCommand::Kind::kMoveState:
      message.mutable_move_state()->set_to(static_cast<int32_t>(command.move));
      break;
  }
  return Write(message);
}

void RankServiceImpl::NoteSaved(int32_t rank, const v1::AttendRequest::Saved& saved) {
  absl::StatusOr<trainer::CheckpointStore::Files> files = trainer::CheckpointStore::Files();
  for (const v1::AttendRequest::Saved::File& file : saved.files())
    (*files)[file.name()] = {file.bytes(), file.sha256()};
  if (saved.code() != 0) {
    files = Error(static_cast<absl::StatusCode>(saved.code()), saved.reason(),
                  absl::StrCat("trainer rank ", rank, ": ", saved.message()));
  }
  MutexLock lock(&mutex_);
  saved_[saved.folder()].insert_or_assign(rank, std::move(files));
}

absl::StatusOr<trainer::CheckpointStore::Files> RankServiceImpl::AwaitSaved(const std::string& folder) {
  MutexLock lock(&mutex_);
  auto is_over = [this, &folder]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !lost_.ok() || stopped_ || static_cast<int32_t>(saved_[folder].size()) == options_.world - 1;
  };
  const bool in_time = mutex_.AwaitWithTimeout(Condition(&is_over), options_.save_deadline);
  const auto of_ranks = std::move(saved_[folder]);
  saved_.erase(folder);
  trainer::CheckpointStore::Files files;
  for (const auto& [rank, written] : of_ranks) {
    SYNCOPATE_RETURN_IF_ERROR(written.status());
    files.insert(written->begin(), written->end());
  }
  if (static_cast<int32_t>(of_ranks.size()) == options_.world - 1) return files;
  SYNCOPATE_RETURN_IF_ERROR(lost_);
  return in_time ? trainer::RankLost("the run is over")
                 : Error(absl::StatusCode::kDeadlineExceeded, "SAVE_LATE",
                         absl::StrCat("not all trainer ranks have written their part of a checkpoint within ",
                                      absl::FormatDuration(options_.save_deadline)));
}

absl::Status RankServiceImpl::lost() const {
  MutexLock lock(&mutex_);
  return lost_;
}

void RankServiceImpl::Stop(const absl::Status& why, bool completed) {
  std::map<int32_t, std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(&mutex_);
    if (std::exchange(stopped_, true)) return;
    streams = streams_;
  }
  v1::AttendResponse message;
  message.mutable_stop()->set_completed(completed);
  for (const auto& [rank, stream] : streams) {
    if (why.ok()) stream->Write(message);
    stream->Finish(why);
  }
}

}  // namespace syncopate::trainerd
