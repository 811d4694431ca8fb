#include "trainer/loop/flow_sums.h"

#include <algorithm>
#include <utility>

namespace syncopate::trainer {

namespace {

void Raise(const std::optional<double>& figure, std::optional<double>* best) {
  if (figure.has_value()) *best = std::max(best->value_or(*figure), *figure);
}

}  // namespace

void RunFigures::AddEvaluation(double reward_mean, const std::optional<double>& exact) {
  ++evaluations_made;
  Raise(reward_mean, &best_reward);
  last_reward = reward_mean;
  Raise(exact, &best_exact);
  last_exact = exact;
}

void RunFigures::AddHeldOut(double loss) {
  best_held_out_loss = std::min(best_held_out_loss.value_or(loss), loss);
  last_held_out_loss = loss;
}

FlowSums AddLife(FlowSums before, double wall_seconds, const RunFigures& figures, const TrainingData::Status& data,
                 RolloutRoster roster) {
  FlowSums sums = std::move(before);
  sums.wall_seconds += wall_seconds;
  sums.figures.step_seconds += figures.step_seconds;
  sums.figures.wait_seconds += figures.wait_seconds;
  Raise(figures.best_reward, &sums.figures.best_reward);
  Raise(figures.best_exact, &sums.figures.best_exact);
  if (figures.last_reward.has_value()) {  // this incarnation has evaluated
    sums.figures.last_reward = figures.last_reward;
    sums.figures.last_exact = figures.last_exact;
  }
  if (figures.last_held_out_loss.has_value()) {
    sums.figures.AddHeldOut(*figures.best_held_out_loss);
    sums.figures.last_held_out_loss = figures.last_held_out_loss;
  }
  sums.figures.saved_checkpoints += figures.saved_checkpoints;
  sums.figures.failed_checkpoints += figures.failed_checkpoints;
  sums.reissued += data.groups.reissued;
  sums.figures.evaluations_made += figures.evaluations_made;
  sums.figures.evaluations_lost += figures.evaluations_lost;
  sums.failed_attempts += data.groups.failed_attempts;
  sums.superseded += data.groups.superseded;
  sums.duplicate += data.groups.duplicate;
  sums.expired += data.groups.expired;
  for (const auto& [reason, count] : data.leases.invalid) sums.invalid[reason] += count;
  sums.roster = std::move(roster);
  return sums;
}

}  // namespace syncopate::trainer
