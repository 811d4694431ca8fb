#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/trajectory.h"

namespace syncopate::trainer {

struct Prompt {
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> answer_ids;  // what the reward compares with; may be empty
};

// Where prompts come from. A pure function of the group: the same prompt after any restart, whoever asks, in whatever
// order. Thread-safe, does not block.
class PromptSource {
 public:
  // The pass of evaluation prompts; training counts passes from 0.
  static constexpr int64_t kEvaluationPass = -1;

  virtual ~PromptSource() = default;
  virtual Prompt At(const GroupId& group) const = 0;
  // Ids as a person reads them; ids outside the vocabulary show as "?".
  virtual std::string Render(const std::vector<int32_t>& ids) const = 0;

  virtual int64_t prompts_per_pass() const = 0;  // 0: endless, there is one pass
  virtual int32_t vocab_size() const = 0;        // ids are in [0, vocab_size)
  virtual std::vector<int32_t> stop_token_ids() const = 0;
  virtual int64_t max_prompt_tokens() const = 0;
  virtual int64_t max_answer_tokens() const = 0;  // of a right answer, its stop token included
};

}  // namespace syncopate::trainer
