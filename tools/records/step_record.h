#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/record/step_figure_table.h"

namespace syncopate::records {

// A prompt with the answer that greedy decoding gave it, as text.
struct SampleAnswer {
  std::string prompt;
  std::string answer;
  std::string expected;                         // "" where there is none, as for data that only its reward can judge
  std::optional<double> reward = std::nullopt;  // none in lines that were written before it was recorded
  // The user's last message, and the answer without special tokens: of older lines prompt and answer as they are.
  std::string question = prompt;
  std::string reply = answer;
};

// The prompts of one data file or data_source, in an evaluation.
struct EvaluatedSubset {
  std::string name;
  int64_t prompts = 0;
  double reward = 0;  // mean
};

// One line of metrics.jsonl: of a training step, or of an evaluation of the version that step made (0: before the first
// step), which has epoch, step, time, alarms and what begins with eval_ alone.
struct StepRecord {
  bool is_evaluation = false;
  bool supervised = false;  // there were no rewards and no staleness
  int64_t epoch = 0;
  int64_t step = 0;
  double unix_seconds = 0;  // when it was written; 0 in lines of older builds
  trainer::StepFigures figures;
  std::map<std::string, double> reward_parts;  // means over the batch, by the part's name
  std::vector<std::string> alarms;             // that stand, by name
  std::optional<double> eval_reward;           // mean
  std::optional<double> eval_exact;            // share of answers that are wholly right, where right answers are known
  int64_t eval_prompts = 0;                    // that were judged
  int64_t eval_asked = 0;                      // 0 in lines that were written before it was recorded
  std::map<std::string, double> eval_reward_parts;  // means
  double eval_response_tokens_mean = 0;
  int64_t eval_response_tokens_min = 0, eval_response_tokens_max = 0;
  int64_t eval_truncated = 0;  // answers that were cut off
  // By name; none where there is only one.
  std::vector<EvaluatedSubset> eval_files, eval_data_sources;
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

// What else is known of it, one phrase each, the parts of the reward if there are several: "by file gsm8k.jsonl 0.610, math.jsonl 0.402", "by data_source ...",
// "parts format 1.000, math 0.506", "answers of 12 to 256 tokens, 80 on average, 3 cut off".
std::vector<std::string> EvaluationPhrases(const StepRecord& evaluation);

// "alarm: entropy has collapsed, the evaluation fell"; "" without one.
std::string ToString(const std::vector<std::string>& alarms);

}  // namespace syncopate::records
