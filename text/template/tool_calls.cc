#include "text/template/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/strict_json.h"

namespace syncopate::text::chat {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kOpen[] = "<tool_call>", kClose[] = "</tool_call>";
constexpr char kPythonTag[] = "<|python_tag|>", kMistralTag[] = "[TOOL_CALLS]";
constexpr JsonLimits kLimits = {.max_bytes = 4 << 20, .max_depth = 64};

std::optional<ToolCall> FromJson(const Json& call) {
  if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) return std::nullopt;
  for (const char* key : {"arguments", "parameters"}) {
    if (!call.contains(key)) continue;
    const Json& arguments = call[key];
    if (!arguments.is_object() && !arguments.is_string()) return std::nullopt;
    return ToolCall{call["name"].get<std::string>(),
                    arguments.is_string() ? arguments.get<std::string>()
                                          : arguments.dump(-1, ' ', false, Json::error_handler_t::replace)};
  }
  return std::nullopt;
}

std::optional<ToolCall> ParseCall(absl::string_view text) {
  const auto json = ParseStrictOrderedJson(absl::StripAsciiWhitespace(text), kLimits);
  return json.ok() ? FromJson(*json) : std::nullopt;
}

// A parameter's value as kQwen35 writes it: between its marks, with a line break at each end that is not part of it.
Json ParameterValue(absl::string_view text, bool is_text) {
  absl::ConsumePrefix(&text, "\n");
  absl::ConsumeSuffix(&text, "\n");
  if (is_text) return std::string(text);
  // The strict reader takes objects.
  const auto json = ParseStrictOrderedJson(absl::StrCat("{\"value\": ", text, "}"), kLimits);
  return json.ok() && json->size() == 1 ? (*json)["value"] : Json(std::string(text));
}

// The text from `open` to `close`, which are taken off `text` with it; nullopt if it does not begin with `open`, or never
// closes.
std::optional<absl::string_view> TakeBetween(absl::string_view open, absl::string_view close, absl::string_view* text) {
  if (!absl::StartsWith(*text, open)) return std::nullopt;
  const size_t end = text->find(close, open.size());
  if (end == absl::string_view::npos) return std::nullopt;
  const absl::string_view inside = text->substr(open.size(), end - open.size());
  text->remove_prefix(end + close.size());
  return inside;
}

std::optional<ToolCall> ParseQwen35(absl::string_view text, const TextParameters* texts) {
  text = absl::StripAsciiWhitespace(text);
  const std::optional<absl::string_view> name = TakeBetween("<function=", ">", &text);
  if (!name.has_value() || name->empty() || !absl::ConsumeSuffix(&text, "</function>")) return std::nullopt;
  const auto function = texts == nullptr ? TextParameters::const_iterator() : texts->find(std::string(*name));
  const bool is_known = texts != nullptr && function != texts->end();
  Json arguments = Json::object();
  while (!(text = absl::StripAsciiWhitespace(text)).empty()) {
    const std::optional<absl::string_view> found = TakeBetween("<parameter=", ">", &text);
    if (!found.has_value() || found->empty()) return std::nullopt;
    const std::string key(*found);
    const std::optional<absl::string_view> value = TakeBetween("", "</parameter>", &text);
    if (!value.has_value() || arguments.contains(key)) return std::nullopt;
    arguments[key] = ParameterValue(*value, is_known && function->second.contains(key));
  }
  return ToolCall{std::string(*name), arguments.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

bool TakesText(const Json& schema) {
  if (!schema.is_object() || !schema.contains("type")) return false;
  const Json& type = schema["type"];
  return type == "string" || (type.is_array() && std::find(type.begin(), type.end(), "string") != type.end());
}

// Calls with semicolons between; a semicolon may also be inside a string, so each cut is tried. Empty: none.
std::vector<ToolCall> ParseLlama(absl::string_view text) {
  std::vector<ToolCall> calls;
  absl::ConsumePrefix(&text, kPythonTag);
  constexpr int kMostCuts = 64;  // an answer of semicolons costs no more than this
  size_t begin = 0, end = 0;
  for (int cut = 0; cut < kMostCuts && begin < text.size(); ++cut) {
    end = std::min(text.find(';', end), text.size());
    const std::optional<ToolCall> call = ParseCall(text.substr(begin, end - begin));
    if (call.has_value()) {
      calls.push_back(*call);
      begin = end + 1;
    } else if (end == text.size()) {
      return {};
    }
    ++end;
  }
  return begin < text.size() ? std::vector<ToolCall>() : calls;
}

std::vector<ToolCall> ParseMistral(absl::string_view text) {
  absl::ConsumePrefix(&text, kMistralTag);
  // The strict reader takes objects.
  const auto json = ParseStrictOrderedJson(absl::StrCat("{\"calls\": ", text, "}"), kLimits);
  std::vector<ToolCall> calls;
  if (!json.ok() || json->size() != 1 || !(*json)["calls"].is_array()) return calls;
  for (const Json& one : (*json)["calls"]) {
    const std::optional<ToolCall> call = FromJson(one);
    if (!call.has_value()) return {};
    calls.push_back(*call);
  }
  return calls;
}

// Bytes of the longest end of `text` that `mark` begins with, without all of it.
size_t MayBegin(absl::string_view text, absl::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size) {
    if (absl::EndsWith(text, mark.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

ToolFormat FindToolFormat(absl::string_view chat_template) {
  const auto has = [chat_template](const char* text) { return absl::StrContains(chat_template, text); };
  if (has("<function=")) return has("<parameter=") ? ToolFormat::kQwen35 : ToolFormat::kNone;
  if (has(kOpen)) return ToolFormat::kHermes;
  if (has("[ARGS]")) return ToolFormat::kNone;  // the form of Mistral's later models
  if (has(kMistralTag)) return ToolFormat::kMistral;
  return has(kPythonTag) || has("\"parameters\":") || has("\\\"parameters\\\":") ? ToolFormat::kLlama3
                                                                                 : ToolFormat::kNone;
}

std::optional<ToolFormat> NamedToolFormat(absl::string_view name) {
  if (name == "none") return ToolFormat::kNone;
  if (name == "hermes") return ToolFormat::kHermes;
  if (name == "qwen3.5") return ToolFormat::kQwen35;
  if (name == "llama3") return ToolFormat::kLlama3;
  if (name == "mistral") return ToolFormat::kMistral;
  return std::nullopt;
}

TextParameters FindTextParameters(const Json& tools) {
  static constexpr auto kObject = [](const Json& json, const char* key) {
    return json.is_object() && json.contains(key) ? json[key] : Json::object();
  };
  TextParameters texts;
  if (!tools.is_array()) return texts;
  for (const Json& tool : tools) {
    const Json function = kObject(tool, "function");
    const Json name = kObject(function, "name");
    const Json properties = kObject(kObject(function, "parameters"), "properties");
    if (!name.is_string() || !properties.is_object()) continue;
    for (const auto& [key, schema] : properties.items()) {
      if (TakesText(schema)) texts[name.get<std::string>()].insert(key);
    }
  }
  return texts;
}

std::string ToolCallParser::Add(absl::string_view text) {
  if (format_ == ToolFormat::kNone || is_text_) return std::string(text);
  held_.append(text.data(), text.size());
  if (format_ == ToolFormat::kHermes || format_ == ToolFormat::kQwen35) return ReleaseMarked();
  // The first characters say whether the whole answer may be a call.
  const absl::string_view begun = absl::StripLeadingAsciiWhitespace(held_);
  if (begun.empty()) return "";
  const bool is_llama = format_ == ToolFormat::kLlama3;
  const absl::string_view mark = is_llama ? kPythonTag : kMistralTag;
  const bool is_marked = absl::StartsWith(begun, mark) || absl::StartsWith(mark, begun);
  if (is_marked || begun[0] == (is_llama ? '{' : '[')) return "";
  is_text_ = true;
  return std::exchange(held_, "");
}

std::string ToolCallParser::ReleaseMarked() {
  std::string text;
  while (true) {
    const size_t open = held_.find(kOpen);
    if (open == std::string::npos) {
      const size_t keep = MayBegin(held_, kOpen);
      text += held_.substr(0, held_.size() - keep);
      held_.erase(0, held_.size() - keep);
      return text;
    }
    text += held_.substr(0, open);
    held_.erase(0, open);
    const size_t close = held_.find(kClose);
    if (close == std::string::npos) return text;
    const size_t end = close + sizeof(kClose) - 1;
    const absl::string_view inside = absl::string_view(held_).substr(sizeof(kOpen) - 1, close - sizeof(kOpen) + 1);
    std::optional<ToolCall> call =
        format_ == ToolFormat::kHermes ? ParseCall(inside) : ParseQwen35(inside, texts_.get());
    if (call.has_value()) {
      calls_.push_back(*std::move(call));
    } else {
      text += held_.substr(0, end);
    }
    held_.erase(0, end);
  }
}

std::string ToolCallParser::End() {
  std::vector<ToolCall> calls;
  const absl::string_view whole = absl::StripAsciiWhitespace(held_);
  if (format_ == ToolFormat::kLlama3) calls = ParseLlama(whole);
  if (format_ == ToolFormat::kMistral) calls = ParseMistral(whole);
  if (calls.empty()) return std::exchange(held_, "");
  held_.clear();
  std::move(calls.begin(), calls.end(), std::back_inserter(calls_));
  return "";
}

}  // namespace syncopate::text::chat
