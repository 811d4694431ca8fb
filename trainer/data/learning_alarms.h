#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace syncopate::trainer {

// Detects that a run which could still learn has stopped learning, or forgets what it had learned. Means are over the
// last 20 steps; before that no alarm is raised. While the mean reward is at least 0.9 of the best sample's reward, the
// task counts as solved, and low entropy and few groups with signal are normal.
//
//   "entropy"          below 0.1 of its mean over the first 10 steps, and the task is not solved
//   "no_signal"        at least 0.9 of the groups have rewards that are all equal, and the task is not solved
//   "evaluation_fell"  the last evaluation's mean reward is below that of the best one by more than 0.1 of what the best
//                      sample ever got
//
// Begins anew with each incarnation of a trainer, but for the best evaluation, which its owner sets. Sans-IO. Not
// thread-safe.
class LearningAlarms {
 public:
  struct Step {
    double reward_mean = 0;
    double reward_max = 0;
    double entropy = 0;
    double zero_variance = 0;  // share of groups
  };
  // The names of all alarms, in a fixed order.
  static const std::vector<std::string>& Names();

  void AddStep(const Step& step);
  void AddEvaluation(double reward_mean);
  // Sets the best evaluation of earlier incarnations.
  void SetBestEvaluation(double reward_mean) { best_evaluation_ = reward_mean; }

  // The names of those that stand, in the order above.
  std::vector<std::string> Standing() const;
  // None before the first evaluation.
  std::optional<double> best_evaluation() const { return best_evaluation_; }

 private:
  double Mean(double Step::*figure) const;
  bool IsSolved() const;

  std::deque<Step> recent_;
  int64_t steps_ = 0;
  double first_entropy_ = 0;  // sum over the first steps
  std::optional<double> best_sample_, best_evaluation_, last_evaluation_;
};

}  // namespace syncopate::trainer
