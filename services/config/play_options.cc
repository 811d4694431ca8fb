#include "services/config/play_options.h"

#include <utility>

#include "base/reasons.h"
#include "services/config/rules.h"

namespace syncopate::config {
namespace {

constexpr int32_t kRetries = 3;  // of an episode whose environment fails

absl::StatusOr<std::shared_ptr<const rollouter::TurnFormat>> MakeTurnFormat(const v1::RunConfig& config,
                                                                            const PlayText& text) {
  if (text.tokenizer == nullptr || !text.format.has_value() || config.data().chat_template() == "off") {
    return Error(absl::StatusCode::kFailedPrecondition, reason::kNoChatTemplate,
                 "environment.name is played in turns, and without tokenizer and chat template the model has none: "
                 "name another model.path, and leave data.chat_template on auto");
  }
  rollouter::TurnFormat::Options options{.end_token_ids = text.end_token_ids};
  if (const std::string& arguments = config.data().chat_arguments(); !arguments.empty()) {
    options.chat_arguments = nlohmann::ordered_json::parse(arguments, nullptr, /*allow_exceptions=*/false);
  }
  return rollouter::TurnFormat::Create(text.tokenizer, *text.format, std::move(options));
}

}  // namespace

absl::StatusOr<std::optional<rollouter::PlayRules>> MakePlayOptions(const v1::RunConfig& config, const PlayText& text) {
  if (!Plays(config)) return std::nullopt;
  const rollouter::Episode::Options episode = {
      .max_turns = static_cast<int32_t>(config.rollout().max_turns()),
      .max_total_tokens = config.rollout().max_total_tokens(),
      .max_given_tokens = static_cast<int32_t>(config.rollout().max_given_tokens()),
      .keep_tail = config.rollout().keep_given() == "tail",
      .max_retries = kRetries};
  const std::string& name = config.environment().name();
  if (config.data().files().empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(rollouter::PlayRules rules, rollouter::MakePlayRules(name, episode));
    return rules;
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto format, MakeTurnFormat(config, text));
  SYNCOPATE_ASSIGN_OR_RETURN(rollouter::PlayRules rules,
                             rollouter::MakeTextPlayRules(name, episode, text.tokenizer, std::move(format)));
  return rules;
}

}  // namespace syncopate::config
