#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/ctl/daemons.h"
#include "trainer/data/prompt_writer.h"

namespace syncopate::ctl {

// Converts text to the tokens that a run's policy reads, and back: writes prompts as the run's rows are written
// (tokenizer, chat template, data.system_prompt, data.chat_arguments), and decodes tokens. Immutable and thread-safe.
class PolicyText {
 public:
  // Reads `model_folder`, or, if that is empty, the trainer's copy of the model in the run directory (the newest run's
  // if `daemons` names neither a run directory nor a target), and the run's configuration if it exists. NOT_FOUND
  // (reason NO_TOKENIZER) without a tokenizer, e.g. for a model that keys describe; errors of PromptWriter::Load and
  // ReadHfConfig. Blocks for the disk.
  static absl::StatusOr<PolicyText> Load(const DaemonOptions& daemons, const std::string& model_folder);

  // Errors of PromptWriter::Write.
  absl::StatusOr<std::vector<int32_t>> WritePrompt(const std::string& text) const;
  // The text of `ids`, without special tokens.
  std::string Read(const std::vector<int32_t>& ids) const;
  text::tokenizer::TextStream Stream() const;

  const std::vector<int32_t>& end_tokens() const { return writer_->options().stop_token_ids; }
  int32_t max_new_tokens() const { return max_new_tokens_; }  // the longest answer to the run's own prompts

 private:
  std::shared_ptr<const trainer::PromptWriter> writer_;
  int32_t max_new_tokens_ = 0;
};

}  // namespace syncopate::ctl
