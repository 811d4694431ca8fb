#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "trainer/data/rollout_roster.h"
#include "trainer/data/training_data.h"

namespace syncopate::trainer {

// Of all steps and evaluations that a run has reported.
struct RunFigures {
  double step_seconds = 0;
  double wait_seconds = 0;  // of those, without a batch
  // Of evaluations, best and last each by itself: mean rewards, and shares of answers that are wholly right where right
  // ones are known.
  std::optional<double> best_reward = std::nullopt, last_reward = std::nullopt;
  std::optional<double> best_exact = std::nullopt, last_exact = std::nullopt;
  int64_t saved_checkpoints = 0, failed_checkpoints = 0;
  int64_t evaluations_made = 0;
  int64_t evaluations_lost = 0;  // due, and not made of their version

  void AddEvaluation(double reward_mean, const std::optional<double>& exact);
};

// What passes in a run and is in no log: time, and answers that came to nothing. Of all lives of its trainer, as far as
// they have written it down: each does so once a second.
struct FlowSums {
  double wall_seconds = 0;
  RunFigures figures = {};
  int64_t reissued = 0;
  int64_t failed_attempts = 0;
  int64_t superseded = 0;
  int64_t duplicate = 0;
  int64_t expired = 0;
  std::map<std::string, int64_t> invalid = {};  // by reason
  RolloutRoster roster = {};
};

// `before` and what a life has added to it. `roster` went on from that of `before`.
FlowSums AddLife(FlowSums before, double wall_seconds, const RunFigures& figures, const TrainingData::Status& data,
                 RolloutRoster roster);

}  // namespace syncopate::trainer
