#include "services/rollouter/work_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/utf8.h"
#include "rollouter/trajectory/group_assembly.h"
#include "services/rpc/channel.h"
#include "services/wire/codec.h"

namespace syncopate::rollouterd {
namespace {

// Unique among the engine's requests, even if a restored trainer issues the same attempt again.
std::string EngineRequestId(int64_t stream, const LeaseId& lease) {
  return absl::StrCat("lease:", stream, ":", lease.group.ToString(), ":", lease.attempt);
}

std::string Name(const LeaseId& lease) {
  return absl::StrCat("attempt ", lease.attempt, " of group ", lease.group.ToString());
}

// Room in a message for everything except the group.
constexpr int64_t kEnvelopeBytes = 1024;
constexpr absl::Duration kYieldRetry = absl::Seconds(1);  // without a trainer that asks for it
// The shortest time between two log lines about failed rewards.
constexpr absl::Duration kRewardLineEvery = absl::Seconds(1);

}  // namespace

absl::Status WorkClient::Options::Validate() const {
  SYNCOPATE_RETURN_IF_ERROR(leases.Validate());
  SYNCOPATE_RETURN_IF_ERROR(stream.Validate());
  SYNCOPATE_RETURN_IF_ERROR(CheckSpeaksFor(member, secret.Reveal()));
  if (min_backoff > absl::ZeroDuration() && max_backoff >= min_backoff && heartbeat > absl::ZeroDuration() &&
      yields_after > absl::ZeroDuration() && yields_within > absl::ZeroDuration() && max_send_bytes > kEnvelopeBytes) {
    return absl::OkStatus();
  }
  return Error(
      absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
      "WorkClient: backoff, heartbeat, yields_after and yields_within must be positive, and max_send_bytes at least a "
      "small group");
}

absl::StatusOr<std::shared_ptr<WorkClient>> WorkClient::Create(Options options, rollouter::EngineLoop* engine,
                                                               rollouter::Scorer* scorer) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  std::shared_ptr<WorkClient> client(new WorkClient(std::move(options), engine, scorer));
  // The scorer outlives this client, so it must not keep the client alive.
  auto look = [weak = client->weak_from_this()] {
    if (auto self = weak.lock()) self->LookAtScorer();
  };
  scorer->SetAvailabilityListener(look);
  const std::optional<rollouter::PlayRules>& play = client->options_.play;
  if (play.has_value() && play->remote != nullptr) play->remote->SetAvailabilityListener(look);
  client->LookAtScorer();
  return client;
}

WorkClient::WorkClient(Options options, rollouter::EngineLoop* engine, rollouter::Scorer* scorer)
    : options_(std::move(options)),
      engine_(engine),
      scorer_(scorer),
      book_(options_.leases),
      // Seeded by the incarnation, so that rollouters do not all return to a restarted trainer at once.
      backoff_(
          options_.min_backoff, options_.max_backoff,
          DigestBytes(options_.member.incarnation.data(), static_cast<int64_t>(options_.member.incarnation.size()))) {}

WorkClient::~WorkClient() = default;

void WorkClient::SetTrainer(const std::string& address, const std::string& run_id) {
  Trainer trainer{address, run_id};
  {
    MutexLock lock(&mutex_);
    if (stopping_ || trainer == trainer_) return;  // directories are sent again at any change
    trainer_ = trainer;
    backoff_.Reset();
    reconnect_.Cancel();
    if (stream_ != nullptr) {
      stream_->Cancel();  // the end of the stream connects to the new trainer
      return;
    }
  }
  Connect();
}

void WorkClient::SetServing(const PolicyVersion& version) {
  MutexLock lock(&mutex_);
  serving_ = version;
  book_.SetAsleep(false);  // a sleeping engine installs nothing
  v1::ExchangeRequest request;
  if (!turn_.yield) {
    turn_.done = true;
    book_.SetYielded(false);
    AddTurnLocked(&request);
  }
  SendCreditsLocked(std::move(request));
}

void WorkClient::SetDraining(bool draining) {
  MutexLock lock(&mutex_);
  if (book_.draining() == draining) return;
  book_.SetDraining(draining);
  SendCreditsLocked();
}

void WorkClient::SetPaused(bool paused) {
  MutexLock lock(&mutex_);
  book_.SetPaused(paused);
  SendCreditsLocked();
}

void WorkClient::SetAsleep(bool asleep) {
  MutexLock lock(&mutex_);
  book_.SetAsleep(asleep);
  SendCreditsLocked();
}

absl::Status WorkClient::GetAvailability() const {
  SYNCOPATE_RETURN_IF_ERROR(scorer_->Availability());
  if (!options_.play.has_value()) return absl::OkStatus();
  return rollouter::FindPlace(*options_.play, /*task=*/{}).status();
}

// Another thread may have read a newer status before this one takes the lock; the next heartbeat reads it again.
void WorkClient::LookAtScorer() {
  const absl::Status there = GetAvailability();
  MutexLock lock(&mutex_);
  no_rewards_ = there;
  if (book_.scorer_away() != there.ok()) return;
  book_.SetScorerAway(!there.ok());
  if (there.ok()) {
    SYNCOPATE_LOG(kInfo, "rewards can be had again: work is asked for");
  } else {
    SYNCOPATE_LOG(kWarning, "no work is asked for, as no rewards can be had: %s", there.ToString());
  }
  SendCreditsLocked();
}

bool WorkClient::WaitScored(absl::Duration deadline) {
  MutexLock lock(&mutex_);
  auto scored = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return book_.generating() == 0; };
  return mutex_.AwaitWithTimeout(Condition(&scored), deadline);
}

bool WorkClient::WaitIdle(absl::Duration deadline) {
  MutexLock lock(&mutex_);
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return book_.idle(); };
  return mutex_.AwaitWithTimeout(Condition(&idle), deadline);
}

void WorkClient::HandBack(const absl::Status& why) {
  std::vector<LeaseId> leases;
  int64_t stream = 0;
  {
    MutexLock lock(&mutex_);
    stream = book_.stream();
    v1::ExchangeRequest rest;
    AddPartsLocked(/*least=*/1, &rest);
    if (rest.has_progress()) SendLocked(std::move(rest));
    // Other replicas get these leases at once, instead of after a timeout.
    leases = book_.GiveUp();
    for (const LeaseId& lease : leases) {
      ++counters_.returned;
      SendReturnLocked(lease, why);
    }
    if (!leases.empty()) {
      SYNCOPATE_LOG(kInfo, "%d leases handed back: %s", static_cast<int>(leases.size()), why.ToString());
    }
  }
  for (const LeaseId& lease : leases) AbortLater(stream, lease);
}

void WorkClient::Stop(absl::Duration deadline) {
  {
    MutexLock lock(&mutex_);
    if (!stopping_) last_environment_ = GetEnvironmentCounters();
    stopping_ = true;
    reconnect_.Cancel();
    heartbeat_.Cancel();
    lost_.Cancel();
    auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stream_ == nullptr; };
    if (stream_ != nullptr && deadline > absl::ZeroDuration()) {
      stream_->Finish();
      mutex_.AwaitWithTimeout(Condition(&ended), deadline);
    }
    if (stream_ != nullptr) stream_->Cancel();
    // A cancelled call ends by itself; the deadline only keeps a defect of gRPC from hanging the process.
    if (!mutex_.AwaitWithTimeout(Condition(&ended), absl::Seconds(5))) {
      SYNCOPATE_LOG(kError, "the stream to the trainer did not end within 5 s of its cancellation");
    }
  }
  aborts_.Stop();
  turns_.Stop();
}

rollouter::RemoteEnvironment::Counters WorkClient::environment_counters() const {
  MutexLock lock(&mutex_);
  return stopping_ ? last_environment_ : GetEnvironmentCounters();
}

rollouter::RemoteEnvironment::Counters WorkClient::GetEnvironmentCounters() const {
  const bool has_worker = options_.play.has_value() && options_.play->remote != nullptr;
  return has_worker ? options_.play->remote->counters() : rollouter::RemoteEnvironment::Counters();
}

absl::Status WorkClient::refusal() const {
  MutexLock lock(&mutex_);
  return absl::IsNotFound(no_rewards_) ? no_rewards_ : absl::OkStatus();
}

WorkClient::Counters WorkClient::counters() const {
  MutexLock lock(&mutex_);
  return counters_;
}

void WorkClient::Connect() {
  std::shared_ptr<Stream> stream = Stream::Create(options_.stream);
  Trainer trainer;
  int64_t number = 0;
  {
    MutexLock lock(&mutex_);
    if (stopping_ || stream_ != nullptr || trainer_.address.empty()) return;
    trainer = trainer_;
    stream_ = stream;
    number = book_.OnConnecting();
    turn_.told = false;
    ++counters_.streams;
    v1::ExchangeRequest hello;
    *hello.mutable_hello()->mutable_member() = wire::ToProto(options_.member);
    hello.mutable_hello()->set_run_id(trainer.run_id);
    hello.mutable_hello()->set_secret(options_.secret.Reveal());
    hello.mutable_hello()->mutable_cards()->Assign(options_.cards.begin(), options_.cards.end());
    // Not by what the engine says: it may be about to take the device back, as it was told by the stream before.
    hello.mutable_hello()->set_yielded(turn_.yield && turn_.done);
    SendLocked(std::move(hello));
  }
  auto channel = rpc::MakeChannel(
      trainer.address,
      {.max_send_bytes = options_.max_send_bytes, .security = options_.security, .peer_role = "trainer"});
  if (!channel.ok()) {
    OnStreamDone(channel.status());
    return;
  }
  auto stub = v1::TrajectoryService::NewStub(*channel);
  auto self = shared_from_this();
  stream->Start(
      [&stub](auto* context, auto* reactor) { stub->async()->Exchange(context, reactor); },
      {.on_message = [self, number](v1::ExchangeResponse message) { self->OnMessage(number, std::move(message)); },
       .on_done = [self](const absl::Status& status) { self->OnStreamDone(status); }});
}

// The application sends heartbeats: gRPC's keepalive would also answer for a process whose threads are stuck.
void WorkClient::ScheduleBeatLocked(int64_t stream) {
  if (stopping_) return;
  heartbeat_.Set(options_.heartbeat, [weak = weak_from_this(), stream] {
    if (auto self = weak.lock()) self->Beat(stream);
  });
}

void WorkClient::Beat(int64_t stream) {
  LookAtScorer();
  const rollouter::EngineStatus engine = engine_->GetStatus();  // before the lock, which the engine's thread may want
  v1::ExchangeRequest beat = WorkSoFar(engine);
  MutexLock lock(&mutex_);
  if (stream != book_.stream() || !book_.welcomed()) return;
  book_.SetParked(engine.parked_sequences);
  for (const LeaseId& lease : book_.TakeProgress(engine.generated_tokens + engine.prefilled_tokens)) {
    *beat.mutable_progress()->add_leases() = wire::ToProto(lease);
  }
  AddPartsLocked(options_.report_tokens, &beat);
  AddTurnLocked(&beat);
  SendCreditsLocked(std::move(beat));
  ScheduleBeatLocked(stream);
  // The device had no room, or a weight sync did not end in time: another try.
  if (!options_.cards.empty() && !turn_.done) ObeyTurnLaterLocked();
}

void WorkClient::AddPartsLocked(int64_t least, v1::ExchangeRequest* request) {
  for (const auto& [lease, part] : book_.TakeParts(least)) {
    *request->mutable_progress()->add_parts() = wire::ToProto(lease, part);
  }
}

void WorkClient::Report() {
  v1::ExchangeRequest work = WorkSoFar();
  MutexLock lock(&mutex_);
  SendCreditsLocked(std::move(work));
}

v1::ExchangeRequest WorkClient::WorkSoFar() const { return WorkSoFar(engine_->GetStatus()); }

v1::ExchangeRequest WorkClient::WorkSoFar(const rollouter::EngineStatus& engine) const {
  v1::ExchangeRequest request;
  request.mutable_work()->set_generated_tokens(engine.generated_tokens);
  request.mutable_work()->set_groups_submitted(counters().submitted);
  request.mutable_work()->set_busy_seconds(engine.busy_seconds);
  request.mutable_work()->set_idle_seconds(engine.idle_seconds);
  request.mutable_work()->set_judge_tokens(scorer_->judge_tokens());
  return request;
}

void WorkClient::ScheduleConnectLocked() {
  if (stopping_ || trainer_.address.empty()) return;
  reconnect_.Set(backoff_.Next(), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Connect();
  });
}

void WorkClient::OnStreamDone(const absl::Status& status) {
  std::vector<LeaseId> lost;
  int64_t number = 0;
  {
    MutexLock lock(&mutex_);
    number = book_.stream();
    const bool was_welcomed = book_.welcomed();
    lost = book_.OnDisconnected();
    stream_ = nullptr;
    // Log each new reason once, not at each try.
    if (trainer_.address.empty() && !stopping_) {
      SYNCOPATE_LOG(kInfo, "the run has no trainer now; %d leases given up", static_cast<int>(lost.size()));
    } else if (!stopping_ && status != last_error_) {
      SYNCOPATE_LOG(kWarning, "stream to the trainer at %s ended, %d leases given up: %s", trainer_.address,
                    static_cast<int>(lost.size()), status.ToString());
    }
    last_error_ = status;
    ScheduleConnectLocked();
    // Not at each try that fails: the time counts from the end of the last stream that worked.
    if (was_welcomed && shares_card_) ScheduleYieldLocked(options_.yields_after);
  }
  for (const LeaseId& lease : lost) AbortLater(number, lease);
}

void WorkClient::OnMessage(int64_t stream, v1::ExchangeResponse message) {
  switch (message.message_case()) {
    case v1::ExchangeResponse::kWelcome:
      OnWelcome(message.welcome());
      return;
    case v1::ExchangeResponse::kLease:
      OnLease(stream, message.lease());
      return;
    case v1::ExchangeResponse::kAck:
      OnAck(message.ack());
      return;
    case v1::ExchangeResponse::kRevoke:
      OnRevoke(stream, message.revoke());
      return;
    case v1::ExchangeResponse::kTurn:
      OnTurn(stream, message.turn());
      return;
    case v1::ExchangeResponse::MESSAGE_NOT_SET:
      SYNCOPATE_LOG(kWarning, "the trainer sent a message of a kind that this build does not know; ignored");
  }
}

void WorkClient::OnWelcome(const v1::ExchangeResponse::Welcome& welcome) {
  MutexLock lock(&mutex_);
  book_.OnWelcome();
  backoff_.Reset();
  last_error_ = absl::OkStatus();
  lost_.Cancel();
  shares_card_ = welcome.takes_turns();
  if (!shares_card_ && turn_.yield) {
    turn_ = {};  // this trainer has a device of its own
    ObeyTurnLaterLocked();
  }
  SYNCOPATE_LOG(kInfo, "connected to the trainer at %s, epoch %d", trainer_.address, welcome.epoch());
  SendCreditsLocked();
  ScheduleBeatLocked(book_.stream());
}

void WorkClient::OnLease(int64_t stream, const v1::ExchangeResponse::Lease& message) {
  absl::StatusOr<Lease> lease = wire::FromProto(message);
  if (!lease.ok()) {
    SYNCOPATE_LOG(kWarning, "a lease from the trainer cannot be read: %s", lease.status().ToString());
    GiveBack(wire::FromProto(message.id()), lease.status());
    return;
  }
  // Recorded before the engine gets the lease: its first token, or its end, may come before Generate() returns.
  absl::Status taken;
  Work work{.reports = MakeReports(*lease)};
  {
    MutexLock lock(&mutex_);
    taken = book_.OnLease(*lease, work.made, work.reports, work.open_calls);
  }
  if (taken.ok()) {
    absl::Status started = Generate(stream, *lease, std::move(work));
    if (!started.ok()) OnEnded(stream, lease->id, started);
  } else if (ErrorReason(taken) != reason::kLeaseHeld) {
    GiveBack(lease->id, taken);
  }
}

// Evaluations and episodes begin anew: their state is not in tokens.
std::shared_ptr<rollouter::AnswerReports> WorkClient::MakeReports(const Lease& lease) const {
  if (options_.report_tokens == 0 || lease.kind != LeaseKind::kTraining || options_.play.has_value()) return nullptr;
  std::vector<int32_t> begins(static_cast<size_t>(lease.samples), 0);
  for (size_t i = 0; i < lease.starts.size(); ++i) begins[i] = static_cast<int32_t>(lease.starts[i].tokens.size());
  return std::make_shared<rollouter::AnswerReports>(begins);
}

absl::Status WorkClient::Generate(int64_t stream, const Lease& lease, Work work) {
  SYNCOPATE_RETURN_IF_ERROR(scorer_->Check(lease.reward));
  const rollouter::EngineStatus status = engine_->GetStatus();
  const PolicyVersion& evaluated = status.pinned.IsNone() ? status.serving : status.pinned;
  // An evaluation belongs to one version, and the engine may have installed another since the trainer chose this
  // replica.
  if (lease.kind == LeaseKind::kEvaluation && lease.version != evaluated) {
    return Error(absl::StatusCode::kAborted, reason::kWrongVersion,
                 absl::StrCat("evaluation of ", lease.version.ToString(), " was asked for, ", evaluated.ToString(),
                              " answers evaluations"));
  }
  auto done = [self = shared_from_this(), stream, lease](absl::StatusOr<TrajectoryGroup> group) {
    self->OnGenerated(stream, lease, std::move(group));
  };
  rollouter::GenerationRequest request = rollouter::RequestFor(lease, EngineRequestId(stream, lease.id));
  if (options_.play.has_value()) return Play(std::move(request), lease, std::move(done), std::move(work));
  auto assembly = std::make_shared<rollouter::GroupAssembly>(
      lease, options_.member, std::move(done), std::move(work.made), &options_.stops, std::move(work.reports));
  if (assembly->DeliverIfFinished()) return absl::OkStatus();
  return engine_->Submit(std::move(request), std::move(assembly));
}

absl::Status WorkClient::Play(rollouter::GenerationRequest request, const Lease& lease,
                              rollouter::GroupAssembly::Done done, Work work) {
  request.max_total_tokens = options_.play->episode.max_total_tokens;
  const absl::StatusOr<rollouter::PlayPlace> place = rollouter::FindPlace(*options_.play, lease.task);
  // The row's fault: it counts against the prompt. While the worker is away its work waits at the trainer.
  if (absl::IsNotFound(place.status())) {
    return Error(absl::StatusCode::kAborted, reason::kEnvironmentFailed, std::string(place.status().message()));
  }
  if (place.ok() && !place->remote) {
    auto extend = [engine = engine_, id = request.id](int32_t sample, std::vector<int32_t> given) {
      return engine->Extend(id, sample, std::move(given));
    };
    auto assembly =
        std::make_shared<rollouter::PlayAssembly>(lease, options_.member, std::move(done), std::move(work.made),
                                                  &options_.stops, &*options_.play, std::move(extend));
    SYNCOPATE_RETURN_IF_ERROR(assembly->Start());
    return engine_->Submit(std::move(request), std::move(assembly));
  }
  SYNCOPATE_RETURN_IF_ERROR(place.status());
  return PlayAtWorker(std::move(request), lease, std::move(done), std::move(work), place->environment);
}

absl::Status WorkClient::PlayAtWorker(rollouter::GenerationRequest request, const Lease& lease,
                                      rollouter::GroupAssembly::Done done, Work work, const std::string& environment) {
  request.starts_parked = true;
  const std::string id = request.id;
  rollouter::RemotePlayAssembly::Engine calls = {
      .begin = [engine = engine_, id](
                   int32_t sample, std::vector<int32_t> given) { return engine->Begin(id, sample, std::move(given)); },
      .extend = [engine = engine_, id](
                    int32_t sample,
                    std::vector<int32_t> given) { return engine->Extend(id, sample, std::move(given)); },
      .rewind = [engine = engine_, id](int32_t sample) { engine->Rewind(id, sample); },
      .end = [engine = engine_, id](int32_t sample) { engine->EndParked(id, sample); },
      .abort = [self = shared_from_this(), id] { self->AbortRequestLater(id); }};
  auto assembly = std::make_shared<rollouter::RemotePlayAssembly>(
      lease, options_.member, std::move(done), std::move(work.made), &options_.stops,
      rollouter::RemotePlayAssembly::Options{.id = id,
                                             .environment = environment,
                                             .rules = &*options_.play,
                                             .remote = options_.play->remote,
                                             .open_calls = std::move(work.open_calls)},
      std::move(calls));
  // Submitted first: an answer of the environment finds the parked sample.
  SYNCOPATE_RETURN_IF_ERROR(engine_->Submit(std::move(request), assembly));
  assembly->Start();
  return absl::OkStatus();
}

// Runs on the engine's thread, which must go on at once: the group is scored on the scorer's thread.
void WorkClient::OnGenerated(int64_t stream, const Lease& lease, absl::StatusOr<TrajectoryGroup> group) {
  bool wanted = false;
  {
    MutexLock lock(&mutex_);
    wanted = book_.OnScoring(stream, lease.id);
  }
  if (!group.ok()) return OnEnded(stream, lease.id, std::move(group));
  // Scoring may be expensive (a service, a program), so answers that no longer count are not scored.
  if (!wanted) {
    return OnEnded(stream, lease.id,
                   Error(absl::StatusCode::kCancelled, "GIVEN_UP", "the trainer has taken the lease back"));
  }
  scorer_->Score(EngineRequestId(stream, lease.id), lease, *std::move(group),
                 [self = shared_from_this(), stream, lease](absl::StatusOr<TrajectoryGroup> scored) {
                   if (scored.ok()) rollouter::TakeOffStarts(lease, &*scored);
                   self->OnEnded(stream, lease.id, std::move(scored));
                 });
}

void WorkClient::OnEnded(int64_t stream, const LeaseId& lease, absl::StatusOr<TrajectoryGroup> group) {
  v1::ExchangeRequest request = WorkSoFar();
  if (group.ok()) {
    *request.mutable_group() = wire::ToProto(*group);
    // gRPC would end the stream for such a message, and with it every lease.
    if (rpc::MessageBytes(request) + kEnvelopeBytes > options_.max_send_bytes) {
      group = Error(absl::StatusCode::kInvalidArgument, "GROUP_TOO_LARGE",
                    absl::StrCat(Name(lease), " has ", rpc::MessageBytes(request), " bytes; a message may have ",
                                 options_.max_send_bytes, ". Ask for fewer samples or tokens"));
    }
  }
  if (!group.ok()) {
    request.mutable_return_lease();
    *request.mutable_return_lease()->mutable_lease() = wire::ToProto(lease);
    *request.mutable_return_lease()->mutable_error() = rpc::ToProto(group.status());
  }
  // A failed engine would hand back every further lease, and the trainer quarantines a rollouter that does so, together
  // with its next incarnation.
  const bool is_over = !group.ok() && !engine_->GetStatus().failure.ok();
  MutexLock lock(&mutex_);
  if (is_over) book_.SetDraining(true);
  const rollouter::LeaseBook::Ended ended = book_.OnEnded(stream, lease, group.ok());
  if (ended == rollouter::LeaseBook::Ended::kHeld) {
    ++(group.ok() ? counters_.submitted : counters_.returned);
    const std::string reason = ErrorReason(group.status());
    if (reason == reason::kRewardFailed || reason == reason::kEnvironmentFailed) {
      LogRewardFailureLocked(lease, group.status());
    } else if (!group.ok()) {
      SYNCOPATE_LOG(kInfo, "%s handed back: %s", Name(lease), group.status().ToString());
    }
    SendLocked(std::move(request));
  } else if (ended == rollouter::LeaseBook::Ended::kRevoked) {
    SendReturnLocked(lease, Error(absl::StatusCode::kAborted, "REVOKED", "its generation has ended"));
  }
  SendCreditsLocked();
}

// Limits the log: a reward that always fails does so thousands of times a minute.
void WorkClient::LogRewardFailureLocked(const LeaseId& lease, const absl::Status& why) {
  ++rewards_failed_;
  const absl::Time now = Clock::Real()->Now();
  if (now < next_reward_line_) return;
  next_reward_line_ = now + kRewardLineEvery;
  const int64_t unsaid = std::exchange(rewards_failed_, 0) - 1;
  SYNCOPATE_LOG(kWarning, "%s handed back%s: %s", Name(lease),
                unsaid == 0 ? "" : absl::StrCat(", and ", unsaid, " more since the last line"), why.ToString());
}

void WorkClient::OnAck(const v1::ExchangeResponse::Ack& ack) {
  bool accepted = ack.result() == v1::ExchangeResponse::ACK_RESULT_ACCEPTED ||
                  ack.result() == v1::ExchangeResponse::ACK_RESULT_ALREADY_ACCEPTED;
  LeaseId lease = wire::FromProto(ack.lease());
  {
    MutexLock lock(&mutex_);
    book_.OnAck(lease);
    ++(accepted ? counters_.accepted : counters_.refused);
  }
  if (ack.result() == v1::ExchangeResponse::ACK_RESULT_INVALID) {
    SYNCOPATE_LOG(kError, "the trainer refused %s as invalid: %s", Name(lease), rpc::FromProto(ack.error()).ToString());
  }
}

void WorkClient::OnRevoke(int64_t stream, const v1::ExchangeResponse::Revoke& revoke) {
  LeaseId lease = wire::FromProto(revoke.lease());
  bool generating = false;
  {
    MutexLock lock(&mutex_);
    generating = book_.OnRevoke(lease);
  }
  if (!generating) return;
  SYNCOPATE_LOG(kInfo, "%s revoked: %s", Name(lease), revoke.reason());
  AbortLater(stream, lease);
}

void WorkClient::OnTurn(int64_t stream, const v1::ExchangeResponse::CardTurn& turn) {
  MutexLock lock(&mutex_);
  if (stream != book_.stream()) return;
  turn_ = {.number = turn.number(), .yield = turn.yield(), .told = true};
  if (turn.yield()) {
    book_.SetYielded(true);
    SendCreditsLocked();
  }
  ObeyTurnLaterLocked();
}

void WorkClient::ScheduleYieldLocked(absl::Duration delay) {
  if (stopping_) return;
  lost_.Set(delay, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->YieldIfStillLost();
  });
}

void WorkClient::YieldIfStillLost() {
  MutexLock lock(&mutex_);
  if (book_.welcomed() || stopping_) return;
  SYNCOPATE_LOG(kWarning, "the device is given up, as the trainer that shares it cannot be reached");
  turn_ = {.number = turn_.number, .yield = true};
  book_.SetYielded(true);
  ObeyTurnLaterLocked();
}

void WorkClient::ObeyTurnLaterLocked() {
  // One that waits for its try will obey what was said last.
  if (obeys_later_) return;
  obeys_later_ = turns_.Post([this] { ObeyTurn(); });
  if (!obeys_later_) SYNCOPATE_LOG(kDebug, "the device is neither given up nor taken back: this rollouter stops");
}

void WorkClient::ObeyTurn() {
  CardTurn turn;
  {
    MutexLock lock(&mutex_);
    obeys_later_ = false;
    if (stopping_) return;
    turn = turn_;
  }
  if (turn.done) return;
  absl::StatusOr<int64_t> moved = 0;
  if (turn.yield) {
    moved = engine_->Yield(options_.yields_within);
  } else if (const absl::Status taken = engine_->EndYield(); !taken.ok()) {
    moved = taken;
  }
  if (!moved.ok()) {
    SYNCOPATE_LOG(kWarning, "the device cannot be %s in turn %d yet: %s", turn.yield ? "given up" : "taken back",
                  turn.number, moved.status().ToString());
    MutexLock lock(&mutex_);
    // Heartbeats, which try again, need a stream.
    if (turn.yield && turn_.yield && !book_.welcomed()) ScheduleYieldLocked(kYieldRetry);
    return;
  }
  // One that has not yielded has weights, or waits for its first, or sleeps for another reason: it counts as back.
  const bool waits = engine_->GetStatus().yielded;
  moved_bytes_ += *moved;
  MutexLock lock(&mutex_);
  if (turn_.number != turn.number || turn_.yield != turn.yield || turn_.told != turn.told) return;
  // SetServing() ends the wait.
  if (!turn.yield && waits) return;
  turn_.done = true;
  if (!turn.yield) book_.SetYielded(false);
  v1::ExchangeRequest request;
  AddTurnLocked(&request);
  SendCreditsLocked(std::move(request));
}

void WorkClient::AddTurnLocked(v1::ExchangeRequest* request) {
  if (!turn_.told) return;
  using Turn = v1::ExchangeRequest::CardTurn;
  Turn& turn = *request->mutable_turn();
  turn.set_number(turn_.number);
  turn.set_moved_bytes(moved_bytes_);
  if (turn_.done) turn.set_state(turn_.yield ? Turn::STATE_YIELDED : Turn::STATE_BACK);
}

void WorkClient::GiveBack(const LeaseId& lease, const absl::Status& why) {
  MutexLock lock(&mutex_);
  ++counters_.returned;
  SendReturnLocked(lease, why);
}

void WorkClient::AbortLater(int64_t stream, const LeaseId& lease) {
  scorer_->Cancel(EngineRequestId(stream, lease));
  AbortRequestLater(EngineRequestId(stream, lease));
}

void WorkClient::AbortRequestLater(const std::string& id) {
  const bool posted = aborts_.Post([this, id] { engine_->Abort(id); });
  // Nothing is lost: the request ends by itself and its result is ignored.
  if (!posted) SYNCOPATE_LOG(kDebug, "%s runs to its end: too many aborts wait", id);
}

// Called under the lock, so that the versions in messages never go back. Write neither blocks nor calls back.
void WorkClient::SendLocked(v1::ExchangeRequest request) {
  if (stream_ == nullptr) return;
  *request.mutable_serving() = wire::ToProto(serving_);
  if (const PolicyVersion pinned = engine_->GetStatus().pinned; !pinned.IsNone()) {
    *request.mutable_pinned() = wire::ToProto(pinned);
  }
  stream_->Write(std::move(request));  // if the stream is ending, on_done reports it
}

void WorkClient::SendReturnLocked(const LeaseId& lease, const absl::Status& why) {
  v1::ExchangeRequest request;
  *request.mutable_return_lease()->mutable_lease() = wire::ToProto(lease);
  *request.mutable_return_lease()->mutable_error() = rpc::ToProto(why);
  SendLocked(std::move(request));
}

void WorkClient::SendCreditsLocked(v1::ExchangeRequest request) {
  if (!book_.welcomed()) return;
  request.mutable_credits()->set_groups(book_.Credits());
  if (!no_rewards_.ok()) request.mutable_credits()->set_no_rewards(ReplaceMalformed(no_rewards_.message()));
  SendLocked(std::move(request));
}

}  // namespace syncopate::rollouterd
