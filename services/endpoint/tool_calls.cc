#include "services/endpoint/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/strict_json.h"

namespace syncopate::endpoint {
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
  if (has("<function=")) return ToolFormat::kNone;  // Qwen3.5's XML
  if (has(kOpen)) return ToolFormat::kHermes;
  if (has("[ARGS]")) return ToolFormat::kNone;  // the form of Mistral's later models
  if (has(kMistralTag)) return ToolFormat::kMistral;
  return has(kPythonTag) || has("\"parameters\":") || has("\\\"parameters\\\":") ? ToolFormat::kLlama3
                                                                                 : ToolFormat::kNone;
}

std::string ToolCallParser::Add(absl::string_view text) {
  if (format_ == ToolFormat::kNone || is_text_) return std::string(text);
  held_.append(text.data(), text.size());
  if (format_ == ToolFormat::kHermes) return ReleaseHermes();
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

std::string ToolCallParser::ReleaseHermes() {
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
    if (std::optional<ToolCall> call = ParseCall(inside); call.has_value()) {
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

}  // namespace syncopate::endpoint
