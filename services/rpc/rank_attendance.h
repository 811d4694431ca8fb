#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/reasons.h"
#include "base/status.h"
#include "ranks/collective.h"
#include "services/auth/transport_security.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/channel.h"
#include "services/rpc/rank_streams.h"

namespace syncopate::rpc {

// The error for a stream that ended: rank 0's own error if it gave a reason, else RANK_LOST; also where rank 0 has
// given up this rank, as a process that was stopped for a while finds out when it goes on.
inline absl::Status AsLost(const absl::Status& why) {
  const std::string reason = ErrorReason(why);
  const bool is_given_up = reason == "SILENT" || reason == "SLOW_READER";
  if (why.ok() || (!reason.empty() && !is_given_up)) return why;
  return RankLost(absl::StrCat("rank 0 is lost: ", why.ToString()));
}

// The part of a rank's attendance that its process's main loop uses, for any message types. Thread-safe, does not
// block.
class Attending {
 public:
  virtual ~Attending() = default;
  // Does nothing before there is a stream.
  virtual void SendHeartbeat() = 0;
  // Makes all waits end soon.
  virtual void Stop() = 0;
  // Whether the rank has met the others and carries out rank 0's commands.
  bool ready() const { return ready_.load(); }
  void SetReady() { ready_.store(true); }

 private:
  std::atomic<bool> ready_ = false;
};

// The stream to rank 0 (rank_streams.h) of a rank above 0: rank 0's messages, in order, and whether rank 0 still
// answers. Thread-safe; only one thread may make the blocking calls.
template <typename Service, typename Request, typename Response>
class RankAttendance final : public Attending {
 public:
  struct Options {
    std::string rank0_key = {};  // the configuration key of the address, for errors: "trainer.rank0"
    std::string rank0 = {};
    std::string role = {};  // the role of all ranks
    std::shared_ptr<const auth::TransportSecurity> security = nullptr;
    RankFacts facts = {};
    // The secret of the group as it is known now; "": none. Called before each dial: a restarted rank 0 may write
    // another one.
    std::function<absl::StatusOr<std::string>()> secret = nullptr;
    // Called when the stream ends with an error after rank 0's first message. Runs on gRPC's threads, must not block.
    std::function<void(const absl::Status&)> on_lost = nullptr;
  };

  RankAttendance() = default;
  // The stream's callbacks may run after this object is destroyed: they use shared state only.
  ~RankAttendance() override { Cancel(); }
  RankAttendance(const RankAttendance&) = delete;
  RankAttendance& operator=(const RankAttendance&) = delete;

  // Call once, before the blocking calls below. Dials until rank 0, which may be started later than this process,
  // answers, and returns its welcome. RANK_LOST after `meet`, rank 0's refusal, errors of Options::secret, CANCELLED
  // (reason STOPPED) after Stop().
  absl::StatusOr<typename Response::Welcome> Begin(const Options& options, absl::Duration meet) {
    constexpr absl::Duration kDialEvery = absl::Milliseconds(200);
    constexpr int64_t kMaxMessageBytes = 64 << 20;  // as much as a group may have
    SYNCOPATE_ASSIGN_OR_RETURN(auto channel, MakeChannel(options.rank0, {.max_receive_bytes = kMaxMessageBytes,
                                                                         .security = options.security,
                                                                         .peer_role = options.role}));
    const auto stub = Service::NewStub(channel);
    const absl::Time until = Clock::Real()->Now() + meet;
    while (true) {
      SYNCOPATE_ASSIGN_OR_RETURN(const std::string shown, options.secret());
      Dial(stub.get(), options, shown);
      absl::StatusOr<Response> first = AwaitMessage();
      if (first.ok() && first->has_welcome()) return first->welcome();
      if (first.ok()) return RankLost("rank 0 began with something else than its welcome");
      // Rank 0 writes its secret before it listens. A refused secret was read before that, or belongs to another group.
      SYNCOPATE_ASSIGN_OR_RETURN(const std::string now_known, options.secret());
      const bool is_news = ErrorReason(first.status()) == reason::kWrongSecret && now_known != shown;
      MutexLock lock(&mutex_);
      if (stopped_) return Stopped();
      if (!MayComeLater(first.status()) && !is_news) return AsLost(first.status());
      if (Clock::Real()->Now() >= until) {
        return RankLost(absl::StrCat("no process answers at ", options.rank0_key, " ", options.rank0, ": ",
                                     first.status().ToString()));
      }
      mutex_.AwaitWithTimeout(Condition(&stopped_), kDialEvery);
    }
  }

  // The next message; when there are no more, how the stream ended. Blocks: heartbeats and keepalive bound it.
  absl::StatusOr<Response> AwaitMessage() { return inbox()->AwaitMessage(); }
  // Carries rank 0's orders out by `obey`, one after another, until rank 0 dismisses this rank; returns its Stop
  // message. The first error of `obey`, or how the stream ended. Blocks: heartbeats and keepalive bound the wait for an
  // order.
  template <typename Obey>
  auto ObeyUntilStopped(const Obey& obey) -> absl::StatusOr<std::decay_t<decltype(std::declval<Response>().stop())>> {
    while (true) {
      const absl::StatusOr<Response> order = AwaitMessage();
      if (!order.ok()) return AsLost(order.status());
      if (order->has_stop()) return order->stop();
      SYNCOPATE_RETURN_IF_ERROR(obey(*order));
    }
  }
  // Waits until rank 0 has ended the stream, and returns its reason; `otherwise` after `deadline`, or if it ended
  // without an error. Messages that come meanwhile are dropped.
  absl::Status AwaitEnd(absl::Duration deadline, const absl::Status& otherwise) {
    const absl::Status ended = inbox()->AwaitEnd(deadline);
    return ended.ok() ? otherwise : AsLost(ended);
  }
  // OK, or how the stream ended.
  absl::Status state() { return AsLost(inbox()->state()); }
  // Whether to go on waiting for the other ranks: CANCELLED (reason STOPPED) after Stop(), else state().
  absl::Status GoOn() {
    {
      MutexLock lock(&mutex_);
      if (stopped_) return Stopped();
    }
    return state();
  }
  // Does nothing before there is a stream.
  void Write(const Request& message) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(&mutex_);
      stream = stream_;
    }
    if (stream != nullptr) stream->Write(message);
  }
  void SendHeartbeat() override {
    Request message;
    message.mutable_heartbeat();
    Write(message);
  }
  void Stop() override {
    {
      MutexLock lock(&mutex_);
      stopped_ = true;
    }
    Cancel();
  }

 private:
  using Stream = ClientBidiStream<Request, Response>;

  // The messages of one stream. Filled by gRPC's threads.
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
    absl::Status AwaitEnd(absl::Duration deadline) {
      MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(Condition(&ended_), deadline);
      return why_;
    }
    absl::StatusOr<Response> AwaitMessage() {
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

  static absl::Status Stopped() {
    return Error(absl::StatusCode::kCancelled, "STOPPED", "asked to stop before it had begun");
  }

  // Nothing listens there yet, or another program does.
  static bool MayComeLater(const absl::Status& status) {
    return (absl::IsUnavailable(status) || absl::IsUnimplemented(status)) && ErrorReason(status).empty();
  }

  static Request MakeHello(const RankFacts& facts, const std::string& secret) {
    Request message;
    auto* const hello = message.mutable_hello();
    hello->set_rank(facts.rank);
    hello->set_world(facts.world);
    hello->set_config_digest(facts.config_digest);
    hello->set_manifest_fingerprint(facts.manifest_fingerprint);
    hello->set_build(facts.build);
    hello->set_gpu(facts.gpu);
    hello->set_secret(secret);
    hello->set_ranks_address(facts.ranks_address);
    if constexpr (requires { hello->set_card(facts.card); }) hello->set_card(facts.card);
    return message;
  }

  std::shared_ptr<Inbox> inbox() {
    MutexLock lock(&mutex_);
    return inbox_;
  }

  void Dial(typename Service::Stub* stub, const Options& options, const std::string& secret) {
    auto inbox = std::make_shared<Inbox>();
    auto stream = Stream::Create();
    stream->Write(MakeHello(options.facts, secret));
    {
      MutexLock lock(&mutex_);
      stream_ = stream;
      inbox_ = inbox;
    }
    // Without on_lost a collective would wait for rank 0 until its deadline. A rank 0 that never answered is dialled
    // again.
    auto end = [inbox, on_lost = options.on_lost](const absl::Status& why) {
      if (!why.ok() && inbox->has_begun()) on_lost(AsLost(why));
      inbox->End(why);
    };
    stream->Start([stub](auto* context, auto* reactor) { stub->async()->Attend(context, reactor); },
                  {.on_message = [inbox](Response said) { inbox->Put(std::move(said)); }, .on_done = std::move(end)});
    bool stopped = false;
    {
      MutexLock lock(&mutex_);
      stopped = stopped_;
    }
    if (stopped) stream->Cancel();  // Stop() may have come before there was a stream to cancel
  }

  void Cancel() {
    MutexLock lock(&mutex_);
    if (stream_ != nullptr) stream_->Cancel();
  }

  Mutex mutex_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Inbox> inbox_ ABSL_GUARDED_BY(mutex_) = std::make_shared<Inbox>();
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncopate::rpc
