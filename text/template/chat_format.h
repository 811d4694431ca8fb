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

// A conversation and options for rendering it.
struct ChatRequest {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  // [{"role": "user", "content": "..."}, ...]
  nlohmann::ordered_json tools;                                       // in OpenAI's form; null: none
  bool add_generation_prompt = true;                                  // end with the beginning of the next answer
  // An object with further variables for the template: {"enable_thinking": false}.
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();
};

// Whether the rendered text of a conversation is a prefix of the rendered text of the longer conversation. If it is
// not, a conversation of several turns must not be rendered again: the policy would be trained on other tokens than it
// wrote. nullopt if the template refuses such a conversation.
struct PrefixKeeping {
  std::optional<bool> tool_answer;   // when a tool's answer is added after a message that calls the tool
  std::optional<bool> user_message;  // when a user's message is added after an answer

  std::string Describe() const;
};

// Renders conversations as a model directory specifies: by its chat template and special tokens. Immutable and
// thread-safe.
class ChatFormat {
 public:
  // Reads `folder`/chat_template.jinja, or else "chat_template" of `folder`/tokenizer_config.json, with the special
  // tokens of the latter; links are followed. Logs whether the template keeps prefixes. NOT_FOUND (reason
  // NO_CHAT_TEMPLATE) if there is no template; otherwise the errors of ChatTemplate::Parse, and BAD_JSON.
  static absl::StatusOr<ChatFormat> Load(FileSystem* files, const std::string& folder);
  // Parses the contents of these two files; `jinja` is empty if there is no chat_template.jinja.
  static absl::StatusOr<ChatFormat> Parse(absl::string_view tokenizer_config, absl::string_view jinja);

  // Renders as transformers' apply_chat_template does. Errors: see ChatTemplate::Render.
  absl::StatusOr<RenderedChat> Render(const ChatRequest& request, int64_t now, const TemplateLimits& limits = {}) const;

  // Whether the template keeps prefixes; determined by rendering made-up conversations.
  const PrefixKeeping& prefixes() const { return prefixes_; }

 private:
  struct Named {
    std::string name;
    ChatTemplate rendering;
  };

  absl::Status ReadTemplates(const nlohmann::json& value);
  void ReadSpecialTokens(const nlohmann::json& config);
  std::optional<bool> Keeps(const nlohmann::ordered_json& answer, const nlohmann::ordered_json& next) const;

  std::vector<Named> templates_;           // "default", and "tool_use" if there is a separate one for tools
  nlohmann::ordered_json special_tokens_;  // {"bos_token": "<s>", ...}
  PrefixKeeping prefixes_;
};

}  // namespace syncopate::text::chat
