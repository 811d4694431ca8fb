#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "trainer/data/rollout_roster.h"
#include "trainer/data/training_data.h"

namespace syncopate::trainer {

// Figures over all steps and evaluations that a run has reported.
struct RunFigures {
  double step_seconds = 0;
  double wait_seconds = 0;  // of those, without a batch
  // The best and the last of all evaluations, each figure by itself: the mean reward, and the share of exactly right
  // answers where right answers are known.
  std::optional<double> best_reward = std::nullopt, last_reward = std::nullopt;
  std::optional<double> best_exact = std::nullopt, last_exact = std::nullopt;
  // Of supervised steps; the best is the smallest.
  std::optional<double> best_held_out_loss = std::nullopt, last_held_out_loss = std::nullopt;
  int64_t saved_checkpoints = 0, failed_checkpoints = 0;
  int64_t evaluations_made = 0;
  int64_t evaluations_lost = 0;  // due, and not made of their version

  void AddEvaluation(double reward_mean, const std::optional<double>& exact);
  void AddHeldOut(double loss);
};

// The quantities of a run that its log does not record: time, and lost answers. Summed over all incarnations of its
// trainer, each of which writes its sums to disk once a second.
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

// Returns `before` plus what this incarnation has added. `roster` was continued from that of `before`.
FlowSums AddLife(FlowSums before, double wall_seconds, const RunFigures& figures, const TrainingData::Status& data,
                 RolloutRoster roster);

}  // namespace syncopate::trainer
