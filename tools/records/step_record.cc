#include "tools/records/step_record.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/words.h"
#include "base/status.h"

namespace syncopate::records {
namespace {

using nlohmann::json;

std::optional<double> MaybeNumber(const json& object, const char* key) {
  auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// A file of an older build may lack figures, and one of a newer build may have others: a missing figure is 0, an
// unknown one is ignored.
double Number(const json& object, const char* key) { return MaybeNumber(object, key).value_or(0.0); }

int64_t Integer(const json& object, const char* key) { return std::llround(Number(object, key)); }

std::string Text(const json& object, const char* key) {
  auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::map<std::string, double> Numbers(const json& object, const char* key) {
  std::map<std::string, double> numbers;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object()) return numbers;
  for (const auto& [name, value] : found->items()) {
    if (value.is_number()) numbers[name] = value.get<double>();
  }
  return numbers;
}

std::vector<EvaluatedSubset> Subsets(const json& object, const char* key) {
  std::vector<EvaluatedSubset> subsets;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object()) return subsets;
  for (const auto& [name, value] : found->items()) {
    if (value.is_object()) {
      subsets.push_back({.name = name,
                         .prompts = Integer(value, "prompts"),
                         .reward = Number(value, "reward"),
                         .response_tokens = Number(value, "response_tokens"),
                         .turns = Number(value, "turns")});
    }
  }
  return subsets;
}

SampleAnswer ParseSample(const json& object) {
  SampleAnswer sample{Text(object, "prompt"), Text(object, "answer"), Text(object, "expected"),
                      MaybeNumber(object, "reward")};
  if (object.contains("question")) sample.question = Text(object, "question");
  if (object.contains("reply")) sample.reply = Text(object, "reply");
  return sample;
}

EvaluatedSet::Mean ParseMean(const json& object) { return {Number(object, "mean"), MaybeNumber(object, "interval")}; }

std::vector<EvaluatedSet> ParseSets(const json& object) {
  std::vector<EvaluatedSet> sets;
  const auto named = object.find("eval_sets");
  if (named == object.end() || !named->is_object()) return sets;
  for (const auto& [name, figures] : named->items()) {
    if (!figures.is_object()) continue;
    EvaluatedSet& set = sets.emplace_back();
    set.name = name;
    set.prompts = Integer(figures, "prompts");
    set.samples = Integer(figures, "samples");
    set.missing = Integer(figures, "missing");
    set.response_tokens_mean = Number(figures, "response_tokens_mean");
    set.truncated_ratio = Number(figures, "truncated_ratio");
    if (figures.contains("reward") && figures["reward"].is_object()) set.reward = ParseMean(figures["reward"]);
    if (figures.contains("majority") && figures["majority"].is_object()) set.majority = ParseMean(figures["majority"]);
    const auto pass = figures.find("pass");
    if (pass == figures.end() || !pass->is_object()) continue;
    for (const auto& [text, mean] : pass->items()) {
      int64_t k = 0;
      if (absl::SimpleAtoi(text, &k) && mean.is_object()) set.pass.emplace_back(k, ParseMean(mean));
    }
    std::sort(set.pass.begin(), set.pass.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  return sets;
}

// "0.412 +- 0.031"
std::string MeanText(const EvaluatedSet::Mean& mean) {
  std::string text = absl::StrFormat("%.3f", mean.mean);
  if (mean.interval.has_value()) absl::StrAppendFormat(&text, " +- %.3f", *mean.interval);
  return text;
}

std::string SetText(const EvaluatedSet& set) {
  std::string text = absl::StrFormat("%s  %d prompts of %d", set.name, set.prompts, set.samples);
  if (set.reward.has_value()) absl::StrAppend(&text, "  avg ", MeanText(*set.reward));
  if (set.majority.has_value()) absl::StrAppend(&text, "  maj@", set.samples, " ", MeanText(*set.majority));
  for (const auto& [k, mean] : set.pass) absl::StrAppend(&text, "  pass@", k, " ", MeanText(mean));
  absl::StrAppendFormat(&text, "  %.1f tokens", set.response_tokens_mean);
  if (set.truncated_ratio > 0) absl::StrAppend(&text, ", ", Percent(set.truncated_ratio), " cut off");
  if (set.missing > 0) absl::StrAppend(&text, ", ", set.missing, " missing");
  return text;
}

void ParseEvaluation(const json& object, StepRecord* record) {
  record->eval_exact = MaybeNumber(object, "eval_exact");
  record->eval_reward = MaybeNumber(object, "eval_reward");
  record->eval_prompts = Integer(object, "eval_prompts");
  record->eval_asked = Integer(object, "eval_asked");
  record->eval_reward_parts = Numbers(object, "eval_reward_parts");
  record->eval_response_tokens_mean = Number(object, "eval_response_tokens_mean");
  record->eval_response_tokens_min = Integer(object, "eval_response_tokens_min");
  record->eval_response_tokens_max = Integer(object, "eval_response_tokens_max");
  record->eval_truncated = Integer(object, "eval_truncated");
  record->eval_files = Subsets(object, "eval_files");
  record->eval_data_sources = Subsets(object, "eval_data_sources");
  record->eval_environments = Subsets(object, "eval_environments");
  record->eval_turns_mean = Number(object, "eval_turns_mean");
  record->eval_sets = ParseSets(object);
  const auto samples = object.find("samples");
  if (samples == object.end() || !samples->is_array()) return;
  for (const json& sample : *samples) {
    if (sample.is_object()) record->samples.push_back(ParseSample(sample));
  }
}

std::string Listed(const std::vector<EvaluatedSubset>& subsets) {
  return absl::StrJoin(subsets, ", ", [](std::string* text, const EvaluatedSubset& one) {
    absl::StrAppendFormat(text, "%s %.3f", one.name, one.reward);
    if (one.turns > 0) absl::StrAppendFormat(text, " in %.1f turns", one.turns);
  });
}

}  // namespace

absl::StatusOr<StepRecord> ParseStepRecord(const std::string& line) {
  json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  // The last line of a killed run may be cut off.
  if (!object.is_object()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_STEP_RECORD", "a step record is not a JSON object");
  }
  StepRecord record;
  record.is_evaluation = Text(object, "kind") == "eval";
  record.supervised = Text(object, "objective") == "sft";
  record.epoch = Integer(object, "epoch");
  record.step = Integer(object, "step");
  for (const trainer::StepFigure& figure : trainer::StepFigureTable())
    trainer::SetFigureValue(figure, Number(object, figure.name), &record.figures);
  record.unix_seconds = Number(object, "unix_seconds");
  record.held_out_loss = MaybeNumber(object, "held_out_loss");
  record.reward_parts = Numbers(object, "reward_parts");
  auto alarms = object.find("alarms");
  if (alarms != object.end() && alarms->is_array()) {
    for (const json& alarm : *alarms) {
      if (alarm.is_string()) record.alarms.push_back(alarm.get<std::string>());
    }
  }
  ParseEvaluation(object, &record);
  return record;
}

std::string EvaluationText(const StepRecord& evaluation) {
  std::string text = absl::StrFormat("evaluation %.3f", evaluation.eval_reward.value_or(0));
  if (evaluation.eval_exact.has_value()) absl::StrAppendFormat(&text, "  exact %.3f", *evaluation.eval_exact);
  if (evaluation.eval_prompts < evaluation.eval_asked) {
    absl::StrAppendFormat(&text, " over %d of %d prompts", evaluation.eval_prompts, evaluation.eval_asked);
  }
  return text;
}

std::vector<std::string> EvaluationPhrases(const StepRecord& evaluation) {
  std::vector<std::string> phrases;
  if (!evaluation.eval_files.empty()) phrases.push_back("by file " + Listed(evaluation.eval_files));
  if (!evaluation.eval_data_sources.empty()) {
    phrases.push_back("by data_source " + Listed(evaluation.eval_data_sources));
  }
  if (!evaluation.eval_environments.empty()) {
    phrases.push_back("by environment " + Listed(evaluation.eval_environments));
  }
  if (evaluation.eval_turns_mean > 0) {
    phrases.push_back(absl::StrFormat("%.2f turns on average", evaluation.eval_turns_mean));
  }
  std::vector<EvaluatedSubset> parts;
  for (const auto& [name, mean] : evaluation.eval_reward_parts) parts.push_back({.name = name, .reward = mean});
  if (parts.size() > 1) phrases.push_back("parts " + Listed(parts));
  if (evaluation.eval_response_tokens_max > 0) {
    phrases.push_back(absl::StrFormat("answers of %d to %d tokens, %.1f on average",
                                      evaluation.eval_response_tokens_min, evaluation.eval_response_tokens_max,
                                      evaluation.eval_response_tokens_mean));
    if (evaluation.eval_truncated > 0) absl::StrAppend(&phrases.back(), ", ", evaluation.eval_truncated, " cut off");
  }
  for (const EvaluatedSet& set : evaluation.eval_sets) phrases.push_back("set " + SetText(set));
  return phrases;
}

std::string ToString(const StepRecord& record) {
  if (record.is_evaluation) {
    return absl::StrFormat("step %d  %s (greedy, on the evaluation prompts)", record.step, EvaluationText(record));
  }
  const trainer::StepFigures& figures = record.figures;
  std::string text =
      record.supervised
          ? absl::StrFormat("step %d  loss %.4f (supervised)  entropy %.2f", record.step, figures.loss, figures.entropy)
          : absl::StrFormat("step %d  reward %.3f  loss %.4f  entropy %.2f  staleness %.1f/%d", record.step,
                            figures.reward_mean, figures.loss, figures.entropy, figures.staleness_mean,
                            figures.staleness_max);
  if (record.held_out_loss.has_value()) absl::StrAppendFormat(&text, "  held-out loss %.4f", *record.held_out_loss);
  // A repeated step may have taken almost no time; it has no rate then.
  if (figures.step_seconds > 0) {
    auto rate = std::llround(static_cast<double>(figures.trained_tokens) / figures.step_seconds);
    absl::StrAppend(&text, "  ", Thousands(rate), " tokens/s  idle ",
                    Percent(Share(figures.wait_seconds, figures.step_seconds)));
  }
  return text;
}

std::string ToString(const std::vector<std::string>& alarms) {
  std::string text;
  // An alarm that this build does not know is shown by its name.
  for (const std::string& alarm : alarms) {
    absl::StrAppend(&text, text.empty() ? "alarm: " : ", ",
                    alarm == "entropy"           ? "entropy has collapsed"
                    : alarm == "no_signal"       ? "groups have no signal"
                    : alarm == "evaluation_fell" ? "the evaluation fell"
                                                 : alarm);
  }
  return text;
}

}  // namespace syncopate::records
