#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

// The vocabulary of a training step: each figure's one name, in metrics.jsonl, in WatchSteps, as a Prometheus metric, in
// TensorBoard and on the page of a run. Whatever shows figures is a loop over StepFigureTable().
namespace syncopate::trainer {

// What one training step was like. Means are over the batch; shares are from 0 to 1. What a figure means is said where
// its name stands, in step_figures.cc.
struct StepFigures {
  double reward_mean = 0, reward_std = 0, reward_max = 0, reward_min = 0;
  double zero_variance_ratio = 0;
  double loss = 0, gradient_norm = 0, entropy = 0;
  double learning_rate = 0;
  int64_t updates = 0, skipped_updates = 0;
  double clip_ratio = 0, clip_low_ratio = 0, clip_high_ratio = 0, dual_clip_ratio = 0;
  double ratio_max = 0, ratio_kl = 0;
  double reference_kl = 0;
  double rejected_ratio = 0, rejected_low_ratio = 0, rejected_high_ratio = 0;
  double weight_mean = 0, weight_std = 0, weight_min = 0, weight_max = 0;
  double effective_sample_ratio = 0, effective_answer_ratio = 0;
  double kl = 0, mismatch_k1 = 0, mismatch_max = 0;
  double chi2_token = 0, chi2_answer = 0;
  double perplexity_ratio = 0, log_perplexity_gap = 0, probability_correlation = 0;
  double staleness_mean = 0;
  int64_t staleness_max = 0;
  int64_t trained_tokens = 0, trained_samples = 0;
  int64_t samples_so_far = 0, tokens_so_far = 0;
  double response_tokens_mean = 0;
  int64_t response_tokens_min = 0, response_tokens_max = 0;
  int64_t truncated_samples = 0, masked_samples = 0;
  double trained_token_ratio = 0;
  double rollouters_idle_ratio = 0;
  double step_seconds = 0, wait_seconds = 0, forward_backward_seconds = 0, optimizer_seconds = 0;
  double proximal_seconds = 0, reference_seconds = 0, stage_seconds = 0;
  double parameters_load_seconds = 0, parameters_offload_seconds = 0;
  double optimizer_load_seconds = 0, optimizer_offload_seconds = 0;
  double reference_load_seconds = 0, reference_offload_seconds = 0;
  int64_t parameters_moved_bytes = 0, optimizer_moved_bytes = 0, reference_moved_bytes = 0;
  int64_t memory_allocated_bytes = 0, memory_reserved_bytes = 0;
  int64_t parameters_device_bytes = 0, optimizer_device_bytes = 0, gradients_device_bytes = 0;
  int64_t reference_device_bytes = 0;
  int64_t cache_flushes = 0;
};

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
// Integers are rounded; one that no integer can hold becomes 0.
void SetFigureValue(const StepFigure& figure, double value, StepFigures* figures);

// "syncopate_" before the name, and "_total" behind that of a counter.
std::string MetricName(const StepFigure& figure);
// The help with its unit: "Mean entropy of the last batch (nats)".
std::string MetricHelp(const StepFigure& figure);

}  // namespace syncopate::trainer
