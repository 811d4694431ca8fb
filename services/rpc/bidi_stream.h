#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "services/rpc/server_stream.h"

namespace syncopate::rpc {

// The server's end of a bidirectional call. Write, Finish, Cancel and peer() are documented in ServerStreamCore.
//
//   grpc::ServerBidiReactor<JoinRequest, JoinResponse>* Join(grpc::CallbackServerContext* context) override {
//     auto stream = ServerBidiStream<JoinRequest, JoinResponse>::Create(context);
//     auto session = std::make_shared<Session>(stream);
//     return stream->Start({.on_message = [session](JoinRequest message) { session->Handle(std::move(message)); },
//                           .on_done = [session](const absl::Status& status) { session->Ended(status); }});
//   }
template <typename Request, typename Response>
class ServerBidiStream final : public ServerStreamCore<grpc::ServerBidiReactor<Request, Response>, Response>,
                               public std::enable_shared_from_this<ServerBidiStream<Request, Response>> {
  using Core = ServerStreamCore<grpc::ServerBidiReactor<Request, Response>, Response>;

 public:
  // Callbacks run one after the other on gRPC threads, never inside a method of the stream; they must not block. They
  // are freed after on_done, so they may capture the stream's own shared pointer.
  struct Callbacks {
    // Called with each message of the peer, in order. The next is read when it returns. Not called after Finish.
    std::function<void(Request)> on_message = nullptr;
    // Called exactly once, last. The status given to Finish; OK after the peer's half-close; CANCELLED if the peer went
    // away or cancelled first; RESOURCE_EXHAUSTED (reason SLOW_READER) if it did not read; UNAVAILABLE (reason SILENT)
    // if it had to send heartbeats and did not.
    std::function<void(const absl::Status&)> on_done = nullptr;
  };

  static std::shared_ptr<ServerBidiStream> Create(grpc::CallbackServerContext* context,
                                                  const StreamOptions& options = {}) {
    return std::shared_ptr<ServerBidiStream>(new ServerBidiStream(context, options));
  }

  // Call once; return the result from the service method.
  grpc::ServerBidiReactor<Request, Response>* Start(Callbacks callbacks) {
    on_message_ = std::move(callbacks.on_message);
    Core::Begin(this->shared_from_this(), std::move(callbacks.on_done));
    Core::ExpectMessages();
    this->StartRead(&incoming_);
    return this;
  }

 private:
  using Core::Core;

  void OnReadDone(bool ok) override {
    if (!ok) {
      Core::PeerHalfClosed();
      return;
    }
    if (Core::Heard()) on_message_(std::exchange(incoming_, Request()));
    this->StartRead(&incoming_);
  }
  void DropCallbacks() override { on_message_ = nullptr; }

  Request incoming_;
  std::function<void(Request)> on_message_;
};

// The client's end of a bidirectional call, with the promises of the server's end.
//
//   auto stream = ClientBidiStream<JoinRequest, JoinResponse>::Create();
//   stream->Start([&](auto* context, auto* reactor) { stub->async()->Join(context, reactor); },
//                 {.on_message = ..., .on_done = ...});
//   stream->Write(hello);
//
// The call has no deadline: keepalive finds a dead host, and the application's heartbeats find a dead process. If
// nothing listens at the address, on_done gets UNAVAILABLE soon. The stub may be freed after Start; the call keeps the
// channel.
template <typename Request, typename Response>
class ClientBidiStream final : private grpc::ClientBidiReactor<Request, Response>,
                               public std::enable_shared_from_this<ClientBidiStream<Request, Response>> {
 public:
  using Reactor = grpc::ClientBidiReactor<Request, Response>;

  // Like the server's callbacks; on_done gets the status that ended the call.
  struct Callbacks {
    std::function<void(Response)> on_message = nullptr;
    std::function<void(const absl::Status&)> on_done = nullptr;
  };

  static std::shared_ptr<ClientBidiStream> Create(const StreamOptions& options = {}) {
    return std::shared_ptr<ClientBidiStream>(new ClientBidiStream(options));
  }

  // Opens the call; `open` passes both arguments to the stub's async method. Call once.
  void Start(const std::function<void(grpc::ClientContext*, Reactor*)>& open, Callbacks callbacks) {
    callbacks_ = std::move(callbacks);
    {
      MutexLock lock(&mutex_);
      self_ = this->shared_from_this();
    }
    auto self = this->shared_from_this();
    open(&context_, this);
    this->AddHold();  // writes come from outside reactions; removed when the call has ended
    this->StartRead(&incoming_);
    this->StartCall();
    Next next;
    {
      MutexLock lock(&mutex_);
      started_ = true;
      next = NextLocked();
    }
    Perform(next);
  }

  // Queues one message, also before Start. False if the stream is ending, or if the peer does not read and the queue is
  // full: then the call is cancelled and on_done gets RESOURCE_EXHAUSTED (reason SLOW_READER).
  bool Write(Request request) {
    Next next;
    {
      MutexLock lock(&mutex_);
      if (ending_ || closed_) return false;
      if (!queue_.Push(std::move(request))) {
        StalledLocked();
        return false;
      }
      next = NextLocked();
    }
    Perform(next);
    return true;
  }

  // Half-closes after all queued messages are written; the server then ends the call.
  void Finish() {
    Next next;
    {
      MutexLock lock(&mutex_);
      ending_ = true;
      next = NextLocked();
    }
    Perform(next);
  }

  // Cancels the call at once; on_done gets CANCELLED. Idempotent.
  void Cancel() { context_.TryCancel(); }

 private:
  struct Next {
    const Request* write = nullptr;
    bool gather = false;  // `write` may wait in gRPC for the queued messages behind it
    bool half_close = false;
    bool remove_hold = false;
  };

  explicit ClientBidiStream(const StreamOptions& options)
      : queue_(options),
        stall_watch_({.mutex = &mutex_,
                      .stalled_after = options.stalled_after,
                      .is_pending = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                        mutex_) { return !closed_ && (queue_.in_flight() || half_closing_); },
                      .on_stalled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { StalledLocked(); }}) {}

  void StalledLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ending_ = true;
    stalled_ = true;
    queue_.Clear();
    context_.TryCancel();
  }

  // The next request to gRPC. The caller must perform it: nothing else will.
  Next NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Next next;
    bool busy = queue_.in_flight() || half_closing_;
    if (!started_ || busy) return next;
    if (closed_) {
      next.remove_hold = !hold_removed_;
      hold_removed_ = true;
      return next;
    }
    next.write = queue_.Begin();
    next.gather = queue_.gather();
    if (next.write == nullptr && ending_ && !half_closed_) {
      next.half_close = half_closed_ = half_closing_ = true;
    }
    if (next.write != nullptr || next.half_close) stall_watch_.Begin(self_);
    return next;
  }

  void Perform(const Next& next) {
    if (next.write != nullptr) this->StartWrite(next.write, MakeWriteOptions(next.gather));
    if (next.half_close) this->StartWritesDone();
    if (next.remove_hold) this->RemoveHold();
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      callbacks_.on_message(std::exchange(incoming_, Response()));
      this->StartRead(&incoming_);
      return;
    }
    Next next;
    {
      MutexLock lock(&mutex_);
      closed_ = true;
      queue_.Clear();
      next = NextLocked();
    }
    Perform(next);
  }

  void OnWriteDone(bool ok) override {
    Next next;
    {
      MutexLock lock(&mutex_);
      queue_.End();
      if (!ok) {  // the call is over; the read side reports it
        queue_.Clear();
        ending_ = half_closed_ = true;
      }
      next = NextLocked();
    }
    Perform(next);
  }

  void OnWritesDoneDone(bool) override {
    Next next;
    {
      MutexLock lock(&mutex_);
      half_closing_ = false;
      next = NextLocked();
    }
    Perform(next);
  }

  void OnDone(const grpc::Status& status) override {
    std::shared_ptr<ClientBidiStream> self;
    bool stalled = false;
    {
      MutexLock lock(&mutex_);
      stall_watch_.Cancel();
      self = std::move(self_);
      stalled = stalled_;
    }
    Callbacks callbacks = std::move(callbacks_);
    if (!callbacks.on_done) return;
    callbacks.on_done(stalled ? Error(absl::StatusCode::kResourceExhausted, "SLOW_READER",
                                      "the server does not read this stream; it was cancelled")
                              : FromGrpc(status));
  }

  grpc::ClientContext context_;
  Response incoming_;
  Callbacks callbacks_;  // set before the first callback can run, moved out by the last

  Mutex mutex_;
  WriteQueue<Request> queue_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ClientBidiStream> self_ ABSL_GUARDED_BY(mutex_);
  StallWatch stall_watch_ ABSL_GUARDED_BY(mutex_);
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;        // accepts no more messages
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;   // requested
  bool half_closing_ ABSL_GUARDED_BY(mutex_) = false;  // under way
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;        // the read side has ended
  bool hold_removed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stalled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncopate::rpc
