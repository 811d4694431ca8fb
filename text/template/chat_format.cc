#include "text/template/chat_format.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/strict_json.h"

namespace syncopate::text::chat {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kMostFileBytes = 8 << 20;
constexpr char kDefault[] = "default", kToolUse[] = "tool_use";

// "" if there is no such file. Follows links, because the caches of model hubs consist of links.
absl::StatusOr<std::string> ReadIfThere(FileSystem* files, const std::string& path) {
  std::error_code failed;
  const std::filesystem::path target = std::filesystem::canonical(path, failed);
  if (failed) return "";
  return ReadFile(files, target.string(), kMostFileBytes);
}

OrderedJson Message(const char* role, const char* content) { return {{"role", role}, {"content", content}}; }

std::string YesOrNo(const std::optional<bool>& answer) {
  return !answer.has_value() ? "refused by the template" : *answer ? "yes" : "no";
}

}  // namespace

std::string PrefixKeeping::Describe() const {
  return absl::StrCat("the chat template keeps what was rendered before when a tool answers: ", YesOrNo(tool_answer),
                      ", when the user goes on: ", YesOrNo(user_message));
}

absl::StatusOr<ChatFormat> ChatFormat::Load(FileSystem* files, const std::string& folder) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::string config, ReadIfThere(files, JoinPath(folder, "tokenizer_config.json")));
  SYNCOPATE_ASSIGN_OR_RETURN(std::string jinja, ReadIfThere(files, JoinPath(folder, "chat_template.jinja")));
  absl::StatusOr<ChatFormat> format = Parse(config, jinja);
  if (!format.ok()) return Annotate(format.status(), folder);
  SYNCOPATE_LOG(kInfo, "%s: %s", folder, format->prefixes().Describe());
  return format;
}

absl::StatusOr<ChatFormat> ChatFormat::Parse(absl::string_view tokenizer_config, absl::string_view jinja) {
  ChatFormat format;
  Json config = Json::object();
  if (!tokenizer_config.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(config,
                               ParseStrictJson(tokenizer_config, {.max_bytes = kMostFileBytes, .max_depth = 16}));
  }
  if (!jinja.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(ChatTemplate rendering, ChatTemplate::Parse(jinja));
    format.templates_.push_back({kDefault, std::move(rendering)});
  } else if (config.contains("chat_template")) {
    SYNCOPATE_RETURN_IF_ERROR(format.ReadTemplates(config["chat_template"]));
  }
  if (format.templates_.empty()) {
    return Error(
        absl::StatusCode::kNotFound, reason::kNoChatTemplate,
        "no chat template: neither a chat_template.jinja nor a chat_template in tokenizer_config.json; a model "
        "without one takes plain prompts only");
  }
  format.ReadSpecialTokens(config);
  // Tests whether the text of a longer conversation begins with the text rendered before: if not, turns cannot be
  // trained as one sequence. The messages contain thoughts, which many templates drop from earlier turns.
  OrderedJson call = Message("assistant", "<think>\nWhich?\n</think>\n\nI look.");
  call["tool_calls"] = {
      {{"id", "abcdef123"}, {"type", "function"}, {"function", {{"name", "look"}, {"arguments", {{"at", "it"}}}}}}};
  OrderedJson result = Message("tool", "seen");
  result["name"] = "look";
  result["tool_call_id"] = "abcdef123";
  format.prefixes_.tool_answer = format.Keeps(call, result);
  format.prefixes_.user_message =
      format.Keeps(Message("assistant", "<think>\nWhich?\n</think>\n\nThis."), Message("user", "Why?"));
  return format;
}

// `value` is a template, or a list of named templates.
absl::Status ChatFormat::ReadTemplates(const Json& value) {
  const auto add = [this](const std::string& name, const std::string& source) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(ChatTemplate rendering, ChatTemplate::Parse(source));
    const bool is_default = name == kDefault;
    templates_.insert(is_default ? templates_.begin() : templates_.end(), {name, std::move(rendering)});
    return absl::OkStatus();
  };
  if (value.is_string()) return add(kDefault, value.get<std::string>());
  bool has_default = value.is_null();
  for (const Json& one : value.is_array() ? value : Json::array()) {
    const bool named = one.is_object() && one.contains("name") && one["name"].is_string() && one.contains("template") &&
                       one["template"].is_string();
    if (!named) continue;
    const std::string name = one["name"].get<std::string>();
    has_default = has_default || name == kDefault;
    if (name == kDefault || name == kToolUse) SYNCOPATE_RETURN_IF_ERROR(add(name, one["template"].get<std::string>()));
  }
  if (has_default) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_TEMPLATE",
               "chat_template of tokenizer_config.json is neither a string nor a list with one that is named default");
}

void ChatFormat::ReadSpecialTokens(const Json& config) {
  special_tokens_ = OrderedJson::object();
  // Templates print special tokens by name.
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const auto found = config.find(key);
    if (found == config.end()) continue;
    if (found->is_string()) special_tokens_[key] = found->get<std::string>();
    // A special token is a text, or an object that describes an added token.
    const bool described = found->is_object() && found->contains("content") && (*found)["content"].is_string();
    if (described) special_tokens_[key] = (*found)["content"].get<std::string>();
  }
}

absl::StatusOr<RenderedChat> ChatFormat::Render(const ChatRequest& request, int64_t now,
                                                const TemplateLimits& limits) const {
  OrderedJson context = special_tokens_;
  context["messages"] = request.messages;
  context["tools"] = request.tools;
  context["documents"] = nullptr;
  context["add_generation_prompt"] = request.add_generation_prompt;
  for (const auto& [key, value] : request.arguments.items()) context[key] = value;
  const auto for_tools =
      std::find_if(templates_.begin(), templates_.end(), [](const Named& named) { return named.name == kToolUse; });
  const bool own = !request.tools.is_null() && for_tools != templates_.end();
  return (own ? for_tools->rendering : templates_.front().rendering).Render(context, now, limits);
}

std::optional<bool> ChatFormat::Keeps(const OrderedJson& answer, const OrderedJson& next) const {
  // A hundredth of the usual limit, because these conversations are short.
  TemplateLimits limits;
  limits.steps /= 100;
  ChatRequest request;
  request.add_generation_prompt = false;
  request.messages = {Message("user", "What is it?"), answer};
  const absl::StatusOr<RenderedChat> before = Render(request, 0, limits);
  request.messages.push_back(next);
  const absl::StatusOr<RenderedChat> after = Render(request, 0, limits);
  if (!before.ok() || !after.ok()) return std::nullopt;
  return absl::StartsWith(after->text, before->text);
}

}  // namespace syncopate::text::chat
