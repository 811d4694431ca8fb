#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "base/status.h"
#include "text/template/chat_template.h"

namespace syncopate::text::chat {

// A conversation and how it is to be written down.
struct ChatRequest {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  // [{"role": "user", "content": "..."}, ...]
  nlohmann::ordered_json tools;                                       // in OpenAI's form; null: none
  bool add_generation_prompt = true;                                  // end with the beginning of the next answer
  // An object of whatever else the template knows: {"enable_thinking": false}.
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();
};

// Whether what a template made of a conversation stays the beginning of what it makes of a longer one. Where it does
// not, a conversation of several turns must not be rendered again: the tokens that the policy was trained on would not
// be those that it made. Nothing where the template refuses such a conversation.
struct PrefixKeeping {
  std::optional<bool> tool_answer;   // the last message calls a tool, and its answer is added
  std::optional<bool> user_message;  // the last message is an answer, and a question is added

  std::string Describe() const;
};

// How a model directory wants conversations written down: its chat template and special tokens. Immutable and
// thread-safe.
class ChatFormat {
 public:
  // Reads `folder`/chat_template.jinja, or else "chat_template" of `folder`/tokenizer_config.json, with the special
  // tokens of the latter; links are followed. Logs whether the template keeps prefixes. NOT_FOUND (reason
  // NO_CHAT_TEMPLATE) where there is none; otherwise the errors of ChatTemplate::Parse, and BAD_JSON.
  static absl::StatusOr<ChatFormat> Load(FileSystem* files, const std::string& folder);
  // The same of the two files' contents; `jinja` is empty where there is no such file.
  static absl::StatusOr<ChatFormat> Parse(absl::string_view tokenizer_config, absl::string_view jinja);

  // As transformers' apply_chat_template. Errors: see ChatTemplate::Render.
  absl::StatusOr<RenderedChat> Render(const ChatRequest& request, int64_t now, const TemplateLimits& limits = {}) const;

  // Found by rendering made-up conversations.
  const PrefixKeeping& prefixes() const { return prefixes_; }

 private:
  struct Named {
    std::string name;
    ChatTemplate rendering;
  };

  absl::Status ReadTemplates(const nlohmann::json& value);
  void ReadSpecialTokens(const nlohmann::json& config);
  std::optional<bool> Keeps(const nlohmann::ordered_json& answer, const nlohmann::ordered_json& next) const;

  std::vector<Named> templates_;           // "default", and "tool_use" where tools have one of their own
  nlohmann::ordered_json special_tokens_;  // {"bos_token": "<s>", ...}
  PrefixKeeping prefixes_;
};

}  // namespace syncopate::text::chat
