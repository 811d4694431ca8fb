#include "rollouter/reward/judge_messages.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/utf8.h"

namespace syncopate::rollouter {
namespace {

using nlohmann::json;

constexpr size_t kMaxQuotedBytes = 200;
constexpr char kAnswer[] = "answer";

absl::Status BadJudgement(const std::string& what) { return Error(absl::StatusCode::kInternal, "BAD_JUDGEMENT", what); }

bool IsNameCharacter(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The name in the braces that `text` begins with; "" if it begins with no such thing, as {"score": 1} does not.
absl::string_view NameInBraces(absl::string_view text) {
  const size_t end = text.find('}');
  if (end == absl::string_view::npos || end < 2) return "";
  const absl::string_view name = text.substr(1, end - 1);
  const bool is_name = !absl::ascii_isdigit(static_cast<unsigned char>(name[0])) &&
                       std::all_of(name.begin(), name.end(), IsNameCharacter);
  return is_name ? name : "";
}

std::string FieldText(const json& field) {
  if (field.is_string()) return field.get<std::string>();
  return field.dump(-1, ' ', false, json::error_handler_t::replace);
}

int64_t UsedTokens(const json& parsed) {
  const json usage = parsed.is_object() ? parsed.value("usage", json()) : json();
  const json tokens = usage.is_object() ? usage.value("total_tokens", json()) : json();
  return tokens.is_number_unsigned() ? tokens.get<int64_t>() : -1;
}

// The last bytes of `text`, from the beginning of a character on.
absl::string_view TextEnd(absl::string_view text) {
  if (text.size() <= kMaxQuotedBytes) return text;
  text.remove_prefix(text.size() - kMaxQuotedBytes);
  while (!text.empty() && (static_cast<unsigned char>(text[0]) & 0xC0) == 0x80) text.remove_prefix(1);
  return text;
}

}  // namespace

absl::StatusOr<JudgePrompt> JudgePrompt::Parse(absl::string_view text) {
  JudgePrompt prompt;
  bool has_answer = false;
  std::string literal;
  while (!text.empty()) {
    const absl::string_view name = text[0] == '{' ? NameInBraces(text) : "";
    if (name.empty()) {
      literal += text[0];
      text.remove_prefix(1);
      continue;
    }
    prompt.parts_.push_back({std::exchange(literal, ""), ""});
    prompt.parts_.push_back({"", std::string(name)});
    has_answer = has_answer || name == kAnswer;
    text.remove_prefix(name.size() + 2);
  }
  prompt.parts_.push_back({literal, ""});
  if (has_answer) return prompt;
  return Error(absl::StatusCode::kInvalidArgument, "BAD_JUDGE_PROMPT",
               "it does not contain {answer}, so the judge would see no answer");
}

absl::StatusOr<std::vector<std::string>> JudgePrompt::Render(const std::string& row_json,
                                                             const std::vector<std::string>& answers) const {
  const json row = row_json.empty() ? json::object() : json::parse(row_json, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object()) return Error(absl::StatusCode::kInvalidArgument, "BAD_ROW", "the row is no JSON object");
  std::vector<std::string> prompts(answers.size());
  for (const Part& part : parts_) {
    std::string text = part.text;
    if (!part.field.empty() && part.field != kAnswer) {
      const auto found = row.find(part.field);
      if (found == row.end() || found->is_null()) {
        return Error(absl::StatusCode::kInvalidArgument, "NO_FIELD",
                     absl::StrCat("reward.judge_prompt names {", part.field, "}, and the row has no such field"));
      }
      text = FieldText(*found);
    }
    for (size_t i = 0; i < answers.size(); ++i) prompts[i] += part.field == kAnswer ? answers[i] : text;
  }
  return prompts;
}

std::string JudgeRequestBody(const JudgeSampling& sampling, const std::string& prompt) {
  const json body = {{"model", sampling.model},
                     {"messages", json::array({{{"role", "user"}, {"content", prompt}}})},
                     {"max_tokens", sampling.max_new_tokens},
                     {"temperature", sampling.temperature}};
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

int64_t ParseUsedTokens(absl::string_view body) {
  return UsedTokens(json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false));
}

absl::StatusOr<Judgement> ParseJudgement(absl::string_view body) {
  const json parsed = json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  const json choices = parsed.is_object() ? parsed.value("choices", json()) : json();
  if (!choices.is_array() || choices.empty() || !choices[0].is_object()) {
    return BadJudgement("the judge's endpoint answered with what is no chat completion");
  }
  const json message = choices[0].value("message", json());
  const json content = message.is_object() ? message.value("content", json()) : json();
  Judgement judgement;
  if (content.is_string()) judgement.text = content.get<std::string>();
  judgement.cut_off = choices[0].value("finish_reason", json()) == "length";
  judgement.tokens = UsedTokens(parsed);
  return judgement;
}

absl::StatusOr<float> FindReward(const Pattern& pattern, const Judgement& judgement) {
  const std::optional<std::string> found = pattern.LastMatch(judgement.text);
  if (!pattern.has_group()) {
    if (found.has_value()) return 1.0f;
    if (!judgement.cut_off && !judgement.text.empty()) return 0.0f;
    return BadJudgement("the judgement has no text, or was cut off at reward.judge_max_new_tokens");
  }
  float reward = 0;
  const std::string number = found.value_or("");  // SimpleAtof takes blanks round it
  if (absl::SimpleAtof(number, &reward) && std::isfinite(reward)) return reward;
  return BadJudgement(absl::StrCat("reward.judge_pattern finds no number in the judgement",
                                   judgement.cut_off ? ", which was cut off at reward.judge_max_new_tokens" : "",
                                   ": ...", TextEnd(judgement.text)));
}

std::string ExplainError(absl::string_view body, absl::string_view secret) {
  const json parsed = json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  const json error = parsed.is_object() ? parsed.value("error", json()) : json();
  const json said = error.is_object() ? error.value("message", json()) : error;
  if (!said.is_string()) return "";
  std::string text = said.get<std::string>();
  // Before the cut, which could leave a part of it.
  if (!secret.empty()) text = absl::StrReplaceAll(text, {{secret, "[key]"}});
  for (char& c : text) c = absl::ascii_iscntrl(static_cast<unsigned char>(c)) ? ' ' : c;
  const absl::string_view cut = absl::string_view(text).substr(0, kMaxQuotedBytes);
  return std::string(cut.substr(0, WellFormedPrefix(cut)));
}

}  // namespace syncopate::rollouter
