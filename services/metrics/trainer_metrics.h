#pragma once

#include <cstdint>
#include <string>

#include "services/metrics/metric_names.h"

namespace syncopate::services {

// What one optimizer step was like.
struct StepFigures {
  PolicyVersion version;  // that it produced
  double reward_mean = 0;
  double kl = 0;       // between behaviour and current policy (k3)
  double entropy = 0;  // nats
  double grad_norm = 0;
  int64_t tokens = 0;  // trained
};

// The trainer's data and steps.
class TrainerMetrics {
 public:
  explicit TrainerMetrics(prometheus::Registry& registry);

  // How many groups came to this end so far: "trained", "dropped_stale", "filtered", "duplicate", "rolled_back" or
  // "failed". From one thread at a time.
  void SetGroups(const std::string& outcome, int64_t total) { groups_.RaiseTo(outcome, Double(total)); }
  // How often a rollouter was quarantined so far. From one thread at a time.
  void SetQuarantines(int64_t total) { quarantines_.Increment(Double(total) - quarantines_.Value()); }
  // Staleness in steps of one trained sample, by its oldest token.
  void ObserveStaleness(int64_t steps) { staleness_.Observe(Double(steps)); }
  void CountBoundViolations(int64_t count) { violations_.Increment(Double(count)); }
  // Adds to the time spent in a phase: "idle" (waiting for groups), "step", "stage", "evaluate", "checkpoint",
  // "paused", or "other". The phases add up to the life of the step thread.
  void AddPhase(const std::string& phase, double seconds) { phases_.Increment(phase, seconds); }
  void RecordStep(const StepFigures& figures);
  void SetQueue(int64_t queued_groups, int64_t leased_groups);
  // Bytes of tensors in use and of the allocator's reserve.
  void SetMemory(int64_t allocated_bytes, int64_t reserved_bytes);

 private:
  static double Double(int64_t value) { return static_cast<double>(value); }

  LabelledCounter groups_;
  prometheus::Counter& quarantines_;
  prometheus::Histogram& staleness_;
  prometheus::Counter& violations_;
  LabelledCounter phases_;
  prometheus::Gauge& queued_;
  prometheus::Gauge& leased_;
  prometheus::Counter& steps_;
  prometheus::Counter& tokens_;
  prometheus::Gauge& reward_;
  prometheus::Gauge& kl_;
  prometheus::Gauge& entropy_;
  prometheus::Gauge& grad_norm_;
  prometheus::Gauge& allocated_;
  prometheus::Gauge& reserved_;
  PolicyVersionMetric version_;
};

}  // namespace syncopate::services
