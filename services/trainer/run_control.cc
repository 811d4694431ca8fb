#include "services/trainer/run_control.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/file_system.h"
#include "model/model_export.h"
#include "services/wire/codec.h"

namespace syncopate::trainerd {
namespace {

absl::Status Starting() {
  return Error(absl::StatusCode::kUnavailable, "STARTING", "the trainer is starting; try again shortly");
}

void FillExplanation(const trainer::Explanation& from, v1::Explanation* to) {
  to->set_waiting_for(from.waiting_for);
  to->set_since_seconds(from.since_seconds);
  to->set_detail(from.detail);
  to->set_rollouter(from.rollouter);
  to->set_unblocked_by(from.unblocked_by);
  to->set_mean_group_seconds(from.mean_group_seconds);
  to->set_longest_group_seconds(from.longest_group_seconds);
  to->set_step_interval_seconds(from.step_interval_seconds);
  to->set_suggested_target_staleness(from.suggested_target_staleness);
  to->set_suggested_max_staleness(from.suggested_max_staleness);
}

// A requested standstill is reported before anything else that the loop waits for.
void ExplainStandstill(absl::Time since, const char* waiting_for, const char* detail, const char* unblocked_by,
                       v1::Explanation* explanation) {
  explanation->set_waiting_for(waiting_for);
  explanation->set_since_seconds(absl::ToDoubleSeconds(Clock::Real()->Now() - since));
  explanation->set_detail(detail);
  explanation->clear_rollouter();
  explanation->set_unblocked_by(unblocked_by);
}

// The keys are part of the interface: `ctl status`, dashboards and scripts read them by name.
void FillGroups(const trainer::GroupLedger::Counters& from, google::protobuf::Map<std::string, int64_t>* to) {
  (*to)["leased"] = from.leased;
  (*to)["reissued"] = from.reissued;
  (*to)["stalled"] = from.stalled;
  (*to)["timed_out"] = from.timed_out;
  (*to)["accepted"] = from.accepted;
  (*to)["trained"] = from.trained;
  (*to)["dropped_stale"] = from.dropped_stale;
  (*to)["filtered"] = from.filtered;
  (*to)["failed"] = from.failed;
  (*to)["failed_attempts"] = from.failed_attempts;
  (*to)["superseded"] = from.superseded;
  (*to)["duplicate"] = from.duplicate;
  (*to)["expired"] = from.expired;
  (*to)["rolled_back"] = from.rolled_back;
  (*to)["skipped"] = from.skipped;
  (*to)["past_deadline"] = from.past_deadline;
}

void FillRewards(const trainer::RewardFailures::Figures& from, v1::RewardFailures* to) {
  to->set_failed(from.failed);
  to->set_judged(from.judged);
  to->set_recent_failed(from.recent_failed);
  to->set_recent(from.recent);
  to->set_first(from.first);
  to->set_last(from.last);
  to->set_alarm(from.alarm);
}

void FillData(const trainer::TrainingData::Status& data, v1::TrainerServiceGetStatusResponse* response) {
  FillExplanation(data.explanation, response->mutable_explanation());
  FillGroups(data.groups, response->mutable_groups());
  response->mutable_invalid()->insert(data.leases.invalid.begin(), data.leases.invalid.end());
  response->set_queued_groups(data.queued_groups);
  response->set_leased_groups(data.leased_groups);
  response->set_mean_staleness(data.staleness.Mean());
  response->set_max_staleness_seen(data.staleness.Max());
  response->set_staleness_bound(data.staleness_bound);
  response->set_staleness_bound_violations(data.staleness.violating_groups);
  for (const trainer::TrainingData::RolloutView& rollouter : data.rollouters) {
    v1::RollouterView* view = response->add_rollouters();
    view->set_replica_id(rollouter.replica_id);
    view->set_incarnation(rollouter.incarnation);
    *view->mutable_serving() = wire::ToProto(rollouter.serving);
    view->set_leased_groups(static_cast<int32_t>(rollouter.leased_groups));
    view->set_credits(static_cast<int32_t>(rollouter.credits));
    view->set_accepted_groups(rollouter.accepted_groups);
    view->set_connected(true);
    view->set_invalid_groups(rollouter.invalid_groups);
    view->set_returned_groups(rollouter.returned_groups);
    view->set_stalled_groups(rollouter.stalled_groups);
    view->set_quarantine_seconds(rollouter.quarantine_seconds);
    view->set_last_fault(rollouter.last_fault);
    view->set_no_rewards(rollouter.no_rewards);
    view->set_publish_lag_steps(rollouter.publish_lag_steps);
  }
  FillRewards(data.rewards, response->mutable_reward_failures());
}

v1::Sizing ToMessage(const trainer::SizingAdvice& advice) {
  v1::Sizing message;
  message.set_rollouters(advice.rollouters);
  message.set_slots_per_rollouter(advice.slots_per_rollouter);
  message.set_limit(trainer::RunLimitName(advice.limit));
  message.set_steps_per_second(advice.steps_per_second);
  message.set_steps_per_second_one_more(advice.steps_per_second_one_more);
  message.set_steps_per_second_one_fewer(advice.steps_per_second_one_fewer);
  message.set_steps_per_second_most(advice.steps_per_second_most);
  message.set_trainer_idle_ratio(advice.trainer_idle_ratio);
  message.set_useful_rollouters(advice.useful_rollouters);
  message.set_mean_group_seconds(advice.mean_group_seconds);
  message.set_longest_group_seconds(advice.longest_group_seconds);
  message.set_step_seconds(advice.step_seconds);
  message.set_target_staleness(advice.target_staleness);
  message.set_max_staleness(advice.max_staleness);
  message.set_advised_rollouters(advice.advised_rollouters);
  message.set_advised_steps_per_second(advice.advised_steps_per_second);
  return message;
}

}  // namespace

RunControl::RunControl(Options options) : options_(std::move(options)) {}

void RunControl::SetModel(std::shared_ptr<const ModelOffer> offer, trainer::TurnDesk* turns,
                          std::set<std::string> cards) {
  MutexLock lock(&mutex_);
  offer_ = std::move(offer);
  turns_ = turns;
  cards_ = std::move(cards);
}

void RunControl::Start(const Run& run) {
  MutexLock lock(&mutex_);
  // Calls before this get STARTING: the port is open by then.
  run_ = run;
}

absl::StatusOr<RunControl::Run> RunControl::GetRun() const {
  MutexLock lock(&mutex_);
  if (!run_.has_value()) return Starting();
  return *run_;
}

void RunControl::SetSizing(const absl::StatusOr<trainer::SizingAdvice>& advice) {
  v1::Sizing sizing;
  if (advice.ok()) {
    sizing = ToMessage(*advice);
  } else {
    sizing.set_not_measured(std::string(advice.status().message()));
  }
  MutexLock lock(&mutex_);
  sizing_ = std::move(sizing);
}

v1::TrainerServiceGetStatusResponse RunControl::GetStatus() const {
  v1::TrainerServiceGetStatusResponse response;
  response.set_steps_total(options_.steps);
  const absl::StatusOr<Run> run = GetRun();
  if (!run.ok()) {
    response.set_state("starting");
    return response;
  }
  const trainer::StepLoop::Status status = run->loop->GetStatus();
  *response.mutable_version() = wire::ToProto(status.version);
  response.set_state(status.state);
  response.set_last_checkpoint(status.last_checkpoint);
  response.set_failed_checkpoints(status.failed_checkpoints);
  response.set_checkpoint_error(status.checkpoint_error);
  response.set_best_checkpoint(status.best_checkpoint);
  response.set_best_checkpoint_reward(status.best_checkpoint_reward);
  FillData(run->data->GetStatus(), &response);
  {
    MutexLock lock(&mutex_);
    if (sizing_.has_value()) *response.mutable_sizing() = *sizing_;
  }
  if (status.state == "paused") {
    ExplainStandstill(status.paused_since, "resume", "the trainer was paused by a request",
                      "Resume of TrainerService, e.g. by `syncopate ctl resume`", response.mutable_explanation());
  }
  if (status.state == "rollout_mode") {
    ExplainStandstill(
        status.paused_since, "trainer_mode", "the trainer is in rollout mode: its state has left the device",
        "TrainerMode of TrainerService, e.g. by `syncopate ctl mode --to trainer`", response.mutable_explanation());
  }
  return response;
}

absl::Status RunControl::CallLoop(void (trainer::StepLoop::*work)()) {
  SYNCOPATE_ASSIGN_OR_RETURN(const Run run, GetRun());
  // Without the lock: the loop may take long to answer, and GetStatus must not wait for it.
  (run.loop->*work)();
  return absl::OkStatus();
}

void RunControl::ExportModel(const v1::TrainerServiceExportModelRequest& request, ExportDone done) {
  const absl::StatusOr<Run> run = GetRun();
  if (!run.ok()) return done(run.status());
  trainer::ExportWriter::Request asked{.name = request.name()};
  // The name becomes a folder below the run directory: a slash in it could lead outside.
  if (!asked.name.empty()) {
    if (const absl::Status name = CheckFileName(asked.name); !name.ok()) return done(name);
  }
  if (!request.dtype().empty()) {
    const absl::StatusOr<DType> dtype = model::ParseExportDType(request.dtype());
    if (!dtype.ok()) return done(dtype.status());
    if (options_.trains_adapters && *dtype != DType::kFloat32) {
      return done(Error(absl::StatusCode::kInvalidArgument, "BAD_DTYPE",
                        "adapters are written in float32, which loses nothing; leave dtype empty"));
    }
    asked.options.dtype = *dtype;
  }
  run->loop->ExportModel(asked,
                         [done = std::move(done)](const absl::StatusOr<trainer::ExportWriter::Exported>& exported) {
                           if (!exported.ok()) return done(exported.status());
                           v1::TrainerServiceExportModelResponse response;
                           *response.mutable_version() = wire::ToProto(exported->version);
                           response.set_path(exported->path);
                           response.set_bytes(exported->model.bytes);
                           done(response);
                         });
}

absl::StatusOr<std::shared_ptr<const ModelOffer>> RunControl::GetModel() const {
  MutexLock lock(&mutex_);
  if (offer_ == nullptr) return Starting();  // the port is open before the model has been read
  return offer_;
}

std::function<void()> RunControl::CallInRolloutersTurn(const MemberId& who, const std::set<std::string>& cards,
                                                       std::function<void()> answer) {
  trainer::TurnDesk* turns = nullptr;
  {
    MutexLock lock(&mutex_);
    if (SharesLocked(cards)) turns = turns_;
  }
  // A rank of a replica other than rank 0 names no cards: it takes no memory before rank 0 has had its answer.
  if (turns == nullptr) {
    answer();
    return [] {};
  }
  const trainer::TurnDesk::Newcomer newcomer{who.replica_id, who.incarnation};
  const int64_t waiting = turns->CallInRolloutersTurn(newcomer, std::move(answer));
  return [turns, waiting, newcomer] {
    turns->Forget(waiting);
    turns->LoseArrival(newcomer);
  };
}

bool RunControl::TakesTurnsOn(const std::set<std::string>& cards) const {
  MutexLock lock(&mutex_);
  return SharesLocked(cards);
}

bool RunControl::SharesLocked(const std::set<std::string>& cards) const {
  return turns_ != nullptr && std::any_of(cards.begin(), cards.end(),
                                          [this](const std::string& card)
                                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return cards_.count(card) > 0; });
}

}  // namespace syncopate::trainerd
