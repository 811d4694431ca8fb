#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/host_port.h"
#include "base/mutex.h"
#include "base/status.h"
#include "ranks/collective.h"
#include "ranks/group_secret.h"
#include "ranks/meeting.h"
#include "services/auth/refusal_log.h"
#include "services/auth/transport_security.h"
#include "services/rpc/bidi_stream.h"

namespace syncopate::rpc {

// The host in a peer's address as gRPC writes it ("ipv4:10.0.0.7:41234", "ipv6:%5B::1%5D:41234"); "" if it has none.
inline std::string GetPeerHost(const std::string& peer) {
  const std::string plain = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  const size_t colon = plain.find(':');
  if (colon == std::string::npos) return "";
  const absl::StatusOr<HostPort> address = ParseHostPort(plain.substr(colon + 1));
  return address.ok() ? address->host : "";
}

// The names of a group's ranks and of the keys about them, for errors.
struct RankWords {
  std::string rank = "rank";  // "trainer rank"
  std::string world_key;      // "trainer.world"
  std::string device_key;     // "train.device"
  std::string rank0_key;      // "trainer.rank0"
  std::string secret_source;  // how ranks get the secret of their group, as a sentence without its full stop
  std::string listen_key;     // "trainer.ranks_listen"
};

// The address at which rank `rank` listens for the other ranks: what it `told`, with the host that it calls from,
// `host`, in place of a wildcard; "" if it told none. INVALID_ARGUMENT (reason BAD_ADDRESS), with the key to change, if
// that is no host:port, or a loopback address although the rank calls from another host. `host` "": unknown.
inline absl::StatusOr<std::string> FindRanksAddress(const RankWords& words, int32_t rank, const std::string& told,
                                                    const std::string& host) {
  if (told.empty()) return std::string();
  auto refuse = [&](absl::string_view why) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_ADDRESS",
                 absl::StrCat(words.rank, " ", rank, " tells that it listens for the other ranks at ", told, ", ", why,
                              "; set ", words.listen_key, " there to an address that all ranks reach"));
  };
  const absl::StatusOr<HostPort> address = ReplaceWildcard(told, host);
  if (!address.ok()) return refuse("which is no host:port");
  if (address->IsLoopback() && !host.empty() && !HostPort{host, 0}.IsLoopback()) {
    return refuse(absl::StrCat("which only its own host reaches, and it calls from ", host));
  }
  return address->ToString();
}

// The facts about a rank in its hello. All ranks of a group have the same ones except `rank`, `gpu`, `ranks_address`
// and `card`, which may differ for each rank.
struct RankFacts {
  int32_t rank = 0;
  int32_t world = 1;
  std::string config_digest = {};
  uint64_t manifest_fingerprint = 0;
  std::string build = {};
  std::string gpu = {};  // the GPU that it computes on; empty: the CPU
  // RankListener::address(): where it listens for the other ranks. Unused for rank 0, whose welcome tells it.
  std::string ranks_address = {};
  // The device that it may share with rollouters (daemon::CardName). Unused for rank 0, and by hellos without a card.
  std::string card = {};
};

struct RankStreamsOptions {
  RankFacts rank0 = {};
  // The secret that the hellos of the other ranks must show (ranks/group_secret.h). "": there is none, and only
  // `security` protects.
  std::string secret = {};
  // The server's own. With it a rank that has no secret may show a certificate or token of its role instead; null: a
  // hello without the secret is refused.
  std::shared_ptr<const auth::TransportSecurity> security = nullptr;
  // Called on gRPC's threads, must not block: UNAVAILABLE (reason RANK_LOST), FAILED_PRECONDITION (reason
  // RANK_MISMATCH).
  std::function<void(const absl::Status&)> on_lost = nullptr;
  absl::Duration silent_after = absl::Seconds(5);  // five heartbeats
};

// Rank 0's end of the streams over which it leads the other ranks of its group, one stream for each rank: the service
// that they attend. A rank that differs in any fact, or whose stream ends or is silent, ends the whole group: `on_lost`
// is called once with the reason. A stranger cannot end the group: a hello does so only if it shows the group's secret
// and its rank has not come yet. Thread-safe. Must outlive the server that serves it.
//
// Service must have a method Attend. Request must have a Hello with the members of RankFacts (`card` may be missing),
// which is the first message; all later ones are heartbeats and reports. Response must have a Welcome, which is the
// first message, and a Stop, which is the last; all between them are orders.
template <typename Service, typename Request, typename Response>
class RankStreams : public Service::CallbackService {
 public:
  grpc::ServerBidiReactor<Request, Response>* Attend(grpc::CallbackServerContext* context) override {
    // A batch, or many plans, may be many messages, which wait in this queue while a rank still computes.
    auto stream = Stream::Create(
        context,
        {.max_queued_messages = 1 << 20, .max_queued_bytes = int64_t{4} << 30, .silent_after = options_.silent_after});
    auto session = std::make_shared<Session>(this, stream);
    return stream->Start({.on_message = [session](Request message) { session->Handle(message); },
                          .on_done = [session](const absl::Status& status) { session->End(status); }});
  }

  // Waits until all other ranks have come. The error that on_lost got; RANK_LOST, naming the missing ranks, after
  // `deadline`; or the error of `go_on`, which is called repeatedly.
  absl::Status AwaitRanks(absl::Duration deadline, const std::function<absl::Status()>& go_on) {
    constexpr absl::Duration kLookEvery = absl::Milliseconds(100);
    const absl::Time until = Clock::Real()->Now() + deadline;
    while (true) {
      {
        MutexLock lock(&mutex_);
        auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return !lost_.ok() || static_cast<int32_t>(streams_.size()) == others();
        };
        if (mutex_.AwaitWithTimeout(Condition(&is_over), kLookEvery)) return lost_;
        if (Clock::Real()->Now() >= until) {
          return RankLost(absl::StrCat(words_.rank, " ", Missing(), " of ", options_.rank0.world,
                                       " has not come within ", absl::FormatDuration(deadline),
                                       "; is it started, with ", words_.rank0_key, "?",
                                       last_refusal_.empty() ? "" : " The last one was refused: ", last_refusal_));
        }
      }
      SYNCOPATE_RETURN_IF_ERROR(go_on());
    }
  }

  // Sends the welcome to all other ranks. Call once, before any other message.
  absl::Status Welcome(const typename Response::Welcome& welcome) {
    Response message;
    *message.mutable_welcome() = welcome;
    return Order(message);
  }

  // The addresses where the other ranks listen for each other, in the order of ranks; call after AwaitRanks.
  std::vector<std::string> ranks_addresses() const {
    MutexLock lock(&mutex_);
    std::vector<std::string> addresses;
    for (const auto& [rank, address] : addresses_) addresses.push_back(address);
    return addresses;
  }

  // The cards of the other ranks that tell one; call after AwaitRanks.
  std::set<std::string> cards() const {
    MutexLock lock(&mutex_);
    return cards_;
  }

  // OK, or the error that ended the group.
  absl::Status lost() const {
    MutexLock lock(&mutex_);
    return lost_;
  }

 protected:
  RankStreams(RankWords words, RankStreamsOptions options)
      : words_(std::move(words)), options_(std::move(options)), gpus_{{0, options_.rank0.gpu}} {}

  // Handles a message of a rank after its hello. Runs on gRPC's threads, must not block; not called after the server is
  // destroyed.
  virtual void HandleMessage(int32_t rank, const Request& message) = 0;

  int32_t others() const { return options_.rank0.world - 1; }

  // Sends an order to all other ranks, which carry orders out in the order of these calls. The error that on_lost got,
  // or RANK_LOST.
  absl::Status Order(const Response& message) {
    std::map<int32_t, std::shared_ptr<Stream>> streams;
    {
      MutexLock lock(&mutex_);
      SYNCOPATE_RETURN_IF_ERROR(lost_);
      streams = streams_;
    }
    for (const auto& [rank, stream] : streams) {
      if (!stream->Write(message)) return RankLost(absl::StrCat(words_.rank, " ", rank, " takes no commands"));
    }
    return absl::OkStatus();
  }
  void OrderOne(int32_t rank, const Response& message) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(&mutex_);
      if (auto found = streams_.find(rank); found != streams_.end()) stream = found->second;
    }
    if (stream != nullptr) stream->Write(message);  // if it fails, the end of the stream says why
  }

  // Waits, under the lock, until the ranks' reports make `is_due` true. DEADLINE_EXCEEDED (no reason) after `deadline`;
  // the error that on_lost got; RANK_LOST if the ranks have been told to stop: then nothing more will be reported.
  template <typename IsDue>
  absl::Status AwaitReports(absl::Duration deadline, const IsDue& is_due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto ends = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_due() || is_over(); };
    if (!mutex_.AwaitWithTimeout(Condition(&ends), deadline)) return absl::DeadlineExceededError("no report in time");
    return is_due() ? absl::OkStatus() : WhyOver();
  }

  // Ends the group: with OK the other ranks depart with `stop`, with an error they depart with that error. A rank that
  // leaves afterwards is not lost. Idempotent.
  template <typename Stop>
  void Dismiss(const absl::Status& why, const Stop& stop) {
    Response last;
    *last.mutable_stop() = stop;
    std::map<int32_t, std::shared_ptr<Stream>> streams;
    {
      MutexLock lock(&mutex_);
      if (std::exchange(stopped_, true)) return;
      streams = streams_;
    }
    for (const auto& [rank, stream] : streams) {
      if (why.ok()) stream->Write(last);
      stream->Finish(why);
    }
  }

  // Ends the group because of `why`, unless it is over: on_lost is called, and all waits end with it.
  void Lose(const absl::Status& why) {
    {
      MutexLock lock(&mutex_);
      if (is_over()) return;
      lost_ = why;
    }
    options_.on_lost(why);
  }

  // Whether no rank reports anything any more.
  bool is_over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || !lost_.ok(); }

  absl::Status WhyOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return lost_.ok() ? RankLost(absl::StrCat("the ", words_.rank, "s have been told to stop")) : lost_;
  }

  mutable Mutex mutex_;  // also guards what derived classes keep of the ranks' messages

 private:
  using Stream = ServerBidiStream<Request, Response>;

  // One stream; callbacks never overlap.
  class Session {
   public:
    Session(RankStreams* ranks, std::shared_ptr<Stream> stream) : ranks_(ranks), stream_(std::move(stream)) {}

    void Handle(const Request& message) {
      if (rank_ > 0) {
        ranks_->HandleMessage(rank_, message);
        return;
      }
      const absl::Status admitted = ranks_->Admit(message, stream_);
      if (admitted.ok()) {
        rank_ = message.hello().rank();
      } else {
        ranks_->refusals_.Add(absl::StrCat("the hello of a rank from ", stream_->peer(), ": ", admitted.ToString()));
        stream_->Finish(admitted);
      }
    }
    void End(const absl::Status& why) {
      if (rank_ > 0) ranks_->Leave(rank_, why);
    }

   private:
    RankStreams* const ranks_;
    const std::shared_ptr<Stream> stream_;
    int32_t rank_ = 0;
  };

  absl::Status Mismatch(int32_t rank, const std::string& what) const {
    return Error(absl::StatusCode::kFailedPrecondition, "RANK_MISMATCH",
                 absl::StrCat(words_.rank, " ", rank, " has ", what,
                              " than rank 0; start all ranks with the same configuration and the same build"));
  }

  template <typename Hello>
  absl::Status CheckHello(const Hello& hello) const {
    const RankFacts& ours = options_.rank0;
    if (hello.world() != ours.world) {
      return Mismatch(hello.rank(), absl::StrCat("another ", words_.world_key, " (", hello.world(), ")"));
    }
    if (hello.build() != ours.build) return Mismatch(hello.rank(), absl::StrCat("another build (", hello.build(), ")"));
    if (hello.manifest_fingerprint() != ours.manifest_fingerprint) return Mismatch(hello.rank(), "another model");
    if (hello.config_digest() != ours.config_digest) return Mismatch(hello.rank(), "another configuration");
    if (hello.gpu().empty() != ours.gpu.empty()) {
      return Mismatch(hello.rank(), absl::StrCat("another kind of device (", words_.device_key, ")"));
    }
    return absl::OkStatus();
  }

  template <typename Hello>
  absl::Status CheckGpu(const Hello& hello) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [rank, gpu] : gpus_) {
      if (gpu != hello.gpu() || gpu.empty() || rank == hello.rank()) continue;
      return Error(absl::StatusCode::kFailedPrecondition, "RANK_MISMATCH",
                   absl::StrCat(words_.rank, "s ", rank, " and ", hello.rank(), " both compute on ", gpu,
                                "; each needs a GPU of its own: have fewer ranks (", words_.world_key,
                                "), or give this host or pod another GPU"));
    }
    return absl::OkStatus();
  }

  // Checks a hello before any of its facts count: a hello that fails here cannot end the group.
  template <typename Hello>
  absl::Status CheckMayAttend(const Hello& hello) const {
    const bool is_authenticated = options_.security != nullptr && hello.secret().empty();
    if (!IsGroupSecret(options_.secret, hello.secret()) && !is_authenticated) {
      return WrongGroupSecret(absl::StrCat(words_.rank, " ", hello.rank()), words_.secret_source);
    }
    if (hello.rank() >= 1 && hello.rank() < options_.rank0.world) return absl::OkStatus();
    return Error(absl::StatusCode::kInvalidArgument, "BAD_RANK",
                 absl::StrCat(words_.rank, " ", hello.rank(), " cannot attend: ", words_.world_key, " is ",
                              options_.rank0.world, " here, and rank 0 leads ranks 1 to ", others()));
  }

  // Judges a stream's first message.
  absl::Status Admit(const Request& first, const std::shared_ptr<Stream>& stream) {
    if (!first.has_hello()) {
      return Error(absl::StatusCode::kInvalidArgument, "HELLO_EXPECTED", "the first message of a stream is its hello");
    }
    const auto& hello = first.hello();
    SYNCOPATE_RETURN_IF_ERROR(CheckMayAttend(hello));
    absl::Status refusal = CheckHello(hello);
    const absl::StatusOr<std::string> address =
        FindRanksAddress(words_, hello.rank(), hello.ranks_address(), GetPeerHost(stream->peer()));
    if (refusal.ok()) refusal = address.status();
    {
      MutexLock lock(&mutex_);
      if (refusal.ok()) refusal = CheckGpu(hello);
      // A hello that comes too late must not end a running group.
      if (is_over() || streams_.count(hello.rank()) > 0 || static_cast<int32_t>(streams_.size()) == others()) {
        return Error(absl::StatusCode::kFailedPrecondition, "RANK_TAKEN",
                     absl::StrCat(words_.rank, " ", hello.rank(), " is there already, or all is over"));
      }
      if (refusal.ok()) {
        streams_[hello.rank()] = stream;
        gpus_[hello.rank()] = hello.gpu();
        addresses_[hello.rank()] = *address;
        if constexpr (requires { hello.card(); }) {
          if (!hello.card().empty()) cards_.insert(hello.card());
        }
      } else {
        last_refusal_ = std::string(refusal.message());
      }
    }
    // A peer without the secret may be any process of that role, so it ends nothing but its own stream.
    if (!refusal.ok() && !hello.secret().empty()) Lose(refusal);
    return refusal;
  }

  void Leave(int32_t rank, const absl::Status& why) {
    Lose(RankLost(absl::StrCat(words_.rank, " ", rank, " is lost: ", why.ok() ? "it ended" : why.ToString())));
  }

  std::string Missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string missing;
    for (int32_t rank = 1; rank < options_.rank0.world; ++rank) {
      if (streams_.count(rank) == 0) absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
    }
    return missing;
  }

  const RankWords words_;
  const RankStreamsOptions options_;
  std::map<int32_t, std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);  // keyed by rank
  std::map<int32_t, std::string> gpus_ ABSL_GUARDED_BY(mutex_);                 // keyed by rank
  std::map<int32_t, std::string> addresses_ ABSL_GUARDED_BY(mutex_);            // keyed by rank
  std::set<std::string> cards_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  std::string last_refusal_ ABSL_GUARDED_BY(mutex_);  // of the last refused hello, for the error of AwaitRanks
  auth::RefusalLog refusals_;
};

}  // namespace syncopate::rpc
