#include "trainer/record/run_summary.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/console/words.h"

namespace syncopate::trainer {
namespace {

using nlohmann::json;

json SyncSummary(const synchronizer::SyncTally& syncs) {
  const synchronizer::SyncTally::Times& total = syncs.sums().total;
  return {{"count", syncs.count()},
          {"failed", syncs.Count(synchronizer::SyncOutcome::kFailed)},
          {"relabelled", syncs.Count(synchronizer::SyncOutcome::kRelabelled)},
          {"superseded", syncs.Count(synchronizer::SyncOutcome::kSuperseded)},
          {"total_ms",
           {{"p50", absl::ToDoubleMilliseconds(total.Quantile(0.5))},
            {"p99", absl::ToDoubleMilliseconds(total.Quantile(0.99))},
            {"max", absl::ToDoubleMilliseconds(total.longest)}}},
          {"bytes", syncs.sums().bytes.total()}};
}

json GroupSummary(const TrainingSums& groups, const FlowSums& flow) {
  // Counts every group that arrived: each was accepted, failed, was a duplicate or came too late.
  return {{"generated", groups.accepted + flow.failed_attempts + flow.duplicate + flow.expired},
          {"acked", groups.accepted},
          {"trained", groups.trained},
          {"dropped",
           {{"stale", groups.dropped_stale},
            {"filtered", groups.filtered},
            {"failed", groups.failed},
            {"expired", flow.expired},
            {"rolled_back", groups.rolled_back},
            {"skipped", groups.skipped},
            {"past_deadline", groups.past_deadline}}},
          {"duplicate", flow.duplicate},
          {"invalid", json(flow.invalid)},
          {"failed_attempts", flow.failed_attempts},
          {"superseded", flow.superseded},
          {"reissued", flow.reissued}};
}

// Returns the figures of rollouters that answered, then the last known figures of the others.
std::vector<RollouterFigures> AllRollouters(const RolloutRoster& roster, const RunWitnesses& witnesses) {
  std::vector<RollouterFigures> figures = witnesses.rollouters;
  std::set<std::string> answered;
  for (const RollouterFigures& one : figures) answered.insert(one.incarnation);
  for (const RolloutRoster::Entry& entry : roster.entries()) {
    if (answered.contains(entry.member.incarnation)) continue;
    figures.push_back({entry.member.replica_id, entry.member.incarnation, entry.serving, entry.work, false});
  }
  return figures;
}

// Adds "rollouters", "tokens" and "idle".
void AddRollouters(const SummaryInput& input, const RunWitnesses& witnesses, json* summary) {
  // Includes the work of rollouters under earlier incarnations of the trainer.
  RolloutRoster::Work all = input.flow.roster.earlier();
  (*summary)["rollouters"] = json::array();
  for (const RollouterFigures& one : AllRollouters(input.flow.roster, witnesses)) {
    all.generated_tokens += one.work.generated_tokens;
    all.busy_seconds += one.work.busy_seconds;
    all.idle_seconds += one.work.idle_seconds;
    (*summary)["rollouters"].push_back({{"id", one.replica_id},
                                        {"incarnation", one.incarnation},
                                        {"alive", one.answered},
                                        {"groups", one.work.groups_submitted},
                                        {"tokens", one.work.generated_tokens},
                                        {"version", one.version.ToString()}});
  }
  (*summary)["tokens"] = {{"generated", all.generated_tokens},
                          {"trained", input.data.sums.staleness.total_tokens() + input.data.sums.supervised_tokens},
                          {"masked", input.data.sums.staleness.masked_tokens}};
  const RunFigures& figures = input.flow.figures;
  (*summary)["idle"] = {{"trainer", Share(figures.wait_seconds, figures.step_seconds)},
                        {"rollouters", Share(all.idle_seconds, all.busy_seconds + all.idle_seconds)}};
}

}  // namespace

json MakeSummary(const SummaryInput& input, const RunWitnesses& witnesses) {
  auto or_null = [](const std::optional<double>& figure) { return figure.has_value() ? json(*figure) : json(); };
  const StalenessTally& staleness = input.data.sums.staleness;
  const RunFigures& evaluations = input.flow.figures;
  const synchronizer::SyncTally::Times& pause = witnesses.syncs.sums().pause;
  json summary = {
      {"status", input.status},
      {"steps", input.data.version.step},
      {"wall_seconds", input.flow.wall_seconds},
      {"eval",
       {{"best", or_null(evaluations.best_reward)},
        {"last", or_null(evaluations.last_reward)},
        {"held_out_loss",
         {{"best", or_null(evaluations.best_held_out_loss)}, {"last", or_null(evaluations.last_held_out_loss)}}},
        {"exact", {{"best", or_null(evaluations.best_exact)}, {"last", or_null(evaluations.last_exact)}}}}},
      {"checkpoints",
       {{"saved", evaluations.saved_checkpoints},
        {"failed", evaluations.failed_checkpoints},
        {"best", input.best_checkpoint.empty() ? json() : json(input.best_checkpoint)},
        {"best_reward", input.best_checkpoint.empty() ? json() : json(input.best_checkpoint_reward)}}},
      {"evaluations", {{"made", evaluations.evaluations_made}, {"lost", evaluations.evaluations_lost}}},
      {"syncs", SyncSummary(witnesses.syncs)},
      {"pause_ms",
       {{"p50", absl::ToDoubleMilliseconds(pause.Quantile(0.5))}, {"max", absl::ToDoubleMilliseconds(pause.longest)}}},
      {"groups", GroupSummary(input.data.sums, input.flow)},
      {"staleness",
       {{"mean", staleness.Mean()},
        {"max", staleness.Max()},
        {"violations", staleness.violating_groups},
        {"bound", input.data.staleness_bound}}}};
  AddRollouters(input, witnesses, &summary);
  return summary;
}

bool IsSummaryFor(const std::string& text, int64_t step, const std::string& status) {
  const json summary = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object() || summary.value("steps", json()) != step) return false;
  return status != "completed" || summary.value("status", json()) == status;
}

}  // namespace syncopate::trainer
