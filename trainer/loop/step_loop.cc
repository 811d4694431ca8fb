#include "trainer/loop/step_loop.h"

#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/reasons.h"

namespace syncopate::trainer {
namespace {

// How long one wait for a batch lasts before requests are looked at again.
constexpr absl::Duration kBatchPoll = absl::Milliseconds(50);
constexpr absl::Duration kDiskRetry = absl::Seconds(1);

absl::Time Now() { return Clock::Real()->Now(); }

}  // namespace

StepLoop::StepLoop(const Options& options, const Parts& parts, const PolicyVersion& start)
    : options_(options),
      parts_(parts),
      started_(Now()),
      control_(start),
      phases_(parts.observer, started_),
      reports_(parts.observer),
      publisher_({.policy = parts.policy,
                  .stager = parts.stager,
                  .data = parts.data,
                  .observer = parts.observer,
                  .queue = &reports_,
                  .phases = &phases_,
                  .publish = parts.publish}),
      checkpoints_(options.keep_checkpoints, start.epoch,
                   {.policy = parts.policy,
                    .data = parts.data,
                    .store = parts.checkpoints,
                    .publisher = &publisher_,
                    .control = &control_,
                    .observer = parts.observer,
                    .phases = &phases_,
                    .newest_epoch = parts.newest_epoch,
                    .ranks = parts.ranks}),
      exports_({.policy = parts.policy, .store = parts.exports, .ranks = parts.ranks}),
      evaluations_({.data = parts.data,
                    .prompts = parts.evaluation_prompts,
                    .control = &control_,
                    .checkpoints = &checkpoints_,
                    .alarms = &alarms_,
                    .observer = &reports_,
                    .phases = &phases_,
                    .syncs_fail = parts.syncs_fail}),
      version_(start),
      last_step_end_(started_) {}

absl::StatusOr<StepLoop::Outcome> StepLoop::Run() {
  checkpoints_.LoadBest();
  parts_.observer->RecordMemory(parts_.policy->memory());
  // A resumed run compares with the best evaluation of all its incarnations.
  if (checkpoints_.best().has_value()) alarms_.alarms().SetBestEvaluation(checkpoints_.best()->reward_mean);
  absl::Status status = LeaveDevice();
  if (status.ok()) status = MakeSteps();
  absl::StatusOr<Outcome> outcome = status.ok() ? EndRun() : absl::StatusOr<Outcome>(status);
  // Weights that are not finite are why whatever came after them has failed.
  const absl::Status staged = publisher_.Await();
  if (!staged.ok() && (outcome.ok() || ErrorReason(staged) == reason::kNonFinite)) outcome = staged;
  if (const absl::Status written = checkpoints_.Wait(); outcome.ok() && !written.ok()) outcome = written;
  if (const absl::Status written = exports_.Wait(); outcome.ok() && !written.ok()) outcome = written;
  reports_.Stop();
  control_.Close(outcome.ok() ? "done" : "failed");
  return outcome;
}

absl::Status StepLoop::MakeSteps() {
  while (version_.step < options_.steps && Now() - started_ < options_.duration) {
    const LoopControl::Requests requests = AwaitRequests();
    for (const LoopControl::Task& task : requests.tasks) task(absl::OkStatus());
    if (requests.stop) return absl::OkStatus();
    // Training has spoilt the weights of the version before: no further step.
    SYNCOPATE_RETURN_IF_ERROR(publisher_.failure());
    // A checkpoint on request is evaluated like a periodic one, so that it can become the best.
    if (requests.saves && options_.evaluate_every_steps > 0) SYNCOPATE_RETURN_IF_ERROR(StartEvaluation());
    if (!requests.tasks.empty()) continue;  // they were served in a pause, too, and it goes on
    if (parts_.turns != nullptr) {
      SYNCOPATE_RETURN_IF_ERROR(LookAtTurn());
      // The version that is evaluated stays on the device until the last answer. A postponed evaluation begins here, and
      // none from here to the step.
      evaluations_.Collect(evaluations_.IsAnswerable() ? Now() + kBatchPoll : absl::InfinitePast());
      if (evaluations_.IsAnswerable()) continue;
    }
    absl::StatusOr<std::optional<TrainingData::Batch>> batch = NextBatch();
    if (ErrorReason(batch.status()) == reason::kDataEnded) return absl::OkStatus();
    SYNCOPATE_RETURN_IF_ERROR(batch.status());
    // A replay publishes nothing (the header says why). Neither do supervised steps. The first step after either
    // publishes what rollouters begin with, before it waits for their answers.
    const bool is_replay = batch->has_value() && (*batch)->is_replay;
    if (!is_replay && IsFirstPublicationDue()) {
      const absl::Status published = InTurn([this] { return publisher_.Publish(version_); });
      if (ErrorReason(published) == kTurnUnwanted) continue;  // the stop is looked at
      SYNCOPATE_RETURN_IF_ERROR(published);
      SYNCOPATE_RETURN_IF_ERROR(StartEvaluationIfDue());
    }
    // Takes results that are ready and waits for none.
    if (parts_.turns == nullptr) evaluations_.Collect(absl::InfinitePast());
    if (batch->has_value()) SYNCOPATE_RETURN_IF_ERROR(Train(**batch));
    phases_.AddRest(Now());
  }
  return absl::OkStatus();
}

LoopControl::Requests StepLoop::AwaitRequests() {
  LoopControl::Requests requests = control_.AwaitRequests(evaluations_.under_way() ? "evaluating" : "running");
  if (requests.paused > absl::ZeroDuration()) {
    phases_.Add(LoopPhase::kPaused, requests.paused);
    last_step_end_ = Now();  // a pause is no step time
    waited_seconds_ = 0;
  }
  return requests;
}

absl::StatusOr<std::optional<TrainingData::Batch>> StepLoop::NextBatch() {
  const absl::Time begin = Now();
  // Before the first publication only a batch that is ready counts: rollouters have no version, so no more would come.
  const bool wait = IsSupervised() || !publisher_.published().IsNone();
  const absl::Status ready = AwaitStep(wait ? begin + kBatchPoll : absl::InfinitePast());
  absl::Duration waited = Now() - begin;
  // Before the take: after a stop in the wait for the turn the data are between two steps, and can be saved. After it if
  // the disk has refused the last one: rollouters would leave the device at each try.
  const bool takes_first = ready.ok() && std::exchange(take_refused_, false);
  absl::Status begun = ready.ok() && !takes_first ? BeginTurn() : absl::OkStatus();
  if (ErrorReason(begun) == kTurnUnwanted) return std::optional<TrainingData::Batch>();
  SYNCOPATE_RETURN_IF_ERROR(begun);
  const absl::Time may_take = Now();
  absl::StatusOr<TrainingData::Batch> batch = ready.ok() ? parts_.data->TakeBatch() : ready;
  waited += Now() - may_take;
  // What is taken must be trained, so that only a trainer that writes no more gives it up.
  if (takes_first && batch.ok()) begun = BeginTurn(/*is_due=*/true);
  if (ErrorReason(begun) == kTurnUnwanted) return std::optional<TrainingData::Batch>();
  SYNCOPATE_RETURN_IF_ERROR(begun);
  waited_seconds_ += absl::ToDoubleSeconds(waited);
  phases_.Add(LoopPhase::kIdle, waited);
  if (batch.ok()) return std::optional<TrainingData::Batch>(*std::move(batch));
  SYNCOPATE_RETURN_IF_ERROR(EndTurn());  // there is no step that would end it
  // The run ends on the end of the data, a stop, or unusable data. Every other error passes.
  const bool ended = absl::IsOutOfRange(batch.status()) || absl::IsCancelled(batch.status());
  if (ended || absl::IsInvalidArgument(batch.status())) return batch.status();
  // kNoBatch: no batch is ready yet. Any other error: the disk has refused the take, which is tried again, so that a
  // full disk delays a run and does not end it.
  if (ErrorReason(batch.status()) != reason::kNoBatch) {
    SYNCOPATE_LOG(kError, "the next step waits for the disk: %s", batch.status().ToString());
    take_refused_ = true;
    control_.AwaitStop(kDiskRetry);
  }
  return std::optional<TrainingData::Batch>();
}

// A pause that was answered is kept: it is looked at after the wait, and nothing waits between that and the take.
absl::Status StepLoop::AwaitStep(absl::Time deadline) {
  SYNCOPATE_RETURN_IF_ERROR(parts_.data->AwaitBatch(deadline));
  if (!control_.MayBeginStep()) {
    return Error(absl::StatusCode::kDeadlineExceeded, reason::kNoBatch,
                 "a pause or a stop was requested before the step began");
  }
  // A batch that is taken must be trained, so that the evaluation of this version would have no time.
  if (parts_.turns != nullptr && IsFirstPublicationDue() && !parts_.data->RepeatsNext()) {
    return Error(absl::StatusCode::kDeadlineExceeded, reason::kNoBatch, "the present version is published first");
  }
  return absl::OkStatus();
}

absl::Status StepLoop::Train(const TrainingData::Batch& batch) {
  // The ledger and the loop count steps apart from each other; if they differed, tokens would be trained at a wrong
  // staleness.
  SYNCOPATE_CHECK(batch.produces.step == version_.step + 1);
  if (batch.is_replay) control_.SetState("replaying");
  StepReport report;
  const double waited = std::exchange(waited_seconds_, 0);
  // The weights are on the device once for the step and for what reads them right after it.
  SYNCOPATE_RETURN_IF_ERROR(InTurn([&] {
    const absl::Time begin = Now();
    return InUse(*parts_.policy, [&] { return MakeVersion(batch, begin, &report); });
  }));
  const StateMoves load = std::exchange(turn_load_, {}), offload = std::exchange(turn_offload_, {});
  report.figures.turn_drain_seconds = std::exchange(turn_drain_seconds_, 0);
  report.figures.turn_load_seconds = load.load_seconds;
  report.figures.turn_offload_seconds = offload.offload_seconds;
  report.figures.turn_moved_bytes = load.bytes + offload.bytes;
  report.figures.wait_seconds = waited;
  ReportStep(batch, std::move(report));
  if (!batch.is_replay) SYNCOPATE_RETURN_IF_ERROR(StartEvaluationIfDue());
  return SaveIfDue();
}

absl::Status StepLoop::InTurn(const std::function<absl::Status()>& work) {
  SYNCOPATE_RETURN_IF_ERROR(BeginTurn());
  SYNCOPATE_RETURN_IF_ERROR(work());
  return EndTurn();
}

absl::Status StepLoop::BeginTurn(bool is_due) {
  if (parts_.turns == nullptr || in_turn_) return absl::OkStatus();
  const absl::Time begin = Now();
  turn_offload_ = {};
  SYNCOPATE_RETURN_IF_ERROR(
      parts_.turns->Take([this, is_due] { return is_due ? control_.fenced() : control_.stop_requested(); }));
  const absl::Time taken = Now();
  turn_drain_seconds_ = absl::ToDoubleSeconds(taken - begin);
  if (parts_.measure_turn != nullptr) parts_.measure_turn(true);
  SYNCOPATE_ASSIGN_OR_RETURN(turn_load_, parts_.policy->EnterTrainerMode());
  in_turn_ = true;
  phases_.Add(LoopPhase::kTurn, Now() - begin);
  return absl::OkStatus();
}

absl::Status StepLoop::EndTurn() {
  // Rollouters have left their weights behind: before the first publication they could not come back.
  if (!in_turn_ || publisher_.launched().IsNone()) return absl::OkStatus();
  // What is staged is read from the device.
  SYNCOPATE_RETURN_IF_ERROR(publisher_.Await());
  const absl::Time begin = Now();
  // The save under way reads the copy in host memory, which is about to be written.
  SYNCOPATE_RETURN_IF_ERROR(checkpoints_.Wait());
  if (parts_.measure_turn != nullptr) parts_.measure_turn(false);
  SYNCOPATE_ASSIGN_OR_RETURN(turn_offload_, parts_.policy->EnterRolloutMode());
  in_turn_ = false;
  parts_.turns->GiveBack();
  phases_.Add(LoopPhase::kTurn, Now() - begin);
  return absl::OkStatus();
}

// The policy begins on its device, and the first turn is still to come.
absl::Status StepLoop::LeaveDevice() {
  if (parts_.turns == nullptr) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(parts_.policy->EnterRolloutMode().status());
  return LetStagedLeave().status();
}

// True if no staged weights are on the device now; false if LookAtTurn() must try again.
absl::StatusOr<bool> StepLoop::LetStagedLeave() {
  std::shared_ptr<const void> held;
  if (parts_.hold_device != nullptr) {
    held = parts_.hold_device();
    if (held == nullptr) return false;
  }
  return parts_.stager->LeaveDevice();
}

absl::Status StepLoop::LookAtTurn() {
  parts_.turns->Look();
  if (in_turn_ || stays_staged_ || parts_.turns->GetStatus().phase != CardTurns::Phase::kRollouters) {
    return absl::OkStatus();
  }
  const absl::StatusOr<bool> left = LetStagedLeave();
  // Without host memory it stays where it is, which costs rollouters nothing that they had counted on.
  if (!left.ok() && !absl::IsResourceExhausted(left.status())) return left.status();
  if (!left.ok()) {
    stays_staged_ = true;
    SYNCOPATE_LOG(kWarning, "the staged weights stay on the device: %s", left.status().ToString());
  }
  return absl::OkStatus();
}

absl::Status StepLoop::MakeVersion(const TrainingData::Batch& batch, absl::Time begin, StepReport* report) {
  SYNCOPATE_ASSIGN_OR_RETURN(report->figures, MakeStep(batch));
  // The update may have waited for the staging of the version before, which is a phase of its own.
  phases_.Add(LoopPhase::kStep, absl::ToDoubleSeconds(Now() - begin) - publisher_.AccountUpdateWaits());
  version_.step = batch.produces.step;
  // Before anything is published: the ledger must know the step, or it would refuse answers that the new version makes.
  parts_.data->FinishStep();
  control_.SetVersion(version_);
  if (!batch.is_replay && PublishIsDue()) {
    SYNCOPATE_RETURN_IF_ERROR(options_.publishes_at_once ? publisher_.Publish(version_) : publisher_.Launch(version_));
  }
  // A step that is repeated publishes nothing, and must show the bits of the first time: so this is the policy's own
  // digest, not that of what travels.
  SYNCOPATE_ASSIGN_OR_RETURN(report->weights_digest, parts_.policy->Digest());
  if (batch.supervised && HeldOutIsDue()) {
    SYNCOPATE_ASSIGN_OR_RETURN(report->held_out, MeasureHeldOut());
  }
  return absl::OkStatus();
}

// Asked after the step, which made version_.
bool StepLoop::HeldOutIsDue() const {
  if (options_.held_out_prompts == 0) return false;
  const int64_t every = options_.evaluate_every_steps;
  const bool is_last = version_.step == options_.supervised_steps || version_.step == options_.steps;
  return is_last || (every > 0 && version_.step % every == 0);
}

absl::StatusOr<HeldOutLoss> StepLoop::MeasureHeldOut() {
  const absl::Time begin = Now();
  while (static_cast<int64_t>(held_out_.size()) < options_.held_out_prompts) {
    const GroupId group{PromptSource::kEvaluationPass, static_cast<int64_t>(held_out_.size())};
    held_out_.push_back(SupervisedGroup({group, 1}, parts_.evaluation_prompts->At(group)));
  }
  std::vector<const TrajectoryGroup*> groups;
  for (const TrajectoryGroup& group : held_out_) groups.push_back(&group);
  absl::StatusOr<HeldOutLoss> measured = parts_.policy->MeasureSupervised(groups);
  phases_.Add(LoopPhase::kEvaluate, Now() - begin);
  return measured;
}

absl::StatusOr<StepFigures> StepLoop::MakeStep(const TrainingData::Batch& batch) {
  std::vector<const TrajectoryGroup*> groups;
  for (const SharedGroup& group : batch.groups) groups.push_back(group.get());
  return batch.supervised ? parts_.policy->SupervisedStep(groups) : parts_.policy->Step(groups, version_.step);
}

void StepLoop::ReportStep(const TrainingData::Batch& batch, StepReport report) {
  report.version = version_;
  report.is_replay = batch.is_replay;
  report.supervised = batch.supervised;
  report.staleness = batch.staleness;
  report.groups = static_cast<int64_t>(batch.groups.size());
  report.batch = batch.groups;
  report.origins = batch.origins;
  for (const SharedGroup& group : batch.groups) {
    if (batch.supervised) break;
    for (const Trajectory& sample : group->samples) {
      report.sample_staleness.push_back(batch.produces.step - 1 - sample.spans.front().version.step);
    }
  }
  const TrainingSums sums = parts_.data->GetSums();
  report.figures.staleness_mean = batch.staleness.Mean();
  report.figures.staleness_max = batch.staleness.Max();
  report.figures.samples_so_far = sums.trained_samples;
  report.figures.tokens_so_far = sums.trained_tokens();
  report.figures.stage_wait_seconds = publisher_.TakeWaitSeconds();
  report.figures.export_wait_seconds = exports_.TakeWaitSeconds();
  SetMoves(parts_.policy->TakeMoves(), &report.figures);
  SetMemory(parts_.policy->memory(), &report.figures);
  const absl::Time end = Now();
  report.figures.step_seconds = absl::ToDoubleSeconds(end - last_step_end_);
  last_step_end_ = end;
  if (!batch.supervised) {
    alarms_.alarms().AddStep({report.figures.reward_mean, report.figures.reward_max, report.figures.entropy,
                              report.figures.zero_variance_ratio});
  }
  report.alarms = alarms_.LogStanding(version_);
  publisher_.RecordStep(std::move(report));
}

bool StepLoop::CheckpointIsDue() const {
  return options_.checkpoint_every_steps > 0 && version_.step % options_.checkpoint_every_steps == 0;
}

bool StepLoop::PublishIsDue() const {
  if (IsSupervised()) return false;
  if (version_.step == options_.supervised_steps) return true;  // rollouters begin with what was learned
  // The last version is always published: it is the one that stays to be served and evaluated.
  if (version_.step % options_.publish_every_steps == 0 || version_.step == options_.steps) return true;
  return options_.evaluate_every_steps > 0 && CheckpointIsDue();  // what is saved is evaluated, by those who serve it
}

absl::Status StepLoop::StartEvaluation() {
  if (publisher_.launched() != version_) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(publisher_.Await());
  evaluations_.Start(version_);
  return absl::OkStatus();
}

absl::Status StepLoop::StartEvaluationIfDue() {
  if (options_.evaluate_every_steps == 0) return absl::OkStatus();
  const bool first = evaluations_.last_started().IsNone();
  const bool is_due = first || version_.step % options_.evaluate_every_steps == 0 || CheckpointIsDue();
  return is_due ? StartEvaluation() : absl::OkStatus();
}

absl::Status StepLoop::SaveIfDue() {
  if (!CheckpointIsDue()) return absl::OkStatus();
  // Unless another trainer has taken over training goes on: the last good checkpoint is untouched, and the log still
  // contains everything since.
  auto note = [this, version = version_](const absl::Status& saved) {
    if (ErrorReason(saved) == reason::kFenced) StopFenced();
    if (!saved.ok()) SYNCOPATE_LOG(kError, "no checkpoint at %s: %s", version.ToString(), saved.ToString());
  };
  const absl::Status begun =
      checkpoints_.Save(version_, [note](const absl::StatusOr<std::string>& name) { note(name.status()); });
  // Training has spoilt the weights: going on would train nothing but more of that. A disk that does not answer would
  // delay the next save.
  if (ErrorReason(begun) == reason::kNonFinite || ErrorReason(begun) == reason::kDiskStuck) return begun;
  note(begun);
  return absl::OkStatus();
}

absl::StatusOr<StepLoop::Outcome> StepLoop::EndRun() {
  // The last version, or the one that a stop has come after: weights that are not finite are not saved.
  SYNCOPATE_RETURN_IF_ERROR(publisher_.Await());
  // The save under way may be of the last version already, or may have found a newer trainer.
  SYNCOPATE_RETURN_IF_ERROR(checkpoints_.Wait());
  const LoopControl::Requests requests = AwaitRequests();
  for (const LoopControl::Task& task : requests.tasks) task(absl::OkStatus());
  if (requests.fenced) return Outcome::kFenced;
  control_.SetState("stopping");
  if (!requests.stop) {
    // Time or data may have ended between two publications.
    // A resumed run that had been complete: this incarnation has published nothing, as no step was left.
    const bool found_complete = publisher_.published().IsNone() && !options_.evaluate_only;
    if ((!found_complete || options_.serve_complete) && publisher_.launched() != version_) {
      const absl::Status made = InTurn([this] { return publisher_.Publish(version_); });
      if (ErrorReason(made) == kTurnUnwanted) return EndRun();  // as one that was stopped
      SYNCOPATE_RETURN_IF_ERROR(made);
    }
    if (!found_complete) evaluations_.Finish(version_, publisher_.published(), options_.last_evaluation_deadline);
  }
  if (options_.checkpoint_at_end && checkpoints_.saved_step() != version_.step) {
    const absl::StatusOr<std::string> saved = checkpoints_.SaveAndWait(version_);
    if (ErrorReason(saved.status()) == reason::kFenced) return Outcome::kFenced;
    SYNCOPATE_RETURN_IF_ERROR(Annotate(saved.status(), "the last checkpoint could not be saved"));
  }
  return requests.stop ? Outcome::kStopped : Outcome::kCompleted;
}

void StepLoop::SaveCheckpoint(CheckpointDone done) {
  auto save = [this, done = std::move(done)](const absl::Status& over) {
    const absl::Status begun = over.ok() ? checkpoints_.Save(version_, done) : over;
    if (!begun.ok()) done(begun);
  };
  control_.Add(std::move(save), /*saves=*/true);
}

absl::Status StepLoop::AwaitFinite() {
  SYNCOPATE_RETURN_IF_ERROR(publisher_.Await());
  return publisher_.CheckWeights(version_);
}

void StepLoop::ExportModel(const ExportWriter::Request& request, ExportWriter::Done done) {
  auto begin = [this, request, done = std::move(done)](const absl::Status& over) {
    if (!over.ok()) return done(over);
    if (!exports_.is_free()) return exports_.CallWhenFree([this, request, done] { ExportModel(request, done); });
    // `done` is owed exactly one answer, also if the weights cannot be brought to the device, or not away again.
    bool begun = false;
    const absl::Status status = InCopyUse(*parts_.policy, [&]() -> absl::Status {
      SYNCOPATE_RETURN_IF_ERROR(AwaitFinite());
      begun = true;
      exports_.Export(version_, request, done);
      return absl::OkStatus();
    });
    if (!begun) return done(status);
    if (!status.ok()) SYNCOPATE_LOG(kError, "after a copy for an export: %s", status.ToString());
  };
  control_.Add(std::move(begin), /*saves=*/false);
}

void StepLoop::EnterRolloutMode(ModeDone done) { EnterMode(/*rollout=*/true, std::move(done)); }

void StepLoop::EnterTrainerMode(ModeDone done) { EnterMode(/*rollout=*/false, std::move(done)); }

void StepLoop::EnterMode(bool rollout, ModeDone done) {
  auto enter = [this, rollout, done = std::move(done)](const absl::Status& over) {
    if (!over.ok()) return done(over);
    if (parts_.turns != nullptr) {
      return done(Error(absl::StatusCode::kFailedPrecondition, "TAKES_TURNS",
                        "this run takes turns on its device by itself (run.share_gpu): its mode cannot be set"));
    }
    // What is staged is read from the device.
    if (const absl::Status staged = publisher_.Await(); !staged.ok()) return done(staged);
    const absl::StatusOr<StateMoves> moves =
        rollout ? parts_.policy->EnterRolloutMode() : parts_.policy->EnterTrainerMode();
    parts_.observer->RecordMemory(parts_.policy->memory());
    if (!moves.ok()) return done(moves.status());
    const bool acted = std::exchange(rollout_mode_, rollout) != rollout;
    control_.SetRolloutMode(rollout);
    done(ModeChange{acted, *moves});
  };
  control_.Add(std::move(enter), /*saves=*/false);
}

}  // namespace syncopate::trainer
