#include "bench/control/exchange_load.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/identity.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bench/control/data_peer_options.h"
#include "services/rpc/bidi_stream.h"
#include "services/wire/codec.h"
#include "syncopate/v1/trajectory.grpc.pb.h"

namespace syncopate::bench {
namespace {

constexpr int32_t kFirstToken = 20000;  // ids as in a large vocabulary
constexpr absl::Duration kEndLimit = absl::Seconds(10);

// An answer of `samples` samples whose message has at most `bytes` bytes. Prompt and lease are filled in later.
v1::TrajectoryGroup MakeAnswer(int32_t samples, int32_t bytes, const MemberId& maker) {
  v1::TrajectoryGroup answer;
  answer.set_kind(v1::LEASE_KIND_TRAINING);
  answer.set_rollouter(maker.replica_id);
  answer.set_incarnation(maker.incarnation);
  constexpr int32_t kOtherBytes = 190;  // lease, prompt, names
  constexpr int32_t kTokenBytes = 8;    // id and log-prob
  const int32_t tokens = std::clamp((bytes - kOtherBytes) / samples / kTokenBytes - 6, 1, kBenchMaxNewTokens);
  for (int32_t i = 0; i < samples; ++i) {
    v1::Trajectory* sample = answer.add_samples();
    for (int32_t token = 0; token < tokens; ++token) {
      sample->add_tokens(kFirstToken + (token * 31 + i) % 100000);
      sample->add_logprobs(-0.001f * static_cast<float>(1 + token % 1000));
    }
    v1::VersionSpan* span = sample->add_spans();
    *span->mutable_version() = wire::ToProto(kBenchVersion);
    span->set_end(tokens);
    sample->set_finish(v1::FINISH_REASON_LENGTH);
    sample->set_reward(static_cast<float>(i));
  }
  return answer;
}

}  // namespace

class ExchangeLoad::Rollouter : public std::enable_shared_from_this<Rollouter> {
 public:
  using Stream = rpc::ClientBidiStream<v1::ExchangeRequest, v1::ExchangeResponse>;

  Rollouter(const Options& options, int32_t index)
      : options_(options),
        secret_(MemberSecret::Draw()),
        member_{"rollouter", absl::StrCat("rollouter-", index), 0, 1, secret_.incarnation()},
        stream_(Stream::Create()) {
    *request_.mutable_group() = MakeAnswer(options.samples, options.message_bytes, member_);
    *request_.mutable_serving() = wire::ToProto(kBenchVersion);
  }

  int64_t answer_bytes() const { return static_cast<int64_t>(request_.ByteSizeLong()); }

  void Start(const std::shared_ptr<grpc::Channel>& channel) {
    auto stub = v1::TrajectoryService::NewStub(channel);
    v1::ExchangeRequest hello;
    *hello.mutable_hello()->mutable_member() = wire::ToProto(member_);
    hello.mutable_hello()->set_secret(secret_.Reveal());
    hello.mutable_hello()->set_run_id(options_.run_id);
    stream_->Write(std::move(hello));
    stream_->Start([&stub](auto* context, auto* reactor) { stub->async()->Exchange(context, reactor); },
                   {.on_message = [self = shared_from_this()](const v1::ExchangeResponse& m) { self->Hear(m); },
                    .on_done = [self = shared_from_this()](const absl::Status& status) { self->Ended(status); }});
  }
  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    stream_->Cancel();
  }
  void Join() {
    MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(Condition(&ended_), kEndLimit);
  }

  LoadTotals TakeTotals() {
    MutexLock lock(&mutex_);
    return std::exchange(totals_, {});
  }

 private:
  // Called with one message of the stream after the other.
  void Hear(const v1::ExchangeResponse& message) {
    if (message.has_welcome()) Begin();
    if (message.has_lease()) Answer(message.lease());
    if (message.has_ack()) Acknowledged(message.ack());
  }

  void Begin() {
    if (options_.answers == Answers::kLeased) return Ask();
    for (int32_t i = 0; i < options_.window; ++i) AnswerLate();
  }

  // New credits replace earlier ones, and some may still be on their way, so this sends the total of free leases, and
  // not one credit for each group.
  void Ask() {
    v1::ExchangeRequest request;
    *request.mutable_serving() = wire::ToProto(kBenchVersion);
    request.mutable_credits()->set_groups(options_.window - in_hand_);
    unasked_ = 0;
    stream_->Write(std::move(request));
  }

  void Answer(const v1::ExchangeResponse::Lease& lease) {
    ++in_hand_;
    request_.mutable_group()->mutable_prompt_ids()->CopyFrom(lease.prompt_ids());
    Send(lease.id());
  }

  // Answers a prompt with an ordinal so high that it is never leased.
  void AnswerLate() {
    v1::LeaseId lease;
    lease.mutable_group()->set_ordinal(kBenchLateOrdinal + next_late_++);
    lease.set_attempt(1);
    Send(lease);
  }

  void Send(const v1::LeaseId& lease) {
    *request_.mutable_group()->mutable_lease() = lease;
    sent_[wire::FromProto(lease).group] = Clock::Real()->Now();
    stream_->Write(request_);
  }

  void Acknowledged(const v1::ExchangeResponse::Ack& ack) {
    auto sent = sent_.find(wire::FromProto(ack.lease()).group);
    if (sent == sent_.end()) return;
    const absl::Duration latency = Clock::Real()->Now() - sent->second;
    sent_.erase(sent);
    const bool leased = options_.answers == Answers::kLeased;
    Count(ack, leased ? v1::ExchangeResponse::ACK_RESULT_ACCEPTED : v1::ExchangeResponse::ACK_RESULT_LEASE_EXPIRED,
          latency);
    if (!leased) return AnswerLate();
    --in_hand_;
    if (++unasked_ >= std::max(1, options_.window / 2)) Ask();
  }

  void Count(const v1::ExchangeResponse::Ack& ack, v1::ExchangeResponse::AckResult wanted, absl::Duration latency) {
    MutexLock lock(&mutex_);
    if (ack.result() == wanted) {
      ++totals_.ok;
      totals_.latency.Add(latency);
      return;
    }
    ++totals_.failed;
    if (!totals_.first_failure.ok()) return;
    totals_.first_failure = rpc::FromProto(ack.error());
    if (totals_.first_failure.ok()) {
      totals_.first_failure = absl::InternalError(v1::ExchangeResponse::AckResult_Name(ack.result()));
    }
  }

  void Ended(const absl::Status& status) {
    MutexLock lock(&mutex_);
    ended_ = true;
    if (stopping_) return;
    ++totals_.failed;
    if (totals_.first_failure.ok()) totals_.first_failure = status.ok() ? absl::UnavailableError("ended") : status;
  }

  const Options options_;
  const MemberSecret secret_;
  const MemberId member_;
  const std::shared_ptr<Stream> stream_;
  // Used by the stream's callbacks.
  v1::ExchangeRequest request_;         // the answer, without its lease
  std::map<GroupId, absl::Time> sent_;  // time of each unacknowledged answer
  int32_t in_hand_ = 0;                 // unacknowledged leases
  int32_t unasked_ = 0;                 // acknowledged leases since the last credits
  int64_t next_late_ = 0;

  Mutex mutex_;
  LoadTotals totals_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<ExchangeLoad>> ExchangeLoad::Start(const Options& options) {
  if (options.streams < 1 || options.window < 1 || options.message_bytes < 1 || options.samples < 1) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", "ExchangeLoad: all numbers must be positive");
  }
  std::unique_ptr<ExchangeLoad> load(new ExchangeLoad());
  for (int32_t i = 0; i < options.streams; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(options.address, options.channel));
    load->rollouters_.push_back(std::make_shared<Rollouter>(options, i));
    load->answer_bytes_ = load->rollouters_.back()->answer_bytes();
    load->rollouters_.back()->Start(channel);
  }
  return load;
}

ExchangeLoad::~ExchangeLoad() {
  for (auto& rollouter : rollouters_) rollouter->Stop();
  for (auto& rollouter : rollouters_) rollouter->Join();
}

LoadTotals ExchangeLoad::TakeTotals() {
  LoadTotals totals;
  for (auto& rollouter : rollouters_) {
    totals.Merge(rollouter->TakeTotals());
  }
  return totals;
}

}  // namespace syncopate::bench
