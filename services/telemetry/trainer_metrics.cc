#include "services/telemetry/trainer_metrics.h"

namespace syncopate::telemetry {
namespace {

const prometheus::Histogram::BucketBoundaries kStalenessBuckets = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

}  // namespace

TrainerMetrics::TrainerMetrics(prometheus::Registry& registry, const Limits& limits)
    : limits_(limits),
      groups_(registry, "syncopate_groups_total", "Groups by what became of them", "outcome",
              {"trained", "dropped_stale", "filtered", "duplicate", "rolled_back", "failed", "skipped"}),
      quarantines_(AddCounter(registry, "syncopate_rollouter_quarantines_total",
                              "Times that a rollouter got no more prompts because its answers were of no use")),
      revoked_(registry, "syncopate_leases_revoked_total",
               "Leases taken back because they came no further or were too old", "reason", {"stalled", "timeout"}),
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
              {"idle", "step", "stage", "evaluate", "checkpoint", "paused", "other"}),
      queued_(AddGauge(registry, "syncopate_queue_groups", "Accepted groups that wait to be trained")),
      leased_(AddGauge(registry, "syncopate_leased_groups", "Groups that rollouters work on")),
      steps_(AddCounter(registry, "syncopate_steps_total", "Training steps done by this process")),
      tokens_(AddCounter(registry, "syncopate_trained_tokens_total", "Tokens trained by this process")),
      skipped_updates_(AddCounter(registry, "syncopate_skipped_updates_total",
                                  "Updates that were not made because loss or gradient were not finite")),
      loss_(AddGauge(registry, "syncopate_loss", "Policy loss of the last step")),
      reward_(AddGauge(registry, "syncopate_reward_mean", "Mean reward of the last batch")),
      reward_std_(AddGauge(registry, "syncopate_reward_std", "Standard deviation of the rewards of the last batch")),
      kl_(AddGauge(registry, "syncopate_kl", "KL divergence of the last batch between behaviour and current policy")),
      entropy_(AddGauge(registry, "syncopate_entropy", "Mean entropy of the last batch in nats")),
      grad_norm_(AddGauge(registry, "syncopate_gradient_norm", "Gradient norm of the last step before clipping")),
      clipped_(AddGauge(registry, "syncopate_clip_ratio", "Share of the last batch's tokens that were clipped")),
      rejected_(AddGauge(registry, "syncopate_rejected_ratio",
                         "Share of the last batch's tokens that the off-policy correction left out")),
      zero_variance_(AddGauge(registry, "syncopate_zero_variance_ratio",
                              "Share of the last batch's groups whose rewards were all equal: they teach nothing")),
      effective_samples_(AddGauge(registry, "syncopate_effective_sample_ratio",
                                  "Effective share of the last batch under its importance weights, 1 on policy")),
      mismatch_by_age_(registry, "syncopate_mismatch_k3",
                       "KL divergence of the last batch between behaviour and proximal policy by the tokens' "
                       "staleness in steps; at age 0 the engines disagree",
                       "age", {"0", "1", "2", "3", "4", "5", "6", "7", "8+"}),
      response_tokens_(AddGauge(registry, "syncopate_response_tokens_mean", "Mean answer of the last batch in tokens")),
      eval_exact_(AddGauge(registry, "syncopate_eval_exact_ratio",
                           "Share of exact answers in the last evaluation; 0 before the first")),
      eval_reward_(
          AddGauge(registry, "syncopate_eval_reward_mean", "Mean reward of the last evaluation; 0 before the first")),
      eval_best_reward_(AddGauge(registry, "syncopate_eval_best_reward_mean",
                                 "Highest mean reward of any evaluation of the run; 0 before the first")),
      alarms_(registry, "syncopate_learning_alarm",
              "1 while the run has stopped learning or forgets: little entropy, no signal, or an evaluation far below "
              "the best one",
              "kind", {"entropy", "no_signal", "evaluation_fell"}),
      checkpoints_(registry, "syncopate_checkpoints_total", "Checkpoints by result", "result", {"ok", "failed"}),
      last_checkpoint_(AddGauge(registry, "syncopate_checkpoint_last_success_timestamp_seconds",
                                "When a checkpoint was last saved, in seconds since 1970; 0 before the first")),
      allocated_(AddGauge(registry, "syncopate_memory_allocated_bytes", "Bytes of tensors in use")),
      reserved_(AddGauge(registry, "syncopate_memory_reserved_bytes", "Bytes that the allocator holds")),
      version_(registry, "trainer") {
  AddGauge(registry, "syncopate_staleness_bound_steps", "Staleness that no trained token may exceed")
      .Set(Double(limits.max_staleness));
  AddGauge(registry, "syncopate_outstanding_groups_limit", "Groups that may be leased and queued together")
      .Set(Double(limits.outstanding_groups));
}

void TrainerMetrics::ObserveStaleness(int64_t steps) {
  staleness_.Observe(Double(steps));
  if (steps >= limits_.max_staleness) at_bound_.Increment();
}

void TrainerMetrics::RecordStep(const StepFigures& figures) {
  steps_.Increment();
  tokens_.Increment(Double(figures.tokens));
  skipped_updates_.Increment(Double(figures.skipped_updates));
  loss_.Set(figures.loss);
  entropy_.Set(figures.entropy);
  grad_norm_.Set(figures.grad_norm);
  response_tokens_.Set(figures.response_tokens);
  version_.Set(figures.version);
  if (figures.supervised) return;
  reward_.Set(figures.reward_mean);
  reward_std_.Set(figures.reward_std);
  kl_.Set(figures.kl);
  clipped_.Set(figures.clipped);
  rejected_.Set(figures.rejected);
  zero_variance_.Set(figures.zero_variance);
  effective_samples_.Set(figures.effective_samples);
  mismatch_by_age_.Set(figures.mismatch_by_age);
}

void TrainerMetrics::RecordEvaluation(double exact, double reward_mean, double best_reward_mean) {
  eval_exact_.Set(exact);
  eval_reward_.Set(reward_mean);
  eval_best_reward_.Set(best_reward_mean);
}

void TrainerMetrics::RecordCheckpoint(bool saved, double ended_unix_seconds) {
  checkpoints_.Increment(saved ? "ok" : "failed");
  if (saved) last_checkpoint_.Set(ended_unix_seconds);
}

void TrainerMetrics::SetQueue(int64_t queued_groups, int64_t leased_groups) {
  queued_.Set(Double(queued_groups));
  leased_.Set(Double(leased_groups));
}

void TrainerMetrics::SetMemory(int64_t allocated_bytes, int64_t reserved_bytes) {
  allocated_.Set(Double(allocated_bytes));
  reserved_.Set(Double(reserved_bytes));
}

}  // namespace syncopate::telemetry
