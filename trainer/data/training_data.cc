#include "trainer/data/training_data.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::trainer {

namespace {

// How often a waiter looks whether a lease has expired.
constexpr absl::Duration kExpiryCheck = absl::Seconds(1);
// How often at most anybody looks.
constexpr absl::Duration kExpiryPause = absl::Milliseconds(100);
// Who has not looked for so long stood still, or the machine did: what rollouters said meanwhile is yet to be read.
constexpr absl::Duration kStoodStill = absl::Seconds(5);
// How long no prompt is leased after the disk has refused an answer: the next one would meet the same fate.
constexpr absl::Duration kDiskRest = absl::Seconds(1);

}  // namespace

absl::Status TrainingData::Options::Validate() const {
  SYNCOPATE_RETURN_IF_ERROR(ledger.Validate());
  SYNCOPATE_RETURN_IF_ERROR(log.Validate());
  auto bad = [](const std::string& text) { return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTION", text); };
  if (evaluation_prompts < 1) return bad("an evaluation has at least 1 prompt");
  if (evaluation_samples_shown < 0) return bad("evaluation_samples_shown cannot be negative");
  if (evaluation_sampling.temperature != 0) return bad("evaluation is greedy: its temperature is 0");
  if (evaluation_sampling.max_new_tokens < 1) return bad("max_new_tokens of an evaluation must be at least 1");
  if (log_timeout <= absl::ZeroDuration()) return bad("log_timeout must be positive");
  return absl::OkStatus();
}

TrainingData::TrainingData(const Options& options, const Parts& parts, std::string run_id)
    : options_(options), parts_(parts), run_id_(std::move(run_id)) {}

TrainingData::~TrainingData() { Stop(); }

absl::Status TrainingData::StoppedError() {
  return Error(absl::StatusCode::kCancelled, "STOPPED", "the trainer is stopping");
}

// -- Opening

absl::StatusOr<std::unique_ptr<TrainingData>> TrainingData::Open(const Options& options, const Parts& parts,
                                                                 const Start& start) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  auto data = std::unique_ptr<TrainingData>(new TrainingData(options, parts, start.run_id));
  SYNCOPATE_RETURN_IF_ERROR(data->OpenLog(start));
  SYNCOPATE_RETURN_IF_ERROR(data->LogRestoredDrops());
  parts.prompts->SetListener([raw = data.get()] { raw->LookAtLeases(); });
  return data;
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
  roster_ = start.roster;
  ledger_ = std::make_unique<Ledger>(options_.ledger, parts_.prompts, start.version, std::move(restored),
                                     parts_.clock->Now());
  return absl::OkStatus();
}

absl::Status TrainingData::LogRestoredDrops() {
  std::vector<DropRecord> drops;
  {
    MutexLock lock(&mutex_);
    drops = ledger_->UnloggedDrops();
  }
  for (const DropRecord& drop : drops) {  // no more than were outstanding
    auto written = log_->AppendAndWait(parts_.codec->EncodeLogRecord(drop), options_.log_timeout);
    if (!written.ok()) return Annotate(written.status(), "writing what the restore dropped");
    MutexLock lock(&mutex_);
    sums_before_.counted_to = *written;  // the ledger has counted it before it was written
  }
  return absl::OkStatus();
}

// -- Actions

std::shared_ptr<RolloutSink> TrainingData::SinkLocked(SessionId session) const {
  auto found = sinks_.find(session);
  return found == sinks_.end() ? nullptr : found->second;
}

void TrainingData::CollectLocked(Actions* actions) {
  if (stopped_) return;
  const absl::Time now = parts_.clock->Now();
  if (ExpiryIsDueLocked(now)) ExpireLocked(now, actions);
  std::vector<IssuedLease> issued;
  if (evaluation_.has_value()) issued = evaluation_->NextLeases(&ledger_->sessions(), now);
  const bool rests = disk_.has_value() && now - disk_->last < kDiskRest;
  if (!rests) {
    for (IssuedLease& lease : ledger_->NextLeases(now)) issued.push_back(std::move(lease));
  }
  for (IssuedLease& one : issued) {
    actions->leases.emplace_back(SinkLocked(one.session), std::move(one.lease));
  }
  for (const DropRecord& drop : ledger_->UnloggedDrops()) actions->drops.push_back(drop);
}

bool TrainingData::ExpiryIsDueLocked(absl::Time now) {
  const absl::Duration since = now - expiry_looked_at_;
  if (since < kExpiryPause) return false;
  expiry_looked_at_ = now;
  if (since > kStoodStill) no_expiry_before_ = now + kStoodStill;
  return now >= no_expiry_before_;
}

void TrainingData::ExpireLocked(absl::Time now, Actions* actions) {
  std::vector<Revocation> revoked = ledger_->ExpireLeases(now);
  if (evaluation_.has_value()) {
    for (const Revocation& one : evaluation_->ExpireLeases(&ledger_->sessions(), now)) revoked.push_back(one);
  }
  std::map<std::pair<SessionId, RevokeReason>, int64_t> counts;
  for (const Revocation& one : revoked) {
    ++(one.reason == RevokeReason::kStalled ? stalled_ : timed_out_);
    ++counts[{one.session, one.reason}];
    actions->revocations.emplace_back(SinkLocked(one.session), one);
  }
  for (const auto& [whose, count] : counts) {
    const RolloutSession* session = ledger_->sessions().Find(whose.first);
    SYNCOPATE_LOG(kWarning, "%d leases are taken from %s and issued again: %s", count,
                  session == nullptr ? "a rollouter" : session->member.replica_id, RevokeReasonName(whose.second));
  }
}

void TrainingData::Perform(Actions actions) {
  for (const DropRecord& drop : actions.drops) {
    auto report = [](const absl::Status& status, uint64_t) {
      if (!status.ok()) SYNCOPATE_LOG(kWarning, "a dropped prompt is not in the log: %s", status.ToString());
    };
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
                                "this process was declared dead, or has opened another stream; connect again"));
  }
}

// -- Steps

bool TrainingData::HasBatchLocked() const { return refused_take_.has_value() || ledger_->HasBatch(); }

absl::Status TrainingData::NoBatchLocked() const {
  if (stopped_) return StoppedError();
  if (const absl::Status failure = parts_.prompts->failure(); !failure.ok()) {
    return Error(absl::StatusCode::kInvalidArgument, ErrorReason(failure), failure.message());  // it stays
  }
  if (ledger_->DataEnded())
    return Error(absl::StatusCode::kOutOfRange, reason::kDataEnded, "all prompts are done with");
  return Error(absl::StatusCode::kDeadlineExceeded, reason::kNoBatch, "no batch is ready yet");
}

absl::Status TrainingData::AwaitBatch(absl::Time deadline) {
  while (true) {
    LookAtLeases();
    const absl::Duration left = deadline - parts_.clock->Now();
    MutexLock lock(&mutex_);
    auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopped_ || HasBatchLocked() || ledger_->DataEnded() || !parts_.prompts->failure().ok();
    };
    const bool met = mutex_.AwaitWithTimeout(Condition(&something), std::min(left, kExpiryCheck));
    if (met && !stopped_ && HasBatchLocked()) return absl::OkStatus();
    if (met || left <= kExpiryCheck) return NoBatchLocked();
  }
}

absl::StatusOr<TrainingData::Batch> TrainingData::TakeBatch() {
  std::optional<Ledger::Take> take;
  {
    MutexLock lock(&mutex_);
    if (stopped_ || !HasBatchLocked()) return NoBatchLocked();
    take = refused_take_.has_value() ? std::exchange(refused_take_, std::nullopt) : ledger_->TakeBatch();
  }
  return MakeDurable(*std::move(take));
}

absl::StatusOr<TrainingData::Batch> TrainingData::MakeDurable(Ledger::Take take) {
  if (!take.is_replay) {
    auto written = log_->AppendAndWait(parts_.codec->EncodeLogRecord(take.record), options_.log_timeout);
    MutexLock lock(&mutex_);
    NoteDiskLocked(written.status());
    if (!written.ok()) {
      refused_take_ = std::move(take);
      return Annotate(written.status(), "writing down which groups the next step trains");
    }
  }
  if (take.staleness.violating_groups > 0) {
    SYNCOPATE_LOG(kError, "%d groups of step %d are beyond the staleness bound of %d: a defect",
                  take.staleness.violating_groups, take.record.produces.step, options_.ledger.gate.max_staleness);
  }
  Actions actions;
  {
    MutexLock lock(&mutex_);
    ledger_->OnTakeLogged();
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
  return Batch{take.record.produces, take.is_replay, std::move(take.groups), std::move(take.staleness)};
}

void TrainingData::OnStepDone() {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    ledger_->OnStepDone(parts_.clock->Now());
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

void TrainingData::OnPublished(const PolicyVersion& version) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    ledger_->OnPublished(version);
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

absl::StatusOr<TrainingData::DataSnapshot> TrainingData::Snapshot() const {
  MutexLock lock(&mutex_);
  if (ledger_->in_step()) {
    return Error(absl::StatusCode::kUnavailable, "TAKE_PENDING",
                 "the disk has not taken down which groups the next step trains; make room on it and try again");
  }
  DataState state = ledger_->Snapshot();
  state.sums = SumsLocked();
  return DataSnapshot{parts_.codec->EncodeDataState(state), ledger_->OldestNeededSequence()};
}

TrainingSums TrainingData::SumsLocked() const {
  const Ledger::Counters& now = ledger_->counters();
  TrainingSums sums = sums_before_;
  sums.accepted += now.accepted;
  sums.filtered += now.filtered;
  sums.dropped_stale += now.dropped_stale;
  sums.rolled_back += now.rolled_back;
  sums.trained += now.trained;
  sums.skipped += now.skipped;
  sums.staleness.Merge(ledger_->staleness());
  return sums;
}

void TrainingData::LookAtLeases() {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

// -- Evaluation

void TrainingData::StartEvaluation(const PolicyVersion& version) {
  Evaluation::Options options{.version = version,
                              .prompts = options_.evaluation_prompts,
                              .show_samples = options_.evaluation_samples_shown,
                              .reward = options_.ledger.reward,
                              .sampling = options_.evaluation_sampling,
                              .seed = options_.evaluation_seed,
                              .lease_limits = options_.ledger.lease_limits};
  Actions actions;
  {
    MutexLock lock(&mutex_);
    options.index = evaluations_++;
    evaluation_.emplace(options, parts_.evaluation_prompts);
    evaluation_since_ = parts_.clock->Now();
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

absl::StatusOr<EvaluationResult> TrainingData::WaitForEvaluation(absl::Time deadline) {
  while (true) {
    LookAtLeases();
    const absl::Duration left = deadline - parts_.clock->Now();
    MutexLock lock(&mutex_);
    auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopped_ || !evaluation_.has_value() || evaluation_->done() ||
             evaluation_->IsOvertaken(ledger_->sessions());
    };
    const bool met = mutex_.AwaitWithTimeout(Condition(&something), std::min(left, kExpiryCheck));
    if (stopped_) return StoppedError();
    if (!met && left > kExpiryCheck) continue;
    if (!met) {
      return Error(absl::StatusCode::kDeadlineExceeded, "EVALUATING",
                   absl::StrCat(evaluation_->answered(), " of ", options_.evaluation_prompts, " prompts are answered"));
    }
    if (!evaluation_.has_value()) {
      return Error(absl::StatusCode::kFailedPrecondition, "NO_EVALUATION", "no evaluation was started");
    }
    const bool done = evaluation_->done();
    EvaluationResult result = evaluation_->Result();
    evaluation_.reset();
    if (done) return result;
    return Error(absl::StatusCode::kAborted, reason::kOvertaken,
                 absl::StrCat("every rollouter serves a newer version than ", result.version.ToString(), "; ",
                              result.prompts, " prompts had been answered"));
  }
}

bool TrainingData::EvaluationIsServed() const {
  MutexLock lock(&mutex_);
  return evaluation_.has_value() && evaluation_->IsServed(ledger_->sessions());
}

// -- Status

void TrainingData::NoteDiskLocked(const absl::Status& status) {
  const absl::Time now = parts_.clock->Now();
  if (status.ok()) {
    disk_.reset();
  } else if (!absl::IsCancelled(status)) {  // else this is stopping
    disk_ = DiskTrouble{status, disk_.has_value() ? disk_->since : now, now};
  }
}

void TrainingData::ExplainDiskLocked(Explanation* explanation) const {
  explanation->waiting_for = "disk";
  explanation->since_seconds = absl::ToDoubleSeconds(parts_.clock->Now() - disk_->since);
  explanation->detail = absl::StrCat("answers and batches cannot be written down: ", disk_->why.message());
  explanation->rollouter.clear();
  explanation->unblocked_by = "room on that disk; it is tried again every second";
}

TrainingData::Status TrainingData::GetStatus() const {
  MutexLock lock(&mutex_);
  const absl::Time now = parts_.clock->Now();
  Status status{.version = ledger_->version(),
                .explanation = ledger_->Explain(now),
                .groups = ledger_->counters(),
                .sums = SumsLocked(),
                .invalid = invalid_,
                .quarantines = quarantines_,
                .stalled = stalled_,
                .timed_out = timed_out_,
                .queued_groups = ledger_->queued_groups(),
                .leased_groups = ledger_->leased_groups(),
                .staleness_bound = options_.ledger.gate.max_staleness,
                .staleness = ledger_->staleness(),
                .rollouters = {}};
  if (evaluation_.has_value() && !evaluation_->done() && !ledger_->in_step()) {
    status.explanation.waiting_for = "evaluation";
    status.explanation.since_seconds = absl::ToDoubleSeconds(now - evaluation_since_);
    status.explanation.detail =
        absl::StrCat(evaluation_->answered(), " of ", options_.evaluation_prompts,
                     " evaluation prompts are answered by ", evaluation_->options().version.ToString());
    status.explanation.unblocked_by = "answers of rollouters that serve that version";
  }
  if (disk_.has_value()) ExplainDiskLocked(&status.explanation);
  for (const auto& [id, session] : ledger_->sessions().all()) {
    const absl::Duration quarantine = session.conduct.quarantined_until - now;
    status.rollouters.push_back(
        {.replica_id = session.member.replica_id,
         .incarnation = session.member.incarnation,
         .serving = session.serving,
         .leased_groups = session.leased,
         .credits = session.room / options_.ledger.samples,
         .accepted_groups = session.accepted,
         .invalid_groups = session.invalid,
         .returned_groups = session.returned,
         .stalled_groups = static_cast<int64_t>(session.stalled.size()),
         .quarantine_seconds = absl::ToDoubleSeconds(std::max(quarantine, absl::ZeroDuration())),
         .last_fault = session.conduct.invalid_in_row == 0 ? "" : std::string(session.conduct.last_fault.message())});
  }
  return status;
}

RolloutRoster TrainingData::GetRoster() const {
  MutexLock lock(&mutex_);
  return roster_;
}

PolicyVersion TrainingData::version() const {
  MutexLock lock(&mutex_);
  return ledger_->version();
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
