#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "services/rpc/bidi_stream.h"
#include "services/rpc/server.h"
#include "services/rpc/unary.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/support/notification.h"

namespace syncopate::rpc {

using v1::JoinRequest;
using v1::JoinResponse;
using JoinServerStream = ServerBidiStream<JoinRequest, JoinResponse>;
using JoinClientStream = ClientBidiStream<JoinRequest, JoinResponse>;

inline JoinRequest TextRequest(const std::string& text) {
  JoinRequest request;
  request.mutable_leave()->set_reason(text);
  return request;
}
inline JoinResponse TextResponse(const std::string& text) {
  JoinResponse response;
  response.mutable_evicted()->set_reason(text);
  return response;
}

// Join answers each message with the same text, unless the test replaces the handler.
class EchoService final : public v1::SynchronizerService::CallbackService {
 public:
  using OnMessage = std::function<void(const std::shared_ptr<JoinServerStream>&, JoinRequest)>;

  explicit EchoService(StreamOptions options = {}) : options_(options) {}

  // Set both before the server starts.
  void set_on_message(OnMessage on_message) { on_message_ = std::move(on_message); }

  Mailbox<std::shared_ptr<JoinServerStream>>& streams() { return streams_; }
  Mailbox<absl::Status>& ended() { return ended_; }

  grpc::ServerBidiReactor<JoinRequest, JoinResponse>* Join(grpc::CallbackServerContext* context) override {
    auto stream = JoinServerStream::Create(context, options_);
    streams_.Put(stream);
    return stream->Start(
        {.on_message = [this, stream](JoinRequest request) { on_message_(stream, std::move(request)); },
         .on_done = [this](const absl::Status& status) { ended_.Put(status); }});
  }

  grpc::ServerUnaryReactor* EvictMember(grpc::CallbackServerContext* context, const v1::EvictMemberRequest* request,
                                        v1::EvictMemberResponse*) override {
    return Reply(context, Error(absl::StatusCode::kNotFound, "NO_SUCH_MEMBER",
                                "no member is called " + request->replica_id(), {{"member", request->replica_id()}}));
  }

 private:
  const StreamOptions options_;
  OnMessage on_message_ = [](const std::shared_ptr<JoinServerStream>& stream, JoinRequest request) {
    stream->Write(TextResponse(request.leave().reason()));
  };
  Mailbox<std::shared_ptr<JoinServerStream>> streams_;
  Mailbox<absl::Status> ended_;
};

// A client's end of Join, and the messages that it received.
struct JoinClient {
  std::shared_ptr<JoinClientStream> stream;
  std::shared_ptr<Mailbox<std::string>> texts = std::make_shared<Mailbox<std::string>>();
  std::shared_ptr<Mailbox<absl::Status>> done = std::make_shared<Mailbox<absl::Status>>();

  static JoinClient Open(const std::shared_ptr<grpc::Channel>& channel, const StreamOptions& options = {}) {
    JoinClient client;
    client.stream = JoinClientStream::Create(options);
    auto stub = v1::SynchronizerService::NewStub(channel);
    client.stream->Start(
        [&stub](auto* context, auto* reactor) { stub->async()->Join(context, reactor); },
        {.on_message = [texts = client.texts](JoinResponse response) { texts->Put(response.evicted().reason()); },
         .on_done = [done = client.done](const absl::Status& status) { done->Put(status); }});
    return client;
  }
};

}  // namespace syncopate::rpc
