#include "trainer/loop/evaluation_rounds.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

// How long one wait at the end lasts before requests are looked at again.
constexpr absl::Duration kPoll = absl::Milliseconds(50);

absl::Time Now() { return Clock::Real()->Now(); }

// The right answer that a row of a data file names, for people; "" if it names none.
std::string IsTruthy(const std::string& row_json) {
  const nlohmann::json row = nlohmann::json::parse(row_json, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object()) return "";
  const auto found = row.find("ground_truth");
  if (found == row.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>()
                            : found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The user's last message, which a row of a data file always has; "" of a built-in task.
std::string MakeQuestion(const std::string& row_json) {
  const nlohmann::json row = nlohmann::json::parse(row_json, nullptr, /*allow_exceptions=*/false);
  const auto found = row.is_object() ? row.find("prompt") : row.end();
  return found != row.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

void EvaluationRounds::Start(const PolicyVersion& version) {
  if (evaluated_ == version) return;
  // An evaluation that no rollouter serves, because the syncs of its version failed, is replaced by the new one.
  if (under_way_ && parts_.data->EvaluationIsServed()) {
    SYNCOPATE_LOG(kWarning, "no evaluation of %s yet: that of %s is not over", version.ToString(),
                  evaluated_.ToString());
    LoseMissed();
    missed_ = version;
    return;
  }
  Begin(version, /*is_due=*/true);
}

void EvaluationRounds::Begin(const PolicyVersion& version, bool is_due) {
  if (under_way_ && is_due_)
    Lose(evaluated_, absl::StrCat("no rollouter serves it; that of ", version.ToString(), " is due"));
  parts_.data->StartEvaluation(version);
  evaluated_ = version;
  under_way_ = true;
  is_due_ = is_due;
  owed_ = false;
}

void EvaluationRounds::Lose(const PolicyVersion& version, const std::string& why) {
  SYNCOPATE_LOG(kWarning, "the evaluation of %s is lost: %s", version.ToString(), why);
  parts_.observer->RecordLostEvaluation(version);
}

void EvaluationRounds::LoseMissed() {
  if (!missed_.has_value()) return;
  Lose(*missed_, "another was under way while it was served");
  missed_.reset();
}

// Evaluates a version that rollouters serve, not the newest published one: if most syncs fail, rollouters would skip
// each newest version and its evaluation would never be answered.
void EvaluationRounds::MakeUp() {
  if ((!owed_ && !missed_.has_value()) || finishing_) return;
  const PolicyVersion served = parts_.data->NewestServed();
  if (served <= evaluated_) return;  // until a sync gets through
  const bool is_due = missed_ == served;
  if (is_due) missed_.reset();
  LoseMissed();
  Begin(served, is_due);
}

void EvaluationRounds::Collect(absl::Time deadline) {
  if (!under_way_) return MakeUp();
  const absl::Time begin = Now();
  absl::StatusOr<EvaluationResult> result = parts_.data->WaitForEvaluation(deadline);
  parts_.phases->Add(LoopPhase::kEvaluate, Now() - begin);
  if (absl::IsDeadlineExceeded(result.status())) return;
  under_way_ = false;
  if (result.ok()) {
    Report(*std::move(result));
  } else {
    if (is_due_) Lose(evaluated_, std::string(result.status().message()));
    owed_ = true;
  }
  MakeUp();
}

EvaluationReport::Sample EvaluationRounds::ShownSample(const EvaluationResult::Sample& sample) const {
  const PromptSource& prompts = *parts_.prompts;
  EvaluationReport::Sample shown{
      .prompt = prompts.Render(sample.prompt_ids),
      .answer = prompts.Render(sample.answer_ids),
      .expected = sample.expected_ids.empty() ? IsTruthy(sample.row_json) : prompts.Render(sample.expected_ids),
      .reward = sample.reward,
      .question = MakeQuestion(sample.row_json),
      .reply = prompts.RenderPlain(sample.answer_ids)};
  // A conversation may have no message of the user, and a built-in task has no row.
  if (shown.question.empty()) shown.question = prompts.RenderPlain(sample.prompt_ids);
  return shown;
}

void EvaluationRounds::Report(EvaluationResult result) {
  if (result.prompts == 0) {
    SYNCOPATE_LOG(kError, "the evaluation of %s has no figure: none of its %d prompts was judged",
                  result.version.ToString(), result.asked);
    return;
  }
  EvaluationReport report;
  report.version = result.version;
  report.exact = result.exact;
  report.reward_mean = result.reward_mean;
  report.prompts = result.prompts;
  report.asked = result.asked;
  report.figures = result.figures;
  report.sets = result.sets;
  report.recorded = std::make_shared<const std::vector<EvaluatedAnswer>>(std::move(result.recorded));
  for (const EvaluationResult::Sample& sample : result.samples) report.samples.push_back(ShownSample(sample));
  parts_.checkpoints->AddScore({result.version, result.reward_mean, result.exact});
  LearningAlarms& alarms = parts_.alarms->alarms();
  alarms.AddEvaluation(result.reward_mean);
  report.alarms = parts_.alarms->LogStanding(result.version);
  report.best_reward_mean = *alarms.best_evaluation();
  parts_.observer->RecordEvaluation(report);
}

void EvaluationRounds::Finish(const PolicyVersion& version, const PolicyVersion& published, absl::Duration patience) {
  const absl::Time deadline = Now() + patience;
  finishing_ = true;  // the last one makes up for all
  if (missed_ == version) missed_.reset();
  LoseMissed();
  if (parts_.data->EvaluationIsServed()) AwaitEnd(deadline);
  if (evaluated_ != version && published == version) Begin(version, /*is_due=*/true);
  AwaitEnd(deadline);
  // A sync that fails is tried again, and given up by SyncWatch, which then stops this loop.
  while (under_way_ && parts_.syncs_fail && parts_.syncs_fail() && !parts_.control->stop_requested()) {
    AwaitEnd(Now() + patience);
  }
  if (under_way_ && is_due_) Lose(evaluated_, "it did not end in time");
}

void EvaluationRounds::AwaitEnd(absl::Time deadline) {
  while (under_way_ && Now() < deadline && !parts_.control->stop_requested()) {
    Collect(std::min(deadline, Now() + kPoll));
  }
}

}  // namespace syncopate::trainer
