// The text form of a SyncResult.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/text_table.h"
#include "bench/sync/sync_result.h"

namespace syncopate::bench {
namespace {

constexpr double kMega = 1e6;  // decimal units, as vendors state the rates of links
constexpr double kGiga = 1e9;

std::string Ms(double seconds) { return absl::StrFormat("%.3f", seconds * 1e3); }

std::string Size(int64_t bytes) {
  return bytes >= 100 * kMega ? absl::StrFormat("%.2f GB", bytes / kGiga) : absl::StrFormat("%.2f MB", bytes / kMega);
}

std::vector<std::string> Row(const std::string& name, const Spread& spread) {
  return {name, Ms(spread.median), Ms(spread.min), Ms(spread.max)};
}

std::string PhaseTable(const SyncResult& result) {
  using Align = TextTable::Align;
  TextTable table({{"PHASE", Align::kLeft},
                   {"MEDIAN ms", Align::kRight},
                   {"MIN", Align::kRight},
                   {"MAX", Align::kRight},
                   {"FIRST SYNC", Align::kRight}});
  const auto spreads = PhaseSpreads(result.samples);
  const auto first = PhaseSpreads(result.first);
  for (const std::string& phase : SyncPhases()) {
    std::vector<std::string> cells = Row(phase, spreads.at(phase));
    cells.push_back(first.at(phase).count == 0 ? "-" : Ms(first.at(phase).max));
    table.AddRow(std::move(cells));
  }
  std::vector<double> pauses;
  for (const SyncSample& sample : result.samples) {
    if (sample.ok()) pauses.push_back(sample.pause_seconds);
  }
  const std::vector<std::pair<std::string, Spread>> more = {
      {"publish to commit", CommitTimes(result.samples, /*staged=*/false)},
      {"pause of decoding", ComputeSpread(pauses)},
      {"trainer's stall", result.steps.wait_seconds}};
  for (const auto& [name, spread] : more) {
    std::vector<std::string> cells = Row(name, spread);
    cells.push_back("");
    table.AddRow(std::move(cells));
  }
  return table.ToString();
}

std::string RateLine(const SyncResult& result) {
  const Spread rates = ReceiverRates(result);
  std::string line = absl::StrFormat("each receiver: %.2f GB/s (%.2f to %.2f)", rates.median / kGiga, rates.min / kGiga,
                                     rates.max / kGiga);
  if (result.ceiling.name.empty()) return absl::StrCat(line, "\n");
  absl::StrAppendFormat(&line, "; ceiling %.2f GB/s (%s), ratio %.3f\n", result.ceiling.bytes_per_second / kGiga,
                        result.ceiling.name, rates.median / result.ceiling.bytes_per_second);
  return line;
}

std::string DecodeLine(const SyncResult& result) {
  const double share = DecodeShare(result);
  return share > 0 ? absl::StrFormat("tokens during transfers: %.3f of the calm rate\n", share) : "";
}

std::string StepsLine(const SyncResult& result) {
  const StepCosts& steps = result.steps;
  if (steps.rate_share() == 0) return "";
  return absl::StrFormat("a step takes %s ms beside a publication and %s ms otherwise: %.3f of the rate\n",
                         Ms(steps.beside_seconds.median), Ms(steps.calm_seconds.median), steps.rate_share());
}

std::string MemoryLines(const SyncResult& result) {
  std::string text = "memory after the warm-up and at the end:";
  for (const MemoryUse& use : result.memory) {
    absl::StrAppend(&text, " ", use.process, " ", Size(use.before_bytes), " ", Size(use.after_bytes), ";");
  }
  if (!result.memory.empty()) text.back() = '\n';
  return result.memory.empty() ? "" : text;
}

std::string FaultLine(const SyncResult& result) {
  const FaultOutcome& fault = result.fault;
  std::string line = absl::StrCat(result.sync_case.fault.kind == BenchFault::Kind::kKill ? "SIGKILL" : "SIGSTOP",
                                  " of the ", result.sync_case.fault.target, " at ", result.sync_case.fault.stage, ":");
  if (!fault.reasons.empty()) {
    absl::StrAppendFormat(&line, " noticed after %.2f s (%s),", fault.declared_seconds,
                          absl::StrJoin(fault.reasons, ", "));
  }
  if (fault.mended_seconds > 0) absl::StrAppendFormat(&line, " started again after %.2f s,", fault.mended_seconds);
  absl::StrAppendFormat(&line, " all survivors serve after %.2f s, devices %s\n", fault.recovered_seconds,
                        fault.healthy ? "healthy" : "BROKEN");
  return line;
}

std::string EventLines(const SyncResult& result) {
  std::string text;
  if (result.late.ran) {
    absl::StrAppendFormat(&text, "late joiner: serves %.2f s after its start; total of the others meanwhile %s ms\n",
                          result.late.start_to_serving_seconds, Ms(result.late.others_total_seconds.max));
  }
  if (result.fault.ran) absl::StrAppend(&text, FaultLine(result));
  return text;
}

}  // namespace

std::string ToText(const SyncResult& result) {
  std::string text =
      absl::StrCat(result.sync_case.ToString(), " on ", result.machine, ": ", Size(result.weight_bytes),
                   " of weights in ", result.messages, " messages, ", result.sync_case.syncs, " syncs\n");
  // The last sync's reason: with `auto` the first syncs may have used a slower transport.
  if (!result.samples.empty()) {
    absl::StrAppend(&text, "transport: ", result.samples.back().transport_reason, "\n");
  }
  absl::StrAppend(&text, PhaseTable(result), RateLine(result), DecodeLine(result), StepsLine(result),
                  MemoryLines(result), EventLines(result));
  absl::StrAppend(&text, "digests ", result.digests_equal ? "equal" : "DIFFER", "; phases explain the totals within ",
                  absl::StrFormat("%.2f", 100 * WorstPhaseGap(result.samples)), " %\n");
  return text;
}

}  // namespace syncopate::bench
