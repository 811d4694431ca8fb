#include "services/trainer/trajectory_service.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/identity.h"
#include "base/log.h"
#include "base/status.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/status.h"
#include "services/wire/codec.h"

namespace syncopate::trainerd {
namespace {

using ExchangeStream = rpc::ServerBidiStream<v1::ExchangeRequest, v1::ExchangeResponse>;
using Result = trainer::GroupLedger::Result;

v1::ExchangeResponse::AckResult GetAckResult(Result result) {
  switch (result) {
    case Result::kAccepted:
      return v1::ExchangeResponse::ACK_RESULT_ACCEPTED;
    case Result::kAlreadyAccepted:
      return v1::ExchangeResponse::ACK_RESULT_ALREADY_ACCEPTED;
    case Result::kInvalid:
    case Result::kFenced:  // no later submission can make tokens of an older epoch valid
      return v1::ExchangeResponse::ACK_RESULT_INVALID;
    case Result::kExpired:
    case Result::kPending:
      break;
  }
  return v1::ExchangeResponse::ACK_RESULT_LEASE_EXPIRED;
}

// One rollouter's stream. Messages come in on gRPC's threads, one after the other; leases and acknowledgements may be
// sent from any thread. Thread-safe in that sense.
class ExchangeSession final : public trainer::RolloutSink, public std::enable_shared_from_this<ExchangeSession> {
 public:
  ExchangeSession(trainer::TrainingData* data, trainer::TurnDesk* turns, std::set<std::string> cards,
                  std::shared_ptr<ExchangeStream> stream, auth::HelloCaller caller)
      : data_(data), turns_(turns), cards_(std::move(cards)), stream_(std::move(stream)), caller_(std::move(caller)) {}

  void Handle(const v1::ExchangeRequest& message) {
    if (session_ == 0) {
      if (absl::Status status = Begin(message); !status.ok()) {
        SYNCOPATE_LOG(kWarning, "refused the stream of %s: %s", stream_->peer(), status.ToString());
        stream_->Finish(status);
        return;
      }
    } else if (message.has_hello()) {
      stream_->Finish(Error(absl::StatusCode::kInvalidArgument, "HELLO_EXPECTED", "a stream has one hello, its first"));
      return;
    }
    if (message.has_serving()) {
      data_->SetServing(session_, wire::FromProto(message.serving()), wire::FromProto(message.pinned()));
    }
    if (message.has_work()) {
      data_->SetWork(session_, {.generated_tokens = message.work().generated_tokens(),
                                .groups_submitted = message.work().groups_submitted(),
                                .busy_seconds = message.work().busy_seconds(),
                                .idle_seconds = message.work().idle_seconds(),
                                .judge_tokens = message.work().judge_tokens()});
    }
    if (message.has_progress()) HandleProgress(message.progress());
    if (message.has_turn() && shares_card_) HandleTurn(message.turn());
    switch (message.message_case()) {
      case v1::ExchangeRequest::kCredits:
        data_->SetCredits(session_, message.credits().groups(), message.credits().no_rewards());
        break;
      case v1::ExchangeRequest::kGroup:
        HandleGroup(message.group());
        break;
      case v1::ExchangeRequest::kReturnLease: {
        absl::Status why = rpc::FromProto(message.return_lease().error());
        data_->ReturnLease(session_, wire::FromProto(message.return_lease().lease()), why);
        break;
      }
      default:
        break;
    }
  }

  void Ended(const absl::Status& status) {
    if (session_ == 0) return;
    SYNCOPATE_LOG(kInfo, "the stream of %s ended: %s", member_.replica_id, status.ToString());
    data_->Disconnect(session_);
    if (shares_card_) turns_->Disconnect(member_.replica_id, session_, /*in_order=*/status.ok());
  }

  void SendLease(const Lease& lease) override {
    v1::ExchangeResponse response;
    *response.mutable_lease() = wire::ToProto(lease);
    stream_->Write(std::move(response));
  }

  void SendAck(const Ack& ack) override {
    v1::ExchangeResponse response;
    *response.mutable_ack()->mutable_lease() = wire::ToProto(ack.lease);
    response.mutable_ack()->set_result(GetAckResult(ack.result));
    if (!ack.error.ok()) *response.mutable_ack()->mutable_error() = rpc::ToProto(ack.error);
    stream_->Write(std::move(response));
  }

  void SendRevoke(const LeaseId& lease, const std::string& reason) override {
    v1::ExchangeResponse response;
    *response.mutable_revoke()->mutable_lease() = wire::ToProto(lease);
    response.mutable_revoke()->set_reason(reason);
    stream_->Write(std::move(response));
  }

  void Close(const absl::Status& why) override { stream_->Finish(why); }

 private:
  // No lease can come before the welcome, because the rollouter has not given any credits yet.
  absl::Status Begin(const v1::ExchangeRequest& message) {
    if (!message.has_hello()) {
      return Error(absl::StatusCode::kInvalidArgument, "HELLO_EXPECTED", "the first message of a stream is its hello");
    }
    SYNCOPATE_ASSIGN_OR_RETURN(member_, wire::FromProto(message.hello().member()));
    SYNCOPATE_RETURN_IF_ERROR(caller_.CheckIs(member_.role));
    // Incarnations are public; the secret behind one is known only to its process.
    SYNCOPATE_RETURN_IF_ERROR(CheckSpeaksFor(member_, message.hello().secret()));
    SYNCOPATE_ASSIGN_OR_RETURN(session_, data_->Connect(member_, message.hello().run_id(), shared_from_this()));
    SYNCOPATE_LOG(kInfo, "%s (%s) takes prompts", member_.replica_id, stream_->peer());
    v1::ExchangeResponse response;
    const auto& theirs = message.hello().cards();
    shares_card_ = turns_ != nullptr && std::any_of(theirs.begin(), theirs.end(),
                                                    [this](const std::string& card) { return cards_.count(card) > 0; });
    response.mutable_welcome()->set_epoch(data_->version().epoch);
    response.mutable_welcome()->set_takes_turns(shares_card_);
    stream_->Write(std::move(response));
    if (!shares_card_) return absl::OkStatus();
    auto tell = [stream = stream_](bool yield, int64_t turn) {
      v1::ExchangeResponse told;
      told.mutable_turn()->set_number(turn);
      told.mutable_turn()->set_yield(yield);
      stream->Write(std::move(told));
    };
    turns_->Connect(member_.replica_id, member_.incarnation, session_, message.hello().yielded(), std::move(tell));
    return absl::OkStatus();
  }

  void HandleTurn(const v1::ExchangeRequest::CardTurn& message) {
    using State = trainer::TurnDesk::Report::State;
    const auto state = message.state();
    turns_->Record(member_.replica_id, session_,
                   {.turn = message.number(),
                    .state = state == v1::ExchangeRequest::CardTurn::STATE_YIELDED ? State::kYielded
                             : state == v1::ExchangeRequest::CardTurn::STATE_BACK  ? State::kBack
                                                                                   : State::kUnderWay,
                    .moved_bytes = message.moved_bytes()});
  }

  void HandleProgress(const v1::ExchangeRequest::Progress& message) {
    std::vector<LeaseId> leases;
    for (const v1::LeaseId& lease : message.leases()) leases.push_back(wire::FromProto(lease));
    data_->RecordProgress(session_, leases);
    for (const v1::ExchangeRequest::Part& message_part : message.parts()) {
      const absl::StatusOr<AnswerPart> part = wire::FromProto(message_part);
      if (part.ok()) {
        data_->RecordPart(session_, wire::FromProto(message_part.lease()), *part);
      } else {
        SYNCOPATE_LOG(kWarning, "%s reports what cannot be read: %s", member_.replica_id, part.status().ToString());
      }
    }
  }

  void HandleGroup(const v1::TrajectoryGroup& message) {
    absl::StatusOr<TrajectoryGroup> group = wire::FromProto(message);
    // Without this check one rollouter's faults could be counted against another, which would be quarantined.
    if (group.ok() && (group->rollouter != member_.replica_id || group->incarnation != member_.incarnation)) {
      group =
          Error(absl::StatusCode::kInvalidArgument, "WRONG_ROLLOUTER",
                absl::StrCat("the group does not name ", member_.replica_id, ", whose stream this is, as its maker"));
    }
    if (group.ok()) {
      data_->Submit(session_, *std::move(group));
    } else {
      data_->Reject(session_, wire::FromProto(message.lease()), group.status());
    }
  }

  trainer::TrainingData* const data_;
  trainer::TurnDesk* const turns_;
  const std::set<std::string> cards_;  // of the trainer
  const std::shared_ptr<ExchangeStream> stream_;
  const auth::HelloCaller caller_;
  // Used by the stream's callbacks, which never overlap.
  trainer::SessionId session_ = 0;
  MemberId member_;
  bool shares_card_ = false;  // with the trainer
};

}  // namespace

grpc::ServerBidiReactor<v1::ExchangeRequest, v1::ExchangeResponse>* TrajectoryServiceImpl::Exchange(
    grpc::CallbackServerContext* context) {
  auto stream = ExchangeStream::Create(context, options_);
  trainer::TrainingData* data = data_;
  if (data == nullptr) {
    stream->Finish(Error(absl::StatusCode::kUnavailable, "STARTING", "the trainer is starting; try again shortly"));
    return stream->Start({});
  }
  auto session =
      std::make_shared<ExchangeSession>(data, turns_, cards_, stream, auth::HelloCaller(security_.get(), *context));
  return stream->Start({.on_message = [session](v1::ExchangeRequest message) { session->Handle(message); },
                        .on_done = [session](const absl::Status& status) { session->Ended(status); }});
}

}  // namespace syncopate::trainerd
