#include "trainer/data/data_status.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {
namespace {

RolloutView MakeView(const RolloutSession& session, int64_t step, const DataStatusInputs& inputs) {
  const absl::Duration quarantine = session.conduct.quarantined_until - inputs.now;
  return {.replica_id = session.member.replica_id,
          .incarnation = session.member.incarnation,
          .serving = session.serving,
          // A rollouter may still serve a step that a restore has undone.
          .publish_lag_steps = session.serving.IsNone() ? step : std::max<int64_t>(0, step - session.serving.step),
          .leased_groups = session.pace.open(),
          .credits = session.room / inputs.samples,
          .accepted_groups = session.accepted,
          .invalid_groups = session.invalid,
          .returned_groups = session.returned,
          .stalled_groups = static_cast<int64_t>(session.stalled.size()),
          .quarantine_seconds = absl::ToDoubleSeconds(std::max(quarantine, absl::ZeroDuration())),
          .last_fault = session.conduct.invalid_in_row == 0 ? "" : std::string(session.conduct.last_fault.message()),
          .no_rewards = session.no_rewards};
}

// Names the reward as the cause of the wait if nothing is leased and the judge's tokens are spent or a rollouter has no
// reward, or if the reward alarm is on.
void ExplainRewards(const LeaseDesk& desk, int64_t judge_tokens, Explanation* explanation) {
  const GroupLedger& ledger = desk.ledger();
  if (desk.IsJudgeSpent(judge_tokens) && ledger.leased_groups() == 0) {
    explanation->waiting_for = "rewards";
    explanation->rollouter.clear();
    explanation->detail = absl::StrCat("the judge has used ", desk.roster().Total().judge_tokens,
                                       " tokens, and reward.judge_tokens is ", judge_tokens);
    explanation->unblocked_by = "a resume with a larger reward.judge_tokens";
    return;
  }
  const RewardFailures::Figures& rewards = ledger.rewards().figures();
  const auto& sessions = ledger.sessions().all();
  const auto without = std::find_if(sessions.begin(), sessions.end(),
                                    [](const auto& entry) { return !entry.second.no_rewards.empty(); });
  if (without != sessions.end() && ledger.leased_groups() == 0) {
    explanation->waiting_for = "rewards";
    explanation->rollouter = without->second.member.replica_id;
    explanation->detail = absl::StrCat(explanation->rollouter, " asks for no work: ", without->second.no_rewards);
    explanation->unblocked_by = "the worker or the service that gives rewards";
  } else if (rewards.alarm) {
    explanation->waiting_for = "rewards";
    explanation->rollouter.clear();
    explanation->detail = absl::StrCat(rewards.recent_failed, " of the last ", rewards.recent,
                                       " groups got no reward, the last: ", rewards.last);
    explanation->unblocked_by = "a reward that can judge these rows";
  }
}

Explanation Explain(const LeaseDesk& desk, const DataStatusInputs& inputs) {
  const GroupLedger& ledger = desk.ledger();
  Explanation explanation = ledger.Explain(inputs.now);
  const Evaluation* const evaluation = desk.evaluations().current();
  if (evaluation != nullptr && !evaluation->done() && !ledger.in_step()) {
    explanation.waiting_for = "evaluation";
    explanation.since_seconds = absl::ToDoubleSeconds(inputs.now - desk.evaluations().since());
    explanation.detail = absl::StrCat(evaluation->answered(), " of ", evaluation->asked(),
                                      " evaluation prompts are answered by ", evaluation->options().version.ToString());
    explanation.unblocked_by = "answers of rollouters that serve that version";
  }
  // Each later cause overrides an earlier one: without rewards no group can be accepted, and without the disk no record
  // can be written.
  if (!ledger.in_step() && !ledger.HasBatch()) ExplainRewards(desk, inputs.judge_tokens, &explanation);
  if (inputs.disk->stands()) inputs.disk->Explain(inputs.now, &explanation);
  return explanation;
}

}  // namespace

DataStatus MakeDataStatus(const LeaseDesk& desk, const DataStatusInputs& inputs) {
  const GroupLedger& ledger = desk.ledger();
  DataStatus status{.version = ledger.version(),
                    .explanation = Explain(desk, inputs),
                    .groups = ledger.counters(),
                    .sums = inputs.sums,
                    .leases = desk.counts(),
                    .rewards = ledger.rewards().figures(),
                    .reward_verdict = ledger.rewards().verdict(),
                    .queued_groups = ledger.queued_groups(),
                    .leased_groups = ledger.leased_groups(),
                    .unfinished_bytes = ledger.partial_answers().bytes(),
                    .answered_time_ratio = ledger.flow().answered_time_ratio(),
                    .kept_length_ratio = ledger.flow().kept_length_ratio(),
                    .staleness_bound = inputs.max_staleness,
                    .staleness = ledger.staleness(),
                    .rollouters = {}};
  for (const auto& [id, session] : ledger.sessions().all()) {
    status.rollouters.push_back(MakeView(session, ledger.version().step, inputs));
  }
  return status;
}

}  // namespace syncopate::trainer
