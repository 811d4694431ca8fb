#include "tools/ctl/policy_text.h"

#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/daemon/daemon_endpoints.h"
#include "base/file_system.h"
#include "base/status.h"
#include "model/hf_config.h"
#include "services/config/run_config.h"
#include "services/config/text_options.h"

namespace syncopate::ctl {
namespace {

constexpr char kModelFolder[] = "model";  // in the run directory, written by the trainer
constexpr char kTokenizerFile[] = "tokenizer.json";
constexpr int32_t kLongestAnswer = 256;  // if no configuration limits the answers

// "" if only a target is given: that daemon's run directory may be on another machine.
absl::StatusOr<std::string> FindRunDir(const DaemonOptions& daemons) {
  if (!daemons.run_dir.empty() || !daemons.target.empty()) return daemons.run_dir;
  return daemon::FindNewestRun(daemons.runs_dir);
}

absl::StatusOr<v1::RunConfig> LoadConfig(const std::string& run_dir) {
  const v1::RunConfig defaults = config::ParseRunConfig("", "defaults").config;
  if (run_dir.empty()) return defaults;
  absl::StatusOr<v1::RunConfig> config = config::LoadRunConfig(JoinPath(run_dir, config::kNextConfigFile));
  return absl::IsNotFound(config.status()) ? defaults : config;  // missing if the daemons were started by hand
}

}  // namespace

absl::StatusOr<PolicyText> PolicyText::Load(const DaemonOptions& daemons, const std::string& model_folder) {
  std::string run_dir;
  if (model_folder.empty() || !daemons.run_dir.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(run_dir, FindRunDir(daemons));
  }
  const std::string folder = model_folder.empty() && !run_dir.empty() ? JoinPath(run_dir, kModelFolder) : model_folder;
  std::error_code ignored;
  if (folder.empty() || !std::filesystem::exists(JoinPath(folder, kTokenizerFile), ignored)) {
    return Error(
        absl::StatusCode::kNotFound, "NO_TOKENIZER",
        absl::StrCat(folder.empty() ? "without a run directory there" : folder + " has no tokenizer.json: there",
                     " is nothing that makes tokens of text; name a model directory with --model, or give token "
                     "ids with --prompt"));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const v1::RunConfig config, LoadConfig(run_dir));
  SYNCOPATE_ASSIGN_OR_RETURN(const model::HfModel model, model::ReadHfConfig(folder));
  trainer::PromptWriter::Options options = config::PromptWriterOptions(config, model);
  options.max_prompt_tokens = std::numeric_limits<int64_t>::max();  // the rollouter checks the length of a prompt
  options.with_answer_ids = options.with_response_ids = false;
  PolicyText text;
  const auto longest = static_cast<int32_t>(config.rollout().max_new_tokens());
  text.max_new_tokens_ = run_dir.empty() || longest <= 0 ? kLongestAnswer : longest;
  SYNCOPATE_ASSIGN_OR_RETURN(text.writer_, trainer::PromptWriter::Load(FileSystem::Real(), folder, options));
  return text;
}

absl::StatusOr<std::vector<int32_t>> PolicyText::WritePrompt(const std::string& text) const {
  trainer::PromptRow row;
  row.text = text;
  SYNCOPATE_ASSIGN_OR_RETURN(trainer::Prompt prompt, writer_->Write(row, /*cache=*/nullptr));
  return std::move(prompt.prompt_ids);
}

std::string PolicyText::Read(const std::vector<int32_t>& ids) const {
  return writer_->tokenizer().Decode(ids, /*skip_special_tokens=*/true);
}

text::tokenizer::TextStream PolicyText::Stream() const {
  return writer_->tokenizer().Stream(/*skip_special_tokens=*/true);
}

}  // namespace syncopate::ctl
