#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/data/prompts.h"

namespace syncopate::trainer {

// Built-in tasks whose right answers are known. K symbols 0..K-1, then BOS = K, SEP = K+1, EOS = K+2:
//   prompt  BOS x1 .. xL SEP      answer  y1 .. yM EOS
//   reverse  y = xL .. x1         copy  y = x1 .. xL         sort  y = x in ascending order
//   add      K = 10; the prompt is two numbers of L digits each, without a sign between them; the answer is their sum
//            with L+1 digits. Most significant digit first, leading zeros written.
//   guess    see guess_task.h; length and alphabet do not count
// Symbols are uniform: x_i of prompt (seed, pass, ordinal) comes from Philox with key H(seed, pass) and counter
// (i / 4, ordinal).
struct TaskOptions {
  std::string name = "reverse";
  int64_t length = 4;    // L
  int64_t alphabet = 8;  // K; `add` ignores it
  uint64_t seed = 0;

  absl::Status Validate() const;  // INVALID_ARGUMENT (reason BAD_OPTIONS, UNKNOWN_TASK)
};

// An endless source. INVALID_ARGUMENT as Validate().
absl::StatusOr<std::unique_ptr<PromptSource>> MakeTask(const TaskOptions& options);

std::vector<std::string> TaskNames();

}  // namespace syncopate::trainer
