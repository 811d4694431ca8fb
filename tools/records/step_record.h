#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/record/step_figure_table.h"

namespace syncopate::records {

// A prompt and the greedy answer to it, as text.
struct SampleAnswer {
  std::string prompt;
  std::string answer;
  std::string expected;                         // "" if there is none: only a reward can judge it
  std::optional<double> reward = std::nullopt;  // none in lines of older builds
  // The user's last message, and the answer without special tokens; in lines of older builds prompt and answer
  // unchanged.
  std::string question = prompt;
  std::string reply = answer;
};

// The results for the prompts of one data file or data_source in an evaluation.
// One set of eval.sets.
struct EvaluatedSet {
  struct Mean {
    double mean = 0;
    std::optional<double> interval = std::nullopt;  // half the width of that of 95 %
  };
  std::string name;
  int64_t prompts = 0, samples = 0, missing = 0;
  std::optional<Mean> reward = std::nullopt;
  std::optional<Mean> majority = std::nullopt;
  std::vector<std::pair<int64_t, Mean>> pass = {};  // by k, rising
  double response_tokens_mean = 0, truncated_ratio = 0;
};

struct EvaluatedSubset {
  std::string name;
  int64_t prompts = 0;
  double reward = 0;           // mean
  double response_tokens = 0;  // mean; 0 in lines of older builds
  double turns = 0;            // mean; 0: answers have no turns
};

// One line of metrics.jsonl: of a training step, or of an evaluation of the version that the step made (0: before the
// first step). An evaluation has only epoch, step, time, alarms and the figures whose names begin with eval_.
struct StepRecord {
  bool is_evaluation = false;
  bool supervised = false;  // a step without rewards and staleness
  int64_t epoch = 0;
  int64_t step = 0;
  double unix_seconds = 0;  // when it was written; 0 in lines of older builds
  trainer::StepFigures figures;
  std::map<std::string, double> reward_parts;       // means over the batch, by the part's name
  std::vector<std::string> alarms;                  // raised now, by name
  std::optional<double> held_out_loss;              // of a supervised step where it was measured
  std::optional<double> eval_reward;                // mean
  std::optional<double> eval_exact;                 // share of completely right answers, if right answers are known
  int64_t eval_prompts = 0;                         // the number that was judged
  int64_t eval_asked = 0;                           // 0 in lines of older builds
  std::map<std::string, double> eval_reward_parts;  // means
  double eval_response_tokens_mean = 0;
  int64_t eval_response_tokens_min = 0, eval_response_tokens_max = 0;
  int64_t eval_truncated = 0;  // answers that were cut off
  double eval_turns_mean = 0;  // of the policy in an answer; 0: answers have no turns
  // Each is named; empty if there is only one.
  std::vector<EvaluatedSubset> eval_files, eval_data_sources, eval_environments;
  std::vector<EvaluatedSet> eval_sets;
  std::vector<SampleAnswer> samples;
};

// A field that is missing or of another type keeps its default. INVALID_ARGUMENT (reason BAD_STEP_RECORD) if the line
// is no JSON object.
absl::StatusOr<StepRecord> ParseStepRecord(const std::string& line);

// "step 42  reward 0.812  loss -0.0123  entropy 1.02  staleness 0.9/2  21,344 tokens/s  idle 12%", or
// "step 42  loss 1.2345 (supervised)  entropy 1.02  held-out loss 1.3021  21,344 tokens/s  idle 0%", or
// "step 40  evaluation 0.955  exact 0.910 (greedy, on the evaluation prompts)"
std::string ToString(const StepRecord& record);

// "evaluation 0.955  exact 0.910": the mean reward, and the share of right answers if those are known.
std::string EvaluationText(const StepRecord& evaluation);

// The other figures of an evaluation, one phrase each, with the parts of the reward if there are several: "by file
// gsm8k.jsonl 0.610, math.jsonl 0.402", "by data_source ...", "parts format 1.000, math 0.506", "answers of 12 to 256
// tokens, 80 on average, 3 cut off".
std::vector<std::string> EvaluationPhrases(const StepRecord& evaluation);

// "alarm: entropy has collapsed, the evaluation fell"; "" without an alarm.
std::string ToString(const std::vector<std::string>& alarms);

}  // namespace syncopate::records
