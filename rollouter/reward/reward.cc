#include "rollouter/reward/reward.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "rollouter/reward/math_value.h"
#include "rollouter/reward/math_verdict.h"
#include "rollouter/reward/pattern.h"

namespace syncopate::rollouter {
namespace {

float DenseReward(const RewardInput& input) {
  // A share of an empty answer is undefined, so it counts as 0.
  if (input.answer_ids.empty()) return 0.0f;
  const size_t common = std::min(input.answer_ids.size(), input.response.size());
  int64_t right = 0;
  for (size_t i = 0; i < common; ++i) right += input.response[i] == input.answer_ids[i] ? 1 : 0;
  return static_cast<float>(right) / static_cast<float>(input.answer_ids.size());
}

float ExactReward(const RewardInput& input) { return input.response == input.answer_ids ? 1.0f : 0.0f; }

float EnvironmentReward(const RewardInput& input) { return input.environment; }

RewardValue OneIf(bool right, absl::string_view extracted = "") {
  return {.value = right ? 1.0f : 0.0f, .extracted = std::string(extracted)};
}

absl::Status NoTruth(const std::string& what) { return Error(absl::StatusCode::kInvalidArgument, "NO_TRUTH", what); }

absl::StatusOr<std::string> IsTruthy(const RewardInput& input) {
  if (input.row.has_truth) return input.row.truth;
  return NoTruth("the row has no right answer to compare with; data.answer_field names its field");
}

// A reasoning model tries answers in its thoughts; its answer is the text after them.
absl::string_view BehindThoughts(absl::string_view text) {
  constexpr absl::string_view kEnd = "</think>";
  const size_t end = text.rfind(kEnd);
  return end == absl::string_view::npos ? text : text.substr(end + kEnd.size());
}

absl::StatusOr<RewardValue> MatchReward(const RewardInput& input) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string truth, IsTruthy(input));
  const absl::string_view given = absl::StripAsciiWhitespace(BehindThoughts(input.text));
  return OneIf(given == absl::StripAsciiWhitespace(truth), given);
}

absl::StatusOr<RewardValue> FinalNumberReward(const RewardInput& input) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string truth, IsTruthy(input));
  const std::optional<std::string> right = FinalNumber(truth);
  if (!right.has_value()) return NoTruth(absl::StrCat("the row's answer contains no number: ", truth.substr(0, 100)));
  const std::optional<std::string> given = FinalNumber(input.text);
  return OneIf(given.has_value() && SameNumber(*right, *given), given.value_or(""));
}

absl::StatusOr<RewardValue> MathReward(const RewardInput& input) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::string truth, IsTruthy(input));
  const std::optional<std::string> given = LastBoxed(input.text);
  if (!given.has_value()) return OneIf(false);
  // The truth of a data set is either the bare answer or a whole solution that ends in a box.
  const Verdict verdict = CompareMath(LastBoxed(truth).value_or(truth), *given);
  return RewardValue{.value = verdict == Verdict::kYes ? 1.0f : 0.0f,
                     .undecided = verdict == Verdict::kUndecided,
                     .extracted = NormalizeMath(*given)};
}

RewardFunction RegexReward(const Pattern& pattern) {
  return [pattern](const RewardInput& input) -> absl::StatusOr<RewardValue> {
    const std::optional<std::string> found = pattern.LastMatch(input.text);
    // Without a group, a match of the pattern alone decides.
    if (!found.has_value() || !pattern.has_group()) return OneIf(found.has_value());
    SYNCOPATE_ASSIGN_OR_RETURN(const std::string truth, IsTruthy(input));
    const absl::string_view given = absl::StripAsciiWhitespace(*found);
    return OneIf(given == absl::StripAsciiWhitespace(truth), given);
  };
}

RewardFunction OverlongReward(int64_t buffer) {
  return [buffer](const RewardInput& input) -> absl::StatusOr<RewardValue> {
    // The reward is 0 up to `buffer` tokens before the limit, then falls linearly to -1 at the limit.
    const int64_t over = static_cast<int64_t>(input.response.size()) - (input.max_new_tokens - buffer);
    const double share = static_cast<double>(std::clamp<int64_t>(over, 0, buffer)) / static_cast<double>(buffer);
    return RewardValue{.value = over > 0 ? static_cast<float>(-share) : 0.0f};
  };
}

RewardFunction Certain(float (*function)(const RewardInput&)) {
  return [function](const RewardInput& input) -> absl::StatusOr<RewardValue> {
    return RewardValue{.value = function(input)};
  };
}

}  // namespace

absl::StatusOr<RewardRow> ParseRewardRow(const std::string& row_json) {
  RewardRow row;
  if (row_json.empty()) return row;
  const nlohmann::json json = nlohmann::json::parse(row_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_ROW", "the row that came with the lease is no JSON object");
  }
  const auto found = json.find("ground_truth");
  // An array or object has no single text to compare with. User code can read it, as it gets the whole row.
  if (found == json.end() || found->is_null() || found->is_structured()) return row;
  row.truth = found->is_string() ? found->get<std::string>() : found->dump();
  row.has_truth = true;
  return row;
}

RewardRegistry RewardRegistry::BuiltIn() {
  RewardRegistry registry;
  registry.rewards_ = {{"environment", {Certain(EnvironmentReward)}},
                       {"dense", {Certain(DenseReward)}},
                       {"exact", {Certain(ExactReward)}},
                       {"match", {MatchReward, /*reads_text=*/true}},
                       {"final_number", {FinalNumberReward, /*reads_text=*/true}},
                       {"math", {MathReward, /*reads_text=*/true}}};
  return registry;
}

absl::StatusOr<RewardRegistry> RewardRegistry::Create(const RewardParameters& parameters) {
  RewardRegistry registry = BuiltIn();
  if (!parameters.pattern.empty()) {
    absl::StatusOr<Pattern> pattern = Pattern::Compile(parameters.pattern);
    if (!pattern.ok()) return Annotate(pattern.status(), "reward.pattern");
    registry.rewards_["regex"] = {RegexReward(*pattern), /*reads_text=*/true};
  }
  if (!parameters.format.empty()) {
    absl::StatusOr<Pattern> format = Pattern::Compile(parameters.format);
    if (!format.ok()) return Annotate(format.status(), "reward.format");
    registry.rewards_["format"] = {[format = *std::move(format)](const RewardInput& input) {
                                     return absl::StatusOr<RewardValue>(OneIf(format.MatchesAll(input.text)));
                                   },
                                   /*reads_text=*/true};
  }
  if (parameters.overlong_buffer > 0) {
    registry.rewards_["overlong"] = {OverlongReward(parameters.overlong_buffer)};
  }
  return registry;
}

absl::Status RewardRegistry::Register(const std::string& name, RewardFunction function, bool reads_text) {
  if (rewards_.emplace(name, Reward{std::move(function), reads_text}).second) return absl::OkStatus();
  return Error(absl::StatusCode::kAlreadyExists, "REWARD_EXISTS",
               absl::StrCat("a reward is named ", name, " already; choose another name"));
}

absl::StatusOr<const RewardRegistry::Reward*> RewardRegistry::Find(const std::string& name) const {
  auto found = rewards_.find(name);
  if (found != rewards_.end()) return &found->second;
  std::string known;
  for (const auto& [other, reward] : rewards_) absl::StrAppend(&known, known.empty() ? "" : ", ", other);
  return Error(absl::StatusCode::kNotFound, "UNKNOWN_REWARD",
               absl::StrCat("this rollouter knows no reward named ", name, "; it knows ", known,
                            name == "regex"      ? " (regex needs reward.pattern)"
                            : name == "format"   ? " (format needs reward.format)"
                            : name == "overlong" ? " (overlong needs reward.overlong_buffer)"
                                                 : ""));
}

}  // namespace syncopate::rollouter
