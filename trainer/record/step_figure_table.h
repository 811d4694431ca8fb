#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "trainer/step/step_figures.h"

// The vocabulary of a training step: each figure's one name, in metrics.jsonl, in WatchSteps, as a Prometheus metric,
// in TensorBoard and on the page of a run. Whatever shows figures is a loop over StepFigureTable().
namespace syncopate::trainer {

struct StepFigure {
  enum class Kind : uint8_t {
    kGauge,    // of the last step
    kCounter,  // of this step; adds up over steps
  };
  const char* name;   // the key of metrics.jsonl
  const char* group;  // figures that belong together: "reward", "policy", "off_policy", "data", "time" or "memory"
  const char* unit;   // "seconds"; "" for what has none, such as a share
  const char* help;   // a phrase without the unit
  std::variant<double StepFigures::*, int64_t StepFigures::*> member;
  Kind kind = Kind::kGauge;
};

// Every member of StepFigures once, in the order in which people look at them.
const std::vector<StepFigure>& StepFigureTable();

// Whether only a step on rollouts has it: it is about rewards, or about the policy that made the answers.
bool IsOfRollouts(const StepFigure& figure);

double FigureValue(const StepFigures& figures, const StepFigure& figure);
// Integers are rounded; a value outside the integer's range becomes 0.
void SetFigureValue(const StepFigure& figure, double value, StepFigures* figures);

// "syncopate_" before the name, and "_total" behind that of a counter.
std::string MetricName(const StepFigure& figure);
// The help with its unit: "Mean entropy of the last batch (nats)".
std::string MetricHelp(const StepFigure& figure);

}  // namespace syncopate::trainer
