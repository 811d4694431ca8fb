#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "services/rpc/stall_watch.h"
#include "services/rpc/status.h"
#include "services/rpc/timer.h"
#include "services/rpc/write_queue.h"

// Server calls over gRPC's callback API. That API aborts the process when two writes are in flight, and does not
// tolerate calls that come too late. Only these classes use it.
namespace syncopate::rpc {

// The common part of both writing server streams: the outgoing queue, the stall check and the end of the call.
// Reactor is grpc::ServerBidiReactor<...> or grpc::ServerWriteReactor<...>.
//
// Lifetime: the stream keeps itself alive from Start until gRPC has called OnDone. A holder of the shared pointer may
// go on calling Write, Finish and Cancel, which then do nothing. Thread-safe. No method blocks, and no callback runs
// inside a method.
template <typename Reactor, typename Response>
class ServerStreamCore : protected Reactor {
 public:
  using OnDoneCallback = std::function<void(const absl::Status&)>;

  // Queues one message. False if the stream is ending, or if the peer reads too slowly and the queue is full: then the
  // stream ends with RESOURCE_EXHAUSTED (reason SLOW_READER).
  bool Write(Response response) {
    Next next;
    bool accepted = false;
    {
      MutexLock lock(&mutex_);
      if (ending_) return false;
      accepted = queue_.Push(std::move(response));
      if (!accepted) EndLocked(SlowReader("its queue of unread messages is full"));
      next = NextLocked();
    }
    Perform(next);
    return accepted;
  }

  // Ends the call with `status` after all queued messages are written. Only the first Finish counts; an OK is replaced
  // by the stream's own error (SLOW_READER, SILENT) if the peer has not got all messages.
  void Finish(const absl::Status& status) {
    Next next;
    {
      MutexLock lock(&mutex_);
      if (ending_) return;
      ending_ = true;
      told_to_end_ = true;
      status_ = status;
      next = NextLocked();
    }
    Perform(next);
  }

  // Cancels the call at once; the peer sees CANCELLED.
  void Cancel() {
    MutexLock lock(&mutex_);
    cancel_wanted_ = true;
    if (!started_ || done_) return;
    // Under the lock, because OnDone, which takes it too, ends the context's life. gRPC runs no callback inside
    // TryCancel.
    context_->TryCancel();
  }

  // "ipv4:127.0.0.1:41234", for logs.
  const std::string& peer() const { return peer_; }

 protected:
  ServerStreamCore(grpc::CallbackServerContext* context, const StreamOptions& options)
      : options_(options),
        peer_(context->peer()),
        context_(context),
        queue_(options),
        stall_watch_({.mutex = &mutex_,
                      .stalled_after = options.stalled_after,
                      .is_pending = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                        mutex_) { return !done_ && (queue_.in_flight() || finish_sent_); },
                      .on_stalled =
                          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                            EndLocked(SlowReader("one message waited too long"));
                            context_->TryCancel();  // see Cancel()
                          }}) {}

  // Called by the derived class's Start with a pointer that keeps this object alive.
  void Begin(std::shared_ptr<void> self, OnDoneCallback on_done) {
    on_done_ = std::move(on_done);
    Next next;
    {
      MutexLock lock(&mutex_);
      started_ = true;
      self_ = std::move(self);
      if (cancel_wanted_) context_->TryCancel();
      next = NextLocked();
    }
    Perform(next);
  }

  // The peer will send no more: queued messages go out, then the call ends with OK.
  void PeerHalfClosed() {
    Next next;
    {
      MutexLock lock(&mutex_);
      ending_ = true;
      next = NextLocked();
    }
    Perform(next);
  }

  // A message has come. False if it should be ignored because the stream is ending.
  bool Heard() {
    MutexLock lock(&mutex_);
    heard_at_ = Clock::Real()->Now();
    return !ending_;
  }
  // From now on the call ends after too long a silence; see StreamOptions.
  void ExpectMessages() {
    MutexLock lock(&mutex_);
    heard_at_ = Clock::Real()->Now();
    if (!done_ && options_.silent_after < absl::InfiniteDuration()) SetSilenceTimerLocked(options_.silent_after);
  }

  // Runs after every write that left the queue empty; nothing unless the derived class wants it.
  virtual void OnDrained() {}
  // Frees the derived class's callbacks and with them everything that they captured.
  virtual void DropCallbacks() {}

 private:
  struct Next {
    const Response* write = nullptr;
    bool gather = false;  // `write` may wait in gRPC for the queued messages behind it
    bool finish = false;
    grpc::Status status;
  };

  static absl::Status SlowReader(const char* detail) {
    return Error(absl::StatusCode::kResourceExhausted, "SLOW_READER",
                 absl::StrCat("the peer does not read this stream: ", detail));
  }

  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queue_.Clear();
    // A call that was to end with OK ends with this error: the peer has not got all messages.
    if (!told_to_end_ || status_.ok()) status_ = status;
    told_to_end_ = true;
    ending_ = true;
  }

  // The next request to gRPC. The caller must perform it: nothing else will.
  Next NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Next next;
    if (!started_ || finish_sent_) return next;
    next.write = queue_.Begin();
    next.gather = queue_.gather();
    if (next.write == nullptr && ending_ && !queue_.in_flight()) {
      finish_sent_ = true;
      next.finish = true;
      next.status = ToGrpc(status_);
    }
    if (next.write != nullptr || next.finish) stall_watch_.Begin(self_);
    return next;
  }

  void Perform(const Next& next) {
    if (next.write != nullptr) this->StartWrite(next.write, MakeWriteOptions(next.gather));
    if (next.finish) Reactor::Finish(next.status);
  }

  void SetSilenceTimerLocked(absl::Duration delay) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    silence_.Set(delay, [this, self = self_] { CheckSilent(); });
  }

  void CheckSilent() {
    Next next;
    {
      MutexLock lock(&mutex_);
      if (done_) return;
      absl::Duration left = options_.silent_after - (Clock::Real()->Now() - heard_at_);
      // A timer that is very late means that this process stood still, and messages that came meanwhile have not been
      // read yet.
      bool overslept = left < -options_.silent_after / 4;
      if (left > absl::ZeroDuration() || overslept) {
        if (overslept) heard_at_ = Clock::Real()->Now();
        SetSilenceTimerLocked(overslept ? options_.silent_after : left);
        return;
      }
      EndLocked(Error(absl::StatusCode::kUnavailable, "SILENT",
                      absl::StrCat("nothing was heard for ", absl::FormatDuration(options_.silent_after))));
      // The status reaches the peer, unless an earlier write is still pending: then the call is cancelled.
      if (queue_.in_flight()) context_->TryCancel();  // see Cancel()
      next = NextLocked();
    }
    Perform(next);
  }

  void OnWriteDone(bool ok) final {
    Next next;
    bool drained = false;
    {
      MutexLock lock(&mutex_);
      queue_.End();
      if (!ok) {
        queue_.Clear();
        ending_ = true;
      }
      drained = !ending_ && queue_.empty();
      next = NextLocked();
    }
    Perform(next);
    if (drained) OnDrained();
  }

  void OnCancel() final {
    Next next;
    {
      MutexLock lock(&mutex_);
      cancelled_ = true;
      ending_ = true;
      queue_.Clear();
      next = NextLocked();
    }
    Perform(next);
  }

  void OnDone() final {
    std::shared_ptr<void> self;
    absl::Status status;
    {
      MutexLock lock(&mutex_);
      done_ = true;
      stall_watch_.Cancel();
      silence_.Cancel();
      self = std::move(self_);
      status = !told_to_end_ && cancelled_ ? absl::CancelledError("the peer went away or cancelled") : status_;
    }
    OnDoneCallback on_done = std::move(on_done_);
    if (on_done) on_done(status);
    DropCallbacks();
  }

  const StreamOptions options_;
  const std::string peer_;
  grpc::CallbackServerContext* const context_;  // valid until OnDone
  OnDoneCallback on_done_;                      // set before the first callback can run, moved out by the last

  Mutex mutex_;
  WriteQueue<Response> queue_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<void> self_ ABSL_GUARDED_BY(mutex_);
  StallWatch stall_watch_ ABSL_GUARDED_BY(mutex_);
  Timer silence_ ABSL_GUARDED_BY(mutex_);
  absl::Time heard_at_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // sent to the peer and given to on_done
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancel_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;       // accepts no more messages
  bool told_to_end_ ABSL_GUARDED_BY(mutex_) = false;  // by Finish or an error of the stream, not by the peer
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finish_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

// A server-streaming call:
//
//   grpc::ServerWriteReactor<Reply>* Watch(grpc::CallbackServerContext* context, const Request* request) override {
//     auto stream = ServerWriteStream<Reply>::Create(context);
//     watchers_.Add(stream);
//     return stream->Start({.on_done = [this, stream](const absl::Status&) { watchers_.Remove(stream); }});
//   }
template <typename Response>
class ServerWriteStream final : public ServerStreamCore<grpc::ServerWriteReactor<Response>, Response>,
                                public std::enable_shared_from_this<ServerWriteStream<Response>> {
  using Core = ServerStreamCore<grpc::ServerWriteReactor<Response>, Response>;

 public:
  struct Callbacks {
    // Called when the queue has run empty: a producer that wants flow control writes its next message here, and its
    // first one right after Start. Runs on a gRPC thread; must not block.
    std::function<void()> on_drained = nullptr;
    // Called exactly once, last. The status given to Finish, CANCELLED if the peer went away first, RESOURCE_EXHAUSTED
    // (reason SLOW_READER) if it did not read.
    std::function<void(const absl::Status&)> on_done = nullptr;
  };

  static std::shared_ptr<ServerWriteStream> Create(grpc::CallbackServerContext* context,
                                                   const StreamOptions& options = {}) {
    return std::shared_ptr<ServerWriteStream>(new ServerWriteStream(context, options));
  }

  // Call once; return the result from the service method.
  grpc::ServerWriteReactor<Response>* Start(Callbacks callbacks) {
    on_drained_ = std::move(callbacks.on_drained);
    Core::Begin(this->shared_from_this(), std::move(callbacks.on_done));
    return this;
  }

 private:
  using Core::Core;
  void OnDrained() override {
    if (on_drained_) on_drained_();
  }
  void DropCallbacks() override { on_drained_ = nullptr; }

  std::function<void()> on_drained_;
};

}  // namespace syncopate::rpc
