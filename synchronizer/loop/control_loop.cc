#include "synchronizer/loop/control_loop.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"

namespace syncopate::synchronizer {

namespace {

absl::Status Stopped() {
  return Error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "the synchronizer is stopping; try again later");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlLoop>> ControlLoop::Start(const Options& options, Observer* observer) {
  SYNCOPATE_ASSIGN_OR_RETURN(StateLog::Opened opened, StateLog::Open(options.files, options.state_dir, options.codec));
  SYNCOPATE_ASSIGN_OR_RETURN(ControlPlane plane, ControlPlane::Restore(options.plane, opened.records));
  return std::unique_ptr<ControlLoop>(new ControlLoop(options, observer, std::move(plane), std::move(opened)));
}

ControlLoop::ControlLoop(const Options& options, Observer* observer, ControlPlane plane, StateLog::Opened opened)
    : options_(options),
      observer_(observer),
      plane_(std::move(plane)),
      log_(std::move(opened.log)),
      syncs_(std::move(opened.syncs)),
      thread_([this] { Run(); }) {}

ControlLoop::~ControlLoop() { Stop(); }

void ControlLoop::Post(Event event, std::function<void(const absl::Status&)> then) {
  {
    MutexLock lock(&mutex_);
    if (!stopping_) {
      posted_.push_back({std::move(event), std::move(then)});
      hurry_ = true;
      return;
    }
  }
  if (then) then(Stopped());
}

void ControlLoop::PostSoon(Event event) {
  MutexLock lock(&mutex_);
  if (!stopping_) posted_.push_back({std::move(event), nullptr});
}

SessionId ControlLoop::Open(std::shared_ptr<Session> session) {
  MutexLock lock(&mutex_);
  SessionId id = next_session_++;
  sessions_[id] = std::move(session);
  return id;
}

void ControlLoop::Closed(SessionId session) {
  // Its end may call back into this object.
  std::shared_ptr<Session> released;  // without the lock
  {
    MutexLock lock(&mutex_);
    auto found = sessions_.find(session);
    if (found != sessions_.end()) released = std::move(found->second);
    sessions_.erase(session);
  }
  Post([session](ControlPlane& plane, absl::Time now) { plane.OnStreamBroken(session, now); });
}

void ControlLoop::CloseAll(const absl::Status& status) {
  std::vector<std::shared_ptr<Session>> sessions;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, session] : sessions_) sessions.push_back(session);
  }
  for (const auto& session : sessions) session->Close(status);
}

void ControlLoop::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void ControlLoop::Run() {
  absl::Status status = CarryOut();  // what the plane wants at its start
  if (status.ok()) observer_->RecordState(plane_);
  while (status.ok()) {
    if (options_.on_round) options_.on_round();
    std::optional<std::deque<Posted>> batch = NextBatch();
    if (!batch.has_value()) return;
    status = Handle(*batch);
    if (!status.ok()) Drop(std::move(*batch));
  }
  SYNCOPATE_LOG(kError, "the synchronizer's state cannot be written: %s", std::string(status.message()));
  CloseAll(status);
  std::deque<Posted> unheard;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    unheard.swap(posted_);
  }
  Drop(std::move(unheard));
  observer_->RecordFailure(status);
}

std::optional<std::deque<ControlLoop::Posted>> ControlLoop::NextBatch() {
  absl::Duration until_deadline =
      std::clamp(plane_.NextDeadline() - options_.clock->Now(), absl::ZeroDuration(), kLongestWait);
  MutexLock lock(&mutex_);
  auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !posted_.empty(); };
  mutex_.AwaitWithTimeout(Condition(&due), until_deadline);
  auto urgent = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || hurry_; };
  if (!posted_.empty()) mutex_.AwaitWithTimeout(Condition(&urgent), std::min(kGather, until_deadline));
  hurry_ = false;
  if (posted_.empty() && stopping_) return std::nullopt;
  return std::exchange(posted_, {});
}

absl::Status ControlLoop::Handle(std::deque<Posted>& batch) {
  for (; !batch.empty(); batch.pop_front()) {
    batch.front().event(plane_, options_.clock->Now());
    SYNCOPATE_RETURN_IF_ERROR(CarryOut());
    if (batch.front().then) batch.front().then(absl::OkStatus());
  }
  absl::Time now = options_.clock->Now();
  // Also after events, which never stop in a large fleet: deadlines are looked at as often as anything else.
  if (plane_.NextDeadline() > now) return absl::OkStatus();
  plane_.Tick(now);
  return CarryOut();
}

void ControlLoop::Drop(std::deque<Posted> dropped) {
  for (Posted& posted : dropped) {
    if (posted.then) posted.then(Stopped());
  }
}

absl::Status ControlLoop::CarryOut() {
  bool changed = false;
  for (const Action& action : plane_.TakeActions()) {
    if (const auto* send = std::get_if<SendCommand>(&action)) {
      if (auto session = FindSession(send->session)) session->Send(send->command);
    } else if (const auto* close = std::get_if<CloseSession>(&action)) {
      if (auto session = FindSession(close->session)) session->Close(close->status);
    } else if (const auto* persist = std::get_if<Persist>(&action)) {
      SYNCOPATE_RETURN_IF_ERROR(log_->Append(persist->record));
      changed = true;
    } else if (const auto* ended = std::get_if<SyncEnded>(&action)) {
      syncs_.Add(ended->record);
      ended_.Add(ended->record);
      observer_->RecordSync(ended->record);
    } else if (const auto* note = std::get_if<Note>(&action)) {
      if (note->alarm) SYNCOPATE_LOG(kError, "%s", note->text);
      if (!note->alarm) SYNCOPATE_LOG(kInfo, "%s", note->text);
      changed = true;
    }
  }
  if (changed) observer_->RecordState(plane_);
  WriteEndedSyncs();
  // Not before: until all actions are carried out the ledger is ahead of the log.
  if (!log_->HasGrown() || ended_.count() > 0) return absl::OkStatus();
  return log_->Compact(plane_.ledger().Snapshot(), syncs_);
}

// A count that the disk refuses is no reason to end: it is written with the next one.
void ControlLoop::WriteEndedSyncs() {
  if (ended_.count() == 0) return;
  const absl::Status written = log_->AppendSyncs(ended_);
  if (written.ok()) ended_ = SyncTally();
  if (!written.ok()) SYNCOPATE_LOG(kWarning, "the count of syncs is not written down: %s", written.ToString());
}

std::shared_ptr<ControlLoop::Session> ControlLoop::FindSession(SessionId session) {
  MutexLock lock(&mutex_);
  auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second;
}

}  // namespace syncopate::synchronizer
