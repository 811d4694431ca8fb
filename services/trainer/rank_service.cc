#include "services/trainer/rank_service.h"

#include <utility>

#include "services/wire/codec.h"

namespace syncopate::trainerd {
namespace {

rpc::RankStreamsOptions WithWords(rpc::RankStreamsOptions options) {
  options.words = {"trainer rank", "trainer.world", "train.device", "trainer.rank0"};
  return options;
}

}  // namespace

RankServiceImpl::RankServiceImpl(rpc::RankStreamsOptions options) : streams_(WithWords(std::move(options))) {}

absl::Status RankServiceImpl::Welcome(const v1::AttendResponse::Welcome& welcome) {
  v1::AttendResponse message;
  *message.mutable_welcome() = welcome;
  return streams_.Write(message);
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
    SYNCOPATE_RETURN_IF_ERROR(streams_.Write(message));
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
    case trainer::RankCommand::Kind::kMoveState:
      message.mutable_move_state()->set_to(static_cast<int32_t>(command.move));
      break;
  }
  return streams_.Write(message);
}

void RankServiceImpl::Stop(const absl::Status& why, bool completed) {
  v1::AttendResponse message;
  message.mutable_stop()->set_completed(completed);
  streams_.Stop(why, message);
}

}  // namespace syncopate::trainerd
