#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace syncopate::config {

// One item of eval.sets. What is 0 or "" is left to other keys.
struct EvaluationSetText {
  std::string name;         // letters, digits, "_", "-" and "."
  std::string path;         // of a JSONL file
  int32_t samples = 1;      // n: answers to each prompt
  double temperature = -1;  // -1: 0 (greedy) with one answer, rollout.temperature with several
  double top_p = 1;
  int64_t max_new_tokens = 0;  // 0: rollout.max_new_tokens
  int64_t prompts = 0;         // rows, chosen by eval.seed; 0: all
  std::string reward = {};     // "": reward.name
};

// Parses eval.sets: items with commas between them, each "NAME: FILE [n=N] [temperature=T] [top_p=P] [max_new_tokens=N]
// [prompts=N] [reward=NAME]". An empty text names no sets. INVALID_ARGUMENT (reason BAD_CONFIG); the message says what
// is expected. Pure.
absl::StatusOr<std::vector<EvaluationSetText>> ParseEvaluationSets(const std::string& list);

}  // namespace syncopate::config
