#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/ctl/daemons.h"
#include "trainer/data/prompt_writer.h"

namespace syncopate::ctl {

// How the policy of a run reads and writes text: a prompt as the run's rows are written (tokenizer, chat template,
// data.system_prompt, data.chat_arguments), and what its tokens say. Immutable and thread-safe.
class PolicyText {
 public:
  // Reads `model_folder`, or if that is empty what the trainer keeps of the model in the run directory (the newest one
  // if `daemons` names neither a run directory nor a target), and the run's configuration if it is there. NOT_FOUND
  // (reason NO_TOKENIZER) where there is no tokenizer, as of a model by keys; errors of PromptWriter::Load and
  // ReadHfConfig. Blocks for the disk.
  static absl::StatusOr<PolicyText> Load(const DaemonOptions& daemons, const std::string& model_folder);

  // Errors of PromptWriter::Write.
  absl::StatusOr<std::vector<int32_t>> WritePrompt(const std::string& text) const;
  // Special tokens left out.
  std::string Read(const std::vector<int32_t>& ids) const;
  text::tokenizer::TextStream Stream() const;

  const std::vector<int32_t>& end_tokens() const { return writer_->options().stop_token_ids; }
  int32_t max_new_tokens() const { return max_new_tokens_; }  // the longest answer of the run's own prompts

 private:
  std::shared_ptr<const trainer::PromptWriter> writer_;
  int32_t max_new_tokens_ = 0;
};

}  // namespace syncopate::ctl
