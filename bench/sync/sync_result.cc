#include "bench/sync/sync_result.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace syncopate::bench {
namespace {

using nlohmann::json;

double GetPhase(const SyncSample& sample, const std::string& phase) {
  auto found = sample.seconds.find(phase);
  return found == sample.seconds.end() ? 0.0 : found->second;
}

json ToJson(const Spread& spread) {
  // A value that was not measured is null, not 0.
  if (spread.count == 0) return nullptr;
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}, {"count", spread.count}};
}

json PhasesToJson(const std::vector<SyncSample>& samples) {
  json phases = json::object();
  for (const auto& [phase, spread] : PhaseSpreads(samples)) phases[phase] = ToJson(spread);
  return phases;
}

Spread SpreadOver(const std::vector<SyncSample>& samples, double SyncSample::*member) {
  std::vector<double> values;
  for (const SyncSample& sample : samples) {
    if (sample.ok()) values.push_back(sample.*member);
  }
  return ComputeSpread(std::move(values));
}

json CaseToJson(const SyncCase& sync_case) {
  json object = {{"model", sync_case.model},
                 {"sources", sync_case.sources},
                 {"replicas", sync_case.replicas},
                 {"tp", sync_case.tensor_parallel},
                 {"transport", sync_case.transport},
                 {"layers", sync_case.layers},
                 {"install", sync_case.cpu && sync_case.install == "remap" ? "swap" : sync_case.install},
                 {"source_layout", MakeSourceLayout(sync_case)},
                 {"decode", sync_case.decode},
                 {"calm", sync_case.calm},
                 {"syncs", sync_case.syncs},
                 {"warmup", sync_case.warmup},
                 {"device", sync_case.cpu ? "cpu" : "cuda"}};
  if (sync_case.fault.kind != BenchFault::Kind::kNone) {
    object["fault"] = {{"kind", sync_case.fault.kind == BenchFault::Kind::kKill ? "kill" : "stop"},
                       {"target", sync_case.fault.target},
                       {"at", sync_case.fault.stage}};
  }
  return object;
}

json StepsToJson(const StepCosts& steps) {
  return {{"wait_seconds", ToJson(steps.wait_seconds)},
          {"stage_seconds", ToJson(steps.stage_seconds)},
          {"beside_publication_seconds", ToJson(steps.beside_seconds)},
          {"calm_seconds", ToJson(steps.calm_seconds)},
          {"rate_share", steps.rate_share()}};
}

json DecodeToJson(const SyncResult& result) {
  json receivers = json::array();
  for (const DecodeRates& rates : result.decode) {
    receivers.push_back({{"receiver", rates.receiver},
                         {"calm_steps", rates.calm_steps},
                         {"calm_seconds", rates.calm_seconds},
                         {"transfer_steps", rates.transfer_steps},
                         {"transfer_seconds", rates.transfer_seconds},
                         {"longest_gap_seconds", rates.longest_gap_seconds}});
  }
  return {{"share_during_transfer", DecodeShare(result)}, {"receivers", receivers}};
}

json MemoryToJson(const std::vector<MemoryUse>& memory) {
  json list = json::array();
  for (const MemoryUse& use : memory) {
    list.push_back({{"process", use.process}, {"before_bytes", use.before_bytes}, {"after_bytes", use.after_bytes}});
  }
  return list;
}

json FaultToJson(const FaultOutcome& fault) {
  return {{"declared_seconds", fault.declared_seconds},
          {"mended_seconds", fault.mended_seconds},
          {"recovered_seconds", fault.recovered_seconds},
          {"reasons", fault.reasons},
          {"healthy", fault.healthy}};
}

}  // namespace

// Median and extremes, no mean: one sync that the machine disturbed must not change the figure.
Spread ComputeSpread(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back(), static_cast<int64_t>(values.size())};
}

bool SyncSample::from_publication() const { return GetPhase(*this, "stage") > 0; }

double StepCosts::rate_share() const {
  if (calm_seconds.count == 0 || beside_seconds.count == 0 || beside_seconds.median <= 0) return 0;
  return calm_seconds.median / beside_seconds.median;
}

const std::vector<std::string>& SyncPhases() {
  static const auto* const phases =
      new std::vector<std::string>{"stage", "prepare", "transfer", "verify", "install", "total"};
  return *phases;
}

std::map<std::string, Spread> PhaseSpreads(const std::vector<SyncSample>& samples) {
  std::map<std::string, Spread> spreads;
  for (const std::string& phase : SyncPhases()) {
    std::vector<double> values;
    for (const SyncSample& sample : samples) {
      if (sample.ok()) values.push_back(GetPhase(sample, phase));
    }
    spreads[phase] = ComputeSpread(std::move(values));
  }
  return spreads;
}

// Phases are measured by different processes. If they do not add up to the total, some time is not accounted for, and
// the breakdown is not reliable.
double WorstPhaseGap(const std::vector<SyncSample>& samples) {
  double worst = 0;
  for (const SyncSample& sample : samples) {
    const double total = GetPhase(sample, "total");
    if (!sample.ok() || total <= 0) continue;
    double parts = 0;
    for (const std::string& phase : SyncPhases()) {
      if (phase != "total") parts += GetPhase(sample, phase);
    }
    worst = std::max(worst, std::abs(total - parts) / total);
  }
  return worst;
}

// The synchronizer adds the staging to attempts that begin with a publication, and to no others.
Spread CommitTimes(const std::vector<SyncSample>& samples, bool staged) {
  std::vector<double> seconds;
  for (const SyncSample& sample : samples) {
    if (!sample.ok() || !sample.from_publication()) continue;
    seconds.push_back(GetPhase(sample, "total") - (staged ? 0 : GetPhase(sample, "stage")));
  }
  return ComputeSpread(std::move(seconds));
}

Spread ReceiverRates(const SyncResult& result) {
  std::vector<double> rates;
  for (const SyncSample& sample : result.samples) {
    const double seconds = GetPhase(sample, "transfer");
    if (!sample.ok() || seconds <= 0) continue;
    // The bytes go to the whole replica; each of its ranks gets its share at the same time.
    rates.push_back(static_cast<double>(sample.bytes) / result.sync_case.tensor_parallel / seconds);
  }
  return ComputeSpread(std::move(rates));
}

double DecodeShare(const SyncResult& result) {
  double calm_steps = 0;
  double calm_seconds = 0;
  double transfer_steps = 0;
  double transfer_seconds = 0;
  for (const DecodeRates& rates : result.decode) {
    calm_steps += rates.calm_steps;
    calm_seconds += rates.calm_seconds;
    transfer_steps += rates.transfer_steps;
    transfer_seconds += rates.transfer_seconds;
  }
  if (calm_steps <= 0 || calm_seconds <= 0 || transfer_seconds <= 0) return 0;
  // The rate of all receivers together: a short window of one receiver is too noisy.
  return (transfer_steps / transfer_seconds) / (calm_steps / calm_seconds);
}

json ToJson(const SyncResult& result) {
  const Spread rates = ReceiverRates(result);
  const Spread commit = CommitTimes(result.samples, /*staged=*/false);
  const Spread transfer = PhaseSpreads(result.samples).at("transfer");
  json object = {{"case", CaseToJson(result.sync_case)},
                 {"machine", result.machine},
                 {"weight_bytes", result.weight_bytes},
                 {"messages", result.messages},
                 {"transport", result.samples.empty() ? "" : result.samples.back().transport},
                 {"transport_reason", result.samples.empty() ? "" : result.samples.back().transport_reason},
                 {"first_seconds", PhasesToJson(result.first)},
                 {"seconds", PhasesToJson(result.samples)},
                 {"worst_phase_gap", WorstPhaseGap(result.samples)},
                 {"stage_to_commit_seconds", ToJson(CommitTimes(result.samples, /*staged=*/true))},
                 {"publish_to_commit_seconds", ToJson(commit)},
                 {"publish_to_commit_ratio", transfer.median > 0 ? json(commit.median / transfer.median) : json()},
                 {"pause_seconds", ToJson(SpreadOver(result.samples, &SyncSample::pause_seconds))},
                 {"trainer_stall_seconds", ToJson(result.steps.wait_seconds)},
                 {"steps", StepsToJson(result.steps)},
                 {"receiver_bytes_per_second", ToJson(rates)},
                 {"decode", DecodeToJson(result)},
                 {"memory", MemoryToJson(result.memory)},
                 {"digests_equal", result.digests_equal}};
  if (!result.ceiling.name.empty()) {
    object["ceiling"] = {{"name", result.ceiling.name},
                         {"bytes_per_second", result.ceiling.bytes_per_second},
                         {"ratio", rates.median / result.ceiling.bytes_per_second}};
  }
  if (result.late.ran) {
    object["late_joiner"] = {{"start_to_serving_seconds", result.late.start_to_serving_seconds},
                             {"others_total_seconds", ToJson(result.late.others_total_seconds)}};
  }
  if (result.fault.ran) object["fault"] = FaultToJson(result.fault);
  return object;
}

}  // namespace syncopate::bench
