#include "tools/report/run_history.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "base/utf8.h"
#include "services/wire/codec.h"
#include "synchronizer/sync_outcome.h"

namespace syncopate::report {
namespace {

using nlohmann::json;
using Values = std::vector<std::pair<std::string, double>>;

std::string Shown(const std::string& text) {
  if (text.size() <= RunHistory::kMaxSampleBytes) return ReplaceMalformed(text);
  // Cut at the end of a character.
  return text.substr(0, WellFormedPrefix(absl::string_view(text).substr(0, RunHistory::kMaxSampleBytes))) + " ...";
}

double Number(const v1::Event& event, const char* field) {
  auto found = event.fields().find(field);
  double value = 0;
  return found != event.fields().end() && absl::SimpleAtod(found->second, &value) ? value : 0;
}

std::string Text(const v1::Event& event, const char* field) {
  auto found = event.fields().find(field);
  return found == event.fields().end() ? "" : found->second;
}

std::map<std::string, double> EvaluationFigures(const records::StepRecord& record) {
  std::map<std::string, double> figures;
  for (const auto& [part, mean] : record.eval_reward_parts) figures["part:" + part] = mean;
  for (const records::EvaluatedSubset& one : record.eval_files) figures["file:" + one.name] = one.reward;
  for (const records::EvaluatedSubset& one : record.eval_data_sources) figures["source:" + one.name] = one.reward;
  for (const records::EvaluatedSubset& one : record.eval_environments) {
    figures["environment:" + one.name] = one.reward;
    figures["turns:" + one.name] = one.turns;
    figures["tokens:" + one.name] = one.response_tokens;
  }
  if (record.eval_turns_mean > 0) figures["turns:mean"] = record.eval_turns_mean;
  if (record.eval_response_tokens_max > 0) {
    figures["tokens:mean"] = record.eval_response_tokens_mean;
    figures["tokens:shortest"] = static_cast<double>(record.eval_response_tokens_min);
    figures["tokens:longest"] = static_cast<double>(record.eval_response_tokens_max);
  }
  return figures;
}

}  // namespace

void RunHistory::AddRecord(const records::StepRecord& record) {
  NoteAlarms(record);
  if (record.is_evaluation) {
    AddEvaluation(record);
    return;
  }
  // A resumed run repeats steps; the newer records count.
  if (record.step <= last_step_) steps_.DropFrom(record.step);
  last_step_ = record.step;
  const trainer::StepFigures& step = record.figures;
  Values values;
  for (const trainer::StepFigure& figure : trainer::StepFigureTable()) {
    values.emplace_back(figure.name, trainer::FigureValue(step, figure));
  }
  if (record.unix_seconds > 0) {
    if (first_record_seconds_ == 0) first_record_seconds_ = record.unix_seconds;
    values.emplace_back("seconds_so_far", record.unix_seconds - first_record_seconds_);
  }
  if (record.held_out_loss.has_value()) values.emplace_back("held_out_loss", *record.held_out_loss);
  for (const auto& [part, mean] : record.reward_parts) values.emplace_back("part:" + part, mean);
  if (step.step_seconds > 0) {
    values.emplace_back("tokens_per_second", static_cast<double>(step.trained_tokens) / step.step_seconds);
    values.emplace_back("idle_ratio", step.wait_seconds / step.step_seconds);
  }
  steps_.Add(record.step, values);
}

void RunHistory::AddEvaluation(const records::StepRecord& record) {
  Evaluation evaluation{record.epoch,      record.step,         record.eval_reward,
                        record.eval_exact, record.eval_prompts, EvaluationFigures(record),
                        record.samples};
  while (!evaluations_.empty() && evaluations_.back().step >= record.step) evaluations_.pop_back();
  evaluations_.push_back(std::move(evaluation));
  if (evaluations_.size() > kMaxEvaluations) evaluations_.erase(evaluations_.begin() + 1);  // the first one stays
  // Older evaluations lose their samples, except the first one, with which learning is compared.
  if (evaluations_.size() > kMaxSampledEvaluations) {
    evaluations_[evaluations_.size() - kMaxSampledEvaluations].samples.clear();
  }
  ++evaluations_revision_;
}

void RunHistory::NoteAlarms(const records::StepRecord& record) {
  constexpr size_t kMaxAlarms = 200;
  const auto stands = [&record](const std::string& name) {
    return std::count(record.alarms.begin(), record.alarms.end(), name) > 0;
  };
  for (Alarm& alarm : alarms_) {
    if (!alarm.to.has_value() && !stands(alarm.name)) alarm.to = record.step;
  }
  for (const std::string& name : record.alarms) {
    const bool known = std::any_of(alarms_.begin(), alarms_.end(),
                                   [&name](const Alarm& alarm) { return alarm.name == name && !alarm.to.has_value(); });
    if (!known && alarms_.size() < kMaxAlarms) alarms_.push_back({name, record.step, std::nullopt});
  }
}

// A late rollouter's version may be older than the previous one: its point is put at the newest place.
int64_t RunHistory::SyncPlace(const PolicyVersion& version) {
  if (version.epoch > sync_epoch_) {
    sync_epoch_ = version.epoch;
    last_sync_step_ = version.step;
    syncs_.DropFrom(version.step);
  }
  return last_sync_step_ = std::max(last_sync_step_, version.step);
}

void RunHistory::AddSync(const Sync& sync) {
  syncs_.Add(SyncPlace(sync.version), {{"stage", sync.stage},
                                       {"prepare", sync.prepare},
                                       {"transfer", sync.transfer},
                                       {"verify", sync.verify},
                                       {"install", sync.install},
                                       {"total", sync.total}});
}

void RunHistory::AddPause(const PolicyVersion& version, double seconds) {
  syncs_.Add(SyncPlace(version), {{"pause", seconds}});
}

void RunHistory::AddVersion(const std::string& who, double unix_seconds, int64_t step) {
  if (version_now_.size() > kMaxRollouters && version_now_.count(who) == 0) return;
  if (!first_seconds_.has_value()) first_seconds_ = unix_seconds;
  version_now_[who] = step;
  // Clocks of several processes may differ: an older time is put at the newest place.
  last_version_ms_ = std::max(last_version_ms_, std::llround(1e3 * (unix_seconds - *first_seconds_)));
  versions_.Add(last_version_ms_, {{who, static_cast<double>(step)}});
}

void RunHistory::AddEvent(const v1::Event& event) {
  const PolicyVersion version = wire::FromProto(event.version());
  if (event.kind() == "publish") AddVersion("trainer", event.unix_seconds(), version.step);
  if (event.kind() == "install" || event.kind() == "relabel") {
    AddVersion(event.role(), event.unix_seconds(), version.step);
  }
  if (event.kind() == "install") AddPause(version, Number(event, "pause_seconds"));
  if (event.kind() != "sync") return;
  if (synchronizer::ClassifySyncResult(Text(event, "result")) != synchronizer::SyncOutcome::kDone) return;
  AddSync({.version = version,
           .stage = Number(event, "stage_seconds"),
           .prepare = Number(event, "prepare_seconds"),
           .transfer = Number(event, "transfer_seconds"),
           .verify = Number(event, "verify_seconds"),
           .install = Number(event, "install_seconds"),
           .total = Number(event, "total_seconds")});
}

json RunHistory::EvaluationsJson() const {
  json list = json::array();
  for (const Evaluation& one : evaluations_) {
    json line = {{"step", one.step}, {"epoch", one.epoch}, {"prompts", one.prompts}};
    if (one.reward_mean.has_value()) line["reward_mean"] = *one.reward_mean;
    if (one.exact.has_value()) line["exact"] = *one.exact;
    if (!one.figures.empty()) line["figures"] = one.figures;
    list.push_back(std::move(line));
  }
  return list;
}

json RunHistory::SamplesJson() const {
  json list = json::array();
  for (const Evaluation& one : evaluations_) {
    if (one.samples.empty()) continue;
    json answers = json::array();
    for (const records::SampleAnswer& sample : one.samples) {
      json answer = {{"prompt", Shown(sample.prompt)}, {"answer", Shown(sample.answer)}};
      if (!sample.expected.empty()) answer["expected"] = Shown(sample.expected);
      if (sample.reward.has_value()) answer["reward"] = *sample.reward;
      answers.push_back(std::move(answer));
    }
    list.push_back({{"step", one.step}, {"answers", std::move(answers)}});
  }
  return list;
}

json RunHistory::ToJson(const Have& have) const {
  json config = json::array(), alarms = json::array();
  for (const auto& [key, value] : description_.config) config.push_back({key, value});
  for (const Alarm& alarm : alarms_) {
    alarms.push_back({{"name", alarm.name},
                      {"words", records::ToString(std::vector<std::string>{alarm.name})},
                      {"from", alarm.from},
                      {"to", alarm.to.has_value() ? json(*alarm.to) : json(nullptr)}});
  }
  json run = {{"name", description_.name},
              {"folder", description_.folder},
              {"status", description_.status},
              {"reason", description_.reason},
              {"log", description_.log},
              {"checkpoints",
               {{"failed", description_.checkpoints.failed},
                {"error", description_.checkpoints.error},
                {"best", description_.checkpoints.best},
                {"best_reward", description_.checkpoints.best_reward}}},
              {"first_unix_seconds", first_record_seconds_},
              {"steps_total", description_.steps_total},
              {"last_step", std::max<int64_t>(last_step_, 0)},
              {"summary", description_.summary},
              {"warnings", description_.warnings},
              {"alarms", std::move(alarms)},
              {"version_now", version_now_},
              {"revision", evaluations_revision_},
              {"steps", steps_.Since(have.step_span, have.steps)},
              {"syncs", syncs_.Since(have.sync_span, have.syncs)},
              {"versions", versions_.Since(have.version_span, have.versions)}};
  if (have.evaluations_revision != evaluations_revision_) {
    run["evaluations"] = EvaluationsJson();
    run["samples"] = SamplesJson();
  }
  if (have.steps == 0) run["config"] = std::move(config);
  return run;
}

}  // namespace syncopate::report
