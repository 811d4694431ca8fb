#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/identity.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/server.h"
#include "services/wire/sync_codec.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/support/notification.h"

namespace syncopate::member {

inline synchronizer::Welcome SomeWelcome(int64_t epoch = 3) {
  synchronizer::Welcome welcome;
  welcome.run_id = "run-1";
  welcome.epoch = epoch;
  welcome.heartbeat = absl::Milliseconds(20);
  welcome.dead_after = absl::Seconds(5);
  return welcome;
}

// The synchronizer's end of Join, on a real port of the loopback interface. It follows a script. Mailboxes keep the
// messages of members; the test decides what members are sent.
class FakeSynchronizer final : public v1::SynchronizerService::CallbackService {
 public:
  using Stream = rpc::ServerBidiStream<v1::JoinRequest, v1::JoinResponse>;
  // Answers a hello with a welcome, with an error, or not at all. `nth` counts from 0.
  using OnHello = std::function<void(Stream& stream, size_t nth)>;

  static OnHello WelcomeAll(synchronizer::Welcome welcome = SomeWelcome()) {
    return [welcome](Stream& stream, size_t) { stream.Write(wire::ToProto(synchronizer::Command(welcome))); };
  }
  static OnHello RefuseAll(absl::Status status) {
    return [status](Stream& stream, size_t) { stream.Finish(status); };
  }
  static OnHello Silence() {
    return [](Stream&, size_t) {};
  }

  explicit FakeSynchronizer(OnHello on_hello = WelcomeAll()) : on_hello_(std::move(on_hello)) { StartServer(); }
  ~FakeSynchronizer() override { StopServer(); }

  // Starts again on the same port after StopServer.
  void StartServer() {
    server_ = rpc::Server::Start({.address = address_}, {this}).value(), address_ = server_->address();
  }
  void StopServer() { server_.reset(); }
  const std::string& address() const { return address_; }

  // Sends on the newest stream.
  void Send(const synchronizer::Command& command) { Newest()->Write(wire::ToProto(command)); }
  std::shared_ptr<Stream> Newest() { return streams_.All().back(); }

  Mailbox<synchronizer::Hello>& hellos() { return hellos_; }
  Mailbox<v1::JoinRequest::Heartbeat>& heartbeats() { return heartbeats_; }
  Mailbox<synchronizer::SyncReport>& reports() { return reports_; }
  Mailbox<std::string>& leaves() { return leaves_; }
  Mailbox<absl::Status>& ended() { return ended_; }

  grpc::ServerBidiReactor<v1::JoinRequest, v1::JoinResponse>* Join(grpc::CallbackServerContext* context) override {
    auto stream = Stream::Create(context);
    streams_.Put(stream);
    return stream->Start({.on_message = [this, stream](const v1::JoinRequest& message) { Handle(*stream, message); },
                          .on_done = [this](const absl::Status& status) { ended_.Put(status); }});
  }

 private:
  void Handle(Stream& stream, const v1::JoinRequest& message) {
    switch (message.message_case()) {
      case v1::JoinRequest::kHello:
        hellos_.Put(wire::FromProto(message.hello()).value());
        EXPECT_TRUE(CheckSpeaksFor(hellos_.All().back().member, message.hello().secret()).ok());
        on_hello_(stream, hellos_.size() - 1);
        break;
      case v1::JoinRequest::kHeartbeat:
        heartbeats_.Put(message.heartbeat());
        break;
      case v1::JoinRequest::kReport:
        reports_.Put(wire::FromProto(message.report()).value());
        break;
      case v1::JoinRequest::kLeave:
        leaves_.Put(message.leave().reason());
        break;
      case v1::JoinRequest::MESSAGE_NOT_SET:
        stream.Finish(absl::InvalidArgumentError("an empty message"));
    }
  }

  const OnHello on_hello_;
  std::string address_ = "127.0.0.1:0";
  Mailbox<synchronizer::Hello> hellos_;
  Mailbox<v1::JoinRequest::Heartbeat> heartbeats_;
  Mailbox<synchronizer::SyncReport> reports_;
  Mailbox<std::string> leaves_;
  Mailbox<absl::Status> ended_;
  Mailbox<std::shared_ptr<Stream>> streams_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace syncopate::member
