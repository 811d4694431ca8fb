#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/ranks/collective.h"
#include "base/status.h"
#include "services/rpc/bidi_stream.h"

namespace syncopate::rpc {

// How long the ranks of a group wait for each other to come, on both sides.
inline constexpr absl::Duration kRanksMeetWithin = absl::Minutes(2);

// What errors call the ranks of a group, and the keys that they are about.
struct RankWords {
  std::string rank = "rank";  // "trainer rank"
  std::string world_key;      // "trainer.world"
  std::string device_key;     // "train.device"
  std::string rank0_key;      // "trainer.rank0"
};

struct RankStreamsOptions {
  RankWords words = {};
  int32_t world = 1;
  // What every rank must say of itself.
  std::string config_digest = {};
  uint64_t manifest_fingerprint = 0;
  std::string build = {};
  std::string gpu = {};  // that rank 0 computes on; empty: on the CPU. Each rank must have another one
  // From gRPC's threads, must not block: UNAVAILABLE (reason RANK_LOST), FAILED_PRECONDITION (reason RANK_MISMATCH).
  std::function<void(const absl::Status&)> on_lost = nullptr;
  absl::Duration silent_after = absl::Seconds(5);  // five heartbeats
};

// Rank 0's end of the streams over which it leads the other ranks of its group, one for each. A rank that disagrees about
// anything, or whose stream ends or is silent, is the end of the whole group: `on_lost` is told once, why. Thread-safe.
// Must outlive the server that serves it.
//
// Request has a Hello {rank, world, config_digest, manifest_fingerprint, build, gpu} first.
template <typename Request, typename Response>
class RankStreams {
 public:
  // `on_message` gets what a rank says after its hello: from gRPC's threads, must not block.
  explicit RankStreams(RankStreamsOptions options, std::function<void(int32_t, const Request&)> on_message = nullptr)
      : options_(std::move(options)), on_message_(std::move(on_message)), gpus_{{0, options_.gpu}} {}

  grpc::ServerBidiReactor<Request, Response>* Attend(grpc::CallbackServerContext* context) {
    // A batch, or many plans, may be many messages, which wait here while a rank still computes.
    auto stream = Stream::Create(
        context,
        {.max_queued_messages = 1 << 20, .max_queued_bytes = int64_t{4} << 30, .silent_after = options_.silent_after});
    auto session = std::make_shared<Session>(this, stream);
    return stream->Start({.on_message = [session](Request message) { session->Handle(message); },
                          .on_done = [session](const absl::Status& status) { session->End(status); }});
  }

  // Waits until all other ranks have come. What on_lost was told; RANK_LOST, naming those that are missing, after
  // `deadline`; else the error of `go_on`, which is asked again and again.
  absl::Status AwaitRanks(absl::Duration deadline, const std::function<absl::Status()>& go_on) {
    constexpr absl::Duration kLookEvery = absl::Milliseconds(100);
    const absl::Time until = Clock::Real()->Now() + deadline;
    while (true) {
      {
        MutexLock lock(&mutex_);
        auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return !lost_.ok() || static_cast<int32_t>(streams_.size()) == options_.world - 1;
        };
        if (mutex_.AwaitWithTimeout(Condition(&is_over), kLookEvery)) return lost_;
        if (Clock::Real()->Now() >= until) {
          return RankLost(absl::StrCat(options_.words.rank, " ", Missing(), " of ", options_.world,
                                       " has not come within ", absl::FormatDuration(deadline),
                                       "; is it started, with ", options_.words.rank0_key, "?"));
        }
      }
      SYNCOPATE_RETURN_IF_ERROR(go_on());
    }
  }

  // To all of them. What on_lost was told, or RANK_LOST.
  absl::Status Write(const Response& message) {
    std::map<int32_t, std::shared_ptr<Stream>> streams;
    {
      MutexLock lock(&mutex_);
      SYNCOPATE_RETURN_IF_ERROR(lost_);
      streams = streams_;
    }
    for (const auto& [rank, stream] : streams) {
      if (!stream->Write(message)) return RankLost(absl::StrCat(options_.words.rank, " ", rank, " takes no commands"));
    }
    return absl::OkStatus();
  }
  void WriteTo(int32_t rank, const Response& message) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(&mutex_);
      if (auto found = streams_.find(rank); found != streams_.end()) stream = found->second;
    }
    if (stream != nullptr) stream->Write(message);  // its end says why not
  }

  // OK, or why the group is at its end.
  absl::Status lost() const {
    MutexLock lock(&mutex_);
    return lost_;
  }

  // All is over: well, and the others are told `last`, or with an error that they end with too. Nothing is lost from here
  // on. Idempotent.
  void Stop(const absl::Status& why, const Response& last) {
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

 private:
  using Stream = ServerBidiStream<Request, Response>;

  // One stream; callbacks never overlap.
  class Session {
   public:
    Session(RankStreams* ranks, std::shared_ptr<Stream> stream) : ranks_(ranks), stream_(std::move(stream)) {}

    void Handle(const Request& message) {
      if (rank_ > 0) {
        if (ranks_->on_message_ != nullptr) ranks_->on_message_(rank_, message);
        return;
      }
      const absl::Status admitted = ranks_->Admit(message, stream_);
      if (admitted.ok()) {
        rank_ = message.hello().rank();
      } else {
        SYNCOPATE_LOG(kError, "refused the stream of %s: %s", stream_->peer(), admitted.ToString());
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
                 absl::StrCat(options_.words.rank, " ", rank, " has ", what,
                              " than rank 0; start all ranks with the same configuration and the same build"));
  }

  template <typename Hello>
  absl::Status CheckHello(const Hello& hello) const {
    if (hello.world() != options_.world || hello.rank() < 1 || hello.rank() >= options_.world) {
      return Mismatch(hello.rank(), absl::StrCat("another ", options_.words.world_key, " (", hello.world(), ")"));
    }
    if (hello.build() != options_.build) {
      return Mismatch(hello.rank(), absl::StrCat("another build (", hello.build(), ")"));
    }
    if (hello.manifest_fingerprint() != options_.manifest_fingerprint) return Mismatch(hello.rank(), "another model");
    if (hello.config_digest() != options_.config_digest) return Mismatch(hello.rank(), "another configuration");
    if (hello.gpu().empty() != options_.gpu.empty()) {
      return Mismatch(hello.rank(), absl::StrCat("another kind of device (", options_.words.device_key, ")"));
    }
    return absl::OkStatus();
  }

  template <typename Hello>
  absl::Status CheckGpu(const Hello& hello) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const auto& [rank, gpu] : gpus_) {
      if (gpu != hello.gpu() || gpu.empty() || rank == hello.rank()) continue;
      return Error(absl::StatusCode::kFailedPrecondition, "RANK_MISMATCH",
                   absl::StrCat(options_.words.rank, "s ", rank, " and ", hello.rank(), " both compute on ", gpu,
                                "; each needs a GPU of its own: have fewer ranks (", options_.words.world_key,
                                "), or give this host or pod another GPU"));
    }
    return absl::OkStatus();
  }

  // Of a stream's first message.
  absl::Status Admit(const Request& first, const std::shared_ptr<Stream>& stream) {
    if (!first.has_hello()) {
      return Error(absl::StatusCode::kInvalidArgument, "HELLO_EXPECTED", "the first message of a stream is its hello");
    }
    const auto& hello = first.hello();
    absl::Status refusal = CheckHello(hello);
    {
      MutexLock lock(&mutex_);
      if (refusal.ok()) refusal = CheckGpu(hello);
      // One that comes too late harms nobody who is at work.
      if (stopped_ || streams_.count(hello.rank()) > 0) {
        return Error(absl::StatusCode::kFailedPrecondition, "RANK_TAKEN",
                     absl::StrCat(options_.words.rank, " ", hello.rank(), " is there already, or all is over"));
      }
      if (refusal.ok()) {
        streams_[hello.rank()] = stream;
        gpus_[hello.rank()] = hello.gpu();
      }
    }
    if (!refusal.ok()) Lose(refusal);
    return refusal;
  }

  void Leave(int32_t rank, const absl::Status& why) {
    {
      MutexLock lock(&mutex_);
      if (stopped_) return;
    }
    Lose(RankLost(absl::StrCat(options_.words.rank, " ", rank, " is lost: ", why.ok() ? "it ended" : why.ToString())));
  }

  void Lose(const absl::Status& why) {
    {
      MutexLock lock(&mutex_);
      if (!lost_.ok() || stopped_) return;
      lost_ = why;
    }
    options_.on_lost(why);
  }

  std::string Missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string missing;
    for (int32_t rank = 1; rank < options_.world; ++rank) {
      if (streams_.count(rank) == 0) absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
    }
    return missing;
  }

  const RankStreamsOptions options_;
  const std::function<void(int32_t, const Request&)> on_message_;
  mutable Mutex mutex_;
  std::map<int32_t, std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);  // by rank
  std::map<int32_t, std::string> gpus_ ABSL_GUARDED_BY(mutex_);                 // by rank
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncopate::rpc
