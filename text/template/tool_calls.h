#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

// How models write calls of tools in their answers; pure.
namespace syncopate::text::chat {

enum class ToolFormat {
  kNone,
  kHermes,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, anywhere and several times: Hermes, Qwen2.5, Qwen3
  kLlama3,   // the whole answer is {"name": ..., "parameters": {...}}, several with ; between
  kMistral,  // the whole answer is [{"name": ..., "arguments": {...}}, ...]
  // <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>, anywhere and several times
  kQwen35,
};

// The format that the text of a chat template teaches its model; kNone if it is none of these.
ToolFormat FindToolFormat(absl::string_view chat_template);
// Finds the format by its name in model.tool_format; nullopt for "auto" and for a name that is none.
std::optional<ToolFormat> NamedToolFormat(absl::string_view name);

// Names of the parameters that take texts, by function. kQwen35 writes a text as it is and any other value as JSON, so
// that only this tells the text "5" from the number.
using TextParameters = std::map<std::string, std::set<std::string>>;
// From `tools` of a request; what is no such list gives none.
TextParameters FindTextParameters(const nlohmann::ordered_json& tools);

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON
};

// Takes the calls out of the text of one answer, part by part. A call is complete when it closes; what turns out to be
// no call stays text. Not thread-safe.
class ToolCallParser {
 public:
  // `texts` is used by kQwen35; null: there are none.
  explicit ToolCallParser(ToolFormat format, std::shared_ptr<const TextParameters> texts = nullptr)
      : format_(format), texts_(std::move(texts)) {}

  // The text that is final with this part; text that may belong to a call is held back.
  std::string Add(absl::string_view text);
  // The rest of the text, when the answer has ended.
  std::string End();
  // The calls that were completed since the last TakeCalls().
  bool has_calls() const { return !calls_.empty(); }
  std::vector<ToolCall> TakeCalls() { return std::exchange(calls_, {}); }

 private:
  std::string ReleaseMarked();

  const ToolFormat format_;
  const std::shared_ptr<const TextParameters> texts_;
  std::string held_;
  bool is_text_ = false;  // kLlama3, kMistral: the answer has begun as no call
  std::vector<ToolCall> calls_;
};

}  // namespace syncopate::text::chat
