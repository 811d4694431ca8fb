#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "services/telemetry/metric_names.h"

namespace syncopate::telemetry {

// What one training step was like.
struct StepFigures {
  PolicyVersion version;    // that it produced
  bool supervised = false;  // no rewards, no behaviour policy: gauges of those keep what they were
  double loss = 0;
  double reward_mean = 0;
  double reward_std = 0;  // over all samples
  double kl = 0;          // between behaviour and current policy (k3)
  double entropy = 0;     // nats
  double grad_norm = 0;
  double clipped = 0;                        // share of tokens, 0 to 1, as the next three
  double rejected = 0;                       // of tokens
  double zero_variance = 0;                  // of groups
  double effective_samples = 0;              // (mean w)^2 / mean(w^2) of the importance weights
  std::vector<double> mismatch_by_age = {};  // `kl` of tokens of 0 to 7 steps, and of more; 0 without such tokens
  double response_tokens = 0;                // mean
  int64_t tokens = 0;                        // trained
  int64_t skipped_updates = 0;               // because loss or gradient were not finite
};

// The trainer's data and steps.
class TrainerMetrics {
 public:
  // What the run's configuration allows, shown beside the figures that it limits.
  struct Limits {
    int64_t max_staleness = 0;       // steps
    int64_t outstanding_groups = 0;  // leased and queued together
  };
  TrainerMetrics(prometheus::Registry& registry, const Limits& limits);

  // How many groups came to this end so far: "trained", "dropped_stale", "filtered", "duplicate", "rolled_back", "skipped" or
  // "failed". From one thread at a time.
  void SetGroups(const std::string& outcome, int64_t total) { groups_.RaiseTo(outcome, Double(total)); }
  // How often a rollouter was quarantined so far. From one thread at a time.
  void SetQuarantines(int64_t total) { quarantines_.Increment(Double(total) - quarantines_.Value()); }
  // How many leases were taken back so far because they came no further ("stalled") or were too old ("timeout"). From
  // one thread at a time.
  void SetRevoked(const std::string& reason, int64_t total) { revoked_.RaiseTo(reason, Double(total)); }
  // Staleness in steps of one trained sample, by its oldest token.
  void ObserveStaleness(int64_t steps);
  void CountBoundViolations(int64_t count) { violations_.Increment(Double(count)); }
  // Adds to the time spent in a phase: "idle" (waiting for groups), "step", "stage", "evaluate", "checkpoint",
  // "paused", or "other". The phases add up to the life of the step thread.
  void AddPhase(const std::string& phase, double seconds) { phases_.Increment(phase, seconds); }
  void RecordStep(const StepFigures& figures);
  // The last evaluation: share of exact answers and mean reward, and the highest mean reward of any.
  void RecordEvaluation(double exact, double reward_mean, double best_reward_mean);
  // The names of the alarms that stand: trainer/data/learning_alarms.h.
  void SetLearningAlarms(const std::vector<std::string>& standing) { alarms_.Set(standing); }
  void RecordCheckpoint(bool saved, double ended_unix_seconds);
  void SetQueue(int64_t queued_groups, int64_t leased_groups);
  // Bytes of tensors in use and of the allocator's reserve.
  void SetMemory(int64_t allocated_bytes, int64_t reserved_bytes);

 private:
  static double Double(int64_t value) { return static_cast<double>(value); }

  const Limits limits_;
  LabelledCounter groups_;
  prometheus::Counter& quarantines_;
  LabelledCounter revoked_;
  prometheus::Histogram& staleness_;
  prometheus::Counter& at_bound_;
  prometheus::Counter& violations_;
  LabelledCounter phases_;
  prometheus::Gauge& queued_;
  prometheus::Gauge& leased_;
  prometheus::Counter& steps_;
  prometheus::Counter& tokens_;
  prometheus::Counter& skipped_updates_;
  prometheus::Gauge& loss_;
  prometheus::Gauge& reward_;
  prometheus::Gauge& reward_std_;
  prometheus::Gauge& kl_;
  prometheus::Gauge& entropy_;
  prometheus::Gauge& grad_norm_;
  prometheus::Gauge& clipped_;
  prometheus::Gauge& rejected_;
  prometheus::Gauge& zero_variance_;
  prometheus::Gauge& effective_samples_;
  LabelledGauge mismatch_by_age_;
  prometheus::Gauge& response_tokens_;
  prometheus::Gauge& eval_exact_;
  prometheus::Gauge& eval_reward_;
  prometheus::Gauge& eval_best_reward_;
  LabelledFlags alarms_;
  LabelledCounter checkpoints_;
  prometheus::Gauge& last_checkpoint_;
  prometheus::Gauge& allocated_;
  prometheus::Gauge& reserved_;
  PolicyVersionMetric version_;
};

}  // namespace syncopate::telemetry
