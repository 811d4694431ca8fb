#include "synchronizer/loop/control_loop.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reasons.h"

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

void ControlLoop::Post(Event event, const PostedEvents::Answer& then) {
  absl::Status refused;
  {
    MutexLock lock(&mutex_);
    if (stopping_) {
      refused = Stopped();
    } else if (posted_.Add({std::move(event), then})) {
      hurry_ = true;
    } else {
      refused = blocked_;
    }
  }
  if (!refused.ok() && then) then(refused);
}

void ControlLoop::PostFrom(SessionId session, Kind kind, Event event) {
  MutexLock lock(&mutex_);
  if (stopping_) return;
  posted_.Add({std::move(event), nullptr, session, kind});
  if (kind != Kind::kHeartbeat) hurry_ = true;
}

SessionId ControlLoop::Open(std::shared_ptr<Session> session) {
  MutexLock lock(&mutex_);
  SessionId id = next_session_++;
  sessions_[id] = std::move(session);
  return id;
}

void ControlLoop::Closed(SessionId session) {
  // Destroying the session may call back into this object.
  std::shared_ptr<Session> released;  // destroyed without the lock
  {
    MutexLock lock(&mutex_);
    auto found = sessions_.find(session);
    if (found != sessions_.end()) released = std::move(found->second);
    sessions_.erase(session);
  }
  PostFrom(session, Kind::kEnd, [session](ControlPlane& plane, absl::Time now) { plane.OnStreamBroken(session, now); });
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
  absl::Status status = CarryOut();  // the plane's actions at its start
  if (status.ok()) observer_->RecordState(plane_);
  while (status.ok()) {
    if (options_.on_round) options_.on_round();
    std::optional<std::list<Posted>> batch = NextBatch();
    if (!batch.has_value()) return;
    batch_ = *std::move(batch);
    status = Handle();
  }
  const bool asked_to_stop = absl::IsCancelled(status);
  if (!asked_to_stop) {
    SYNCOPATE_LOG(kError, "the synchronizer's state cannot be written: %s", std::string(status.message()));
    CloseAll(status);
  }
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    batch_.splice(batch_.end(), posted_.Take());
  }
  Drop(std::exchange(batch_, {}));
  if (!asked_to_stop) observer_->RecordFailure(status);
}

std::optional<std::list<ControlLoop::Posted>> ControlLoop::NextBatch() {
  absl::Duration until_deadline =
      std::clamp(plane_.NextDeadline() - options_.clock->Now(), absl::ZeroDuration(), kLongestWait);
  MutexLock lock(&mutex_);
  auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !posted_.empty(); };
  mutex_.AwaitWithTimeout(Condition(&due), until_deadline);
  auto urgent = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || hurry_; };
  if (!posted_.empty()) mutex_.AwaitWithTimeout(Condition(&urgent), std::min(kGather, until_deadline));
  hurry_ = false;
  // Posted events are handled even after Stop, so that every call gets its answer.
  if (posted_.empty() && stopping_) return std::nullopt;
  return posted_.Take();
}

absl::Status ControlLoop::Handle() {
  while (!batch_.empty()) {
    const Posted one = std::move(batch_.front());
    batch_.pop_front();
    one.event(plane_, options_.clock->Now());
    const absl::Status status = CarryOut();
    if (one.then) one.then(status.ok() ? status : Stopped());
    SYNCOPATE_RETURN_IF_ERROR(status);
  }
  absl::Time now = options_.clock->Now();
  // Deadlines are checked also after events: events never stop in a large fleet, and deadlines must not starve.
  if (plane_.NextDeadline() > now) return absl::OkStatus();
  plane_.Tick(now);
  return CarryOut();
}

void ControlLoop::Drop(const std::list<Posted>& dropped) {
  for (const Posted& posted : dropped) {
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
      SYNCOPATE_RETURN_IF_ERROR(Write(persist->record));
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
  // The log is compacted only now: until all actions are carried out, the ledger is ahead of the log.
  if (!log_->HasGrown() || ended_.count() > 0) return absl::OkStatus();
  return log_->Compact(plane_.ledger().Snapshot(), syncs_);
}

absl::Status ControlLoop::Write(const LedgerRecord& record) {
  const absl::Status written = log_->Append(record);
  return ErrorReason(written) == reason::kNoSpace ? WriteOnceThereIsRoom(record, written) : written;
}

absl::Status ControlLoop::WriteOnceThereIsRoom(const LedgerRecord& record, const absl::Status& full) {
  const absl::Time begin = options_.clock->Now();
  Block(full);
  absl::Status written = full;
  while (ErrorReason(written) == reason::kNoSpace) {
    SYNCOPATE_LOG(kError, "the synchronizer waits for room on its disk: %s", std::string(written.message()));
    if (options_.on_round) options_.on_round();  // shows that the loop waits and is not stuck
    {
      MutexLock lock(&mutex_);
      auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
      if (mutex_.AwaitWithTimeout(Condition(&stopping), options_.disk_retry)) {
        return absl::CancelledError("stopped while the disk was full");
      }
    }
    written = log_->Append(record);
  }
  SYNCOPATE_RETURN_IF_ERROR(written);
  const absl::Time now = options_.clock->Now();
  SYNCOPATE_LOG(kInfo, "there is room again: the synchronizer goes on after %s", absl::FormatDuration(now - begin));
  plane_.OnBlocked(now - begin, now);
  MutexLock lock(&mutex_);
  posted_.Unblock();
  blocked_ = absl::OkStatus();
  hurry_ = true;
  return absl::OkStatus();
}

void ControlLoop::Block(const absl::Status& full) {
  const absl::Status why = Error(absl::StatusCode::kUnavailable, reason::kNoSpace,
                                 absl::StrCat("the synchronizer waits for room on its disk: ", full.message()));
  std::vector<PostedEvents::Answer> calls;
  {
    MutexLock lock(&mutex_);
    blocked_ = why;
    calls = posted_.Block(std::exchange(batch_, {}));
  }
  // Answered outside the lock, because an answer may post again.
  for (const PostedEvents::Answer& call : calls) call(why);
}

// A failure to write counts does not end the loop: they are written with the next ones.
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
