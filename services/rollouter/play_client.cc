#include "services/rollouter/play_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/utf8.h"
#include "services/rpc/channel.h"

namespace syncopate::rollouterd {

using rollouter::EnvironmentMessage;
using rollouter::RemoteEpisode;

namespace {

constexpr int64_t kMaxQueuedMessages = 1 << 16;  // an Open and a Cancel for each of very many episodes
// Bytes of what an environment says to one call; the worker cuts its own texts there, too.
constexpr size_t kMaxTextBytes = 1 << 20;

absl::Status PlayWorkerAway(const std::string& address, const std::string& why) {
  return Error(absl::StatusCode::kUnavailable, "WORKER_AWAY",
               absl::StrCat("the worker at ", address, " is away: ", why));
}

absl::Status EpisodeLost(const std::string& why) {
  return Error(absl::StatusCode::kInternal, "EPISODE_LOST", absl::StrCat("the worker lost the episode: ", why));
}

absl::Status TooLong(absl::Duration budget) {
  return Error(absl::StatusCode::kDeadlineExceeded, "ENVIRONMENT_TIMEOUT",
               absl::StrCat("the environment did not answer within ", absl::FormatDuration(budget)));
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

v1::PlayRequest MakeOpen(const RemoteEpisode& episode, absl::Duration budget) {
  v1::PlayRequest request;
  v1::PlayRequest::Open* open = request.mutable_open();
  open->set_episode(episode.id);
  open->mutable_task()->set_id(episode.id);
  open->mutable_task()->set_environment(episode.environment);
  open->mutable_task()->set_row_json(episode.row_json.empty() ? "{}" : episode.row_json);
  open->set_seed(episode.seed);
  open->set_max_turns(episode.max_turns);
  const int64_t nanos = absl::ToInt64Nanoseconds(budget);
  open->mutable_budget()->set_seconds(nanos / 1'000'000'000);
  open->mutable_budget()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return request;
}

std::string Cut(const std::string& text) {
  if (text.size() <= kMaxTextBytes) return text;
  return text.substr(0, WellFormedPrefix(absl::string_view(text).substr(0, kMaxTextBytes)));
}

// The time that the worker says a call took, which cannot be more than passed here.
double LimitSeconds(double said, absl::Duration passed) {
  const double most = std::max(0.0, absl::ToDoubleSeconds(passed));
  return said >= 0 && said <= most ? said : most;  // NaN is neither
}

// A reward is checked by the episode.
absl::StatusOr<EnvironmentMessage> FromProto(const v1::PlayResponse::Closed& closed) {
  const v1::Outcome& outcome = closed.outcome();
  if (outcome.has_error() && !rpc::FromProto(outcome.error()).ok()) return rpc::FromProto(outcome.error());
  if (outcome.has_reward()) {
    return EnvironmentMessage{.reward = outcome.reward().value(), .done = true, .rejected = closed.rejected()};
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OUTCOME",
               "the worker closed the episode with neither a reward nor an error");
}

}  // namespace

struct PlayClient::DescribeCall {
  std::shared_ptr<v1::EnvironmentService::Stub> stub;
  grpc::ClientContext context;
  v1::DescribeRequest request;
  v1::DescribeResponse response;
};

std::shared_ptr<PlayClient> PlayClient::Start(Options options) {
  std::shared_ptr<PlayClient> client(new PlayClient(std::move(options)));
  client->Connect();
  return client;
}

PlayClient::PlayClient(Options options)
    : options_(std::move(options)),
      digest_(options_.shared_digest != nullptr ? options_.shared_digest
                                                : std::make_shared<WorkerDigest>(options_.digest)),
      there_(PlayWorkerAway(options_.address, "it was not reached yet")),
      backoff_(options_.min_backoff, options_.max_backoff,
               DigestBytes(options_.address.data(), static_cast<int64_t>(options_.address.size()))) {}

PlayClient::~PlayClient() = default;

// -- The connection

void PlayClient::Connect() {
  auto channel = rpc::MakeChannel(options_.address, {.security = options_.security, .peer_role = "environment"});
  auto call = std::make_shared<DescribeCall>();
  call->context.set_deadline(rpc::CallDeadline(options_.describe_timeout));
  if (channel.ok()) call->stub = v1::EnvironmentService::NewStub(*channel);
  {
    MutexLock lock(&mutex_);
    if (stopping_ || stream_ != nullptr || describing_ != nullptr) return;
    if (!channel.ok()) return SetAwayLocked(channel.status());  // permanent: the address is malformed
    // Describe is called before every stream: a restarted worker may have other code.
    describing_ = call;
  }
  call->stub->async()->Describe(&call->context, &call->request, &call->response,
                                [self = shared_from_this(), call](const grpc::Status& status) {
                                  self->OnDescribed(call, rpc::FromGrpc(status));
                                });
}

void PlayClient::OnDescribed(const std::shared_ptr<DescribeCall>& call, const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    describing_ = nullptr;
    if (stopping_) return;
    ++callbacks_;
    absl::Status good = status.ok() ? status : PlayWorkerAway(options_.address, std::string(status.message()));
    if (good.ok()) good = CheckDescriptionLocked(call->response);
    if (!good.ok()) {
      SetAwayLocked(good);
      ConnectLaterLocked();
      call->stub = nullptr;  // there is no stream to open
    }
  }
  if (call->stub != nullptr) OpenStream(call);
  Answer({}, /*notify=*/true);
  MutexLock lock(&mutex_);
  --callbacks_;
}

absl::Status PlayClient::CheckDescriptionLocked(const v1::DescribeResponse& response) {
  SYNCOPATE_RETURN_IF_ERROR(digest_->Check(options_.address, response.digest()));
  offered_.clear();
  for (const auto& one : response.environments()) {
    if (!one.plays()) continue;
    const absl::Duration budget = FromProto(one.call_budget());
    offered_[one.name()] = {
        .episodes = std::max(1, one.episodes()),
        .budget = budget > absl::ZeroDuration() ? std::min(budget, options_.call_budget) : options_.call_budget};
  }
  return absl::OkStatus();
}

void PlayClient::OpenStream(const std::shared_ptr<DescribeCall>& call) {
  std::shared_ptr<Stream> stream = Stream::Create({.max_queued_messages = kMaxQueuedMessages});
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    stream_ = stream;
    there_ = absl::OkStatus();
    backoff_.Reset();
    SYNCOPATE_LOG(kInfo, "connected to the worker at %s, which has %d environments", options_.address,
                  static_cast<int>(offered_.size()));
    SendWaitingLocked();
  }
  auto self = shared_from_this();
  stream->Start([&call](auto* context, auto* reactor) { call->stub->async()->Play(context, reactor); },
                {.on_message = [self](const v1::PlayResponse& response) { self->OnResponse(response); },
                 .on_done = [self](const absl::Status& status) { self->OnStreamDone(status); }});
}

void PlayClient::OnStreamDone(const absl::Status& status) {
  Answers answers;
  {
    MutexLock lock(&mutex_);
    stream_ = nullptr;
    ++callbacks_;
    const std::string why = std::string(status.message());
    for (auto played = episodes_.begin(); played != episodes_.end();) {
      if (!played->second.sent) {
        ++played;
        continue;
      }
      EndCallLocked(played->first, &played->second, EpisodeLost(why), &answers);
      played = episodes_.erase(played);
    }
    counters_.cancels_lost += std::ssize(closing_);
    for (const auto& [id, closing] : closing_) due_.erase({closing.due, id});
    closing_.clear();
    if (!stopping_) {
      SetAwayLocked(PlayWorkerAway(options_.address, absl::StrCat("its stream ended: ", why)));
      ConnectLaterLocked();
    }
  }
  Answer(std::move(answers), /*notify=*/true);
  MutexLock lock(&mutex_);
  --callbacks_;
}

void PlayClient::SetAwayLocked(const absl::Status& why) {
  if (there_ != why) SYNCOPATE_LOG(kWarning, "%s", why.ToString());
  there_ = why;
  offered_.clear();
}

void PlayClient::ConnectLaterLocked() {
  if (stopping_) return;
  reconnect_.Set(backoff_.Next(), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Connect();
  });
}

absl::Status PlayClient::Availability(const std::string& environment) const {
  MutexLock lock(&mutex_);
  SYNCOPATE_RETURN_IF_ERROR(there_);
  if (offered_.contains(environment)) return absl::OkStatus();
  std::string known;
  for (const auto& [name, offered] : offered_) absl::StrAppend(&known, known.empty() ? "" : ", ", name);
  return Error(absl::StatusCode::kNotFound, "NO_SUCH_ENVIRONMENT",
               absl::StrCat("the worker at ", options_.address, " has no environment named ", environment, "; it has ",
                            known.empty() ? "none" : known));
}

// -- Episodes

absl::Duration PlayClient::GetBudgetLocked(const std::string& environment) const {
  const auto offered = offered_.find(environment);
  return offered == offered_.end() ? options_.call_budget : offered->second.budget;
}

void PlayClient::BeginCallLocked(const std::string& id, Played* played, Done done) {
  due_.erase({played->due, id});
  played->done = std::move(done);
  played->began = Clock::Real()->Now();
  played->due = played->began + GetBudgetLocked(played->opening.environment) + options_.grace;
  due_.emplace(played->due, id);
  WatchDueLocked();
}

void PlayClient::EndCallLocked(const std::string& id, Played* played, Said said, Answers* answers) {
  due_.erase({played->due, id});
  if (played->done == nullptr) return;
  if (!said.ok()) ++counters_.failed;
  answers->emplace_back(std::exchange(played->done, nullptr), std::move(said));
}

void PlayClient::WatchDueLocked() {
  if (stopping_ || (due_.empty() && failed_.empty())) return;
  const absl::Time now = Clock::Real()->Now();
  const absl::Time first = failed_.empty() ? due_.begin()->first : now;
  if (first >= alarm_at_) return;
  alarm_at_ = first;
  alarm_.Set(std::max(absl::ZeroDuration(), first - now), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->OnDue();
  });
}

void PlayClient::OnDue() {
  Answers answers;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    ++callbacks_;
    alarm_at_ = absl::InfiniteFuture();
    answers.swap(failed_);
    const absl::Time now = Clock::Real()->Now();
    while (!due_.empty() && due_.begin()->first <= now) {
      auto gone = episodes_.extract(due_.begin()->second);
      if (gone.empty()) {
        LoseCancelLocked(due_.begin()->second);
        continue;
      }
      const std::string& environment = gone.mapped().opening.environment;
      EndCallLocked(gone.key(), &gone.mapped(), TooLong(GetBudgetLocked(environment)), &answers);
      SendCancelLocked(gone.key(), gone.mapped(), "a call has taken longer than its budget");
    }
    WatchDueLocked();
  }
  Answer(std::move(answers), /*notify=*/false);
  MutexLock lock(&mutex_);
  --callbacks_;
}

// The worker does not keep its word; its late answer is ignored.
void PlayClient::LoseCancelLocked(const std::string& id) {
  const auto lost = closing_.extract(id);
  SYNCOPATE_CHECK(!lost.empty());               // what ends takes its entry of due_ along
  due_.erase({lost.mapped().due, lost.key()});  // `id` may be in it
  ++counters_.cancels_lost;
  SYNCOPATE_LOG(kWarning, "the worker at %s has not said within %s that the cancelled episode %s is closed",
                options_.address, absl::FormatDuration(options_.cancel_timeout), lost.key());
  FreeRoomLocked(lost.mapped().environment);
}

void PlayClient::FreeRoomLocked(const std::string& environment) {
  if (auto offered = offered_.find(environment); offered != offered_.end() && offered->second.open > 0) {
    --offered->second.open;
  }
  SendWaitingLocked();
}

void PlayClient::Open(RemoteEpisode episode, Done done) {
  MutexLock lock(&mutex_);
  if (stopping_) return;
  const std::string id = episode.id;
  Played& played = episodes_[id];
  played.opening = std::move(episode);
  BeginCallLocked(id, &played, std::move(done));
  waiting_.push_back(id);
  SendWaitingLocked();
}

void PlayClient::SendWaitingLocked() {
  if (stream_ == nullptr) return;
  std::deque<std::string> without_room;
  for (; !waiting_.empty(); waiting_.pop_front()) {
    const std::string& id = waiting_.front();
    auto found = episodes_.find(id);
    if (found == episodes_.end()) continue;  // it was closed, or has waited too long
    Played& played = found->second;
    auto offered = offered_.find(played.opening.environment);
    if (offered != offered_.end() && offered->second.open >= offered->second.episodes) {
      without_room.push_back(id);
      continue;
    }
    // An environment that the worker does not have is its answer.
    if (offered != offered_.end()) ++offered->second.open;
    played.sent = true;
    ++counters_.opened;
    BeginCallLocked(id, &played, std::exchange(played.done, nullptr));
    stream_->Write(MakeOpen(played.opening, GetBudgetLocked(played.opening.environment)));
  }
  waiting_ = std::move(without_room);
}

void PlayClient::Act(const std::string& episode, rollouter::RemoteAction action, Done done) {
  MutexLock lock(&mutex_);
  if (stopping_) return;
  auto found = episodes_.find(episode);
  if (found == episodes_.end()) {
    ++counters_.failed;
    failed_.emplace_back(std::move(done), EpisodeLost("its stream has ended"));
    return WatchDueLocked();
  }
  found->second.turn = action.turn;
  BeginCallLocked(episode, &found->second, std::move(done));
  v1::PlayRequest request;
  v1::PlayRequest::Act* act = request.mutable_act();
  act->set_episode(episode);
  act->set_turn(action.turn);
  act->set_text(ReplaceMalformed(action.text));
  act->set_finish(action.finish == FinishReason::kLength ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP);
  act->set_content(ReplaceMalformed(action.content));
  for (const text::chat::ToolCall& call : action.tool_calls) {
    v1::PlayRequest::ToolCall* made = act->add_tool_calls();
    made->set_name(ReplaceMalformed(call.name));
    made->set_arguments_json(ReplaceMalformed(call.arguments));
  }
  if (stream_ != nullptr) stream_->Write(std::move(request));  // if it is ending, its end loses the episode
}

void PlayClient::Close(const std::string& episode, const std::string& reason) {
  MutexLock lock(&mutex_);
  auto gone = episodes_.extract(episode);
  if (!gone) return;
  due_.erase({gone.mapped().due, episode});
  SendCancelLocked(episode, gone.mapped(), reason);
}

void PlayClient::SendCancelLocked(const std::string& id, const Played& played, const std::string& reason) {
  if (!played.sent || stream_ == nullptr) return;
  v1::PlayRequest request;
  request.mutable_cancel()->set_episode(id);
  request.mutable_cancel()->set_reason(reason);
  ++counters_.cancels;
  const absl::Time due = Clock::Real()->Now() + options_.cancel_timeout;
  closing_[id] = {.environment = played.opening.environment, .due = due};
  due_.emplace(due, id);
  WatchDueLocked();
  stream_->Write(std::move(request));
}

void PlayClient::OnResponse(const v1::PlayResponse& response) {
  Answers answers;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    ++callbacks_;
    if (response.has_observe()) OnObserveLocked(response.observe(), &answers);
    if (response.has_closed()) OnClosedLocked(response.closed(), &answers);
  }
  Answer(std::move(answers), /*notify=*/false);
  MutexLock lock(&mutex_);
  --callbacks_;
}

void PlayClient::OnObserveLocked(const v1::PlayResponse::Observe& observe, Answers* answers) {
  auto found = episodes_.find(observe.episode());
  // What nobody asked for is ignored, an answer that comes twice too.
  if (found == episodes_.end() || found->second.done == nullptr || observe.turn() != found->second.turn) return;
  if (observe.turn() > 0) ++counters_.turns;
  EnvironmentMessage message{.text = Cut(observe.text()),
                             .seconds = LimitSeconds(observe.seconds(), Clock::Real()->Now() - found->second.began)};
  for (const std::string& result : observe.tool_results()) message.tool_results.push_back(Cut(result));
  if (observe.has_reward()) message.reward = observe.reward();
  EndCallLocked(found->first, &found->second, std::move(message), answers);
}

void PlayClient::OnClosedLocked(const v1::PlayResponse::Closed& closed, Answers* answers) {
  std::string environment;
  if (auto cancelled = closing_.extract(closed.episode())) {
    ++counters_.cancels_answered;
    environment = cancelled.mapped().environment;
    due_.erase({cancelled.mapped().due, closed.episode()});
  } else if (auto gone = episodes_.find(closed.episode()); gone != episodes_.end() && gone->second.sent) {
    Played& played = gone->second;
    environment = played.opening.environment;
    Said said = FromProto(closed);
    if (said.ok()) said->seconds = LimitSeconds(closed.seconds(), Clock::Real()->Now() - played.began);
    if (said.ok() && played.turn > 0) ++counters_.turns;
    // Without a call under way the worker has ended the episode itself: the next call fails.
    EndCallLocked(gone->first, &played, std::move(said), answers);
    episodes_.erase(gone);
  } else {
    return;
  }
  FreeRoomLocked(environment);
}

// -- Callbacks

void PlayClient::Answer(Answers answers, bool notify) {
  for (auto& [done, said] : answers) done(std::move(said));
  std::shared_ptr<const std::function<void()>> listener;
  {
    MutexLock lock(&mutex_);
    listener = listener_;
  }
  if (notify && listener != nullptr) (*listener)();
}

void PlayClient::SetAvailabilityListener(std::function<void()> changed) {
  MutexLock lock(&mutex_);
  listener_ = changed == nullptr ? nullptr : std::make_shared<const std::function<void()>>(std::move(changed));
}

PlayClient::Counters PlayClient::counters() const {
  MutexLock lock(&mutex_);
  return counters_;
}

void PlayClient::Stop() {
  // Freed without the lock: callbacks may own much.
  std::map<std::string, Played> dropped;
  Answers failed;
  MutexLock lock(&mutex_);
  stopping_ = true;
  dropped.swap(episodes_);
  failed.swap(failed_);
  waiting_.clear();
  closing_.clear();
  due_.clear();
  reconnect_.Cancel();
  alarm_.Cancel();
  if (stream_ != nullptr) stream_->Cancel();
  if (describing_ != nullptr) describing_->context.TryCancel();
  // The listener's owner may be freed once this returns.
  auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stream_ == nullptr && describing_ == nullptr && callbacks_ == 0;
  };
  if (!mutex_.AwaitWithTimeout(Condition(&ended), absl::Seconds(5))) {
    SYNCOPATE_LOG(kError, "the stream to the worker did not end within 5 s of its cancellation");
  }
}

}  // namespace syncopate::rollouterd
