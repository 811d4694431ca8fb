#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/rpc/bidi_stream.h"
#include "services/rpc/server.h"
#include "services/wire/codec.h"
#include "syncopate/v1/trajectory.grpc.pb.h"
#include "tests/support/notification.h"

namespace syncopate::rollouterd {

using v1::ExchangeRequest;
using v1::ExchangeResponse;

// A trainer that sends only what the test gives it, and keeps what it receives.
class FakeTrainer final : public v1::TrajectoryService::CallbackService {
 public:
  using Stream = rpc::ServerBidiStream<ExchangeRequest, ExchangeResponse>;
  // `others` are services on the same server.
  explicit FakeTrainer(const std::string& address = "127.0.0.1:0", std::vector<grpc::Service*> others = {}) {
    others.push_back(this);
    server_ = rpc::Server::Start({.address = address, .max_receive_bytes = 64 << 20}, others).value();
  }
  ~FakeTrainer() override { server_->Stop(absl::ZeroDuration()); }

  grpc::ServerBidiReactor<ExchangeRequest, ExchangeResponse>* Exchange(grpc::CallbackServerContext* context) override {
    auto stream = Stream::Create(context);
    streams_.Put(stream);
    return stream->Start({.on_message = [this](ExchangeRequest request) { heard_.Put(std::move(request)); },
                          .on_done = [this](const absl::Status& status) { ended_.Put(status); }});
  }

  std::string address() const { return server_->address(); }
  Mailbox<std::shared_ptr<Stream>>& streams() { return streams_; }
  Mailbox<ExchangeRequest>& heard() { return heard_; }
  Mailbox<absl::Status>& ended() { return ended_; }

  void Welcome() {
    ExchangeResponse response;
    response.mutable_welcome()->set_epoch(1);
    Say(response);
  }
  void Say(ExchangeResponse response) { streams_.All().back()->Write(std::move(response)); }
  void Offer(const Lease& lease) {
    ExchangeResponse response;
    *response.mutable_lease() = wire::ToProto(lease);
    Say(response);
  }
  void Acknowledge(const LeaseId& lease, ExchangeResponse::AckResult result = ExchangeResponse::ACK_RESULT_ACCEPTED) {
    ExchangeResponse response;
    *response.mutable_ack()->mutable_lease() = wire::ToProto(lease);
    response.mutable_ack()->set_result(result);
    Say(response);
  }
  // The first message of one kind from position `from` on.
  std::optional<ExchangeRequest> WaitFor(ExchangeRequest::MessageCase kind, size_t from = 0) {
    for (size_t count = from + 1; heard_.WaitFor(count); ++count) {
      ExchangeRequest request = heard_.All()[count - 1];
      if (request.message_case() == kind) return request;
    }
    return std::nullopt;
  }
  // Waits until the newest credits are for `groups`.
  bool WaitForCredits(int groups) {
    for (size_t count = 1; heard_.WaitFor(count); ++count) {
      ExchangeRequest request = heard_.All()[count - 1];
      if (request.has_credits() && request.credits().groups() == groups) return true;
    }
    return false;
  }

 private:
  Mailbox<std::shared_ptr<Stream>> streams_;
  Mailbox<ExchangeRequest> heard_;
  Mailbox<absl::Status> ended_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace syncopate::rollouterd
