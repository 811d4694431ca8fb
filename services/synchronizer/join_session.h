#pragma once

#include <atomic>
#include <memory>

#include "services/auth/transport_security.h"
#include "services/rpc/bidi_stream.h"
#include "synchronizer/loop/control_loop.h"
#include "syncopate/v1/synchronizer.pb.h"

namespace syncopate::synchronizerd {

// One Join stream: turns the member's messages into events of the loop and the plane's commands into messages.
class JoinSession final : public synchronizer::ControlLoop::Session, public std::enable_shared_from_this<JoinSession> {
 public:
  using Stream = rpc::ServerBidiStream<v1::JoinRequest, v1::JoinResponse>;

  // Serves the stream of `caller` until it ends. Returns the value for the service method to return.
  static grpc::ServerBidiReactor<v1::JoinRequest, v1::JoinResponse>* Serve(std::shared_ptr<Stream> stream,
                                                                           auth::HelloCaller caller,
                                                                           synchronizer::ControlLoop* loop);

  void Send(const synchronizer::Command& command) override;
  void Close(const absl::Status& status) override { stream_->Finish(status); }

 private:
  static constexpr int kMaxWaiting = 256;  // messages of one member that the loop has not handled yet

  JoinSession(std::shared_ptr<Stream> stream, auth::HelloCaller caller, synchronizer::ControlLoop* loop)
      : stream_(std::move(stream)), caller_(std::move(caller)), loop_(loop) {}
  void Handle(const v1::JoinRequest& message);
  absl::Status Dispatch(const v1::JoinRequest& message);
  // The event counts in waiting_ until it is handled or dropped.
  void Post(synchronizer::ControlLoop::Kind kind, synchronizer::ControlLoop::Event event);

  const std::shared_ptr<Stream> stream_;
  const auth::HelloCaller caller_;
  synchronizer::ControlLoop* const loop_;
  synchronizer::SessionId id_ = 0;  // set before the first callback
  bool said_hello_ = false;         // callbacks run one after the other
  std::atomic<int> waiting_ = 0;
};

}  // namespace syncopate::synchronizerd
