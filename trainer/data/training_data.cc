#include "trainer/data/training_data.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::trainer {

namespace {

// How often a waiter looks whether a lease is late or has expired: neither is an event.
constexpr absl::Duration kLeaseCheck = absl::Milliseconds(100);
constexpr size_t kShownRunIdBytes = 128;  // peers choose it

}  // namespace

absl::Status TrainingData::Options::Validate() const {
  SYNCOPATE_RETURN_IF_ERROR(ledger.Validate());
  SYNCOPATE_RETURN_IF_ERROR(log.Validate());
  SYNCOPATE_RETURN_IF_ERROR(evaluation.Validate());
  if (log_timeout <= absl::ZeroDuration()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", "log_timeout must be positive");
  }
  if (judge_tokens < 0) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS", "judge_tokens must not be negative");
  }
  return absl::OkStatus();
}

TrainingData::TrainingData(const Options& options, const Parts& parts, std::string run_id)
    : options_(options), parts_(parts), run_id_(std::move(run_id)) {}

TrainingData::~TrainingData() { Stop(); }

absl::Status TrainingData::StoppedError() {
  return Error(absl::StatusCode::kCancelled, "STOPPED", "the trainer is stopping");
}

// -- Opening

// The order matters: the log is replayed into the ledger, then what restoring dropped is made durable, and only then
// may prompts come: a lease that went out before would be of a position that a second crash could take back.
absl::StatusOr<std::unique_ptr<TrainingData>> TrainingData::Open(const Options& options, const Parts& parts,
                                                                 const Start& start) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  auto data = std::unique_ptr<TrainingData>(new TrainingData(options, parts, start.run_id));
  SYNCOPATE_RETURN_IF_ERROR(data->OpenLog(start));
  if (start.begin) SYNCOPATE_RETURN_IF_ERROR(data->Begin());
  return data;
}

absl::Status TrainingData::Begin() {
  SYNCOPATE_RETURN_IF_ERROR(LogRestoredDrops());
  // Last: from here on the source's thread calls in. The source outlives this object's use of it, since Stop() takes
  // the listener away.
  parts_.prompts->SetListener([this] { ReviewLeases(); });
  return absl::OkStatus();
}

absl::Status TrainingData::OpenLog(const Start& start) {
  DataState state;
  if (!start.snapshot.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(state, parts_.codec->DecodeDataState(start.snapshot));
  }
  DataRestore restore(GroupLedger::QueueOptions(options_.ledger, *parts_.prompts), state, start.version.step);
  auto replay = [this, &restore](uint64_t sequence, absl::string_view payload) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(LogRecord record, parts_.codec->DecodeLogRecord(payload));
    return restore.Add(std::move(record), sequence);
  };
  SYNCOPATE_ASSIGN_OR_RETURN(log_, TrajectoryLog::Open(parts_.files, options_.log, replay));
  RestoredData restored = restore.Finish();
  SYNCOPATE_LOG(kInfo, "data position: next prompt %s, %d groups kept, %d steps to repeat, %d groups rolled back",
                restored.queue.next().ToString(), restored.accepted.size(), restored.replays.size(),
                restored.drops.size());
  MutexLock lock(&mutex_);
  sums_before_ = std::move(restored.sums);
  desk_ = std::make_unique<LeaseDesk>(std::make_unique<Ledger>(options_.ledger, parts_.prompts, start.version,
                                                               std::move(restored), parts_.clock->Now()),
                                      start.roster,
                                      EvaluationSeries({.options = options_.evaluation,
                                                        .reward = options_.ledger.reward,
                                                        .lease_limits = options_.ledger.lease_limits,
                                                        .prompts = parts_.evaluation_prompts}));
  return absl::OkStatus();
}

absl::Status TrainingData::LogRestoredDrops() {
  std::vector<DropRecord> drops;
  {
    MutexLock lock(&mutex_);
    drops = desk_->ledger().UnloggedDrops();
  }
  for (const DropRecord& drop : drops) {  // no more than were outstanding
    auto written = log_->AppendAndWait(parts_.codec->EncodeLogRecord(drop), options_.log_timeout);
    if (!written.ok()) return Annotate(written.status(), "writing what the restore dropped");
    {
      MutexLock lock(&mutex_);
      sums_before_.counted_to = *written;  // the ledger has counted it before it was written
    }
    ReportDrop(drop);
  }
  return absl::OkStatus();
}

// -- Actions

std::shared_ptr<RolloutSink> TrainingData::FindSinkLocked(SessionId session) const {
  auto found = sinks_.find(session);
  return found == sinks_.end() ? nullptr : found->second;
}

void TrainingData::CollectLocked(Actions* actions) {
  if (stopped_ || intake_closed_) return;
  const absl::Time now = parts_.clock->Now();
  for (const Revocation& one : desk_->RevokeLeases(now)) {
    actions->revocations.emplace_back(FindSinkLocked(one.session), one);
  }
  const bool evaluation_only = options_.evaluation_only || disk_.IsFresh(now);
  // Each lease would cost tokens of the judge.
  const bool may_lease = !desk_->IsJudgeSpent(options_.judge_tokens);
  for (IssuedLease& one : may_lease ? desk_->NextLeases(now, evaluation_only) : std::vector<IssuedLease>()) {
    // While the disk is in trouble no training lease goes out: its answer could not be acknowledged. Evaluation writes
    // no log, and goes on.
    actions->leases.emplace_back(FindSinkLocked(one.session), std::move(one.lease));
  }
  for (const DropRecord& drop : desk_->ledger().UnloggedDrops()) actions->drops.push_back(drop);
}

void TrainingData::Perform(Actions actions) {
  for (const DropRecord& drop : actions.drops) {
    auto report = [this, reason = drop.reason](const absl::Status& status, uint64_t sequence) {
      if (status.ok()) return CountDrop(reason, sequence);
      SYNCOPATE_LOG(kWarning, "a dropped prompt is not in the log: %s", status.ToString());
    };
    // No caller waits for these records: a drop that is lost costs a prompt that is tried once more after a restart.
    absl::Status handed_in = log_->Append(parts_.codec->EncodeLogRecord(drop), report);
    if (!handed_in.ok()) report(handed_in, 0);
  }
  for (auto& [sink, ack] : actions.acks) {
    if (sink != nullptr) sink->SendAck(ack);
  }
  for (auto& [sink, revoked] : actions.revocations) {
    if (sink != nullptr) sink->SendRevoke(revoked.lease, RevokeReasonName(revoked.reason));
  }
  for (auto& [sink, lease] : actions.leases) {
    if (sink != nullptr) sink->SendLease(lease);
  }
  if (actions.closed != nullptr) {
    actions.closed->Close(Error(absl::StatusCode::kAborted, "STREAM_REPLACED",
                                "this process was declared dead, or has opened "
                                "another stream; connect again"));
  }
}

void TrainingData::ReportDrop(const DropRecord& drop) const {
  if (parts_.on_dropped != nullptr && drop.group != nullptr) parts_.on_dropped(drop, version());
}

// Counted when the log has it, as the sums of a checkpoint are those of the log up to a record.
void TrainingData::CountDrop(DropReason reason, uint64_t sequence) {
  MutexLock lock(&mutex_);
  sums_before_.counted_to = sequence;
  if (reason == DropReason::kSkipped) ++sums_before_.skipped;
  if (reason == DropReason::kFailed) ++sums_before_.failed;
  if (reason == DropReason::kPastDeadline) ++sums_before_.past_deadline;
}

// Every event passes through this function: any event may make leases possible, and sinks are called after the lock is
// released, because they may call back or wait for the network.
template <typename Change>
void TrainingData::Decide(const Change& change) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    change(&actions);
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

// -- Steps

bool TrainingData::HasBatchLocked() const { return refused_take_.has_value() || desk_->ledger().HasBatch(); }

absl::Status TrainingData::NoBatchLocked() const {
  if (stopped_) return StoppedError();
  if (const absl::Status failure = parts_.prompts->failure(); !failure.ok()) {
    return Error(absl::StatusCode::kInvalidArgument, ErrorReason(failure),
                 failure.message());  // it stays
  }
  if (!desk_->ledger().failure().ok()) return desk_->ledger().failure();
  if (desk_->ledger().DataEnded())
    return Error(absl::StatusCode::kOutOfRange, reason::kDataEnded, "all prompts are done with");
  return Error(absl::StatusCode::kDeadlineExceeded, reason::kNoBatch, "no batch is ready yet");
}

absl::Status TrainingData::AwaitBatch(absl::Time deadline) {
  const absl::Time begin = parts_.clock->Now();
  const absl::Status ready = AwaitReadyBatch(deadline);
  MutexLock lock(&mutex_);
  desk_->ledger().OnBatchAwaited(parts_.clock->Now() - begin);
  return ready;
}

absl::Status TrainingData::AwaitReadyBatch(absl::Time deadline) {
  while (true) {
    ReviewLeases();
    const absl::Duration left = deadline - parts_.clock->Now();
    MutexLock lock(&mutex_);
    auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopped_ || HasBatchLocked() || desk_->ledger().DataEnded() || !desk_->ledger().failure().ok() ||
             !parts_.prompts->failure().ok();
    };
    const bool met = mutex_.AwaitWithTimeout(Condition(&something), std::min(left, kLeaseCheck));
    if (met && !stopped_ && HasBatchLocked()) return absl::OkStatus();
    if (met || left <= kLeaseCheck) return NoBatchLocked();
  }
}

bool TrainingData::RepeatsNext() const {
  MutexLock lock(&mutex_);
  return desk_->ledger().replays_left() > 0;
}

absl::StatusOr<TrainingData::Batch> TrainingData::TakeBatch() {
  std::optional<Ledger::Take> take;
  {
    MutexLock lock(&mutex_);
    if (stopped_ || !HasBatchLocked()) return NoBatchLocked();
    // A take that the disk refused is kept whole: the ledger has moved on, and another choice of groups would be
    // another history.
    take = refused_take_.has_value() ? std::exchange(refused_take_, std::nullopt) : desk_->ledger().TakeBatch();
  }
  return LogTake(*std::move(take));
}

absl::StatusOr<TrainingData::Batch> TrainingData::LogTake(Ledger::Take take) {
  uint64_t sequence = 0;
  // A replayed take is in the log already. Any other must be there before a step uses it: a restart then repeats it
  // with the same groups, and no group is ever trained twice.
  if (!take.is_replay) {
    auto written = log_->AppendAndWait(parts_.codec->EncodeLogRecord(take.record), options_.log_timeout);
    MutexLock lock(&mutex_);
    disk_.Record(written.status(), parts_.clock->Now());
    if (!written.ok()) {
      refused_take_ = std::move(take);
      return Annotate(written.status(), "writing down which groups the next step trains");
    }
    sequence = *written;
  }
  // The gate has promised that there are none (invariant I4). It is counted from the stamps of the tokens, which the
  // gate never sees.
  if (take.staleness.violating_groups > 0) {
    SYNCOPATE_LOG(kError, "%d groups of step %d are beyond the staleness bound of %d: a defect",
                  take.staleness.violating_groups, take.record.produces.step, options_.ledger.gate.max_staleness);
  }
  Decide([&](Actions*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { desk_->ledger().OnTakeLogged(sequence); });
  return Batch{take.record.produces,      take.is_replay,         take.record.supervised, std::move(take.groups),
               std::move(take.staleness), std::move(take.origins)};
}

void TrainingData::FinishStep() {
  Decide([&](Actions*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { desk_->ledger().OnStepDone(parts_.clock->Now()); });
}

void TrainingData::RecordPublished(const PolicyVersion& version) {
  Decide([&](Actions*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { desk_->ledger().OnPublished(version); });
}

absl::StatusOr<TrainingData::DataSnapshot> TrainingData::Snapshot() const {
  MutexLock lock(&mutex_);
  // A snapshot in the middle of a step would contain a position that its weights do not belong to.
  if (desk_->ledger().in_step()) {
    return Error(absl::StatusCode::kUnavailable, "TAKE_PENDING",
                 "the disk has not taken down which groups the next step "
                 "trains; make room on it and try again");
  }
  DataState state = desk_->ledger().Snapshot();
  state.sums = SumsLocked();
  return DataSnapshot{parts_.codec->EncodeDataState(state), desk_->ledger().OldestNeededSequence()};
}

TrainingSums TrainingData::SumsLocked() const {
  const Ledger::Counters& now = desk_->ledger().counters();
  TrainingSums sums = sums_before_;
  sums.accepted += now.accepted;
  sums.filtered += now.filtered;
  sums.dropped_stale += now.dropped_stale;
  sums.rolled_back += now.rolled_back;
  sums.trained += now.trained;
  sums.trained_samples += now.trained_samples;
  sums.supervised_tokens += now.supervised_tokens;
  sums.staleness.Merge(desk_->ledger().staleness());
  return sums;
}

void TrainingData::ReviewLeases() {
  Decide([](Actions*) {});
}

// -- Rollouters

absl::StatusOr<SessionId> TrainingData::Connect(const MemberId& member, const std::string& run_id,
                                                std::shared_ptr<RolloutSink> sink) {
  if (run_id != run_id_) {
    return Error(absl::StatusCode::kFailedPrecondition, "RUN_MISMATCH",
                 absl::StrCat("this is the trainer of run '", run_id_, "', not of '",
                              absl::CEscape(run_id.substr(0, kShownRunIdBytes)), "'"));
  }
  if (member.role != "rollouter") {
    return Error(absl::StatusCode::kInvalidArgument, "NOT_A_ROLLOUTER",
                 absl::StrCat("a ", member.role, " takes no prompts"));
  }
  Actions actions;
  SessionId session = 0;
  {
    MutexLock lock(&mutex_);
    if (stopped_) return StoppedError();
    const RolloutSessions::Connected connected = desk_->Connect(member);
    session = connected.session;
    if (connected.replaced.has_value()) {
      actions.closed = FindSinkLocked(*connected.replaced);
      sinks_.erase(*connected.replaced);
    }
    sinks_[session] = std::move(sink);
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
  return session;
}

void TrainingData::SetServing(SessionId session, const PolicyVersion& version, const PolicyVersion& pinned) {
  Decide([&](Actions*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { desk_->SetServing(session, version, pinned); });
}

void TrainingData::SetCredits(SessionId session, int32_t groups, const std::string& no_rewards) {
  Decide([&](Actions*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { desk_->SetCredits(session, groups, no_rewards); });
}

void TrainingData::SetAway(SessionId session, bool away) {
  Decide([&](Actions*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { desk_->SetAway(session, away, parts_.clock->Now()); });
}

void TrainingData::Evict(SessionId session, const absl::Status& why) {
  std::shared_ptr<RolloutSink> sink;
  {
    MutexLock lock(&mutex_);
    sink = FindSinkLocked(session);
  }
  if (sink != nullptr) sink->Close(why);
}

void TrainingData::SetWork(SessionId session, const RolloutRoster::Work& work) {
  MutexLock lock(&mutex_);
  const bool was_spent = desk_->IsJudgeSpent(options_.judge_tokens);
  desk_->SetWork(session, work);
  if (was_spent || !desk_->IsJudgeSpent(options_.judge_tokens)) return;
  SYNCOPATE_LOG(kWarning, "the judge has used the run's tokens, reward.judge_tokens %d: no more work is handed out",
                options_.judge_tokens);
}

void TrainingData::RecordProgress(SessionId session, const std::vector<LeaseId>& leases) {
  Decide([&](Actions*)
             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { desk_->RecordProgress(session, leases, parts_.clock->Now()); });
}

void TrainingData::RecordPart(SessionId session, const LeaseId& lease, const AnswerPart& part) {
  MutexLock lock(&mutex_);
  desk_->RecordPart(session, lease, part);
}

void TrainingData::Submit(SessionId session, TrajectoryGroup submitted) {
  auto group = std::make_shared<const TrajectoryGroup>(std::move(submitted));
  const LeaseId lease = group->lease;
  Actions actions;
  Ledger::Verdict verdict;
  {
    MutexLock lock(&mutex_);
    if (stopped_) return;
    if (!intake_closed_) verdict = desk_->Submit(session, group, parts_.clock->Now());
    if (verdict.superseded.has_value()) {
      actions.revocations.emplace_back(FindSinkLocked(verdict.superseded->session), *verdict.superseded);
    }
    const bool waits = verdict.record.has_value() || verdict.result == Ledger::Result::kPending;
    if (waits) {
      waiting_acks_[lease].push_back(session);
    } else {
      actions.acks.push_back({FindSinkLocked(session), {lease, verdict.result, verdict.error}});
    }
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
  if (!verdict.record.has_value()) return;
  const std::string encoded = parts_.codec->EncodeLogRecord(*verdict.record);
  auto finish = [this, lease, record = *std::move(verdict.record)](const absl::Status& written, uint64_t sequence) {
    FinishSubmission(lease, record, written, sequence);
  };
  const absl::Status handed_in = log_->Append(encoded, finish);
  if (!handed_in.ok()) finish(handed_in, 0);
}

void TrainingData::FinishSubmission(const LeaseId& lease, const LogRecord& record, const absl::Status& written,
                                    uint64_t sequence) {
  if (!written.ok()) SYNCOPATE_LOG(kWarning, "a group cannot be logged: %s", written.ToString());
  Decide([&](Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    disk_.Record(written, parts_.clock->Now());
    if (written.ok()) {
      desk_->ledger().OnLogged(lease, sequence);
      sums_before_.counted_to = sequence;
    } else {
      desk_->ledger().OnLogFailed(lease);
    }
    const auto result = written.ok() ? Ledger::Result::kAccepted : Ledger::Result::kInvalid;
    for (const SessionId session : waiting_acks_[lease]) {
      actions->acks.push_back({FindSinkLocked(session), {lease, result, written}});
    }
    waiting_acks_.erase(lease);
  });
  const auto* drop = std::get_if<DropRecord>(&record);
  if (written.ok() && drop != nullptr) ReportDrop(*drop);
}

void TrainingData::ReturnLease(SessionId session, const LeaseId& lease, const absl::Status& why) {
  Decide([&](Actions*)
             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { desk_->Return(session, lease, why, parts_.clock->Now()); });
}

void TrainingData::Reject(SessionId session, const LeaseId& lease, const absl::Status& why) {
  Decide([&](Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    desk_->Reject(session, lease, why, parts_.clock->Now());
    actions->acks.push_back({FindSinkLocked(session), {lease, Ledger::Result::kInvalid, why}});
  });
}

void TrainingData::Disconnect(SessionId session) {
  Decide([&](Actions*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (sinks_.erase(session) > 0) desk_->Disconnect(session);
  });
}

// -- Evaluation

void TrainingData::StartEvaluation(const PolicyVersion& version) {
  Decide([&](Actions*)
             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { desk_->evaluations().Start(version, parts_.clock->Now()); });
}

absl::StatusOr<EvaluationResult> TrainingData::WaitForEvaluation(absl::Time deadline) {
  while (true) {
    ReviewLeases();
    const absl::Duration left = deadline - parts_.clock->Now();
    MutexLock lock(&mutex_);
    auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopped_ || desk_->evaluations().HasEnded(desk_->ledger().sessions(), parts_.clock->Now());
    };
    const bool met = mutex_.AwaitWithTimeout(Condition(&ended), std::min(left, kLeaseCheck));
    if (stopped_) return StoppedError();
    if (met || left <= kLeaseCheck)
      return desk_->evaluations().TakeResult(desk_->ledger().sessions(), parts_.clock->Now());
  }
}

bool TrainingData::EvaluationIsServed() const {
  MutexLock lock(&mutex_);
  return desk_->evaluations().IsServed(desk_->ledger().sessions());
}

PolicyVersion TrainingData::NewestServed() const {
  MutexLock lock(&mutex_);
  return desk_->ledger().NewestServed();
}

void TrainingData::CloseIntake() {
  {
    MutexLock lock(&mutex_);
    intake_closed_ = true;
  }
  log_->Stop();  // an answer that is already queued is written or refused
}

// -- Status

TrainingData::Status TrainingData::GetStatus() const {
  MutexLock lock(&mutex_);
  return MakeDataStatus(*desk_, {.now = parts_.clock->Now(),
                                 .sums = SumsLocked(),
                                 .max_staleness = options_.ledger.gate.max_staleness,
                                 .samples = options_.ledger.samples,
                                 .judge_tokens = options_.judge_tokens,
                                 .disk = &disk_});
}

SizingInputs TrainingData::GetSizingInputs() const {
  MutexLock lock(&mutex_);
  return desk_->ledger().MeasureSizing(parts_.clock->Now());
}

TrainingSums TrainingData::GetSums() const {
  MutexLock lock(&mutex_);
  return SumsLocked();
}

RolloutRoster TrainingData::GetRoster() const {
  MutexLock lock(&mutex_);
  return desk_->roster();
}

PolicyVersion TrainingData::version() const {
  MutexLock lock(&mutex_);
  return desk_->ledger().version();
}

void TrainingData::Stop() {
  parts_.prompts->SetListener(nullptr);
  std::map<SessionId, std::shared_ptr<RolloutSink>> sinks;
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    sinks = std::exchange(sinks_, {});
  }
  for (auto& [session, sink] : sinks) sink->Close(StoppedError());
  if (log_ != nullptr) log_->Stop();
}

}  // namespace syncopate::trainer
