#include "services/trainer/step_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/reasons.h"
#include "synchronizer/transport/finite_check.h"
#include "trainer/checkpoint/policy_files.h"

namespace syncopate::trainerd {
namespace {

// How long one wait for a batch lasts before requests are looked at again.
constexpr absl::Duration kBatchPoll = absl::Milliseconds(50);
constexpr absl::Duration kPausePoll = absl::Seconds(1);
constexpr absl::Duration kDiskRetry = absl::Seconds(1);

absl::Time Now() { return Clock::Real()->Now(); }
double SecondsSince(absl::Time begin) { return absl::ToDoubleSeconds(Now() - begin); }

absl::Status RunOver() {
  return Error(absl::StatusCode::kCancelled, "RUN_OVER", "the run has ended; it saves its last checkpoint by itself");
}

// Says what can be done about weights that are not finite; other errors stay as they are.
absl::Status Explained(const absl::Status& status, const PolicyVersion& version) {
  if (ErrorReason(status) != reason::kNonFinite) return status;
  return Annotate(status, absl::StrCat("training has spoilt the weights of ", version.ToString(),
                                       "; go on from the last checkpoint with a lower train.learning_rate or "
                                       "train.max_grad_norm"));
}

std::vector<double> MismatchByAge(const trainer::TrainStepMetrics& metrics) {
  std::vector<double> by_age;
  for (const loss::LossFigures::Age& age : metrics.figures.ages) by_age.push_back(age.k3);
  return by_age;
}

}  // namespace

StepLoop::StepLoop(const Options& options, const Parts& parts, const PolicyVersion& start)
    : options_(options),
      parts_(parts),
      started_(Now()),
      version_(start),
      best_(parts.checkpoints),
      last_step_end_(started_) {
  MutexLock lock(&mutex_);
  status_.version = start;
  status_.state = "running";
}

absl::StatusOr<StepLoop::Outcome> StepLoop::Run() {
  best_.Load();
  if (best_.best().has_value()) alarms_.SetBestEvaluation(best_.best()->reward_mean);
  absl::Status status = Steps();
  absl::StatusOr<Outcome> outcome = status.ok() ? EndRun() : absl::StatusOr<Outcome>(status);
  std::vector<Task> unanswered;
  {
    MutexLock lock(&mutex_);
    over_ = true;
    status_.state = outcome.ok() ? "done" : "failed";
    unanswered.swap(requests_.tasks);
  }
  for (const Task& task : unanswered) task(RunOver());
  return outcome;
}

absl::Status StepLoop::Steps() {
  while (version_.step < options_.steps && Now() - started_ < options_.duration) {
    Requests requests = TakeRequests();
    for (const Task& task : requests.tasks) task(absl::OkStatus());
    if (requests.stop) return absl::OkStatus();
    if (requests.saves && options_.evaluate_every_steps > 0) StartEvaluation();
    if (!requests.tasks.empty()) continue;  // they were served in a pause, too, and it goes on
    absl::StatusOr<std::optional<TrainingData::Batch>> batch = NextBatch();
    if (ErrorReason(batch.status()) == reason::kDataEnded) return absl::OkStatus();
    SYNCOPATE_RETURN_IF_ERROR(batch.status());
    const bool is_replay = batch->has_value() && (*batch)->is_replay;
    if (!is_replay && published_.version.IsNone()) {
      SYNCOPATE_RETURN_IF_ERROR(EnsurePublished());
      StartEvaluationIfDue();
    }
    CollectEvaluation(absl::InfinitePast());
    if (batch->has_value()) SYNCOPATE_RETURN_IF_ERROR(Train(**batch));
    AddPhase("other", std::max(0.0, SecondsSince(started_) - accounted_seconds_));
  }
  return absl::OkStatus();
}

StepLoop::Requests StepLoop::TakeRequests() {
  const absl::Time begin = Now();
  bool was_paused = false;
  MutexLock lock(&mutex_);
  auto go_on = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !requests_.paused || requests_.stop || !requests_.tasks.empty();
  };
  while (!go_on()) {
    if (status_.state != "paused") status_.paused_since = begin;
    was_paused = true;
    status_.state = "paused";
    mutex_.AwaitWithTimeout(Condition(&go_on), kPausePoll);
  }
  if (was_paused) {
    AddPhase("paused", SecondsSince(begin));
    last_step_end_ = Now();  // a pause is no step time
    waited_seconds_ = 0;
  }
  if (!requests_.paused) status_.state = evaluating_ ? "evaluating" : "running";
  Requests taken = requests_;
  requests_.tasks.clear();
  requests_.saves = false;
  return taken;
}

absl::StatusOr<std::optional<TrainingData::Batch>> StepLoop::NextBatch() {
  const absl::Time begin = Now();
  // Before the first publication only what is there already counts: without it rollouters have nothing to do.
  const bool wait = !published_.version.IsNone();
  absl::StatusOr<TrainingData::Batch> batch = BeginStep(wait ? begin + kBatchPoll : absl::InfinitePast());
  waited_seconds_ += SecondsSince(begin);
  AddPhase("idle", SecondsSince(begin));
  if (batch.ok()) return std::optional<TrainingData::Batch>(*std::move(batch));
  const bool ended = absl::IsOutOfRange(batch.status()) || absl::IsCancelled(batch.status());
  if (ended || absl::IsInvalidArgument(batch.status())) return batch.status();
  // Else it is not there yet, or the disk has refused the take, which comes again: a full disk holds a run up.
  if (ErrorReason(batch.status()) != reason::kNoBatch) {
    SYNCOPATE_LOG(kError, "the next step waits for the disk: %s", batch.status().ToString());
    AwaitStop(kDiskRetry);
  }
  return std::optional<TrainingData::Batch>();
}

absl::StatusOr<TrainingData::Batch> StepLoop::BeginStep(absl::Time deadline) {
  SYNCOPATE_RETURN_IF_ERROR(parts_.data->AwaitBatch(deadline));
  {
    MutexLock lock(&mutex_);
    if (requests_.paused || requests_.stop) {
      return Error(absl::StatusCode::kDeadlineExceeded, reason::kNoBatch, "somebody wants no step to begin");
    }
  }
  return parts_.data->TakeBatch();
}

bool StepLoop::AwaitStop(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(Condition(&requests_.stop), timeout);
}

absl::Status StepLoop::Train(const TrainingData::Batch& batch) {
  SYNCOPATE_CHECK(batch.produces.step == version_.step + 1);
  if (batch.is_replay) SetState("replaying");
  const absl::Time begin = Now();
  std::vector<const TrajectoryGroup*> groups;
  for (const trainer::SharedGroup& group : batch.groups) groups.push_back(group.get());
  StepReport report;
  report.wait_seconds = std::exchange(waited_seconds_, 0);
  SYNCOPATE_ASSIGN_OR_RETURN(report.metrics, parts_.policy->Step(groups, version_.step));
  AddPhase("step", SecondsSince(begin));
  version_.step = batch.produces.step;
  parts_.data->OnStepDone();
  {
    MutexLock lock(&mutex_);
    status_.version = version_;
  }
  if (!batch.is_replay && PublishIsDue()) SYNCOPATE_RETURN_IF_ERROR(EnsurePublished());
  report.version = version_;
  report.is_replay = batch.is_replay;
  report.staleness = batch.staleness;
  SYNCOPATE_ASSIGN_OR_RETURN(report.weights_digest, WeightsDigest());
  ReportStep(batch, std::move(report));
  if (!batch.is_replay) StartEvaluationIfDue();
  return SaveIfDue();
}

bool StepLoop::CheckpointIsDue() const {
  return options_.checkpoint_every_steps > 0 && version_.step % options_.checkpoint_every_steps == 0;
}

bool StepLoop::PublishIsDue() const {
  if (version_.step % options_.publish_every_steps == 0 || version_.step == options_.steps) return true;
  return options_.evaluate_every_steps > 0 && CheckpointIsDue();  // what is saved is evaluated, by those who serve it
}

absl::Status StepLoop::EnsurePublished() {
  if (published_.version == version_) return absl::OkStatus();
  auto staged = parts_.stager->Stage(version_);
  if (!staged.ok()) return Explained(staged.status(), version_);
  published_ = *std::move(staged);
  AddPhase("stage", published_.seconds);
  parts_.data->OnPublished(version_);
  parts_.events->Record(
      {"publish",
       version_,
       0,
       {{"digest", absl::StrFormat("%016x", published_.digest)}, {"stage_seconds", absl::StrCat(published_.seconds)}}});
  parts_.publish({.version = version_,
                  .bucket_digests = published_.bucket_digests,
                  .manifest_fingerprint = parts_.stager->manifest().fingerprint(),
                  .stage_seconds = published_.seconds});
  return absl::OkStatus();
}

void StepLoop::ReportStep(const TrainingData::Batch& batch, StepReport report) {
  report.stage_seconds = published_.version == version_ ? published_.seconds : 0.0;
  const absl::Time end = Now();
  report.step_seconds = absl::ToDoubleSeconds(end - last_step_end_);
  last_step_end_ = end;
  parts_.metrics->RecordStep(version_, MakeStepFigures(report), MismatchByAge(report.metrics));
  parts_.metrics->CountBoundViolations(batch.staleness.violating_groups);
  for (const trainer::SharedGroup& group : batch.groups) {
    for (const Trajectory& sample : group->samples) {
      parts_.metrics->ObserveStaleness(batch.produces.step - 1 - sample.spans.front().version.step);
    }
  }
  parts_.events->Record({"step",
                         version_,
                         0,
                         {{"groups", absl::StrCat(batch.groups.size())},
                          {"tokens", absl::StrCat(report.metrics.tokens)},
                          {"reward", absl::StrCat(report.metrics.reward_mean)},
                          {"replay", batch.is_replay ? "true" : "false"}}});
  alarms_.AddStep({report.metrics.reward_mean, report.metrics.reward_max, report.metrics.entropy,
                   report.metrics.zero_variance_fraction});
  report.alarms = PublishAlarms();
  parts_.reporter->OnStep(report);
}

std::vector<std::string> StepLoop::PublishAlarms() {
  std::vector<std::string> standing = alarms_.Standing();
  if (standing != alarms_told_) {
    for (const std::string& name : trainer::LearningAlarms::Names()) {
      const bool stands = std::count(standing.begin(), standing.end(), name) > 0;
      const bool stood = std::count(alarms_told_.begin(), alarms_told_.end(), name) > 0;
      if (stands && !stood) SYNCOPATE_LOG(kWarning, "learning alarm %s at %s", name, version_.ToString());
      if (stood && !stands) SYNCOPATE_LOG(kInfo, "learning alarm %s is over at %s", name, version_.ToString());
    }
    alarms_told_ = standing;
  }
  parts_.metrics->SetLearningAlarms(standing);
  return standing;
}

void StepLoop::StartEvaluationIfDue() {
  if (options_.evaluate_every_steps == 0 || published_.version != version_) return;
  const bool first = evaluated_.IsNone();
  if (first || version_.step % options_.evaluate_every_steps == 0 || CheckpointIsDue()) StartEvaluation();
}

void StepLoop::StartEvaluation() {
  if (published_.version != version_ || evaluated_ == version_) return;
  // One that nobody answers, because the syncs of its version have failed, gives way.
  if (evaluating_ && parts_.data->EvaluationIsServed()) {
    SYNCOPATE_LOG(kWarning, "no evaluation of %s yet: that of %s is not over", version_.ToString(),
                  evaluated_.ToString());
    missed_evaluation_ = true;
    return;
  }
  StartEvaluation(version_);
}

void StepLoop::StartEvaluation(const PolicyVersion& version) {
  parts_.data->StartEvaluation(version);
  evaluated_ = version;
  evaluating_ = true;
  missed_evaluation_ = false;
}

void StepLoop::CollectEvaluation(absl::Time deadline) {
  if (!evaluating_) return;
  const absl::Time begin = Now();
  absl::StatusOr<trainer::EvaluationResult> result = parts_.data->WaitForEvaluation(deadline);
  AddPhase("evaluate", SecondsSince(begin));
  if (absl::IsDeadlineExceeded(result.status())) return;
  evaluating_ = false;
  if (result.ok()) {
    ReportEvaluation(*result);
  } else {
    SYNCOPATE_LOG(kWarning, "the evaluation of %s is lost: %s", evaluated_.ToString(), result.status().ToString());
  }
  const bool again = missed_evaluation_ || ErrorReason(result.status()) == reason::kOvertaken;
  if (again && published_.version > evaluated_) StartEvaluation(published_.version);
}

void StepLoop::ReportEvaluation(const trainer::EvaluationResult& result) {
  EvaluationReport report;
  report.version = result.version;
  report.exact = result.exact;
  report.reward_mean = result.reward_mean;
  report.prompts = result.prompts;
  for (const trainer::EvaluationResult::Sample& sample : result.samples) {
    report.samples.push_back({parts_.evaluation_prompts->Render(sample.prompt_ids),
                              parts_.evaluation_prompts->Render(sample.answer_ids),
                              parts_.evaluation_prompts->Render(sample.expected_ids)});
  }
  // Another trainer's best is not ours to replace.
  const absl::Status scored =
      CheckNotFenced().ok() ? best_.AddScore({result.version, result.reward_mean, result.exact}) : absl::OkStatus();
  if (!scored.ok()) SYNCOPATE_LOG(kError, "the best checkpoint stays what it was: %s", scored.ToString());
  alarms_.AddEvaluation(result.reward_mean);
  report.alarms = PublishAlarms();
  parts_.metrics->RecordEvaluation(result.exact, result.reward_mean, *alarms_.best_evaluation());
  parts_.events->Record({"evaluation", result.version, 0, {{"exact", absl::StrCat(result.exact)}}});
  parts_.reporter->OnEvaluation(report);
}

absl::Status StepLoop::SaveIfDue() {
  if (!CheckpointIsDue()) return absl::OkStatus();
  absl::StatusOr<std::string> saved = Save();
  if (ErrorReason(saved.status()) == reason::kNonFinite) return saved.status();
  if (ErrorReason(saved.status()) == reason::kFenced) StopFenced();
  // Else training goes on: the last good checkpoint is untouched, and the log still holds everything since.
  if (!saved.ok()) SYNCOPATE_LOG(kError, "no checkpoint at %s: %s", version_.ToString(), saved.status().ToString());
  return absl::OkStatus();
}

// Staging looks at every version, but not every step is published.
absl::Status StepLoop::CheckWeights() const {
  if (published_.version == version_) return absl::OkStatus();
  SYNCOPATE_ASSIGN_OR_RETURN(const void* weights, parts_.policy->parameters());
  return Explained(synchronizer::CheckFinite(parts_.policy->manifest(), static_cast<const char*>(weights)), version_);
}

absl::StatusOr<uint64_t> StepLoop::WeightsDigest() const {
  if (published_.version == version_) return published_.digest;
  SYNCOPATE_ASSIGN_OR_RETURN(const void* weights, parts_.policy->parameters());
  return CombineDigests(DigestBuckets(parts_.policy->manifest(), weights));
}

absl::StatusOr<std::string> StepLoop::Save() {
  absl::StatusOr<std::string> saved = WriteCheckpoint();
  parts_.metrics->RecordCheckpoint(saved.ok(), Clock::Real()->UnixSeconds());
  return saved;
}

absl::StatusOr<std::string> StepLoop::WriteCheckpoint() {
  const absl::Time begin = Now();
  SYNCOPATE_RETURN_IF_ERROR(CheckWeights());
  SYNCOPATE_ASSIGN_OR_RETURN(const TrainingData::DataSnapshot data, parts_.data->Snapshot());
  trainer::CheckpointStore::SaveRequest request;
  request.version = version_;
  SYNCOPATE_ASSIGN_OR_RETURN(const trainer::Policy::State state, parts_.policy->state());
  request.files = trainer::PolicyFiles(parts_.policy->manifest(), state);
  request.files[kDataFile] = data.bytes;
  request.last_look = [this] { return CheckNotFenced(); };
  absl::Status status = parts_.checkpoints->Save(request);
  AddPhase("checkpoint", SecondsSince(begin));
  SYNCOPATE_RETURN_IF_ERROR(status);
  parts_.events->Record({"checkpoint", version_});
  saved_step_ = version_.step;
  if (saved_here_.empty() || saved_here_.back().version != version_) {  // the same one again is still one checkpoint
    saved_here_.push_back({version_, data.oldest_needed_record});
    const absl::Status scored = best_.AddSaved(version_);
    if (!scored.ok()) SYNCOPATE_LOG(kError, "the best checkpoint stays what it was: %s", scored.ToString());
    PruneOldCheckpoints();
  }
  MutexLock lock(&mutex_);
  return status_.last_checkpoint = version_.ToString();
}

absl::Status StepLoop::CheckNotFenced() const {
  const absl::Status fenced = Error(absl::StatusCode::kFailedPrecondition, reason::kFenced,
                                    "a newer trainer writes to this run; this one must not save");
  {
    MutexLock lock(&mutex_);
    if (requests_.fenced) return fenced;
  }
  SYNCOPATE_ASSIGN_OR_RETURN(int64_t newest, parts_.newest_epoch());
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<PolicyVersion> there, parts_.checkpoints->List());
  if (!there.empty()) newest = std::max(newest, there.back().epoch);
  return newest <= version_.epoch ? absl::OkStatus() : fenced;
}

void StepLoop::PruneOldCheckpoints() {
  absl::StatusOr<std::vector<PolicyVersion>> pruned = parts_.checkpoints->Prune(
      options_.keep_checkpoints, best_.best().has_value() ? best_.best()->version : PolicyVersion());
  if (!pruned.ok()) SYNCOPATE_LOG(kWarning, "old checkpoints stay: %s", pruned.status().ToString());
  while (static_cast<int>(saved_here_.size()) > options_.keep_checkpoints) saved_here_.pop_front();
  // A checkpoint of an earlier life may need older records than we know of: prune only when all that are kept are ours.
  if (static_cast<int>(saved_here_.size()) < options_.keep_checkpoints) return;
  uint64_t oldest = saved_here_.front().oldest_needed_record;
  for (const SavedCheckpoint& saved : saved_here_) oldest = std::min(oldest, saved.oldest_needed_record);
  parts_.data->PruneLog(oldest);
}

absl::StatusOr<StepLoop::Outcome> StepLoop::EndRun() {
  const Requests requests = TakeRequests();
  for (const Task& task : requests.tasks) task(absl::OkStatus());
  if (requests.fenced) return Outcome::kFenced;
  SetState("stopping");
  if (!requests.stop) {
    // Time or data may have ended between two publications.
    const bool found_complete = published_.version.IsNone();
    if (!found_complete || options_.serve_complete) SYNCOPATE_RETURN_IF_ERROR(EnsurePublished());
    if (!found_complete) FinishEvaluation();
  }
  if (options_.checkpoint_at_end && saved_step_ != version_.step) {
    absl::StatusOr<std::string> saved = Save();
    if (ErrorReason(saved.status()) == reason::kFenced) return Outcome::kFenced;
    SYNCOPATE_RETURN_IF_ERROR(Annotate(saved.status(), "the last checkpoint could not be saved"));
  }
  return requests.stop ? Outcome::kStopped : Outcome::kCompleted;
}

void StepLoop::FinishEvaluation() {
  const absl::Time deadline = Now() + options_.last_evaluation_deadline;
  if (parts_.data->EvaluationIsServed()) AwaitEvaluation(deadline);
  if (evaluated_ != version_ && published_.version == version_) StartEvaluation(version_);
  AwaitEvaluation(deadline);
  // A sync that fails is tried again, and given up by who watches over syncs: then this loop is told to stop.
  while (evaluating_ && parts_.syncs_fail && parts_.syncs_fail() && !AwaitStop(absl::ZeroDuration())) {
    AwaitEvaluation(Now() + options_.last_evaluation_deadline);
  }
  if (evaluating_) SYNCOPATE_LOG(kWarning, "the last evaluation did not end in time");
}

void StepLoop::AwaitEvaluation(absl::Time deadline) {
  while (evaluating_ && Now() < deadline && !AwaitStop(absl::ZeroDuration())) {
    CollectEvaluation(std::min(deadline, Now() + kBatchPoll));
  }
}

void StepLoop::Pause() {
  MutexLock lock(&mutex_);
  requests_.paused = true;
}

void StepLoop::Resume() {
  MutexLock lock(&mutex_);
  requests_.paused = false;
}

void StepLoop::Stop() {
  MutexLock lock(&mutex_);
  requests_.stop = true;
}

bool StepLoop::stop_requested() const {
  MutexLock lock(&mutex_);
  return requests_.stop;
}

void StepLoop::StopFenced() {
  MutexLock lock(&mutex_);
  requests_.stop = requests_.fenced = true;
}

void StepLoop::AddTask(Task task, bool saves) {
  {
    MutexLock lock(&mutex_);
    if (!over_) {
      requests_.saves |= saves;
      requests_.tasks.push_back(std::move(task));
      return;
    }
  }
  task(RunOver());
}

void StepLoop::SaveCheckpoint(CheckpointDone done) {
  AddTask([this, done = std::move(done)](
              const absl::Status& over) { done(over.ok() ? Save() : absl::StatusOr<std::string>(over)); },
          /*saves=*/true);
}

void StepLoop::RunBetweenSteps(std::function<void(const absl::StatusOr<PolicyVersion>&)> work) {
  AddTask(
      [this, work = std::move(work)](const absl::Status& over) {
        const absl::Status status = over.ok() ? CheckWeights() : over;
        work(status.ok() ? absl::StatusOr<PolicyVersion>(version_) : absl::StatusOr<PolicyVersion>(status));
      },
      /*saves=*/false);
}

StepLoop::Status StepLoop::GetStatus() const {
  MutexLock lock(&mutex_);
  return status_;
}

void StepLoop::AddPhase(const std::string& phase, double seconds) {
  accounted_seconds_ += seconds;
  parts_.metrics->AddPhase(phase, seconds);
}

void StepLoop::SetState(const std::string& state) {
  MutexLock lock(&mutex_);
  status_.state = state;
}

}  // namespace syncopate::trainerd
