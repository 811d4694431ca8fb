#include "services/metrics/trainer_metrics.h"

namespace syncopate::services {
namespace {

const prometheus::Histogram::BucketBoundaries kStalenessBuckets = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

}  // namespace

TrainerMetrics::TrainerMetrics(prometheus::Registry& registry)
    : groups_(registry, "syncopate_groups_total", "Groups by what became of them", "outcome",
              {"trained", "dropped_stale", "filtered", "duplicate", "rolled_back", "failed"}),
      quarantines_(AddCounter(registry, "syncopate_rollouter_quarantines_total",
                              "Times that a rollouter got no more prompts because its answers were invalid")),
      staleness_(prometheus::BuildHistogram()
                     .Name("syncopate_sample_staleness_steps")
                     .Help("Staleness of trained samples: step at use minus step of the version of the oldest token")
                     .Register(registry)
                     .Add({}, kStalenessBuckets)),
      violations_(AddCounter(registry, "syncopate_staleness_bound_violations_total",
                             "Trained tokens older than the bound; anything but 0 is a defect")),
      phases_(registry, "syncopate_trainer_phase_seconds_total", "Time of the step thread by phase", "phase",
              {"idle", "step", "stage", "evaluate", "checkpoint", "paused", "other"}),
      queued_(AddGauge(registry, "syncopate_queue_groups", "Accepted groups that wait to be trained")),
      leased_(AddGauge(registry, "syncopate_leased_groups", "Groups that rollouters work on")),
      steps_(AddCounter(registry, "syncopate_steps_total", "Optimizer steps done by this process")),
      tokens_(AddCounter(registry, "syncopate_trained_tokens_total", "Tokens trained by this process")),
      reward_(AddGauge(registry, "syncopate_reward_mean", "Mean reward of the last batch")),
      kl_(AddGauge(registry, "syncopate_kl", "KL divergence of the last batch between behaviour and current policy")),
      entropy_(AddGauge(registry, "syncopate_entropy", "Mean entropy of the last batch in nats")),
      grad_norm_(AddGauge(registry, "syncopate_gradient_norm", "Gradient norm of the last step before clipping")),
      allocated_(AddGauge(registry, "syncopate_memory_allocated_bytes", "Bytes of tensors in use")),
      reserved_(AddGauge(registry, "syncopate_memory_reserved_bytes", "Bytes that the allocator holds")),
      version_(registry, "trainer") {}

void TrainerMetrics::RecordStep(const StepFigures& figures) {
  steps_.Increment();
  tokens_.Increment(Double(figures.tokens));
  reward_.Set(figures.reward_mean);
  kl_.Set(figures.kl);
  entropy_.Set(figures.entropy);
  grad_norm_.Set(figures.grad_norm);
  version_.Set(figures.version);
}

void TrainerMetrics::SetQueue(int64_t queued_groups, int64_t leased_groups) {
  queued_.Set(Double(queued_groups));
  leased_.Set(Double(leased_groups));
}

void TrainerMetrics::SetMemory(int64_t allocated_bytes, int64_t reserved_bytes) {
  allocated_.Set(Double(allocated_bytes));
  reserved_.Set(Double(reserved_bytes));
}

}  // namespace syncopate::services
