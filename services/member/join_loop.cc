#include "services/member/join_loop.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/status.h"
#include "services/rpc/channel.h"
#include "services/rpc/status.h"
#include "services/wire/codec.h"
#include "services/wire/sync_codec.h"

namespace syncopate::member {
namespace {

constexpr absl::Duration kShortestHeartbeat = absl::Milliseconds(10);  // the lower bound, whatever the peer asks for
constexpr absl::Duration kFarewell = absl::Seconds(1);                 // from "evicted" to the end of the stream
constexpr absl::Duration kCancelTakes = absl::Seconds(5);              // at most; a cancelled call ends by itself

// Whether a device does not answer: no attempt of this process can succeed any more.
bool IsStuck(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  return reason == reason::kAbortStuck || reason == reason::kCopyStuck;
}

std::string ForPeople(const absl::Status& status) {
  std::string reason = ErrorReason(status);
  return absl::StrCat(status.message(), " (", reason.empty() ? absl::StatusCodeToString(status.code()) : reason, ")");
}

// Writes what is served into a hello or a heartbeat, which have the same fields.
template <typename Message>
void FillServing(const MemberClient::Serving& serving, Message* message) {
  *message->mutable_serving() = wire::ToProto(serving.version);
  message->set_serving_digest(serving.digest);
  message->set_held(serving.held);
  message->set_base_digest(serving.base_digest);
}

uint64_t SeedFrom(const std::string& text) { return DigestBytes(text.data(), static_cast<int64_t>(text.size())); }

}  // namespace

JoinLoop::JoinLoop(MemberClient::Options options, SyncParticipant* participant)
    : options_(std::move(options)),
      hello_(options_.hello),
      alone_since_(Clock::Real()->Now()),
      backoff_(options_.min_backoff, options_.max_backoff, SeedFrom(hello_.member.incarnation)),
      commands_(participant, Clock::Real(), options_.events) {}

void JoinLoop::Connect() {
  auto stream = Stream::Create();
  v1::JoinRequest request;
  {
    MutexLock lock(&mutex_);
    if (leaving_ || stream_ != nullptr) return;
    stream_ = stream;
    welcomed_ = false;
    verdict_ = absl::OkStatus();
    *request.mutable_hello() = wire::ToProto(hello_);
    request.mutable_hello()->set_secret(options_.secret.Reveal());
    // Without a timer, a port that accepts connections and never answers would keep a member waiting for ever.
    SetTimerLocked(options_.welcome_timeout, &JoinLoop::BreakOff);
  }
  if (options_.serving) FillServing(options_.serving(), request.mutable_hello());
  stream->Write(std::move(request));
  // A channel of its own for each stream, so that our backoff is the only one. Connecting may take as long as the wait
  // for a welcome: when a thousand members come back at once, their TLS handshakes queue up, and members that give up
  // early add more handshakes.
  rpc::ChannelOptions channel_options{.security = options_.security, .peer_role = "synchronizer"};
  channel_options.max_reconnect_backoff = std::max(channel_options.max_reconnect_backoff, options_.welcome_timeout);
  auto channel = rpc::MakeChannel(options_.synchronizer_address, channel_options);
  if (channel.ok()) {
    Open(stream, *channel);
  } else {
    OnStreamDone(channel.status());
  }
}

void JoinLoop::Open(const std::shared_ptr<Stream>& stream, const std::shared_ptr<grpc::Channel>& channel) {
  auto self = shared_from_this();
  commands_.Begin([self, stream](const synchronizer::SyncReport& report) { self->SendReport(stream, report); });
  auto stub = v1::SynchronizerService::NewStub(channel);
  stream->Start([&stub](auto* context, auto* reactor) { stub->async()->Join(context, reactor); },
                {.on_message = [self](const v1::JoinResponse& message) { self->OnMessage(message); },
                 .on_done = [self](const absl::Status& status) { self->OnStreamDone(status); }});
}

void JoinLoop::SendReport(const std::shared_ptr<Stream>& stream, const synchronizer::SyncReport& report) {
  v1::JoinRequest request;
  *request.mutable_report() = wire::ToProto(report);
  {
    MutexLock lock(&mutex_);  // Write only queues the message
    ++reports_;
    stream->Write(std::move(request));
  }
  if (IsStuck(report.status)) ReportToOwner(report.status);
}

void JoinLoop::OnMessage(const v1::JoinResponse& message) {
  absl::StatusOr<synchronizer::Command> command = wire::FromProto(message);
  if (!command.ok()) {
    SYNCOPATE_LOG(kWarning, "ignored a message of the synchronizer at %s: %s", options_.synchronizer_address,
                  command.status().ToString());
    return;
  }
  std::visit([this](auto& one) { Handle(one); }, *command);
}

void JoinLoop::Handle(const synchronizer::Welcome& welcome) {
  bool again = false;
  {
    MutexLock lock(&mutex_);
    if (leaving_ || welcomed_) return;
    again = welcome_.has_value();
    welcomed_ = true;
    // From now on this member belongs to that run: a synchronizer of another run, at the same address, refuses it.
    hello_.run_id = welcome.run_id;
    // Tells a restarted synchronizer the epoch that is in use, so that it allocates none below it.
    if (hello_.member.role == synchronizer::kTrainerRole) hello_.held_epoch = welcome.epoch;
    welcome_ = welcome;
    last_error_ = absl::OkStatus();
    backoff_.Reset();
    SetTimerLocked(std::max(welcome.heartbeat, kShortestHeartbeat), &JoinLoop::SendHeartbeat);
  }
  SYNCOPATE_LOG(kInfo, "%s the synchronizer at %s: run %s, epoch %d", again ? "rejoined" : "joined",
                options_.synchronizer_address, welcome.run_id, welcome.epoch);
  directory_.Update(welcome.directory);
}

void JoinLoop::Handle(const synchronizer::Evicted& evicted) {
  MutexLock lock(&mutex_);
  welcomed_ = false;
  // The stream's own status will say only that it ended.
  verdict_ = Error(absl::StatusCode::kFailedPrecondition, evicted.reason,
                   absl::StrFormat("the synchronizer at %s evicted this member; start a new process to join again",
                                   options_.synchronizer_address));
  if (!leaving_) SetTimerLocked(kFarewell, &JoinLoop::BreakOff);
}

void JoinLoop::OnStreamDone(const absl::Status& status) {
  commands_.End();  // before the next stream may begin
  absl::Status why;
  bool lost = false;
  bool news = false;
  bool over = false;
  {
    MutexLock lock(&mutex_);
    why = ExplainLocked(status);
    lost = welcomed_;
    // Failed tries do not change this time: lost_after counts the whole time without a welcome.
    if (lost) alone_since_ = Clock::Real()->Now();
    stream_ = nullptr;
    welcomed_ = false;
    if (leaving_) return;
    CancelTimerLocked();
    over = IsRefusal(why);
    if (!over && Clock::Real()->Now() - alone_since_ >= options_.lost_after) {
      over = true;
      why = Error(absl::StatusCode::kUnavailable, "SYNCHRONIZER_LOST",
                  absl::StrCat("no synchronizer for ", absl::FormatDuration(options_.lost_after), ": ",
                               std::string(why.message())));
    }
    if (!over) {
      news = why != last_error_;
      last_error_ = why;
      SetTimerLocked(backoff_.Next(), &JoinLoop::Connect);
    }
  }
  if (over) {
    Refuse(why);
  } else if (news) {
    SYNCOPATE_LOG(kWarning, "%s the synchronizer, trying again: %s", lost ? "lost" : "cannot join", ForPeople(why));
  }
}

absl::Status JoinLoop::ExplainLocked(const absl::Status& status) const {
  const std::string& address = options_.synchronizer_address;
  if (IsRefusal(status)) return Annotate(status, absl::StrCat("the synchronizer at ", address, " refused this member"));
  if (!verdict_.ok()) return verdict_;
  if (status.ok()) {
    return absl::UnavailableError(absl::StrCat("the synchronizer at ", address, " closed the stream"));
  }
  if (absl::IsUnimplemented(status)) {
    return Annotate(status,
                    absl::StrCat("what listens at ", address, " is no synchronizer; correct synchronizer.address"));
  }
  // An error with a reason comes from the synchronizer itself: then something did listen.
  if (!welcomed_ && absl::IsUnavailable(status) && ErrorReason(status).empty()) {
    return Annotate(status, absl::StrCat("no process listens at ", address,
                                         "; start the synchronizer or correct synchronizer.address"));
  }
  return Annotate(status, absl::StrCat("the stream to the synchronizer at ", address, " broke"));
}

void JoinLoop::Refuse(const absl::Status& status) {
  SYNCOPATE_LOG(kWarning, "%s", ForPeople(status));
  {
    MutexLock lock(&mutex_);
    if (leaving_) return;
    refused_ = status;
  }
  ReportToOwner(status);
}

void JoinLoop::ReportToOwner(const absl::Status& status) {
  if (!options_.on_refused) return;
  if (!callbacks_.Post([this, status] { options_.on_refused(status); })) {
    SYNCOPATE_LOG(kInfo, "stopped before the refusal was passed on");
  }
}

void JoinLoop::SetTimerLocked(absl::Duration delay, void (JoinLoop::*fire)()) {
  timer_.Set(delay, [weak = weak_from_this(), number = ++timers_, fire] {
    std::shared_ptr<JoinLoop> self = weak.lock();
    if (self != nullptr && self->IsDue(number)) (self.get()->*fire)();
  });
}

void JoinLoop::CancelTimerLocked() {
  ++timers_;
  timer_.Cancel();
}

bool JoinLoop::IsDue(int64_t timer) {
  MutexLock lock(&mutex_);
  return timer == timers_;
}

void JoinLoop::SendHeartbeat() {
  std::shared_ptr<Stream> stream;
  int64_t reports = 0;
  {
    MutexLock lock(&mutex_);
    if (leaving_ || !welcomed_) return;
    stream = stream_;
    // `serving` is called without the lock, as it may wait for an install; this number shows whether a report was sent
    // meanwhile.
    reports = reports_;
    ++heartbeats_;
    SetTimerLocked(std::max(welcome_->heartbeat, kShortestHeartbeat), &JoinLoop::SendHeartbeat);
  }
  v1::JoinRequest request;
  request.mutable_heartbeat();
  if (options_.serving) FillServing(options_.serving(), request.mutable_heartbeat());
  MutexLock lock(&mutex_);
  --heartbeats_;
  // A report sent meanwhile may be about an install that `serving` does not know yet; a report also counts as a
  // heartbeat.
  if (reports == reports_) stream->Write(std::move(request));
}

void JoinLoop::BreakOff() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(&mutex_);
    if (stream_ == nullptr || welcomed_) return;
    stream = stream_;
    if (verdict_.ok()) {
      verdict_ = Error(absl::StatusCode::kUnavailable, "NO_WELCOME",
                       absl::StrFormat("what listens at %s has not answered for %s; it hangs, or it is no synchronizer",
                                       options_.synchronizer_address, absl::FormatDuration(options_.welcome_timeout)));
    }
  }
  stream->Cancel();
}

absl::StatusOr<synchronizer::Welcome> JoinLoop::WaitForWelcome(absl::Duration deadline) {
  MutexLock lock(&mutex_);
  auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return welcome_.has_value() || !refused_.ok() || leaving_;
  };
  mutex_.AwaitWithTimeout(Condition(&settled), deadline);
  if (!refused_.ok()) return refused_;
  if (leaving_) return absl::CancelledError("this member is leaving");
  if (welcome_.has_value()) return *welcome_;
  std::string why = last_error_.ok() ? absl::StrCat(options_.synchronizer_address, " has not answered yet")
                                     : std::string(last_error_.message());
  return Error(absl::StatusCode::kUnavailable, reason::kNotJoined,
               absl::StrFormat("not welcomed within %s: %s", absl::FormatDuration(deadline), why));
}

void JoinLoop::Leave(const std::string& reason) {
  std::shared_ptr<Stream> stream;
  bool welcomed = false;
  {
    MutexLock lock(&mutex_);
    if (leaving_) return;
    leaving_ = true;
    CancelTimerLocked();
    stream = stream_;
    welcomed = welcomed_;
  }
  commands_.End();
  if (stream == nullptr) return;
  // The synchronizer does not know this member yet: a leave message would wait behind a hello that may never be read.
  if (!welcomed) {
    stream->Cancel();
    return;
  }
  v1::JoinRequest request;
  request.mutable_leave()->set_reason(reason);
  stream->Write(std::move(request));
  stream->Finish();
}

bool JoinLoop::AwaitQuiet(absl::Duration deadline) {
  MutexLock lock(&mutex_);
  auto quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stream_ == nullptr && heartbeats_ == 0; };
  return mutex_.AwaitWithTimeout(Condition(&quiet), deadline);
}

void JoinLoop::Stop(absl::Duration deadline) {
  Leave("stopping");
  if (!AwaitQuiet(deadline)) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(&mutex_);
      stream = stream_;
    }
    if (stream != nullptr) stream->Cancel();
    if (!AwaitQuiet(kCancelTakes)) {
      SYNCOPATE_LOG(kError, "the stream to the synchronizer did not end within %s of its cancellation",
                    absl::FormatDuration(kCancelTakes));
    }
  }
  commands_.Stop();
  callbacks_.Stop();
}

}  // namespace syncopate::member
