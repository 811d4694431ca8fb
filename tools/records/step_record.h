#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/record/step_figures.h"

namespace syncopate::records {

// A prompt with the answer that greedy decoding gave it, as text.
struct SampleAnswer {
  std::string prompt;
  std::string answer;
  std::string expected;                         // "" where there is none, as for data that only its reward can judge
  std::optional<double> reward = std::nullopt;  // none in lines that were written before it was recorded
};

// One line of metrics.jsonl: of a training step, or of an evaluation of the version that step made (0: before the first
// step), which has the last five fields alone.
struct StepRecord {
  bool is_evaluation = false;
  bool supervised = false;  // there were no rewards and no staleness
  int64_t epoch = 0;
  int64_t step = 0;
  trainer::StepFigures figures;
  std::map<std::string, double> reward_parts;  // means over the batch, by the part's name
  std::vector<std::string> alarms;             // that stand, by name
  std::optional<double> eval_reward;           // mean
  std::optional<double> eval_exact;            // share of answers that are wholly right, where right answers are known
  int64_t eval_prompts = 0;                    // that were judged
  int64_t eval_asked = 0;                      // 0 in lines that were written before it was recorded
  std::vector<SampleAnswer> samples;
};

// Fields that are missing or of another type keep their default. INVALID_ARGUMENT (reason BAD_STEP_RECORD) if the line
// is no JSON object.
absl::StatusOr<StepRecord> ParseStepRecord(const std::string& line);

// "step 42  reward 0.812  loss -0.0123  entropy 1.02  staleness 0.9/2  21,344 tokens/s  idle 12%", or
// "step 42  loss 1.2345 (supervised)  entropy 1.02  21,344 tokens/s  idle 0%", or
// "step 40  evaluation 0.955  exact 0.910 (greedy, on the evaluation prompts)"
std::string ToString(const StepRecord& record);

// "evaluation 0.955  exact 0.910": its mean reward, and the share of right answers where those are known.
std::string EvaluationText(const StepRecord& evaluation);

// "alarm: entropy has collapsed, the evaluation fell"; "" without one.
std::string ToString(const std::vector<std::string>& alarms);

}  // namespace syncopate::records
