#include "trainer/data/learning_alarms.h"

#include <algorithm>

namespace syncopate::trainer {
namespace {

constexpr size_t kWindow = 20;
constexpr int64_t kFirstSteps = 10;
constexpr double kSolved = 0.9;
constexpr double kLowEntropy = 0.1;
constexpr double kMostGroups = 0.9;
constexpr double kFall = 0.1;

constexpr char kEntropy[] = "entropy";
constexpr char kNoSignal[] = "no_signal";
constexpr char kEvaluationFell[] = "evaluation_fell";

}  // namespace

const std::vector<std::string>& LearningAlarms::Names() {
  static const auto* const kNames = new std::vector<std::string>{kEntropy, kNoSignal, kEvaluationFell};
  return *kNames;
}

void LearningAlarms::AddStep(const Step& step) {
  if (steps_++ < kFirstSteps) first_entropy_ += step.entropy;
  best_sample_ = std::max(best_sample_.value_or(step.reward_max), step.reward_max);
  recent_.push_back(step);
  if (recent_.size() > kWindow) recent_.pop_front();
}

void LearningAlarms::AddEvaluation(double reward_mean) {
  last_evaluation_ = reward_mean;
  best_evaluation_ = std::max(best_evaluation_.value_or(reward_mean), reward_mean);
}

double LearningAlarms::Mean(double Step::*figure) const {
  double sum = 0;
  for (const Step& step : recent_) sum += step.*figure;
  return sum / static_cast<double>(recent_.size());
}

// Rewards that are never positive have no share that would say so.
bool LearningAlarms::IsSolved() const {
  return *best_sample_ > 0 && Mean(&Step::reward_mean) >= kSolved * *best_sample_;
}

std::vector<std::string> LearningAlarms::Standing() const {
  std::vector<std::string> standing;
  if (recent_.size() == kWindow && !IsSolved()) {
    if (Mean(&Step::entropy) < kLowEntropy * first_entropy_ / static_cast<double>(kFirstSteps)) {
      standing.emplace_back(kEntropy);
    }
    if (Mean(&Step::zero_variance) >= kMostGroups) standing.emplace_back(kNoSignal);
  }
  // The scale of rewards is not known before a sample had one that is not 0.
  const double scale = best_sample_.value_or(0);
  if (last_evaluation_.has_value() && scale > 0 && *best_evaluation_ - *last_evaluation_ > kFall * scale) {
    standing.emplace_back(kEvaluationFell);
  }
  return standing;
}

}  // namespace syncopate::trainer
