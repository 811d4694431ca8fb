#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/telemetry/metric_names.h"
#include "trainer/data/sizing.h"
#include "trainer/record/step_figure_table.h"

namespace syncopate::telemetry {

// The figures of trainer::StepFigureTable, each as a gauge or a counter.
class StepFigureMetrics {
 public:
  explicit StepFigureMetrics(prometheus::Registry& registry);
  void Record(const trainer::StepFigures& step);
  // Sets only the gauges of one group.
  void Show(const trainer::StepFigures& figures, const std::string& group);

 private:
  std::vector<std::pair<const trainer::StepFigure*, prometheus::Gauge*>> gauges_;
  std::vector<std::pair<const trainer::StepFigure*, prometheus::Counter*>> counters_;
};

// Metrics of the trainer's data and steps.
class TrainerMetrics {
 public:
  // The limits of the run's configuration, shown beside the figures that they limit.
  struct Limits {
    int64_t max_staleness = 0;       // steps
    int64_t outstanding_groups = 0;  // leased and queued together
  };
  TrainerMetrics(prometheus::Registry& registry, const Limits& limits);

  // The number of groups with this outcome so far: "trained", "dropped_stale", "filtered", "duplicate", "rolled_back",
  // "skipped", "failed" or "past_deadline". Call from one thread at a time.
  void SetGroups(const std::string& outcome, int64_t total) { groups_.RaiseTo(outcome, Double(total)); }
  // The number of groups that the reward has judged ("judged") and for which it failed ("failed") so far, evaluations
  // included. Call from one thread at a time.
  void SetRewards(const std::string& outcome, int64_t total) { rewards_.RaiseTo(outcome, Double(total)); }
  // The number of quarantines of rollouters so far. Call from one thread at a time.
  void SetQuarantines(int64_t total) { quarantines_.Increment(Double(total) - quarantines_.Value()); }
  // The number of leases taken back so far because they made no progress ("stalled"), were too old ("timeout"), or
  // because another attempt at the group was answered first ("superseded") or the group was dropped ("deadline"). Call
  // from one thread at a time.
  void SetRevoked(const std::string& reason, int64_t total) { revoked_.RaiseTo(reason, Double(total)); }
  // The number of leases so far that began with tokens of an earlier lease, and of those tokens. Call from one thread
  // at a time.
  void SetContinued(int64_t leases, int64_t tokens);
  // PartialAnswers::bytes().
  void SetUnfinishedBytes(int64_t bytes) { unfinished_bytes_.Set(Double(bytes)); }
  // FlowMeter::answered_time_ratio().
  void SetAnsweredTimeRatio(double ratio) { answered_time_.Set(ratio); }
  // FlowMeter::kept_length_ratio().
  void SetKeptLengthRatio(double ratio) { kept_length_.Set(ratio); }
  // The most steps by which a rollouter that is connected is behind the trainer.
  void SetPublishLag(int64_t steps) { publish_lag_.Set(Double(steps)); }
  // What SizeRun() advises; all 0 while nothing is measured.
  void SetSizing(const trainer::SizingAdvice& advice);
  // Staleness in steps of one trained sample, measured by its oldest token.
  void ObserveStaleness(int64_t steps);
  void CountBoundViolations(int64_t count) { violations_.Increment(Double(count)); }
  // Adds to the time spent in a phase: "idle" (waiting for groups), "step", "stage", "evaluate", "checkpoint",
  // "paused", or "other". The phases add up to the run time of the step thread.
  void AddPhase(const std::string& phase, double seconds) { phases_.Increment(phase, seconds); }
  // `version`: the one that the step made. `mismatch_by_age`: KL divergence of the tokens of staleness 0 to 7 and
  // above, 0 without such tokens.
  void RecordStep(const PolicyVersion& version, const trainer::StepFigures& figures,
                  const std::vector<double>& mismatch_by_age);
  // The last evaluation: mean reward, and share of exact answers if right answers are known; `best_reward_mean` is the
  // highest mean reward of all evaluations.
  void RecordEvaluation(double reward_mean, const std::optional<double>& exact, double best_reward_mean);
  // The loss on held-out answers after a supervised step, in nats per token.
  void SetHeldOutLoss(double loss) { held_out_loss_.Set(loss); }
  // An evaluation was due and was not made.
  void CountLostEvaluation() { lost_evaluations_.Increment(); }
  // The names of the alarms that are raised now: trainer/data/learning_alarms.h.
  void SetLearningAlarms(const std::vector<std::string>& standing) { alarms_.Set(standing); }
  // The number of records for people that could not be written so far: lines of "metrics.jsonl", events of
  // "tensorboard", lines of "samples.jsonl". Call from one thread at a time.
  void SetLostRecords(const std::string& kind, int64_t total) { lost_records_.RaiseTo(kind, Double(total)); }
  void RecordCheckpoint(bool saved, double ended_unix_seconds);
  void SetQueue(int64_t queued_groups, int64_t leased_groups);
  // Sets the gauges of the group "memory".
  void ShowMemory(const trainer::StepFigures& figures) { figures_.Show(figures, "memory"); }

 private:
  static double Double(int64_t value) { return static_cast<double>(value); }

  const Limits limits_;
  LabelledCounter groups_;
  LabelledCounter rewards_;
  prometheus::Counter& quarantines_;
  LabelledCounter revoked_;
  prometheus::Counter& continued_;
  prometheus::Counter& kept_tokens_;
  prometheus::Gauge& unfinished_bytes_;
  prometheus::Gauge& answered_time_;
  prometheus::Gauge& kept_length_;
  prometheus::Gauge& publish_lag_;
  prometheus::Gauge& useful_rollouters_;
  prometheus::Gauge& advised_rollouters_;
  prometheus::Gauge& advised_target_;
  prometheus::Gauge& advised_max_;
  LabelledGauge predicted_steps_;
  prometheus::Gauge& advised_steps_;
  prometheus::Gauge& most_steps_;
  prometheus::Histogram& staleness_;
  prometheus::Counter& at_bound_;
  prometheus::Counter& violations_;
  LabelledCounter phases_;
  prometheus::Gauge& queued_;
  prometheus::Gauge& leased_;
  prometheus::Counter& steps_;
  StepFigureMetrics figures_;
  LabelledGauge mismatch_by_age_;
  prometheus::Gauge& eval_exact_;
  prometheus::Gauge& eval_reward_;
  prometheus::Gauge& eval_best_reward_;
  prometheus::Gauge& held_out_loss_;
  prometheus::Counter& lost_evaluations_;
  LabelledFlags alarms_;
  LabelledCounter lost_records_;
  LabelledCounter checkpoints_;
  prometheus::Gauge& last_checkpoint_;
  PolicyVersionMetric version_;
};

}  // namespace syncopate::telemetry
