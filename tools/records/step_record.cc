#include "tools/records/step_record.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

// A file of an earlier build lacks figures, and one of a later build has others: what is missing is 0, what is unknown
// is passed over.
double Number(const json& object, const char* key) { return MaybeNumber(object, key).value_or(0.0); }

int64_t Integer(const json& object, const char* key) { return std::llround(Number(object, key)); }

std::string Text(const json& object, const char* key) {
  auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

absl::StatusOr<StepRecord> ParseStepRecord(const std::string& line) {
  json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  // The last line of a run that was killed may be cut in the middle.
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
  record.eval_exact = MaybeNumber(object, "eval_exact");
  record.eval_reward = MaybeNumber(object, "eval_reward");
  record.eval_prompts = Integer(object, "eval_prompts");
  record.eval_asked = Integer(object, "eval_asked");
  if (auto parts = object.find("reward_parts"); parts != object.end() && parts->is_object()) {
    for (const auto& [part, mean] : parts->items()) {
      if (mean.is_number()) record.reward_parts[part] = mean.get<double>();
    }
  }
  auto alarms = object.find("alarms");
  if (alarms != object.end() && alarms->is_array()) {
    for (const json& alarm : *alarms) {
      if (alarm.is_string()) record.alarms.push_back(alarm.get<std::string>());
    }
  }
  auto samples = object.find("samples");
  if (samples == object.end() || !samples->is_array()) return record;
  for (const json& sample : *samples) {
    if (!sample.is_object()) continue;
    record.samples.push_back(
        {Text(sample, "prompt"), Text(sample, "answer"), Text(sample, "expected"), MaybeNumber(sample, "reward")});
  }
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
  // A repeated step may have taken no time to speak of, and has no rate.
  if (figures.step_seconds > 0) {
    auto rate = std::llround(static_cast<double>(figures.trained_tokens) / figures.step_seconds);
    absl::StrAppend(&text, "  ", Thousands(rate), " tokens/s  idle ",
                    Percent(Share(figures.wait_seconds, figures.step_seconds)));
  }
  return text;
}

std::string ToString(const std::vector<std::string>& alarms) {
  std::string text;
  // A name that this build does not know is shown as it is.
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
