#include "services/trainer/trainer_service.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "services/rpc/server_stream.h"
#include "services/rpc/timer.h"
#include "services/rpc/unary.h"
#include "services/wire/codec.h"

namespace syncopate::trainerd {
namespace {

constexpr absl::Duration kTurnPatience = absl::Seconds(30);  // less than a rollouter waits for an answer

}  // namespace

template <typename Request, typename Response>
// A caller that got no answer repeats the call with the same request_id; the work is not done twice.
grpc::ServerUnaryReactor* TrainerServiceImpl::Mutate(const char* method, const Request* request, Response* response,
                                                     absl::Status (RunControl::*work)()) {
  return rpc::AnswerOnce(request_ids_, method, *request, response,
                         [this, work](auto*, rpc::RequestIds::Done done) { done((control_->*work)()); });
}

grpc::ServerUnaryReactor* TrainerServiceImpl::GetStatus(grpc::CallbackServerContext* context,
                                                        const v1::TrainerServiceGetStatusRequest* request,
                                                        v1::TrainerServiceGetStatusResponse* response) {
  *response = control_->GetStatus();
  return rpc::Reply(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* TrainerServiceImpl::Pause(grpc::CallbackServerContext* context,
                                                    const v1::TrainerServicePauseRequest* request,
                                                    v1::TrainerServicePauseResponse* response) {
  return Mutate("Pause", request, response, &RunControl::Pause);
}

grpc::ServerUnaryReactor* TrainerServiceImpl::Resume(grpc::CallbackServerContext* context,
                                                     const v1::TrainerServiceResumeRequest* request,
                                                     v1::TrainerServiceResumeResponse* response) {
  return Mutate("Resume", request, response, &RunControl::Resume);
}

grpc::ServerUnaryReactor* TrainerServiceImpl::Stop(grpc::CallbackServerContext* context, const v1::StopRequest* request,
                                                   v1::StopResponse* response) {
  return Mutate("Stop", request, response, &RunControl::Stop);
}

grpc::ServerUnaryReactor* TrainerServiceImpl::SaveCheckpoint(grpc::CallbackServerContext* context,
                                                             const v1::TrainerServiceSaveCheckpointRequest* request,
                                                             v1::TrainerServiceSaveCheckpointResponse* response) {
  return rpc::AnswerOnce(request_ids_, "SaveCheckpoint", *request, response,
                         [this](v1::TrainerServiceSaveCheckpointResponse* answer, rpc::RequestIds::Done done) {
                           control_->SaveCheckpoint([answer, done](const absl::StatusOr<std::string>& name) {
                             if (name.ok()) answer->set_name(*name);
                             done(name.status());
                           });
                         });
}

grpc::ServerUnaryReactor* TrainerServiceImpl::ExportModel(grpc::CallbackServerContext* context,
                                                          const v1::TrainerServiceExportModelRequest* request,
                                                          v1::TrainerServiceExportModelResponse* response) {
  using Response = v1::TrainerServiceExportModelResponse;
  return rpc::AnswerOnce(request_ids_, "ExportModel", *request, response,
                         [this, request](Response* answer, rpc::RequestIds::Done done) {
                           control_->ExportModel(*request, [answer, done](const absl::StatusOr<Response>& exported) {
                             if (exported.ok()) *answer = *exported;
                             done(exported.status());
                           });
                         });
}

grpc::ServerUnaryReactor* TrainerServiceImpl::RolloutMode(grpc::CallbackServerContext*,
                                                          const v1::TrainerServiceRolloutModeRequest*,
                                                          v1::TrainerServiceRolloutModeResponse* response) {
  // No request_id: a repeated call finds the mode reached and says acted=false.
  auto call = rpc::UnaryCall::Create();
  control_->RolloutMode([call, response](const absl::StatusOr<trainer::StepLoop::ModeChange>& change) {
    if (change.ok()) {
      response->set_acted(change->acted);
      response->set_offload_seconds(change->moves.offload_seconds);
      response->set_moved_bytes(change->moves.bytes);
    }
    call->Finish(change.status());
  });
  return call->Start({});
}

grpc::ServerUnaryReactor* TrainerServiceImpl::TrainerMode(grpc::CallbackServerContext*,
                                                          const v1::TrainerServiceTrainerModeRequest*,
                                                          v1::TrainerServiceTrainerModeResponse* response) {
  auto call = rpc::UnaryCall::Create();
  control_->TrainerMode([call, response](const absl::StatusOr<trainer::StepLoop::ModeChange>& change) {
    if (change.ok()) {
      response->set_acted(change->acted);
      response->set_load_seconds(change->moves.load_seconds);
      response->set_moved_bytes(change->moves.bytes);
    }
    call->Finish(change.status());
  });
  return call->Start({});
}

grpc::ServerWriteReactor<v1::GetModelResponse>* TrainerServiceImpl::GetModel(grpc::CallbackServerContext* context,
                                                                             const v1::GetModelRequest* request) {
  using Stream = rpc::ServerWriteStream<v1::GetModelResponse>;
  auto stream = Stream::Create(context);
  absl::StatusOr<std::shared_ptr<const ModelOffer>> offer = control_->GetModel();
  if (!offer.ok()) {
    stream->Finish(offer.status());
    return stream->Start({});
  }
  // Files that the rollouter already has are not sent again; a tokenizer may have tens of megabytes.
  const std::set<std::string> known(request->have_sha256().begin(), request->have_sha256().end());
  auto reader = std::make_shared<ModelOffer::Reader>(*std::move(offer), known);
  // A rollouter on a shared device ends its call when it has connected: a call that breaks before says that the process
  // has ended while it made its engine.
  const std::set<std::string> cards(request->cards().begin(), request->cards().end());
  const bool stays_open = request->has_member() && control_->TakesTurnsOn(cards);
  // One message at a time: a client that does not read occupies the memory of one.
  const auto write_next = [reader, stays_open](Stream* to) {
    v1::GetModelResponse message;
    if (reader->Next(&message)) {
      to->Write(std::move(message));
    } else if (!stays_open) {
      to->Finish(absl::OkStatus());
    }
  };
  // Ends with the wait, which it belongs to.
  auto patience = std::make_shared<rpc::Timer>();
  patience->Set(kTurnPatience, [stream] {
    stream->Finish(Error(absl::StatusCode::kUnavailable, "TRAINERS_TURN",
                         "the trainer has its turn on the device that it shares with rollouters; ask again"));
  });
  MemberId who;
  if (request->has_member()) {
    const absl::StatusOr<MemberId> member = wire::FromProto(request->member());
    if (!member.ok()) {
      stream->Finish(member.status());
      return stream->Start({});
    }
    who = *member;
  }
  auto forget = control_->CallInRolloutersTurn(who, cards, [write_next, stream, patience] {
    patience->Cancel();
    write_next(stream.get());
  });
  return stream->Start({.on_drained = [write_next, raw = stream.get()] { write_next(raw); },
                        .on_done = [forget = std::move(forget)](const absl::Status&) { forget(); }});
}

grpc::ServerWriteReactor<v1::WatchStepsResponse>* TrainerServiceImpl::WatchSteps(grpc::CallbackServerContext* context,
                                                                                 const v1::WatchStepsRequest* request) {
  auto stream = rpc::ServerWriteStream<v1::WatchStepsResponse>::Create(context);
  const size_t last = static_cast<size_t>(std::max(request->last(), 0));
  // The listener keeps the stream alive; the end of the stream removes the listener.
  trainer::RunReporter::Listener listener;
  listener.on_line = [stream](int64_t step, const std::string& line) {
    v1::WatchStepsResponse response;
    response.set_step(step);
    response.set_metrics_json(line);
    stream->Write(std::move(response));
  };
  listener.on_end = [stream] { stream->Finish(absl::OkStatus()); };
  std::function<void()> unwatch = reporter_->Watch(last, std::move(listener));
  return stream->Start({.on_done = [unwatch](const absl::Status&) { unwatch(); }});
}

}  // namespace syncopate::trainerd
