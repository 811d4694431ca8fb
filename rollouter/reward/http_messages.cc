#include "rollouter/reward/http_messages.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::rollouter {
namespace {

using nlohmann::json;

constexpr size_t kMaxErrorBytes = 512;

absl::Status BadAnswer(const std::string& what) {
  return Error(absl::StatusCode::kInternal, "BAD_HTTP_ANSWER",
               absl::StrCat("the reward service answered ", what, "; see docs/rewards.md"));
}

std::string Quoted(const std::string& text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

absl::StatusOr<RemoteReward> ParseReward(const json& entry) {
  if (entry.is_number()) return RemoteReward{.value = entry.get<float>()};
  if (!entry.is_object()) return BadAnswer("with an entry of rewards that is neither a number nor an object");
  const auto error = entry.find("error");
  if (error != entry.end()) {
    const std::string what = error->is_string() ? error->get<std::string>() : "no text";
    return Error(absl::StatusCode::kInternal, "HTTP_REWARD_ERROR",
                 absl::StrCat("the reward service says: ", what.substr(0, kMaxErrorBytes)));
  }
  const auto value = entry.find("value");
  if (value == entry.end() || !value->is_number()) return BadAnswer("with an entry of rewards without a \"value\"");
  RemoteReward reward{.value = value->get<float>()};
  const auto components = entry.find("components");
  if (components == entry.end()) return reward;
  if (!components->is_object()) return BadAnswer("with \"components\" that are no object");
  for (const auto& [name, component] : components->items()) {
    if (!component.is_number()) return BadAnswer("with a component that is no number");
    reward.components.emplace_back(name, component.get<float>());
  }
  return reward;
}

}  // namespace

std::string HttpRequestBody(const std::vector<HttpAnswer>& answers) {
  std::string body = "{\"answers\":[";
  for (const HttpAnswer& answer : answers) {
    if (&answer != answers.data()) body += ",";
    // The row is copied unparsed: its numbers may have more digits than a double keeps.
    absl::StrAppend(&body, "{\"text\":", Quoted(answer.text), ",\"finish\":\"",
                    answer.finish == FinishReason::kLength ? "length" : "stop",
                    "\",\"row\":", answer.row_json.empty() ? "null" : answer.row_json, "}");
  }
  return body + "]}";
}

absl::StatusOr<RemoteScorer::Rewards> ParseHttpResponse(absl::string_view body, size_t answers) {
  // Without exceptions, because the body comes from another program and may be anything.
  const json parsed = json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return BadAnswer("what is no JSON object");
  const auto rewards = parsed.find("rewards");
  if (rewards == parsed.end() || !rewards->is_array()) return BadAnswer("without a list \"rewards\"");
  if (rewards->size() != answers) {
    return BadAnswer(absl::StrCat("with ", rewards->size(), " rewards for ", answers, " answers"));
  }
  RemoteScorer::Rewards result;
  for (const json& entry : *rewards) result.push_back(ParseReward(entry));
  return result;
}

}  // namespace syncopate::rollouter
