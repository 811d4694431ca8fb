#include "services/synchronizer/join_session.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "base/identity.h"
#include "services/wire/codec.h"
#include "services/wire/sync_codec.h"

namespace syncopate::synchronizerd {
namespace {

using synchronizer::ControlLoop;
using synchronizer::ControlPlane;
using Kind = synchronizer::ControlLoop::Kind;

constexpr size_t kMaxReasonBytes = 256;  // of a leave's reason; the member chooses its length

absl::Status BadMessage(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", message);
}

}  // namespace

grpc::ServerBidiReactor<v1::JoinRequest, v1::JoinResponse>* JoinSession::Serve(std::shared_ptr<Stream> stream,
                                                                               auth::HelloCaller caller,
                                                                               ControlLoop* loop) {
  auto session = std::shared_ptr<JoinSession>(new JoinSession(stream, std::move(caller), loop));
  session->id_ = loop->Open(session);
  return stream->Start({.on_message = [session](v1::JoinRequest message) { session->Handle(message); },
                        .on_done = [session](const absl::Status&) { session->loop_->Closed(session->id_); }});
}

void JoinSession::Send(const synchronizer::Command& command) { stream_->Write(wire::ToProto(command)); }

void JoinSession::Handle(const v1::JoinRequest& message) {
  absl::Status status = Dispatch(message);
  if (!status.ok()) stream_->Finish(status);
}

absl::Status JoinSession::Dispatch(const v1::JoinRequest& message) {
  // Events wait in memory for the loop; this limit keeps one member from filling it.
  if (waiting_ > kMaxWaiting) {
    return Error(absl::StatusCode::kResourceExhausted, "TOO_FAST", "this member sends more than can be handled");
  }
  bool is_hello = message.message_case() == v1::JoinRequest::kHello;
  if (is_hello == said_hello_) return BadMessage("hello must come first and once");
  said_hello_ = true;
  switch (message.message_case()) {
    case v1::JoinRequest::kHello: {
      SYNCOPATE_ASSIGN_OR_RETURN(synchronizer::Hello hello, wire::FromProto(message.hello()));
      // A process with a rollouter's certificate must not get the trainer's epoch.
      SYNCOPATE_RETURN_IF_ERROR(caller_.CheckIs(hello.member.role));
      SYNCOPATE_RETURN_IF_ERROR(CheckSpeaksFor(hello.member, message.hello().secret()));
      Post(Kind::kHello, [id = id_, hello = std::move(hello)](ControlPlane& plane, absl::Time now) {
        plane.OnHello(id, hello, now);
      });
      return absl::OkStatus();
    }
    case v1::JoinRequest::kHeartbeat: {
      PolicyVersion serving = wire::FromProto(message.heartbeat().serving());
      uint64_t digest = message.heartbeat().serving_digest();
      // A thousand members send a heartbeat each second: the loop gathers heartbeats and handles them with the next
      // urgent event.
      Post(Kind::kHeartbeat,
           [id = id_, serving, digest, held = message.heartbeat().held(), base = message.heartbeat().base_digest()](
               ControlPlane& plane, absl::Time now) { plane.OnHeartbeat(id, serving, digest, now, held, base); });
      return absl::OkStatus();
    }
    case v1::JoinRequest::kReport: {
      SYNCOPATE_ASSIGN_OR_RETURN(synchronizer::SyncReport report, wire::FromProto(message.report()));
      Post(Kind::kMessage, [id = id_, report = std::move(report)](ControlPlane& plane, absl::Time now) {
        plane.OnReport(id, report, now);
      });
      return absl::OkStatus();
    }
    case v1::JoinRequest::kLeave:
      Post(Kind::kMessage, [id = id_, reason = absl::CEscape(message.leave().reason().substr(0, kMaxReasonBytes))](
                               ControlPlane& plane, absl::Time now) { plane.OnLeave(id, reason, now); });
      return absl::OkStatus();
    case v1::JoinRequest::MESSAGE_NOT_SET:
      break;
  }
  return BadMessage("the member sent a message that this build does not know");
}

void JoinSession::Post(Kind kind, ControlLoop::Event event) {
  ++waiting_;
  // Counts down when the event is destroyed: the event may be dropped unhandled, and may be copied.
  std::shared_ptr<void> counted(nullptr, [self = shared_from_this()](void*) { --self->waiting_; });
  loop_->PostFrom(id_, kind,
                  [counted = std::move(counted), event = std::move(event)](ControlPlane& plane, absl::Time now) {
                    event(plane, now);
                  });
}

}  // namespace syncopate::synchronizerd
