#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/ranks/collective.h"
#include "base/status.h"
#include "services/rpc/bidi_stream.h"

namespace syncopate::rpc {

// A stream that broke is rank 0 lost; what rank 0 said itself is the reason.
inline absl::Status AsLost(const absl::Status& why) {
  if (why.ok() || !ErrorReason(why).empty()) return why;
  return RankLost(absl::StrCat("rank 0 is lost: ", why.ToString()));
}

// Another rank's end of its stream to rank 0 (rank_streams.h): what rank 0 says, in order, and whether it still speaks.
// Thread-safe; the blocking calls are for one thread.
template <typename Request, typename Response>
class RankAttendance {
 public:
  using Stream = ClientBidiStream<Request, Response>;
  struct Options {
    std::string rank0_key = {};  // what errors call the address: "trainer.rank0"
    std::string rank0 = {};
    Request hello = {};
    std::function<void(grpc::ClientContext*, typename Stream::Reactor*)> open = nullptr;  // of the stub's method
    // The stream has ended with an error after rank 0 had begun to speak: from gRPC's threads, must not block.
    std::function<void(const absl::Status&)> on_lost = nullptr;
  };

  explicit RankAttendance(Options options) : options_(std::move(options)) {}
  // The stream's callbacks may come after it: what they touch is shared.
  ~RankAttendance() { Cancel(); }
  RankAttendance(const RankAttendance&) = delete;
  RankAttendance& operator=(const RankAttendance&) = delete;

  // Dials until rank 0 answers, which may be started later than this process, and returns its first message. RANK_LOST
  // after `meet`, what rank 0 says, CANCELLED (reason STOPPED) after Stop().
  absl::StatusOr<Response> AwaitFirst(absl::Duration meet) {
    constexpr absl::Duration kDialEvery = absl::Milliseconds(200);
    const absl::Time until = Clock::Real()->Now() + meet;
    while (true) {
      Dial();
      absl::StatusOr<Response> first = Take();
      if (first.ok()) return first;
      MutexLock lock(&mutex_);
      if (stopped_) return Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop before it had begun");
      if (!MayComeLater(first.status())) return AsLost(first.status());
      if (Clock::Real()->Now() >= until) {
        return RankLost(absl::StrCat("nobody answers at ", options_.rank0_key, " ", options_.rank0, ": ",
                                     first.status().ToString()));
      }
      mutex_.AwaitWithTimeout(Condition(&stopped_), kDialEvery);
    }
  }

  // The next message; once all are taken, how the stream ended. Blocks: heartbeats and keepalive bound it.
  absl::StatusOr<Response> Take() { return inbox()->Take(); }
  // OK, or how the stream ended if nobody says anything any more.
  absl::Status state() { return AsLost(inbox()->state()); }
  void Write(const Request& message) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(&mutex_);
      stream = stream_;
    }
    if (stream != nullptr) stream->Write(message);
  }
  // Ends the waits soon.
  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopped_ = true;
    }
    Cancel();
  }
  bool stopped() {
    MutexLock lock(&mutex_);
    return stopped_;
  }

 private:
  // Of one stream. Filled by gRPC's threads.
  class Inbox {
   public:
    void Put(Response message) {
      MutexLock lock(&mutex_);
      begun_ = true;
      messages_.push_back(std::move(message));
    }
    bool has_begun() {
      MutexLock lock(&mutex_);
      return begun_;
    }
    absl::Status state() {
      MutexLock lock(&mutex_);
      if (!ended_) return absl::OkStatus();
      return why_.ok() ? RankLost("rank 0 has ended the stream before the ranks had met") : why_;
    }
    void End(const absl::Status& why) {
      MutexLock lock(&mutex_);
      ended_ = true;
      why_ = why;
    }
    absl::StatusOr<Response> Take() {
      MutexLock lock(&mutex_);
      auto is_there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ || !messages_.empty(); };
      mutex_.Await(Condition(&is_there));
      if (messages_.empty()) {
        return why_.ok() ? RankLost("rank 0 has ended the stream without saying that all is over") : why_;
      }
      Response message = std::move(messages_.front());
      messages_.pop_front();
      return message;
    }

   private:
    Mutex mutex_;
    std::deque<Response> messages_ ABSL_GUARDED_BY(mutex_);
    bool begun_ ABSL_GUARDED_BY(mutex_) = false, ended_ ABSL_GUARDED_BY(mutex_) = false;
    absl::Status why_ ABSL_GUARDED_BY(mutex_);
  };

  // Nobody listens yet, or somebody else does.
  static bool MayComeLater(const absl::Status& status) {
    return (absl::IsUnavailable(status) || absl::IsUnimplemented(status)) && ErrorReason(status).empty();
  }

  std::shared_ptr<Inbox> inbox() {
    MutexLock lock(&mutex_);
    return inbox_;
  }

  void Dial() {
    auto inbox = std::make_shared<Inbox>();
    auto stream = Stream::Create();
    stream->Write(options_.hello);
    {
      MutexLock lock(&mutex_);
      stream_ = stream;
      inbox_ = inbox;
    }
    stream->Start(options_.open, {.on_message = [inbox](Response said) { inbox->Put(std::move(said)); },
                                  .on_done =
                                      [inbox, on_lost = options_.on_lost](const absl::Status& why) {
                                        // A collective would wait for rank 0 until its deadline. One that never answered
                                        // is dialled again.
                                        if (!why.ok() && inbox->has_begun()) on_lost(AsLost(why));
                                        inbox->End(why);
                                      }});
    if (stopped()) stream->Cancel();
  }

  void Cancel() {
    MutexLock lock(&mutex_);
    if (stream_ != nullptr) stream_->Cancel();
  }

  const Options options_;
  Mutex mutex_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Inbox> inbox_ ABSL_GUARDED_BY(mutex_) = std::make_shared<Inbox>();
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncopate::rpc
