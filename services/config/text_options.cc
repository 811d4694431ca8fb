#include "services/config/text_options.h"

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"

namespace syncopate::config {
namespace {

// Whether the run begins with supervised steps, or has no others.
bool HasSupervisedSteps(const v1::RunConfig& config) {
  return config.train().objective() == "sft" || config.train().sft_steps() > 0;
}

}  // namespace

trainer::PromptWriter::Options PromptWriterOptions(const v1::RunConfig& config, const model::HfModel& model) {
  const v1::DataSection& data = config.data();
  trainer::PromptWriter::Options options;
  options.use_chat_template = data.chat_template() == "auto";
  if (!data.chat_arguments().empty()) {
    options.chat_arguments = nlohmann::ordered_json::parse(data.chat_arguments(), nullptr, /*allow_exceptions=*/false);
  }
  options.system_prompt = data.system_prompt();
  options.max_prompt_tokens = data.max_prompt_tokens();
  options.vocab_size = static_cast<int32_t>(model.config.vocab_size);
  options.stop_token_ids = model.eos_token_ids;
  // These rewards compare answers token by token.
  options.with_answer_ids =
      absl::StrContains(config.reward().name(), "dense") || absl::StrContains(config.reward().name(), "exact");
  options.with_response_ids = HasSupervisedSteps(config);
  options.max_response_tokens = config.rollout().max_new_tokens();
  return options;
}

trainer::RowFields GetRowFields(const v1::RunConfig& config) {
  return {.prompt = config.data().prompt_field(),
          .answer = config.data().answer_field(),
          .response = HasSupervisedSteps(config) ? config.data().response_field() : "",
          .data_source = config.data().data_source_field(),
          .extra_info = config.data().extra_info_field(),
          .environment = config.environment().name()};
}

}  // namespace syncopate::config
