#include "trainer/record/sample_record.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/utf8.h"
#include "trainer/loss/outcomes.h"

namespace syncopate::trainer {
namespace {

using Json = nlohmann::ordered_json;
using Render = std::function<std::string(const std::vector<int32_t>&)>;

std::string Repaired(const std::string& text) { return IsUtf8(text) ? text : ReplaceMalformed(text); }

// Appends the name to `cut` if the text was cut, at the end of a character.
std::string ShownText(const std::string& raw, const char* name, Json* cut) {
  const std::string text = Repaired(raw);
  if (text.size() <= kMaxSampleTextBytes) return text;
  cut->push_back(name);
  return text.substr(0, WellFormedPrefix(absl::string_view(text).substr(0, kMaxSampleTextBytes)));
}

// JSON has no other numbers.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// A user's row may say anything under these keys.
std::string RowText(const nlohmann::json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>()
                            : found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Calls `visit(begin, end, is_given)` for each run of tokens with one writer.
template <typename Visit>
void ForSegments(const Trajectory& answer, int32_t begin, int32_t end, const Visit& visit) {
  int32_t next = begin;
  for (const TokenRange& range : answer.given) {
    if (range.end <= next || range.begin >= end) continue;
    if (range.begin > next) visit(next, range.begin, false);
    visit(std::max(range.begin, next), std::min(range.end, end), true);
    next = std::min(range.end, end);
  }
  if (next < end) visit(next, end, false);
}

std::vector<int32_t> IdsOf(const Trajectory& answer, int32_t begin, int32_t end) {
  return {answer.tokens.begin() + begin, answer.tokens.begin() + end};
}

// The turns of an answer in their order: what the environment said, what the policy wrote. A turn's reward, and the
// seconds that the environment took to answer it, stand with the text that the policy wrote last in it. Texts add up to
// no more than the answer's.
Json TurnsJson(const Trajectory& answer, const Render& render, Json* cut) {
  std::vector<Turn> turns = answer.turns;
  if (turns.empty()) turns.push_back({.end = static_cast<int32_t>(answer.tokens.size())});
  Json list = Json::array();
  size_t room = kMaxSampleTextBytes;
  int32_t begin = 0;
  for (const Turn& turn : turns) {
    const int32_t end = std::clamp(turn.end, begin, static_cast<int32_t>(answer.tokens.size()));
    ForSegments(answer, begin, end, [&](int32_t from, int32_t to, bool is_given) {
      std::string text = Repaired(render(IdsOf(answer, from, to)));
      if (text.size() > room) {
        if (std::find(cut->begin(), cut->end(), "turns") == cut->end()) cut->push_back("turns");
        text = text.substr(0, WellFormedPrefix(absl::string_view(text).substr(0, room)));
      }
      room -= text.size();
      Json segment = {{"role", is_given ? "environment" : "policy"}, {"begin", from}, {"end", to}, {"text", text}};
      if (!answer.turns.empty() && !is_given && to == end) {
        segment["reward"] = Number(turn.reward);
        segment["seconds"] = Number(turn.seconds);
      }
      list.push_back(std::move(segment));
    });
    begin = end;
  }
  return list;
}

const char* FinishName(FinishReason finish) {
  if (finish == FinishReason::kLength) return "length";
  return finish == FinishReason::kAborted ? "aborted" : "stop";
}

// The tokens that the policy wrote and that are not beyond the age limit, as ranges.
std::vector<TokenRange> LossRanges(const Trajectory& sample, const loss::LossOptions& options, int64_t step) {
  std::vector<TokenRange> ranges;
  for (const VersionSpan& span : sample.spans) {
    if (options.max_token_age >= 0 && loss::GetAge(span.version, step) > options.max_token_age) continue;
    ForSegments(sample, span.begin, span.end, [&](int32_t begin, int32_t end, bool is_given) {
      if (is_given) return;
      if (!ranges.empty() && ranges.back().end == begin) {
        ranges.back().end = end;
      } else {
        ranges.push_back({begin, end});
      }
    });
  }
  return ranges;
}

SampleResult TrainedResult(const Trajectory& sample, const loss::SampleAdvantage& advantage,
                           const loss::LossOptions& options, int64_t step, bool made_update) {
  if (sample.rejected) return {.name = "rejected"};
  if (loss::IsMasked(sample, options)) return {.name = "masked"};
  SampleResult outcome{.name = "trained", .loss = LossRanges(sample, options, step)};
  // The reference policy's penalty on each token is known to the step alone.
  if (!options.kl_in_reward || !options.needs_reference()) {
    double sum = 0;
    for (const double value : advantage.tokens) sum += value;
    outcome.advantage = advantage.tokens.empty() ? advantage.value : sum / static_cast<double>(advantage.tokens.size());
    if (!advantage.HasSignal() && !options.has_penalties()) outcome.name = "no_signal";
  }
  if (outcome.loss.empty()) outcome.name = "stale";
  if (!made_update) outcome.name = "update_skipped";
  return outcome;
}

Json RangesJson(const std::vector<TokenRange>& ranges) {
  Json list = Json::array();
  for (const TokenRange& range : ranges) list.push_back({range.begin, range.end});
  return list;
}

void AddAnswer(const SampleRecord& record, const Render& render, Json* line) {
  const Trajectory& answer = *record.answer;
  Json cut = Json::array();
  (*line)["prompt"] = ShownText(render(*record.prompt_ids), "prompt", &cut);
  (*line)["answer"] = ShownText(render(answer.tokens), "answer", &cut);
  if (!record.expected.empty()) (*line)["expected"] = ShownText(record.expected, "expected", &cut);
  if (!answer.extracted.empty()) (*line)["extracted"] = Repaired(answer.extracted);
  if (!answer.turns.empty() || !answer.given.empty()) (*line)["turns"] = TurnsJson(answer, render, &cut);
  (*line)["prompt_tokens"] = record.prompt_ids->size();
  (*line)["answer_tokens"] = answer.tokens.size();
  if (record.prompt_ids->size() <= kMaxSampleIds) (*line)["prompt_ids"] = *record.prompt_ids;
  if (answer.tokens.size() <= kMaxSampleIds) (*line)["answer_ids"] = answer.tokens;
  if (!answer.given.empty()) (*line)["given"] = RangesJson(answer.given);
  if (!cut.empty()) (*line)["cut"] = std::move(cut);
}

void AddReward(const SampleRecord& record, Json* line) {
  const Trajectory& answer = *record.answer;
  if (record.kind != "supervised") {
    (*line)["reward"] = Number(double{answer.reward});
    for (const RewardPart& part : answer.reward_parts) {
      (*line)["reward_parts"][Repaired(part.name)] = Number(double{part.value});
    }
    (*line)["finish"] = FinishName(answer.finish);
    (*line)["generate_seconds"] = Number(answer.generate_seconds);
  }
  if (record.kind == "eval") return;
  if (record.result.advantage.has_value()) (*line)["advantage"] = Number(*record.result.advantage);
  (*line)["loss"] = RangesJson(record.result.loss);
}

}  // namespace

absl::StatusOr<std::vector<std::vector<SampleResult>>> TrainedResults(const std::vector<const TrajectoryGroup*>& groups,
                                                                      const loss::LossOptions& options, int64_t step,
                                                                      bool made_update) {
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<loss::RewardWeight> parts, loss::PartWeights(groups, options.advantage));
  std::vector<double> weights;
  for (const loss::RewardWeight& part : parts) weights.push_back(part.weight);
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<loss::GroupOutcomes> outcomes,
                             loss::GetOutcomes(groups, options, parts));
  const std::vector<loss::SampleAdvantage> advantages = loss::Advantages(options.advantage, outcomes, weights);
  std::vector<std::vector<SampleResult>> made;
  size_t index = 0;
  for (const TrajectoryGroup* group : groups) {
    std::vector<SampleResult>& of_group = made.emplace_back();
    for (const Trajectory& sample : group->samples) {
      of_group.push_back(TrainedResult(sample, advantages[index++], options, step, made_update));
    }
  }
  return made;
}

SampleResult SupervisedResult(const Trajectory& sample) {
  SampleResult outcome{.name = "trained"};
  ForSegments(sample, 0, static_cast<int32_t>(sample.tokens.size()), [&](int32_t begin, int32_t end, bool is_given) {
    if (!is_given) outcome.loss.push_back({begin, end});
  });
  return outcome;
}

void AddOrigin(const PromptOrigin& origin, const Render& render, SampleRecord* record) {
  record->environment = origin.task.environment;
  if (!origin.answer_ids.empty()) record->expected = render(origin.answer_ids);
  const nlohmann::json row = nlohmann::json::parse(origin.task.row_json, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object()) return;
  record->data_source = RowText(row, "data_source");
  if (record->expected.empty()) record->expected = RowText(row, "ground_truth");
  if (record->environment.empty()) record->environment = RowText(row, "environment");
}

std::string MakeSampleLine(const SampleRecord& record, const Render& render) {
  const Trajectory& answer = *record.answer;
  Json line = {{"kind", record.kind},
               {"epoch", record.version.epoch},
               {"step", record.version.step},
               {"group", record.lease.group.ToString()},
               {"attempt", record.lease.attempt},
               {"sample", record.sample},
               {"trained", record.result.name == "trained"},
               {"outcome", record.result.name},
               {"unix_seconds", record.unix_seconds}};
  if (record.is_replay) line["replay"] = true;
  const std::pair<const char*, const std::string*> names[] = {{"rollouter", &record.rollouter},
                                                              {"set", &record.set},
                                                              {"file", &record.file},
                                                              {"data_source", &record.data_source},
                                                              {"environment", &record.environment}};
  for (const auto& [key, value] : names) {
    if (!value->empty()) line[key] = Repaired(value->substr(0, kMaxSampleTextBytes));
  }
  AddReward(record, &line);
  for (const VersionSpan& span : answer.spans) {
    line["versions"].push_back({{"version", span.version.ToString()}, {"begin", span.begin}, {"end", span.end}});
  }
  AddAnswer(record, render, &line);
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<SampleHead> ReadSampleHead(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, "{\"kind\":\"")) return std::nullopt;
  const size_t quote = line.substr(0, 32).find('"');
  if (quote == absl::string_view::npos) return std::nullopt;
  SampleHead head{.kind = std::string(line.substr(0, quote))};
  line.remove_prefix(quote);
  auto number = [&line](absl::string_view before, int64_t* value) {
    if (!absl::ConsumePrefix(&line, before)) return false;
    const size_t end = line.substr(0, 32).find_first_of(",}");
    if (end == absl::string_view::npos || !absl::SimpleAtoi(line.substr(0, end), value)) return false;
    line.remove_prefix(end);
    return true;
  };
  const bool read = number("\",\"epoch\":", &head.version.epoch) && number(",\"step\":", &head.version.step);
  return read ? std::optional<SampleHead>(std::move(head)) : std::nullopt;
}

bool IsUndone(const SampleHead& head, int64_t restored_step) {
  // Evaluations and drops are not repeated: a replay publishes nothing, and the log has the drops.
  return (head.kind == "train" || head.kind == "supervised") && head.version.step > restored_step;
}

}  // namespace syncopate::trainer
