#include "services/rollouter/environment_client.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/log.h"
#include "services/rpc/channel.h"

namespace syncopate::rollouterd {

using rollouter::RemoteItem;
using rollouter::RemoteReward;

namespace {

absl::Status WorkerAway(const std::string& address, const std::string& why) {
  return Error(absl::StatusCode::kUnavailable, "WORKER_AWAY",
               absl::StrCat("the worker at ", address, " is away: ", why));
}

constexpr size_t kMaxItemBytes = 63 << 20;  // a worker takes messages of 64 MiB

v1::ScoreRequest::Item ToProto(const RemoteItem& item, bool with_tokens) {
  v1::ScoreRequest::Item message;
  message.set_id(item.id);
  message.mutable_task()->set_id(item.id);
  message.mutable_task()->set_environment(item.reward);
  message.mutable_task()->set_row_json(item.row_json.empty() ? "{}" : item.row_json);
  for (size_t i = 0; i < item.texts.size(); ++i) {
    v1::Answer* answer = message.add_answers();
    answer->set_text(item.texts[i]);
    answer->set_finish(item.finishes[i] == FinishReason::kLength ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP);
    if (!with_tokens || i >= item.tokens.size()) continue;
    answer->mutable_tokens()->Assign(item.tokens[i].begin(), item.tokens[i].end());
    answer->mutable_logprobs()->Assign(item.logprobs[i].begin(), item.logprobs[i].end());
  }
  const int64_t nanos = absl::ToInt64Nanoseconds(item.budget);
  message.mutable_budget()->set_seconds(nanos / 1'000'000'000);
  message.mutable_budget()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return message;
}

absl::StatusOr<RemoteReward> FromProto(const v1::Outcome& outcome) {
  if (outcome.has_error() && !rpc::FromProto(outcome.error()).ok()) return rpc::FromProto(outcome.error());
  if (!outcome.has_reward()) {
    return Error(absl::StatusCode::kInternal, "BAD_OUTCOME", "the worker answered neither a reward nor an error");
  }
  RemoteReward reward{.value = outcome.reward().value(), .components = {}, .extracted = outcome.reward().extracted()};
  for (const auto& [name, value] : outcome.reward().components()) reward.components.emplace_back(name, value);
  std::sort(reward.components.begin(), reward.components.end());  // the order of a protobuf map is random
  return reward;
}

}  // namespace

struct EnvironmentClient::DescribeCall {
  std::shared_ptr<v1::EnvironmentService::Stub> stub;
  grpc::ClientContext context;
  v1::DescribeRequest request;
  v1::DescribeResponse response;
};

std::shared_ptr<EnvironmentClient> EnvironmentClient::Start(Options options) {
  std::shared_ptr<EnvironmentClient> client(new EnvironmentClient(std::move(options)));
  client->Connect();
  return client;
}

EnvironmentClient::EnvironmentClient(Options options)
    : options_(std::move(options)),
      digest_(options_.shared_digest != nullptr ? options_.shared_digest
                                                : std::make_shared<WorkerDigest>(options_.digest)),
      there_(WorkerAway(options_.address, "it was not reached yet")),
      backoff_(options_.min_backoff, options_.max_backoff,
               DigestBytes(options_.address.data(), static_cast<int64_t>(options_.address.size()))) {}

EnvironmentClient::~EnvironmentClient() = default;

void EnvironmentClient::Connect() {
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

void EnvironmentClient::OnDescribed(const std::shared_ptr<DescribeCall>& call, const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    describing_ = nullptr;
    if (stopping_) return;
    ++callbacks_;
    absl::Status good = status.ok() ? status : WorkerAway(options_.address, std::string(status.message()));
    if (good.ok()) good = CheckDescriptionLocked(call->response);
    if (!good.ok()) {
      SetAwayLocked(good);
      ConnectLaterLocked();
    }
    // OpenStream takes the lock again, so it is called below, without it; a null stub means that there is no stream to
    // open.
    if (!good.ok()) call->stub = nullptr;
  }
  if (call->stub != nullptr) OpenStream(call);
  NotifyListener();
  MutexLock lock(&mutex_);
  --callbacks_;
}

absl::Status EnvironmentClient::CheckDescriptionLocked(const v1::DescribeResponse& response) {
  SYNCOPATE_RETURN_IF_ERROR(digest_->Check(options_.address, response.digest()));
  rewards_.clear();
  for (const auto& one : response.environments()) {
    // A worker that gives no number judges one answer at a time.
    if (!one.scores()) continue;
    rewards_[one.name()] = {.concurrency = std::max<int64_t>(1, one.concurrency()),
                            .of_groups = one.scores_groups(),
                            .reads_tokens = one.reads_tokens()};
  }
  return absl::OkStatus();
}

void EnvironmentClient::OpenStream(const std::shared_ptr<DescribeCall>& call) {
  std::shared_ptr<Stream> stream = Stream::Create();
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    stream_ = stream;
    there_ = absl::OkStatus();
    backoff_.Reset();
    SYNCOPATE_LOG(kInfo, "connected to the worker at %s, which has %d rewards", options_.address,
                  static_cast<int>(rewards_.size()));
  }
  auto self = shared_from_this();
  stream->Start([&call](auto* context, auto* reactor) { call->stub->async()->Score(context, reactor); },
                {.on_message = [self](const v1::ScoreResponse& response) { self->OnResponse(response); },
                 .on_done = [self](const absl::Status& status) { self->OnStreamDone(status); }});
}

absl::Status EnvironmentClient::Availability(const std::string& reward) const {
  MutexLock lock(&mutex_);
  SYNCOPATE_RETURN_IF_ERROR(there_);
  auto found = rewards_.find(reward);
  if (found == rewards_.end()) {
    std::string known;
    for (const auto& [name, offered] : rewards_) absl::StrAppend(&known, known.empty() ? "" : ", ", name);
    return Error(absl::StatusCode::kNotFound, "NO_SUCH_REWARD",
                 absl::StrCat("the worker at ", options_.address, " has no reward named ", reward, "; it has ", known));
  }
  const Offered& offered = found->second;
  if (offered.outstanding < offered.concurrency) return absl::OkStatus();
  return Error(absl::StatusCode::kResourceExhausted, "WORKER_BUSY",
               absl::StrCat("the worker judges ", offered.outstanding, " answers by ", reward, " already"));
}

void EnvironmentClient::Score(RemoteItem item, Done done) {
  bool with_tokens = false;
  {
    MutexLock lock(&mutex_);
    auto found = rewards_.find(item.reward);
    with_tokens = found != rewards_.end() && found->second.reads_tokens;
  }
  v1::ScoreRequest request;
  *request.add_items() = ToProto(item, with_tokens);
  if (const size_t bytes = request.ByteSizeLong(); bytes > kMaxItemBytes) {
    // It would end the stream, and with it all other items.
    return FailLater(std::move(done), Error(absl::StatusCode::kInvalidArgument, "ITEM_TOO_LARGE",
                                            absl::StrCat("the group and its row are ", bytes,
                                                         " bytes, more than the worker's ", kMaxItemBytes)));
  }
  {
    MutexLock lock(&mutex_);
    // Under the lock: the answer must not come before its item is in the table.
    if (stream_ != nullptr && stream_->Write(std::move(request))) {
      const auto answers = static_cast<int64_t>(item.texts.size());
      rewards_[item.reward].outstanding += answers;
      items_[item.id] = {item.reward, answers, std::move(done)};
      return;
    }
  }
  FailLater(std::move(done), WorkerAway(options_.address, "there is no stream to it"));
}

void EnvironmentClient::FailLater(Done done, absl::Status why) {
  MutexLock lock(&mutex_);
  if (stopping_) return;
  failed_.emplace_back(std::move(done), std::move(why));
  if (failed_.size() > 1) return;  // the alarm is set
  alarm_.Set(absl::ZeroDuration(), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->OnFailed();
  });
}

void EnvironmentClient::OnFailed() {
  std::vector<std::pair<Done, absl::Status>> failed;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    failed.swap(failed_);
    ++callbacks_;
  }
  for (auto& [done, why] : failed) done(why);
  MutexLock lock(&mutex_);
  --callbacks_;
}

void EnvironmentClient::Cancel(const std::string& id) {
  v1::ScoreRequest request;
  request.add_cancel(id);
  {
    MutexLock lock(&mutex_);
    auto gone = items_.extract(id);
    if (!gone) return;
    rewards_[gone.mapped().reward].outstanding -= gone.mapped().answers;
    if (stream_ != nullptr) stream_->Write(std::move(request));
  }
  NotifyListener();
}

void EnvironmentClient::OnResponse(const v1::ScoreResponse& response) {
  for (const v1::ScoreResponse::Item& item : response.items()) OnItem(item);
  NotifyListener();  // the worker has room again
}

void EnvironmentClient::OnItem(const v1::ScoreResponse::Item& item) {
  UnderWay ended;
  bool of_groups = false;
  {
    MutexLock lock(&mutex_);
    auto found = items_.extract(item.id());
    if (!found) return;  // it was cancelled
    ended = std::move(found.mapped());
    Offered& offered = rewards_[ended.reward];
    offered.outstanding -= ended.answers;
    of_groups = offered.of_groups;
  }
  Rewards rewards;
  for (const v1::Outcome& outcome : item.outcomes()) {
    rewards.push_back(FromProto(outcome));
    // The reward of one answer depends on the others: they are judged again together.
    if (of_groups && !rewards.back().ok()) return ended.done(rewards.back().status());
  }
  ended.done(std::move(rewards));
}

void EnvironmentClient::OnStreamDone(const absl::Status& status) {
  std::map<std::string, UnderWay> lost;
  {
    MutexLock lock(&mutex_);
    stream_ = nullptr;
    ++callbacks_;
    lost.swap(items_);
    if (!stopping_) {
      SetAwayLocked(WorkerAway(options_.address, absl::StrCat("its stream ended: ", status.message())));
      ConnectLaterLocked();
    }
  }
  // Not repeated here: an answer that kills the worker would kill every restarted worker too. GroupScore counts the
  // attempts.
  const absl::Status died = Error(absl::StatusCode::kInternal, "WORKER_DIED",
                                  absl::StrCat("the worker went away while it judged this: ", status.message()));
  for (auto& [id, item] : lost) item.done(died);
  NotifyListener();
  MutexLock lock(&mutex_);
  --callbacks_;
}

void EnvironmentClient::SetAwayLocked(const absl::Status& why) {
  if (there_ != why) SYNCOPATE_LOG(kWarning, "%s", why.ToString());
  there_ = why;
  rewards_.clear();
}

void EnvironmentClient::ConnectLaterLocked() {
  if (stopping_) return;
  reconnect_.Set(backoff_.Next(), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Connect();
  });
}

void EnvironmentClient::NotifyListener() {
  std::shared_ptr<const std::function<void()>> listener;
  {
    MutexLock lock(&mutex_);
    listener = listener_;
  }
  if (listener != nullptr) (*listener)();
}

void EnvironmentClient::SetAvailabilityListener(std::function<void()> changed) {
  MutexLock lock(&mutex_);
  listener_ = changed == nullptr ? nullptr : std::make_shared<const std::function<void()>>(std::move(changed));
}

void EnvironmentClient::Stop() {
  // Freed without the lock: callbacks may own much.
  std::vector<std::pair<Done, absl::Status>> failed;
  MutexLock lock(&mutex_);
  stopping_ = true;
  items_.clear();
  failed.swap(failed_);
  alarm_.Cancel();
  reconnect_.Cancel();
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
