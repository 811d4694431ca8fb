#include "services/telemetry/trainer_metrics.h"

namespace syncopate::telemetry {
namespace {

// One bucket for each step near 0, where the bound usually is; above, doublings with one value between.
const prometheus::Histogram::BucketBoundaries kStalenessBuckets = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

}  // namespace

StepFigureMetrics::StepFigureMetrics(prometheus::Registry& registry) {
  for (const trainer::StepFigure& figure : trainer::StepFigureTable()) {
    const std::string name = trainer::MetricName(figure), help = trainer::MetricHelp(figure);
    if (figure.kind == trainer::StepFigure::Kind::kCounter) {
      counters_.emplace_back(&figure, &AddCounter(registry, name, help));
    } else {
      gauges_.emplace_back(&figure, &AddGauge(registry, name, help));
    }
  }
}

void StepFigureMetrics::Record(const trainer::StepFigures& step) {
  for (const auto& [figure, gauge] : gauges_) gauge->Set(trainer::FigureValue(step, *figure));
  // A counter adds the figure of each step; a gauge shows only the last step's.
  for (const auto& [figure, counter] : counters_) counter->Increment(trainer::FigureValue(step, *figure));
}

void StepFigureMetrics::Show(const trainer::StepFigures& figures, const std::string& group) {
  for (const auto& [figure, gauge] : gauges_) {
    if (figure->group == group) gauge->Set(trainer::FigureValue(figures, *figure));
  }
}

TrainerMetrics::TrainerMetrics(prometheus::Registry& registry, const Limits& limits)
    : limits_(limits),
      groups_(
          registry, "syncopate_groups_total", "Groups by what became of them", "outcome",
          {"trained", "dropped_stale", "filtered", "duplicate", "rolled_back", "failed", "skipped", "past_deadline"}),
      rewards_(registry, "syncopate_reward_groups_total",
               "Groups, those of evaluations included, by whether their reward judged them or failed", "outcome",
               {"judged", "failed"}),
      quarantines_(AddCounter(registry, "syncopate_rollouter_quarantines_total",
                              "Times that a rollouter got no more prompts because its answers were of no use")),
      revoked_(registry, "syncopate_leases_revoked_total",
               "Leases taken back because they came no further, were too old, another attempt was answered first, or "
               "the group was dropped at its deadline",
               "reason", {"stalled", "timeout", "superseded", "deadline"}),
      continued_(AddCounter(registry, "syncopate_leases_continued_total",
                            "Leases that began with tokens of an earlier lease, whose rollouter was lost")),
      kept_tokens_(AddCounter(registry, "syncopate_kept_tokens_total",
                              "Tokens with which leases began, and which were not made again")),
      unfinished_bytes_(AddGauge(registry, "syncopate_unfinished_answer_bytes",
                                 "Bytes of unfinished answers that are kept, data.partial_bytes at most")),
      answered_time_(
          AddGauge(registry, "syncopate_answered_time_ratio",
                   "Mean time of answered groups over that of all since this process started, dropped ones "
                   "counted to their drop; below 1 by as much, at least, as dropping favours short answers")),
      kept_length_(
          AddGauge(registry, "syncopate_kept_length_ratio",
                   "Mean tokens of the answers that were kept since this process started over that of all; below 1 "
                   "by as much as replacing groups without signal favours short answers")),
      publish_lag_(AddGauge(registry, "syncopate_publish_lag_steps_max",
                            "Steps by which the version of the rollouter that is furthest behind is older than the "
                            "trainer's; `ctl explain` has each rollouter's")),
      useful_rollouters_(
          AddGauge(registry, "syncopate_useful_rollouters",
                   "Rollouters that give 95 % of the pace that any number of them could, as staleness is "
                   "set; 0 until enough is measured")),
      advised_rollouters_(AddGauge(registry, "syncopate_advised_rollouters",
                                   "Rollouters that would give 95 % of the pace that any number of them could with the "
                                   "advised staleness; 0 until "
                                   "enough is measured")),
      advised_target_(AddGauge(registry, "syncopate_advised_target_staleness_steps",
                               "staleness.target_staleness that keeps the trainer busy; 0 until enough is measured")),
      advised_max_(AddGauge(registry, "syncopate_advised_max_staleness_steps",
                            "staleness.max_staleness that never makes the trainer wait; 0 until enough is measured")),
      predicted_steps_(registry, "syncopate_predicted_steps_per_second",
                       "Steps per second as they are now, and predicted with one rollouter fewer and one more; 0 until "
                       "enough is measured",
                       "rollouters", {"present", "one_fewer", "one_more"}),
      advised_steps_(AddGauge(registry, "syncopate_advised_steps_per_second",
                              "Steps per second predicted with the advised staleness and rollouters; 0 until enough is "
                              "measured")),
      most_steps_(AddGauge(registry, "syncopate_trainer_steps_per_second",
                           "Steps per second of a trainer that never waits for groups; 0 until enough is measured")),
      staleness_(prometheus::BuildHistogram()
                     .Name("syncopate_sample_staleness_steps")
                     .Help("Staleness of trained samples: step at use minus step of the version of the oldest token")
                     .Register(registry)
                     .Add({}, kStalenessBuckets)),
      at_bound_(AddCounter(registry, "syncopate_samples_at_staleness_bound_total",
                           "Trained samples whose oldest token was as old as the bound allows")),
      violations_(AddCounter(registry, "syncopate_staleness_bound_violations_total",
                             "Trained tokens older than the bound; anything but 0 is a defect")),
      phases_(registry, "syncopate_trainer_phase_seconds_total", "Time of the step thread by phase", "phase",
              {"idle", "step", "stage", "evaluate", "checkpoint", "turn", "paused", "other"}),
      queued_(AddGauge(registry, "syncopate_queue_groups", "Accepted groups that wait to be trained")),
      leased_(AddGauge(registry, "syncopate_leased_groups", "Groups that rollouters work on")),
      steps_(AddCounter(registry, "syncopate_steps_total", "Training steps done by this process")),
      figures_(registry),
      mismatch_by_age_(registry, "syncopate_mismatch_k3",
                       "KL divergence of the last batch between behaviour and proximal policy by the tokens' "
                       "staleness in steps; at age 0 the engines disagree",
                       "age", {"0", "1", "2", "3", "4", "5", "6", "7", "8+"}),
      eval_exact_(AddGauge(
          registry, "syncopate_eval_exact_ratio",
          "Share of exact answers in the last evaluation; 0 before the first, and where right answers are unknown")),
      eval_reward_(
          AddGauge(registry, "syncopate_eval_reward_mean", "Mean reward of the last evaluation; 0 before the first")),
      eval_best_reward_(AddGauge(registry, "syncopate_eval_best_reward_mean",
                                 "Highest mean reward of any evaluation of the run; 0 before the first")),
      held_out_loss_(AddGauge(registry, "syncopate_held_out_loss_nats",
                              "Mean cross-entropy per token of held-out answers after a supervised step, where it was "
                              "measured last; 0 before the first")),
      lost_evaluations_(AddCounter(registry, "syncopate_evaluations_lost_total",
                                   "Evaluations that were due and not made: no rollouter served their version long "
                                   "enough")),
      alarms_(registry, "syncopate_learning_alarm",
              "1 while the run has stopped learning or forgets: little entropy, no signal, or an evaluation far below "
              "the best one",
              "kind", {"entropy", "no_signal", "evaluation_fell"}),
      lost_records_(
          registry, "syncopate_lost_records_total",
          "Records of steps, evaluations and samples that the disk did not take, or came too slowly to, by the "
          "file that lacks them",
          "kind", {"metrics.jsonl", "tensorboard", "samples.jsonl"}),
      checkpoints_(registry, "syncopate_checkpoints_total", "Checkpoints by result", "result", {"ok", "failed"}),
      last_checkpoint_(AddGauge(registry, "syncopate_checkpoint_last_success_timestamp_seconds",
                                "When a checkpoint was last saved, in seconds since 1970; 0 before the first")),
      version_(registry, "trainer") {
  AddGauge(registry, "syncopate_staleness_bound_steps", "Staleness that no trained token may exceed")
      .Set(Double(limits.max_staleness));
  AddGauge(registry, "syncopate_outstanding_groups_limit", "Groups that may be leased and queued together")
      .Set(Double(limits.outstanding_groups));
}

void TrainerMetrics::SetContinued(int64_t leases, int64_t tokens) {
  continued_.Increment(Double(leases) - continued_.Value());
  kept_tokens_.Increment(Double(tokens) - kept_tokens_.Value());
}

void TrainerMetrics::SetSizing(const trainer::SizingAdvice& advice) {
  useful_rollouters_.Set(Double(advice.useful_rollouters));
  advised_rollouters_.Set(Double(advice.advised_rollouters));
  advised_target_.Set(advice.target_staleness);
  advised_max_.Set(Double(advice.max_staleness));
  predicted_steps_.Set({advice.steps_per_second, advice.steps_per_second_one_fewer, advice.steps_per_second_one_more});
  advised_steps_.Set(advice.advised_steps_per_second);
  most_steps_.Set(advice.steps_per_second_most);
}

void TrainerMetrics::ObserveStaleness(int64_t steps) {
  staleness_.Observe(Double(steps));
  // A large share at the bound means that the bound, not the pace of the rollouters, decides how old samples become.
  if (steps >= limits_.max_staleness) at_bound_.Increment();
}

void TrainerMetrics::RecordStep(const PolicyVersion& version, const trainer::StepFigures& figures,
                                const std::vector<double>& mismatch_by_age) {
  steps_.Increment();
  figures_.Record(figures);
  mismatch_by_age_.Set(mismatch_by_age);
  version_.Set(version);
}

void TrainerMetrics::RecordEvaluation(double reward_mean, const std::optional<double>& exact, double best_reward_mean) {
  eval_exact_.Set(exact.value_or(0));
  eval_reward_.Set(reward_mean);
  eval_best_reward_.Set(best_reward_mean);
}

void TrainerMetrics::RecordCheckpoint(bool saved, double ended_unix_seconds) {
  checkpoints_.Increment(saved ? "ok" : "failed");
  // Alerts use the time since the last successful checkpoint.
  if (saved) last_checkpoint_.Set(ended_unix_seconds);
}

void TrainerMetrics::SetQueue(int64_t queued_groups, int64_t leased_groups) {
  queued_.Set(Double(queued_groups));
  leased_.Set(Double(leased_groups));
}

}  // namespace syncopate::telemetry
