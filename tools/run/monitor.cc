#include "tools/run/monitor.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/console/words.h"
#include "base/reasons.h"
#include "services/rpc/channel.h"
#include "services/wire/codec.h"
#include "synchronizer/sync_outcome.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"

namespace syncopate::run {
namespace {

using v1::RolloutService, v1::SynchronizerService, v1::TrainerService;

constexpr absl::Duration kPollEvery = absl::Milliseconds(500);
// The longest wait for one daemon, so that a daemon that hangs does not freeze the table for long.
constexpr absl::Duration kAnswerWithin = absl::Milliseconds(500);
constexpr absl::Duration kReconnectAfter = absl::Milliseconds(300);
constexpr size_t kRecentSyncs = 100;
constexpr size_t kRecentPolls = 5;  // two seconds

template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> Ask(const daemon::DaemonEndpoint& endpoint,
                             const std::shared_ptr<const auth::TransportSecurity>& security,
                             grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&, Response*)) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel,
                             rpc::MakeChannel(endpoint.grpc, {.security = security, .peer_role = endpoint.role}));
  auto stub = Service::NewStub(channel);
  return rpc::CallUnary(stub.get(), method, Request(), kAnswerWithin);
}

double Median(const std::deque<double>& values) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<int64_t>(sorted.size() / 2), sorted.end());
  return sorted[sorted.size() / 2];
}

void Push(double value, std::deque<double>* recent) {
  recent->push_back(value);
  if (recent->size() > kRecentSyncs) recent->pop_front();
}

std::string WhoWaits(const v1::Explanation& why) {
  if (why.waiting_for().empty() || why.waiting_for() == "nothing") return "";
  std::string text = absl::StrCat("the trainer waits for ", why.waiting_for());
  if (!why.rollouter().empty()) absl::StrAppend(&text, " on ", why.rollouter());
  if (!why.detail().empty()) absl::StrAppend(&text, ": ", why.detail());
  return text;
}

}  // namespace

RunMonitor::RunMonitor(std::shared_ptr<const auth::TransportSecurity> security, SyncListener on_sync)
    : security_(std::move(security)),
      on_sync_(std::move(on_sync)),
      poll_thread_([this] { PollLoop(); }),
      watch_thread_([this] { WatchLoop(); }) {}

RunMonitor::~RunMonitor() { Stop(); }

void RunMonitor::SetEndpoints(std::vector<daemon::DaemonEndpoint> endpoints) {
  std::set<std::string> names;
  for (const daemon::DaemonEndpoint& endpoint : endpoints) names.insert(endpoint.Name());
  MutexLock lock(&mutex_);
  trouble_.KeepOnly(names);
  endpoints_ = std::move(endpoints);
}

RunMonitor::Snapshot RunMonitor::Get() const {
  MutexLock lock(&mutex_);
  Snapshot snapshot = snapshot_;
  if (snapshot.alarm.empty()) snapshot.alarm = trouble_.Alarm();
  return snapshot;
}

void RunMonitor::Stop() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    if (watch_ != nullptr) watch_->TryCancel();
  }
  if (poll_thread_.joinable()) poll_thread_.join();
  if (watch_thread_.joinable()) watch_thread_.join();
}

bool RunMonitor::StoppedWithin(absl::Duration time) {
  MutexLock lock(&mutex_);
  auto stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_; };
  return mutex_.AwaitWithTimeout(Condition(&stopped), time);
}

void RunMonitor::PollLoop() {
  while (!StoppedWithin(kPollEvery)) {
    std::vector<daemon::DaemonEndpoint> endpoints;
    {
      MutexLock lock(&mutex_);
      endpoints = endpoints_;
    }
    for (const daemon::DaemonEndpoint& endpoint : endpoints) {
      if (endpoint.role == "trainer") PollTrainer(endpoint);
      if (endpoint.role == "rollouter") PollRollouter(endpoint);
      if (endpoint.role == "synchronizer") PollSynchronizer(endpoint);
    }
  }
}

void RunMonitor::PollTrainer(const daemon::DaemonEndpoint& endpoint) {
  auto status = Ask<TrainerService>(endpoint, security_, &TrainerService::Stub::GetStatus);
  if (!status.ok()) return;
  // A daemon that does not answer keeps its last row: the supervisor decides whether it has died.
  auto trained = status->groups().find("trained");
  const std::string reward_alarm = reward_trouble_.Alarm(*status, Clock::Real()->Now());
  const v1::RewardFailures& rewards = status->reward_failures();
  MutexLock lock(&mutex_);
  DaemonRow& row = snapshot_.daemons[endpoint.Name()];
  row.state = status->state();
  row.version = wire::VersionText(status->version());
  row.groups = trained == status->groups().end() ? 0 : trained->second;
  snapshot_.groups = {status->groups().begin(), status->groups().end()};
  snapshot_.checkpoints = {.failed = status->failed_checkpoints(),
                           .error = status->checkpoint_error(),
                           .best = status->best_checkpoint(),
                           .best_reward = status->best_checkpoint_reward()};
  snapshot_.waiting = WhoWaits(status->explanation());
  // Only the user can solve a full disk, or a reward that cannot judge.
  const std::string& waiting_for = status->explanation().waiting_for();
  const bool waits_for_it = waiting_for == "disk" || (waiting_for == "rewards" && !reward_alarm.empty());
  snapshot_.alarm = waits_for_it ? snapshot_.waiting : synchronizer_alarm_.empty() ? reward_alarm : synchronizer_alarm_;
  if (snapshot_.reward_failure.empty() && rewards.failed() > 0) {
    snapshot_.reward_failure = absl::StrCat("a group got no reward: ", rewards.first());
  }
}

void RunMonitor::PollRollouter(const daemon::DaemonEndpoint& endpoint) {
  auto status = Ask<RolloutService>(endpoint, security_, &RolloutService::Stub::GetStatus);
  if (!status.ok()) return;
  Counters now{Clock::Real()->Now(), status->generated_tokens(), status->busy_seconds(), status->idle_seconds()};
  std::deque<Counters>& recent = counters_[endpoint.Name()];
  if (!recent.empty() && now.tokens < recent.back().tokens) recent.clear();  // the rollouter was restarted
  recent.push_back(now);
  if (recent.size() > kRecentPolls) recent.pop_front();
  const Counters& before = recent.front();
  double idle = now.idle_seconds - before.idle_seconds;
  double busy = now.busy_seconds - before.busy_seconds;
  double tokens = static_cast<double>(now.tokens - before.tokens);
  MutexLock lock(&mutex_);
  DaemonRow& row = snapshot_.daemons[endpoint.Name()];
  row.state = status->state();
  row.version = wire::VersionText(status->serving());
  row.groups = status->groups_submitted();
  row.idle = Share(idle, idle + busy);
  // Over the last polls only: a rate since the start would not show that generation has stopped.
  row.tokens_per_second = Share(tokens, absl::ToDoubleSeconds(now.at - before.at));
}

void RunMonitor::PollSynchronizer(const daemon::DaemonEndpoint& endpoint) {
  auto status = Ask<SynchronizerService>(endpoint, security_, &SynchronizerService::Stub::GetStatus);
  const bool no_room = ErrorReason(status.status()) == reason::kNoSpace;
  if (!status.ok() && !no_room) return;
  MutexLock lock(&mutex_);
  DaemonRow& row = snapshot_.daemons[endpoint.Name()];
  synchronizer_alarm_ = no_room ? std::string(status.status().message()) : "";
  if (no_room) {
    row.state = "disk full";
    snapshot_.alarm = synchronizer_alarm_;
    return;
  }
  row.state = "running";
  row.version = wire::VersionText(status->newest());
}

std::string RunMonitor::SynchronizerAddress() const {
  MutexLock lock(&mutex_);
  for (const daemon::DaemonEndpoint& endpoint : endpoints_) {
    if (endpoint.role == "synchronizer") return endpoint.grpc;
  }
  return "";
}

void RunMonitor::WatchLoop() {
  while (!StoppedWithin(kReconnectAfter)) {
    std::string address = SynchronizerAddress();
    if (!address.empty()) WatchSyncs(address);
  }
}

void RunMonitor::WatchSyncs(const std::string& address) {
  auto channel = rpc::MakeChannel(address, {.security = security_, .peer_role = "synchronizer"});
  if (!channel.ok()) return;
  auto stub = SynchronizerService::NewStub(*channel);
  grpc::ClientContext context;  // no deadline: it follows the run; keepalive finds a dead synchronizer
  {
    MutexLock lock(&mutex_);
    if (stopped_) return;
    // Lets Stop cancel a read that waits for a sync which never comes.
    watch_ = &context;
  }
  v1::WatchSyncsRequest request;
  request.set_follow(true);
  auto reader = stub->WatchSyncs(&context, request);
  v1::WatchSyncsResponse response;
  while (reader->Read(&response)) {
    Count(response.record());
    if (on_sync_ != nullptr) on_sync_(response.record());
  }
  reader->Finish();
  MutexLock lock(&mutex_);
  watch_ = nullptr;
}

void RunMonitor::Count(const v1::SyncRecord& record) {
  MutexLock lock(&mutex_);
  const synchronizer::SyncOutcome outcome = synchronizer::ClassifySyncResult(record.result());
  trouble_.Note(record.replica_id(), outcome, absl::StrCat(record.result(), ": ", record.detail()),
                absl::UnixEpoch() + absl::Seconds(record.ended_unix_seconds()));
  if (outcome == synchronizer::SyncOutcome::kSuperseded) return;  // the newer version that replaced it counts
  if (outcome == synchronizer::SyncOutcome::kRehearsed) return;   // a rehearsal moves no version
  const bool ok = outcome != synchronizer::SyncOutcome::kFailed;
  ++(ok ? snapshot_.syncs.ok : snapshot_.syncs.failed);
  auto total = record.seconds().find("total");
  if (!ok || total == record.seconds().end()) return;
  // Medians of the last hundred, so that one slow sync at the start does not stay on the screen.
  Push(total->second, &totals_);
  Push(record.pause_seconds(), &pauses_);
  snapshot_.syncs.last_seconds = total->second;
  snapshot_.syncs.median_seconds = Median(totals_);
  snapshot_.syncs.median_pause_seconds = Median(pauses_);
}

}  // namespace syncopate::run
